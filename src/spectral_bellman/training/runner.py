"""A run from its first round to its summary: ``train`` and ``resume``."""

import contextlib
import dataclasses
import functools
import os
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

from spectral_bellman.agents.presets import find_preset
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.disk import checkpoint, run_folder
from spectral_bellman.disk.log import MetricsLog
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.api import EnvironmentSpec, VectorEnvironment
from spectral_bellman.environments.catalogue import FAMILIES, family_of, make
from spectral_bellman.training import memory, records, saving
from spectral_bellman.training.config import TrainConfig, configure, read_config, to_json
from spectral_bellman.training.device_runner import DeviceRunner
from spectral_bellman.training.host_runner import HostRunner, Opener
from spectral_bellman.training.progress import Bar, say, warn
from spectral_bellman.training.seeds import Seeds
from spectral_bellman.training.tally import NEVER


class Result(NamedTuple):
    """A run that has ended."""

    folder: Path
    summary: dict[str, Any]
    """What ``summary.json`` holds; empty if the run was stopped before its end."""


class Broken(ArithmeticError):
    """A loss that is not finite."""


def train(
    preset: str, env: Any, *, out: str | Path, console: Console | None = None, **settings: Any
) -> Result:
    """Train a preset on an environment and leave a run in the folder ``out``.

        spectral_bellman.train(
            "sbm-dqn-ts", "gym/CartPole-v1", out="out/cartpole", frames=50_000, seeds=3
        )

    Args:
      preset: an agent of ``sbm presets``.
      env: a name of ``sbm envs``; an object with the ``Environment`` protocol; a ``gymnasium.Env``,
        or a function that makes one.
      out: the run's folder, which must not hold a run yet.
      console: where progress goes; a new one if not given.
      settings: settings of the run, the agent or, for Atari, the protocol, by their flat names.
    """
    spec = make(env)
    return start(configure(preset, spec, settings), spec, Path(out), console or Console())


def start(config: TrainConfig, spec: EnvironmentSpec, folder: Path, console: Console) -> Result:
    """Begin a run in a folder that holds none."""
    if (folder / run_folder.CONFIG).exists():
        raise FileExistsError(
            f"{folder} already holds a run: sbm resume {folder} goes on with it, another --out "
            "begins anew"
        )
    config = config.resolved()
    if changed := find_preset(config.preset).changed.get(spec.family):
        say(console, changed)
    _keep_compiled(folder)
    runners = build(config, spec)
    emulators = (
        f", and opening {config.num_envs * config.seeds} emulators" if config.emulated else ""
    )
    try:
        with console.status(f"compiling{emulators}"):
            runners.prepare()
            need = memory.estimate(runners)
        memory.check(need, config)
        folder.mkdir(parents=True, exist_ok=True)
    except BaseException:
        runners.close()
        raise
    with run_folder.lock(folder):
        log = _log(folder, config)
        _write_config(folder, config, spec)
        if config.protocol:
            clip = config.agent.reward_clip
            learned = f"clipped to ±{clip:g}" if clip else "not clipped"
            say(console, f"{config.env}: {config.protocol}; {learned} when learned from")
        if config.emulated:
            kept = (
                f"what is new of a replay of up to {memory.show(need.replay)}"
                if config.on_host.checkpoint_replay == "on"
                else "no replay"
            )
            say(
                console,
                f"a checkpoint every {config.checkpoint_minutes:g} minutes, with {kept} "
                "(--checkpoint-replay on or off)",
            )
        if config.on_host.asynchronous:
            say(
                console,
                "asynchronous actors: the same command gives another run each time "
                "(--asynchronous 0 does not)",
            )
        runners.init()
        return _go(config, runners, folder, log, 0, 0.0, console)


