"""A run from its first round to its summary: ``train`` and ``resume``, which the command line calls too."""

import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console
from rich.progress import Progress

from spectral_bellman.agents.presets import PRESETS, preset_settings
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import DeepSea, GymEnvironments, Made, make
from spectral_bellman.environments.atari import AtariEnvironments, AtariProtocol
from spectral_bellman.environments.gym import HostEnvironments
from spectral_bellman.training import checkpoint, memory, segments
from spectral_bellman.training.config import TrainConfig, override, read_config
from spectral_bellman.training.device_loop import DeviceLoop
from spectral_bellman.training.host_loop import HostLoop, Opener
from spectral_bellman.training.logs import Bar, MetricsLog, say
from spectral_bellman.training.rounds import NEVER
from spectral_bellman.training.seeds import Seeds

CLOCK = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")
"""What a line of the log says about time and cost, which no two runs share."""


class Result(NamedTuple):
    """A run that has ended."""

    folder: Path
    summary: dict[str, Any]
    """What ``summary.json`` holds; empty if the run was stopped before its end."""


class Broken(ArithmeticError):
    """A loss that is not finite."""


def train(preset: str, env: Any, *, out: str | Path, console: Console | None = None, **settings: Any) -> Result:
    """Train a preset on an environment and leave a run in the folder ``out``.

        spectral_bellman.train("sbm-dqn-ts", "gym/CartPole-v1", out="out/cartpole", frames=50_000, seeds=3, learning_rate=3e-4)

    Args:
      preset: an agent of ``sbm presets``.
      env: a name of ``sbm envs``; an object with the ``Environment`` protocol; a ``gymnasium.Env``, or a function that makes one.
      out: the run's folder, which must not hold a run yet.
      console: where progress goes; a new one if not given.
      settings: any field of ``TrainConfig``, ``AgentConfig`` or, for Atari, ``AtariProtocol``.
    """
    made = make(env)
    return start(configure(preset, made, settings), made, Path(out), console or Console())


