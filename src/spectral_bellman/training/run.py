"""A run from its first round to its summary: ``train`` and ``resume``, which the command line calls too."""

import contextlib
import dataclasses
import fcntl
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console

from spectral_bellman.agents.presets import preset_settings
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import DeepSea, Made, make
from spectral_bellman.training import checkpoint, memory
from spectral_bellman.training.config import TrainConfig, override, read_config
from spectral_bellman.training.device_loop import DeviceLoop
from spectral_bellman.training.host_loop import HostLoop
from spectral_bellman.training.logs import Bar, MetricsLog
from spectral_bellman.training.rounds import NEVER
from spectral_bellman.training.seeds import Seeds


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
      settings: any field of ``TrainConfig`` or ``AgentConfig``.
    """
    made = make(env)
    return start(configure(preset, made, settings), made, Path(out), console or Console())


def configure(preset: str, made: Made, settings: dict[str, Any]) -> TrainConfig:
    """The preset's settings on this environment, changed by ``settings``."""
    run, agent = preset_settings(preset, made.family)
    if isinstance(made.device, DeepSea):  # whose episodes all have one length: a round is one of them
        size = made.device.size
        run |= {"round_steps": size, "frames": 300 * size, "replay_capacity": 500 * size}
        agent = dataclasses.replace(agent, propagated_iterations=size)
    return override(TrainConfig(preset, made.name, agent=agent, **run), settings)


def start(config: TrainConfig, made: Made, folder: Path, console: Console) -> Result:
    """Begin a run in a folder that holds none."""
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} already holds a run: sbm resume {folder} goes on with it, another --out begins anew")
    config = config.resolved()
    _keep_compiled(folder)
    loop = build(config, made)
    memory.check(memory.estimate(loop), config.replay_capacity)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        log = MetricsLog(folder, config)
        write_json(folder / "config.json", {**dataclasses.asdict(config), "provenance": provenance()})
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
        number, seconds, position = 0, 0.0, 0
        try:
            path, state, info = checkpoint.load_newest(folder / "checkpoints", loop.shapes(), lambda text: warn(console, text))
        except FileNotFoundError:
            warn(console, f"{folder} has no checkpoint yet: the run begins again")
            loop.init()
        else:
            _compare_versions(info["versions"], console)
            number, seconds, position = info["round"], info["wall_s"], info["log_bytes"]
            for problem in loop.restore(state, info["extra"]):
                warn(console, problem)
            console.print(
                f"resuming {folder} at {number * config.round_frames:,} of {config.frames:,} frames ({path.name})", highlight=False
            )
        if frames is not None:
            write_json(folder / "config.json", {**dataclasses.asdict(config), "provenance": provenance()})
        return _go(config, loop, folder, MetricsLog(folder, config, position), number, seconds, console)


def build(config: TrainConfig, made: Made) -> Seeds:
    """The loop for an environment: on the device if it is written in JAX, else on the host."""
    device, host = made.device, made.host
    if device is not None:
        return Seeds(config, lambda part: DeviceLoop(part, device))
    assert host is not None
    return Seeds(config, lambda part: HostLoop(part, made.name, host))


def _go(config: TrainConfig, loop: Seeds, folder: Path, log: MetricsLog, number: int, seconds: float, console: Console) -> Result:
    """Rounds ``number`` to the last, with log lines, evaluations and checkpoints on the way."""
    began, last_saved, last_round, last_time = time.monotonic() - seconds, time.monotonic(), number, time.monotonic()

    def save() -> None:
        info = {
            "round": number,
            "wall_s": time.monotonic() - began,
            "log_bytes": log.flush(),
            "extra": loop.extra(),
            "versions": _versions(),
        }
        checkpoint.save(folder / "checkpoints", number, loop.state, info, config.checkpoint_keep)

    with (
        _stop_signals() as stop,
        Bar(config, console, number * config.round_frames) as bar,
        contextlib.closing(loop),
        contextlib.closing(log),
    ):
        while number < config.rounds and not stop.is_set():
            loop.run_round(number)
            number += 1
            if number % config.log_rounds and number < config.rounds:
                continue
            tally = loop.tally()
            _refuse_broken(tally.broken, number, config, loop, folder)
            frames, now = number * config.round_frames, time.monotonic()
            speed = (number - last_round) * config.round_frames * config.seeds / (now - last_time)
            diagnostics = loop.diagnostics(number) if config.learns(number - 1) else {}
            evaluated = loop.evaluate(number) if number % config.eval_rounds == 0 or number == config.rounds else None
            for i in range(config.seeds):
                record = _record(config, tally, i, number, diagnostics, evaluated)
                log.write({**record, "wall_s": round(now - began, 3), "frames_per_s": round(speed / config.seeds, 1)})
            bar.update(frames, speed, [float(x) for x in tally.last_return])
            last_round, last_time = number, time.monotonic()
            if (time.monotonic() - last_saved) / 60 >= config.checkpoint_minutes:
                save()
                last_saved = time.monotonic()
        save()
        summary = {} if number < config.rounds else _summarise(config, number, folder, time.monotonic() - began)
        if summary:
            write_json(folder / "summary.json", summary)
    if not summary:
        console.print(
            f"stopped at {number * config.round_frames:,} frames, nothing lost: sbm resume {folder} goes on", highlight=False
        )
    return Result(folder, summary)


def _record(config: TrainConfig, tally: Any, i: int, number: int, diagnostics: dict[str, Any], evaluated: Any) -> dict[str, Any]:
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
    record |= {f"diagnostic/{name}": float(values[i]) for name, values in diagnostics.items()}
    if evaluated is not None:
        ended = evaluated[i][~np.isnan(evaluated[i])]
        record["eval_return"] = float(np.mean(ended)) if len(ended) else None
        record["eval_unfinished"] = float(np.mean(np.isnan(evaluated[i])))
    return record


def _summarise(config: TrainConfig, number: int, folder: Path, seconds: float) -> dict[str, Any]:
    """The last known value of everything in the log, seed by seed."""
    seeds: dict[str, dict[str, Any]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = {k: v for k, v in json.loads(line).items() if v is not None and k not in ("wall_s", "frames_per_s")}
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
    console.print(f"[yellow]warning:[/yellow] {text}", highlight=False, soft_wrap=True)