def resume(
    folder: str | Path,
    env: Any = None,
    *,
    frames: int | None = None,
    console: Console | None = None,
) -> Result:
    """Go on with a run from its newest intact checkpoint.

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
    spec = make(config.env if env is None else env)
    with run_folder.lock(folder):
        _keep_compiled(folder)
        runners = build(config, spec)
        with console.status("compiling"):
            runners.prepare()
        number, seconds, position = 0, 0.0, 0
        try:
            path, info, problems = saving.load(folder, runners, console)
        except FileNotFoundError:
            if (folder / run_folder.SUMMARY).exists():
                raise FileNotFoundError(
                    f"{folder} holds the results of a finished run, without checkpoints: there is "
                    "nothing to go on from. Begin anew in another folder"
                ) from None
            warn(console, f"{folder} has no checkpoint yet: the run begins again")
            runners.init()
        else:
            saving.compare_versions(info["versions"], console)
            number, seconds, position = info["round"], info["wall_s"], info["log_bytes"]
            for problem in problems:
                warn(console, problem)
            done = number * config.round_frames
            say(console, f"resuming {folder} at {done:,} of {config.frames:,} frames ({path.name})")
        if frames is not None:
            _write_config(folder, config, spec)
        log = _log(folder, config, position)
        return _go(config, runners, folder, log, number, seconds, console)


def build(config: TrainConfig, spec: EnvironmentSpec, opener: Opener | None = None) -> Seeds:
    """The runners for an environment: on the device if it is written in JAX, else on the host.

    Args:
      config: the run.
      spec: its environment.
      opener: opens environments on the host, in place of ``HostOpener``.
    """

    agent = functools.partial(QAgent, config.agent)
    device = spec.with_protocol(config.protocol).device
    if device is not None:

        def on_device(part: TrainConfig) -> DeviceRunner:
            return DeviceRunner(part, device, agent(device.observation, device.num_actions))

        return Seeds(config, on_device)
    open_host = opener or HostOpener(config, spec)
    background = FAMILIES[spec.family].steps_beside_python

    def on_host(part: TrainConfig) -> HostRunner:
        return HostRunner(part, spec.name, open_host, agent, background=background)

    return Seeds(config, on_host, host=True)


@dataclasses.dataclass(frozen=True)
class HostOpener:
    """Opens the environments of a run on the host, in any process that it is sent to."""

    config: TrainConfig
    spec: EnvironmentSpec

    def __call__(self, seed: int, indices: list[int], stream: int) -> VectorEnvironment:
        """These environments of a seed."""
        cores = getattr(self.config.host, "cores", 0) or os.cpu_count() or 1
        threads = max(1, cores // self.config.seeds)
        return self.spec.with_protocol(self.config.protocol).open(seed, indices, stream, threads)

    def __reduce__(self) -> Any:
        # What the catalogue knows is made again from its name.
        if family_of(self.spec.name) is None:
            return HostOpener, (self.config, self.spec)
        return _opener_of, (self.config,)


def _opener_of(config: TrainConfig) -> HostOpener:
    return HostOpener(config, make(config.env))


def _go(
    config: TrainConfig,
    runners: Seeds,
    folder: Path,
    log: MetricsLog,
    number: int,
    seconds: float,
    console: Console,
) -> Result:
    """Rounds ``number`` to the last, with log lines, evaluations and checkpoints on the way."""
    began, last_saved = time.monotonic() - seconds, time.monotonic()
    last_round, last_time = number, time.monotonic()
    cost: dict[str, float] = {}

    def save() -> None:
        start = time.monotonic()
        records.write_evaluations(log, config, runners, began)
        info = {
            "round": number,
            "wall_s": time.monotonic() - began,
            "log_bytes": log.flush(),
            "extra": runners.extra(),
            "versions": saving.versions(),
        }
        written = saving.save(folder, number, runners, config, info)
        took = time.monotonic() - start
        cost.update(checkpoint_s=round(took, 3), checkpoint_mb=round(written / 1e6, 1))
        if took >= 1:
            share = took / max(time.monotonic() - last_saved, 1e-9)
            bar.say(
                f"checkpoint at {number * config.round_frames:,} frames: {written / 1e6:,.0f} MB "
                f"in {took:.1f} s, {share:.1%} of the time since the last"
            )

    with (
        _stop_signals() as stop,
        Bar(config, console, number * config.round_frames) as bar,
        contextlib.closing(runners),
        contextlib.closing(log),
    ):
        while number < config.rounds:
            stopping = stop.is_set()
            if stopping and not runners.ahead:
                break
            ending = number + 1 == config.rounds
            logging = (number + 1) % config.log_rounds == 0 or ending
            minutes = (time.monotonic() - last_saved) / 60
            saving_now = logging and minutes >= config.checkpoint_minutes
            # Host environments go on while we learn, unless they must stand still to be saved.
            runners.run_round(number, ahead=not (saving_now or stopping or ending))
            number += 1
            if not logging:
                continue
            tally = runners.tally()
            _refuse_broken(tally.broken, number, config, runners, folder)
            frames, now = number * config.round_frames, time.monotonic()
            speed = (number - last_round) * config.round_frames * config.seeds / (now - last_time)
            diagnostics = runners.diagnostics(number) if config.learns(number - 1) else {}
            if episodes := config.episodes_at(number):
                runners.start_evaluation(number, episodes)
            # Background evaluations get their own log line, so that no line depends on timing.
            now_or_never = -1 if runners.background else number
            evaluated = records.write_evaluations(log, config, runners, began, now_or_never)
            for i, actors in enumerate(runners.figures()):
                record = records.record(config, tally, i, number, diagnostics, actors)
                record |= evaluated.get(i, {}) | cost
                clock = {
                    "wall_s": round(now - began, 3),
                    "frames_per_s": round(speed / config.seeds, 1),
                }
                log.write(record | clock)
            cost.clear()
            bar.update(frames, speed, [float(x) for x in tally.last_return])
            last_round, last_time = number, time.monotonic()
            if saving_now and not ending:
                save()
                last_saved = time.monotonic()
        if number == config.rounds:
            records.write_evaluations(log, config, runners, began, wait=True)
        save()
        summary = {}
        if number == config.rounds:
            summary = records.summarise(config, number, folder, time.monotonic() - began)
            write_json(folder / run_folder.SUMMARY, summary)
    if not summary:
        done = number * config.round_frames
        say(console, f"stopped at {done:,} frames, nothing lost: sbm resume {folder} goes on")
    return Result(folder, summary)


def _log(folder: Path, config: TrainConfig, position: int = 0) -> MetricsLog:
    boards = {"tensorboard": config.tensorboard, "wandb": config.wandb}
    return MetricsLog(folder, position=position, **boards)  # type: ignore[arg-type]


def _write_config(folder: Path, config: TrainConfig, spec: EnvironmentSpec) -> None:
    """The settings, with what reports need to know of the environment."""
    facts = {"environment": FAMILIES[spec.family].facts(spec.name), "provenance": provenance()}
    run_folder.write_config(folder, {**to_json(config), **facts})


def _refuse_broken(
    broken: dict[str, Any], number: int, config: TrainConfig, runners: Seeds, folder: Path
) -> None:
    """Stop at a loss that is not finite: name it, keep the state and the last checkpoint."""
    first = {name: int(np.min(values)) for name, values in broken.items()}
    name = min(first, key=lambda term: first[term], default=None)
    if name is None or first[name] == NEVER:
        return
    seed = config.first_seed + int(np.argmin(broken[name]))
    if runners.ahead:
        runners.run_round(number)  # what is under way must end before the state can be kept
    info = {"round": number, "term": name, "seed": seed}
    kept = checkpoint.save(folder / "broken", number, runners.state, info)
    step = (first[name] + 1) * config.agent.updates
    raise Broken(
        f"loss/{name} of seed {seed} is not finite after round {first[name]} (gradient step "
        f"{step:,}, frame {(first[name] + 1) * config.round_frames:,}). The state is kept in "
        f"{kept} for inspection. Try a smaller --learning-rate or --q-learning-rate, or look at "
        "the diagnostics in metrics.jsonl"
    )


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; the second Ctrl-C interrupts at once.

    Other threads than the main one cannot listen.
    """
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


def _keep_compiled(folder: Path) -> None:
    """On a GPU, keep the compiled programs with the run.

    XLA chooses among kernels by timing them, so that another process may choose differently and
    round differently. The same program gives the same bits.
    """
    if jax.default_backend() == "cpu":
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
