"""Small runs of every kind, which share what is compiled."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from spectral_bellman.agents.choices import KINDS
from spectral_bellman.environments import make
from spectral_bellman.training import runner as module
from spectral_bellman.training import train
from spectral_bellman.training.config import configure, flat
from spectral_bellman.training.device_runner import DeviceRunner

QUIET = Console(quiet=True)
WALL_CLOCK = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")
SMALL: dict[str, Any] = {
    "hidden": (16,),
    "features": 8,
    "batch": 16,
    "theta_samples": 8,
    "updates": 5,
    "q_steps": 2,
    "precision_samples": 64,
    "warmup_steps": 40,
    "eval_episodes": 2,
    "score_episodes": 3,
    "checkpoint_minutes": 0.0,
}
FEW: dict[str, Any] = {
    "num_envs": 4,
    "round_steps": 16,
    "warmup_steps": 128,
    "batch": 32,
    "updates": 8,
    "log_frames": 400,
    "eval_episodes": 1,
    "score_episodes": 1,
}
"""Host environments for two actors."""
SHORT: dict[str, Any] = {"lstm": 8, "burn_in": 2, "trained": 4, "period": 2}
"""Sequences that go on from round to round."""
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # The one that compiles soonest, for tests that are not about the agent.
    "quick": ("dqn", "deep_sea/4", {"seeds": 1, "frames": 240, "num_envs": 2}),
    "device, one seed": ("sbm-dqn-ts", "deep_sea/4", {"seeds": 1, "frames": 240, "num_envs": 2}),
    "device, seeds": (
        "sbm-dqn-ts",
        "deep_sea/4",
        {"seeds": 2, "frames": 240, "num_envs": 2, "exploration": "propagated"},
    ),
    "host": (
        "sbm-dqn-ts",
        "gym/CartPole-v1",
        {
            "seeds": 2,
            "frames": 300,
            "num_envs": 4,
            "groups": 2,
            "round_steps": 5,
            "staleness": 2,
            "replay_capacity": 200,
            "dispatch_steps": 1,
        },
    ),
    "recurrent, device": (
        "sbm-r2d2-ts",
        "t_maze/3",
        {"seeds": 2, "frames": 240, "num_envs": 2, "round_steps": 5, **SHORT},
    ),
    "recurrent, host": (
        "sbm-r2d2",
        "gym/CartPole-v1",
        {
            "seeds": 1,
            "frames": 300,
            "num_envs": 4,
            "groups": 2,
            "round_steps": 5,
            "replay_capacity": 200,
            "dispatch_steps": 1,
            **SHORT,
        },
    ),
    "atari": (
        "sbm-dqn-ts",
        "atari/breakout",
        {
            "seeds": 1,
            "frames": 2_400,
            "log_frames": 160,
            "num_envs": 4,
            "groups": 2,
            "round_steps": 5,
            "replay_capacity": 200,
            "dispatch_steps": 1,
            "network": "mlp",
            "episode_frames": 240,
            "eval_frames": 800,
            "eval_max_steps": 100,
            "cores": 2,
        },
    ),
}

_SHARED: dict[Any, Any] = {}
_BUILD, _PREPARE = module.build, DeviceRunner.prepare


def shared_build(config, spec, opener=None):
    """``runner.build``, whose runners have the programs of those before them, if they may."""
    runners = _BUILD(config, spec, opener)
    # These settings are in no program.
    kind = dataclasses.replace(
        config,
        frames=10**6,
        eval_frames=1,
        seeds=1,
        checkpoint_minutes=1.0,
        checkpoint_keep=1,
        host=config.host and dataclasses.replace(config.host, checkpoint_replay="on"),
    )
    first = runners.runners[0]
    shared = _SHARED.setdefault((spec.name, kind), first._compiler if runners.host else first)
    for one in runners.runners:
        if runners.host:
            one._compiler = shared
        else:
            one.programs = shared.programs
    return runners


def prepare_once(self: DeviceRunner) -> None:
    if "learn" not in self.programs:
        _PREPARE(self)


def share_programs(patch) -> None:
    """Compile once for all runs of a module; ``patch`` is a ``MonkeyPatch``."""
    patch.setattr(module, "build", shared_build)
    patch.setattr(DeviceRunner, "prepare", prepare_once)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a run: of the small ones, those that its agent uses."""
    preset, env, settings = RUNS[name]
    chosen = {kind: settings[kind] for kind in KINDS if kind in settings}
    known = flat(configure(preset, make(env), chosen))
    return {**{name: value for name, value in SMALL.items() if name in known}, **settings}


def run(name: str, folder: Path, console: Console = QUIET, **changes):
    preset, env, _ = RUNS[name]
    return train(preset, env, out=folder, console=console, **{**settings_of(name), **changes})


def metrics(folder: Path) -> list[dict]:
    """What was logged of each seed at each point, without times.

    A background evaluation has a line of its own, which was written when it ended.
    """
    points: dict[tuple[int, int], dict] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = {k: v for k, v in json.loads(line).items() if k not in WALL_CLOCK}
        points.setdefault((record["frames"], record["seed"]), {}).update(record)
    return [points[place] for place in sorted(points)]


def lines_in(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