def configure(preset: str, made: Made, settings: dict[str, Any]) -> TrainConfig:
    """The preset's settings on this environment, changed by ``settings``."""
    run, agent = preset_settings(preset, made.family)
    if made.game:
        run |= {"atari": AtariProtocol()}
        if jax.default_backend() == "cpu":  # fewer emulators and shorter rounds, at as many samples per agent step
            fewer = run["num_envs"] * run["round_steps"] // (16 * 16)
            run |= {"num_envs": 16, "round_steps": 16}
            steps = {name: -(-getattr(agent, name) // fewer) for name in ("representation_steps", "q_steps")}
            agent = dataclasses.replace(agent, **steps, target_rounds=agent.target_rounds * fewer)
    if isinstance(made.device, DeepSea):  # whose episodes all have one length: a round is one of them
        size = made.device.size
        run |= {"round_steps": size, "frames": 300 * size, "replay_capacity": 500 * size}
        # A direction for each state and action that can be met, and all of the replay: what was seen must not look unseen.
        width = 2 ** max(7, math.ceil(math.log2(size * (size + 1))))
        suited = {"propagated_iterations": size, "features": width, "hidden": (width,), "precision_samples": 2_000 * size}
        agent = dataclasses.replace(agent, **{k: v for k, v in suited.items() if k not in PRESETS[preset].agent})
    return override(TrainConfig(preset, made.name, agent=agent, **run), settings)


def start(config: TrainConfig, made: Made, folder: Path, console: Console) -> Result:
    """Begin a run in a folder that holds none."""
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} already holds a run: sbm resume {folder} goes on with it, another --out begins anew")
    config = config.resolved()
    _keep_compiled(folder)
    loop = build(config, made)
    with console.status("compiling" + (f", and opening {config.num_envs * config.seeds} emulators" if made.game else "")):
        loop.prepare()
        need = memory.estimate(loop)
    memory.check(need, config)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        log = MetricsLog(folder, config)
        write_json(folder / "config.json", {**dataclasses.asdict(config), "provenance": provenance()})
        if config.atari:
            clip = f"clipped to ±{config.agent.reward_clip:g}" if config.agent.reward_clip else "not clipped"
            say(console, f"{config.env}: {config.atari}; {clip} when learned from")
            kept = (
                f"what is new of a replay of up to {memory.show(need.replay)}" if config.checkpoint_replay == "on" else "no replay"
            )
            say(console, f"a checkpoint every {config.checkpoint_minutes:g} minutes, with {kept} (--checkpoint-replay on or off)")
        loop.init()
        return _go(config, loop, folder, log, 0, 0.0, console)


def resume(folder: str | Path, env: Any = None, *, frames: int | None = None, console: Console | None = None) -> Result:
    """Go on with a run from its newest whole checkpoint.

    Args:
      folder: the run's folder.
      env: the environment, for a run that was given an object.
      frames: a new length, to go on past the old end.
      console: where progress goes.
    """
    folder, console = Path(folder), console or Console()
    config = read_config(folder)
    if frames is not None:
        config = dataclasses.replace(config, frames=frames)
    made = make(config.env if env is None else env)
    with _only_one(folder):
        _keep_compiled(folder)
        loop = build(config, made)
        with console.status("compiling"):
            loop.prepare()
        number, seconds, position = 0, 0.0, 0
        try:
            path, info, problems = load(folder, loop, console)
        except FileNotFoundError:
            warn(console, f"{folder} has no checkpoint yet: the run begins again")
            loop.init()
        else:
            _compare_versions(info["versions"], console)
            number, seconds, position = info["round"], info["wall_s"], info["log_bytes"]
            for problem in problems:
                warn(console, problem)
            say(console, f"resuming {folder} at {number * config.round_frames:,} of {config.frames:,} frames ({path.name})")
        if frames is not None:
            write_json(folder / "config.json", {**dataclasses.asdict(config), "provenance": provenance()})
        return _go(config, loop, folder, MetricsLog(folder, config, position), number, seconds, console)


def load(folder: Path, loop: Seeds, console: Console) -> tuple[Path, dict[str, Any], list[str]]:
    """Bring a loop back from the newest whole checkpoint: its path, its info, and what did not come back."""
    problems: list[str] = []

    def read(path: Path) -> tuple[Any, dict[str, Any], list[Any]]:
        info = checkpoint.read_info(path)
        replays = [
            segments.load(_segments(folder, part), manifest, part.replay_shapes(), part.replay_device)
            for part, manifest in zip(loop.loops, info["replay"], strict=False)
        ]
        return checkpoint.load(path, loop.shapes()), info, replays

    path, (states, info, replays) = checkpoint.newest(folder / "checkpoints", read, lambda text: warn(console, text))
    if not loop.host:
        for part, state in zip(loop.loops, states, strict=True):
            part.restore(state)
        return path, info, problems
    if not replays:
        problems.append(
            "the replay was not kept (--checkpoint-replay off): the environments begin new episodes, and learning waits until "
            f"{loop.loops[0].config.agent.warmup_steps:,} agent steps have filled it anew, so that it is another run from here"
        )
        replays = [None] * len(loop.loops)
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as progress:
        task = progress.add_task("replaying the actions of the running episodes", total=len(loop.loops))
        for part, state, extra, replay in zip(loop.loops, states, info["extra"], replays, strict=True):
            problem = part.restore(state, extra, replay, functools.partial(progress.advance, task))
            problems += [problem] if problem else []
        for part, manifest in zip(loop.loops, info["replay"], strict=False):
            part.manifest = manifest
    return path, info, problems


def load_policies(folder: Path, loop: Seeds, name: str | None, console: Console) -> tuple[Path, dict[str, Any]]:
    """Give a loop the policies of a checkpoint, the newest whole one if not named; its path and its info."""
    checkpoints = folder / "checkpoints"
    if name is None:
        path, states, info = checkpoint.load_newest(checkpoints, loop.shapes(), lambda text: warn(console, text))
    elif (checkpoints / name).is_dir():
        path = checkpoints / name
        states, info = checkpoint.load(path, loop.shapes()), checkpoint.read_info(path)
    else:
        known = ", ".join(p.name for p in checkpoint.candidates(checkpoints))
        raise FileNotFoundError(f"{checkpoints / name} does not exist; there are {known}")
    for part, state in zip(loop.loops, states, strict=True):
        if loop.host:
            part.adopt(state, info["round"])
        else:
            part.restore(state)
    return path, info


def build(config: TrainConfig, made: Made) -> Seeds:
    """The loop for an environment: on the device if it is written in JAX, else on the host."""
    device = made.device
    if device is not None:
        return Seeds(config, lambda part: DeviceLoop(part, device))
    opener = host_opener(config, made)
    return Seeds(config, lambda part: HostLoop(part, made.name, opener), host=True)


def host_opener(config: TrainConfig, made: Made) -> Opener:
    """Opens environments on the host."""
    host, game = made.host, made.game
    threads = max(1, (config.cores or os.cpu_count() or 1) // config.seeds)

    def opener(seed: int, indices: Sequence[int], stream: int) -> HostEnvironments:
        if game is not None:
            return AtariEnvironments(game, config.atari or AtariProtocol(), seed, indices, threads, stream)
        assert host is not None
        return GymEnvironments(made.name, host, [seed], len(indices), stream)

    return opener


def _go(config: TrainConfig, loop: Seeds, folder: Path, log: MetricsLog, number: int, seconds: float, console: Console) -> Result:
    """Rounds ``number`` to the last, with log lines, evaluations and checkpoints on the way."""
    began, last_saved, last_round, last_time = time.monotonic() - seconds, time.monotonic(), number, time.monotonic()
    cost: dict[str, float] = {}

    def save() -> None:
        start = time.monotonic()
        _write_evaluations(log, config, loop, began)
        info = {
            "round": number,
            "wall_s": time.monotonic() - began,
            "log_bytes": log.flush(),
            "extra": loop.extra(),
            "versions": _versions(),
        }
        written = _save(folder, number, loop, config, info)
        cost.update(checkpoint_s=round(time.monotonic() - start, 3), checkpoint_mb=round(written / 1e6, 1))
        if cost["checkpoint_s"] >= 1:
            share = cost["checkpoint_s"] / max(time.monotonic() - last_saved, 1e-9)
            bar.say(
                f"checkpoint at {number * config.round_frames:,} frames: {written / 1e6:,.0f} MB in {cost['checkpoint_s']:.1f} s, "
                f"{share:.1%} of the time since the last"
            )

    with (
        _stop_signals() as stop,
        Bar(config, console, number * config.round_frames) as bar,
        contextlib.closing(loop),
        contextlib.closing(log),
    ):
        while number < config.rounds:
            stopping = stop.is_set()
            if stopping and not loop.ahead:
                break
            ending = number + 1 == config.rounds
            logging = (number + 1) % config.log_rounds == 0 or ending
            saving = logging and (time.monotonic() - last_saved) / 60 >= config.checkpoint_minutes
            # Environments on the host go on while we learn, unless they must stand still to be saved.
            loop.run_round(number, ahead=not (saving or stopping or ending))
            number += 1
            if not logging:
                continue
            tally = loop.tally()
            _refuse_broken(tally.broken, number, config, loop, folder)
            frames, now = number * config.round_frames, time.monotonic()
            speed = (number - last_round) * config.round_frames * config.seeds / (now - last_time)
            diagnostics = loop.diagnostics(number) if config.learns(number - 1) else {}
            if number % config.eval_rounds == 0 or ending:
                loop.start_evaluation(number)
            # What ends at an hour of its own has a line of its own, so that no line depends on it.
            evaluated = _write_evaluations(log, config, loop, began, -1 if loop.background else number)
            for i in range(config.seeds):
                record = _record(config, tally, i, number, diagnostics) | evaluated.get(i, {}) | cost
                log.write({**record, "wall_s": round(now - began, 3), "frames_per_s": round(speed / config.seeds, 1)})
            cost.clear()
            bar.update(frames, speed, [float(x) for x in tally.last_return])
            last_round, last_time = number, time.monotonic()
            if saving and not ending:
                save()
                last_saved = time.monotonic()
        if number == config.rounds:
            _write_evaluations(log, config, loop, began, wait=True)
        save()
        summary = {} if number < config.rounds else _summarise(config, number, folder, time.monotonic() - began)
        if summary:
            write_json(folder / "summary.json", summary)
    if not summary:
        say(console, f"stopped at {number * config.round_frames:,} frames, nothing lost: sbm resume {folder} goes on")
    return Result(folder, summary)


def _save(folder: Path, number: int, loop: Seeds, config: TrainConfig, info: dict[str, Any]) -> int:
    """Write a checkpoint, and of replays on the host's side only what is new; the bytes written."""
    checkpoints, manifests, written = folder / "checkpoints", [], 0
    if loop.host and config.checkpoint_replay == "on":
        for part in loop.loops:
            saved = segments.save(_segments(folder, part), number, part.replay, part.manifest)
            part.manifest = saved.manifest
            manifests.append(saved.manifest)
            written += saved.bytes
    path = checkpoint.save(checkpoints, number, loop.state, {**info, "replay": manifests}, config.checkpoint_keep)
    kept = []
    for old in checkpoint.candidates(checkpoints):
        with contextlib.suppress(checkpoint.Damaged):
            kept.append(checkpoint.read_info(old)["replay"])
    for i, part in enumerate(loop.loops if manifests else ()):
        segments.prune(_segments(folder, part), [replay[i] for replay in kept if replay])
    return written + sum(file.stat().st_size for file in path.iterdir())


def _segments(folder: Path, part: Any) -> Path:
    return folder / "replay" / str(part.config.first_seed)


def _write_evaluations(
    log: MetricsLog, config: TrainConfig, loop: Seeds, began: float, now: int = -1, wait: bool = False
) -> dict[int, dict[str, Any]]:
    """Write a line for each evaluation that has ended; those of round ``now`` are returned, for the line that is written anyway."""
    current = {}
    for number, i, returns in loop.evaluated(wait):
        ended = returns[~np.isnan(returns)]
        found = {
            "eval_return": float(np.mean(ended)) if len(ended) else None,
            "eval_unfinished": float(np.mean(np.isnan(returns))),
        }
        if number == now:
            current[i] = found
        else:
            place = {"seed": config.first_seed + i, "round": number, "frames": number * config.round_frames}
            log.write({**place, **found, "wall_s": round(time.monotonic() - began, 3)})
    return current


def _record(config: TrainConfig, tally: Any, i: int, number: int, diagnostics: dict[str, Any]) -> dict[str, Any]:
    recent, learned = int(tally.recent_episodes[i]), int(tally.rounds[i])
    record: dict[str, Any] = {
        "seed": config.first_seed + i,
        "round": number,
        "frames": number * config.round_frames,
        "episodes": int(tally.episodes[i]),
        "return": float(tally.recent_return[i]) / recent if recent else None,
        "length": float(tally.recent_length[i]) / recent if recent else None,
    }
    if learned:
        record |= {f"loss/{name}": float(total[i]) / learned for name, total in tally.terms.items()}
    return record | {f"diagnostic/{name}": float(values[i]) for name, values in diagnostics.items()}


def _summarise(config: TrainConfig, number: int, folder: Path, seconds: float) -> dict[str, Any]:
    """The last known value of everything in the log, seed by seed."""
    seeds: dict[str, dict[str, Any]] = {}
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    # An evaluation may have been written after the lines of later rounds.
    for full in sorted((json.loads(line) for line in lines), key=lambda record: int(record["frames"])):
        record = {k: v for k, v in full.items() if v is not None and k not in CLOCK}
        seeds.setdefault(str(record["seed"]), {}).update(record)
    return {
        "preset": config.preset,
        "env": config.env,
        "frames": number * config.round_frames,
        "seeds": seeds,
        "wall_s": round(seconds, 3),
        "frames_per_s": round(number * config.round_frames * config.seeds / seconds, 1),
        "provenance": provenance(),
    }


def _refuse_broken(broken: dict[str, Any], number: int, config: TrainConfig, loop: Seeds, folder: Path) -> None:
    """Stop at a loss that is not finite: name it and keep the state. The last checkpoint stays as it was."""
    first = {name: int(np.min(values)) for name, values in broken.items()}
    name = min(first, key=lambda term: first[term], default=None)
    if name is None or first[name] == NEVER:
        return
    seed = config.first_seed + int(np.argmin(broken[name]))
    if loop.ahead:
        loop.run_round(number)  # what is under way must end before the state can be kept
    kept = checkpoint.save(folder / "broken", number, loop.state, {"round": number, "term": name, "seed": seed})
    step = (first[name] + 1) * config.agent.updates
    raise Broken(
        f"loss/{name} of seed {seed} is not finite after round {first[name]} (gradient step {step:,}, frame "
        f"{(first[name] + 1) * config.round_frames:,}). The state is kept in {kept} for inspection. Try a smaller --learning-rate "
        "or --q-learning-rate, or look at the diagnostics in metrics.jsonl"
    )


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; the second Ctrl-C interrupts at once. Other threads than the main one cannot listen."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def listen(number: int, _: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, listen) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """A lock that dies with its process: two must not write one run."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"{folder} is being written by another process: wait for it, or stop it first") from None
        yield


def _keep_compiled(folder: Path) -> None:
    """On a GPU, keep the compiled programs with the run.

    XLA chooses among kernels by timing them, so that another process may choose differently and round differently. The same program
    gives the same bits.
    """
    if jax.default_backend() == "cpu":
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()


def _versions() -> dict[str, Any]:
    facts = provenance()
    return {"python": facts["python"], "device": facts["device"], **facts["packages"]}


def _compare_versions(saved: dict[str, Any], console: Console) -> None:
    differ = {name: (old, new) for name, new in _versions().items() if (old := saved.get(name)) != new}
    if differ:
        text = ", ".join(f"{name} was {old} and is {new}" for name, (old, new) in differ.items())
        warn(console, f"{text}: the run goes on, but not bit for bit as it would have")


def warn(console: Console, text: str) -> None:
    """Say what is not as it should be, and go on."""
    say(console, f"[yellow]warning:[/yellow] {text}")
