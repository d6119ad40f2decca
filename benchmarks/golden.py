"""Golden logs: what every preset does on every family of environments, to compare versions.

    python benchmarks/golden.py record out/golden.json
    python benchmarks/golden.py compare out/golden.json

Each run has twenty rounds at small sizes. One run of every family is stopped half-way and resumed.
All digits of ``metrics.jsonl`` are kept (losses, diagnostics, returns, evaluations). They are equal
to the bit on one machine with one version of JAX; elsewhere they differ in the last digits.
"""

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from rich.console import Console

import spectral_bellman
from spectral_bellman.agents.choices import KINDS, flat
from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.environments.catalogue import make
from spectral_bellman.environments.probes import probes
from spectral_bellman.training.config import configure

CLOCK = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")
SMALL = {
    "features": 12,
    "batch": 16,
    "updates": 6,
    "q_steps": 2,
    "warmup_steps": 64,
    "hidden": (16,),
}
SIZES = {
    "num_envs": 4,
    "round_steps": 8,
    "replay_capacity": 400,
    "eval_episodes": 2,
    "eval_max_steps": 30,
}
ENVS: dict[str, dict[str, Any]] = {
    "deep_sea/6": {},
    "minatar/breakout": {},
    "gym/CartPole-v1": {},
    "atari/pong": {"groups": 2, "cores": 1},
    "probe": {},
}
MORE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ucb": ("sbm-dqn-ts", "deep_sea/6", {"exploration": "ucb"}),
    "propagated": ("sbm-dqn-ts", "deep_sea/6", {"exploration": "propagated"}),
    "propagated on features of dqn": ("dqn-ts", "deep_sea/6", {"exploration": "propagated"}),
    "least squares": (
        "sbm-dqn-ts",
        "probe",
        {"q_solver": "least_squares", "norm": "unit", "representation": "spectral"},
    ),
    "bound": ("sbm-dqn-ts", "probe", {"noise_bound": True}),
}


def environment(name: str) -> Any:
    """The environment; a probe is an object."""
    return jax.tree.map(lambda leaf: leaf[3], probes()[1]) if name == "probe" else name


def run(preset: str, env: str, settings: dict[str, Any], *, stop: bool) -> list[dict[str, Any]]:
    """The log of a run; with ``stop`` it is cut after ten rounds, and resumed."""
    folder = Path(tempfile.mkdtemp()) / "run"
    skip = 4 if env.startswith("atari/") else 1
    frames = 20 * SIZES["num_envs"] * SIZES["round_steps"] * skip
    every = {"log_frames": frames // 10, "eval_frames": frames // 2}
    spec = make(environment(env))
    choices = {name: value for name, value in settings.items() if name in KINDS}
    used = flat(configure(preset, spec, choices).agent)
    small = {name: value for name, value in SMALL.items() if name in used}
    if env.startswith(("minatar/", "atari/")):
        del small["hidden"]  # their torsos have layers of their own sizes
    given = {**small, **SIZES, "score_episodes": 2, **ENVS[env], **every, **settings}
    console = Console(quiet=True)
    spectral_bellman.train(
        preset,
        environment(env),
        out=folder,
        console=console,
        frames=frames // 2 if stop else frames,
        **given,
    )
    if stop:
        spectral_bellman.resume(
            folder, environment(env) if env == "probe" else None, frames=frames, console=console
        )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(folder.parent)
    return sorted(
        ({key: value for key, value in line.items() if key not in CLOCK} for line in lines),
        key=lambda line: (line["frames"], "eval_return" in line, line["seed"]),
    )


def cases() -> dict[str, tuple[str, str, dict[str, Any], bool]]:
    """Name -> preset, environment, settings, whether it is stopped."""
    found: dict[str, tuple[str, str, dict[str, Any], bool]] = {}
    for env in ENVS:
        for preset in PRESETS:
            if env.startswith("atari/") or preset != "dqn-dopamine":
                found[f"{preset} {env}"] = (preset, env, {}, False)
        found[f"sbm-dqn-ts {env} resumed"] = ("sbm-dqn-ts", env, {}, True)
    for name, (preset, env, settings) in MORE.items():
        found[f"{preset} {env} {name}"] = (preset, env, settings, False)
    return found


def differences(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[float, str]:
    """The largest relative difference of two logs, and where it is."""
    worst, where = 0.0, ""
    # Evaluations in the background have lines of their own, and versions differ in their number.
    lines = {(line["frames"], line["seed"], "return" in line): line for line in new}
    for before in old:
        place = (before["frames"], before["seed"], "return" in before)
        if place not in lines:
            return math.inf, f"no line at {before['frames']}"
        after = lines[place]
        for key in before.keys() & after.keys():
            a, b = before[key], after[key]
            if a == b:
                continue
            none = a is None or b is None
            size = math.inf if none else abs(a - b) / max(abs(a), abs(b), 1e-12)
            if size > worst:
                worst, where = size, f"{key} at {before['frames']}: {a} and {b}"
    return worst, where


def main(
    what: tyro.conf.Positional[Literal["record", "compare"]],
    file: tyro.conf.Positional[Path],
    only: str = "",
) -> None:
    """Record into, or compare with, ``file``.

    ``only``: parts of names, with commas between them; runs without any of them are left out.
    """
    kept = json.loads(file.read_text()) if file.exists() else {}
    different = 0
    for name, (preset, env, settings, stop) in cases().items():
        if only and not any(part in name for part in only.split(",")):
            continue
        log = run(preset, env, settings, stop=stop)
        if what == "record":
            kept[name] = log
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(kept, indent=0))
            print(name, "recorded", flush=True)
        elif name in kept:
            worst, where = differences(kept[name], log)
            different += worst > 0
            gone = sorted(
                {key for line in kept[name] for key in line} - {key for line in log for key in line}
            )
            lost = f" (no longer logged: {', '.join(gone)})" if gone else ""
            print(
                f"{name}: {'equal' if worst == 0 else f'differs by {worst:.2g}, {where}'}{lost}",
                flush=True,
            )
        else:
            print(f"{name}: not recorded", flush=True)
    if what == "compare":
        print(f"{different} differ")


if __name__ == "__main__":
    tyro.cli(main)
