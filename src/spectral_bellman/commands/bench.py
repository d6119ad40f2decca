"""``sbm bench``: training against the bare environment, and presets against the first of them."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from spectral_bellman.agents.api import Progress
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.api import EnvironmentSpec, SplitStep
from spectral_bellman.environments.catalogue import make
from spectral_bellman.replay import Ring
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, configure, to_json
from spectral_bellman.training.host_runner import Opener
from spectral_bellman.training.programs import compiled_over_seeds
from spectral_bellman.training.progress import say
from spectral_bellman.training.rollout import select
from spectral_bellman.training.runner import HostOpener, build
from spectral_bellman.training.seeds import Seeds

BARE = "random actions, no agent"
SPEED, SECONDS = "agent steps per second", "seconds a round"


def bench(
    env: str,
    presets: Sequence[str],
    seeds: int,
    seconds: float,
    out: Path | None,
    console: Console,
) -> dict[str, Any]:
    """Measure and print agent steps per second, all seeds together, after compilation."""
    if not presets:
        raise ValueError("--presets names none: for instance --presets dqn sbm-dqn-ts")
    spec, base = make(env), presets[0]
    configs = {p: configure(p, spec, {"seeds": seeds}).resolved() for p in presets}
    figures: dict[str, Any] = {"env": spec.name, "seeds": seeds, SPEED: {}, SECONDS: {}}
    with console.status("") as status:
        prepared: dict[str, Seeds] = {}
        if configs[base].emulated:
            status.update(f"{configs[base].num_envs} emulators: loading; presets: compiling")
            kept = _KeptOpen(HostOpener(configs[base], spec))
            prepared = {name: build(config, spec, kept) for name, config in configs.items()}
            with ThreadPoolExecutor(len(prepared)) as pool:
                list(pool.map(Seeds.prepare, prepared.values()))
            figures["arrangements"] = _bare_emulators(kept, configs[base], seconds)
            bare = max(figures["arrangements"].values())
        else:
            status.update("the bare environment, random actions")
            bare = _bare(spec, configs[base], seconds)
        figures[SPEED][BARE] = bare
        for preset, config in configs.items():
            runners = prepared.pop(preset, None) or build(config, spec)
            figures |= _measure(preset, config, runners, seconds, figures, status.update)
            runners.close()
            del runners
    times = figures[SECONDS]
    for preset in presets[1:]:
        figures[f"overhead of {preset} over {base}"] = times[preset] / times[base] - 1
    _show(figures, configs, console)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        settings = {name: to_json(config) for name, config in configs.items()}
        write_json(out, {**figures, "configs": settings, "provenance": provenance()})
        console.print(str(out))
    return figures


def _measure(
    preset: str,
    config: TrainConfig,
    runners: Seeds,
    seconds: float,
    figures: dict[str, Any],
    status: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of one preset."""
    found: dict[str, Any] = {}
    status(f"{preset}: compiling")
    estimate = memory.estimate(runners)
    status(f"{preset}: warming up")
    runners.init()
    # Past the warm-up, so that every round learns.
    begin = -(-config.agent.warmup_steps // config.round_agent_steps) + 3
    for number in range(begin):
        runners.run_round(number, ahead=True)
    runners.tally()
    status(f"{preset}: measuring")
    waited = [runner.waited for runner in runners.runners] if runners.host else []

    def call(number: int) -> None:
        runners.run_round(begin + number, ahead=True)

    a_round = _seconds_a_call(call, runners.tally, seconds, 1 if runners.host else 10)
    figures[SECONDS][preset] = a_round
    figures[SPEED][preset] = config.round_agent_steps * config.seeds / a_round
    found[f"{preset} samples per agent step"] = config.samples_per_step
    found[f"{preset} memory, estimated"] = estimate.total
    stats = jax.local_devices()[0].memory_stats()
    peak = int(stats["peak_bytes_in_use"]) if stats else memory.peak_resident()
    found[f"{preset} memory, peak"] = peak
    if runners.host:
        rounds = max(1, round(seconds / a_round))
        spent = [r.waited - before for r, before in zip(runners.runners, waited, strict=True)]
        share = sum(spent) / len(spent) / (rounds * a_round)
        name = f"{preset}: share of the time that learning waited for environments"
        found[name] = min(1.0, share)
    elif runners.agent.publish_rows:
        share = _publishing(runners, config, min(seconds, 5)) / a_round
        found[f"{preset}: share of the precision matrix and its factor"] = share
    return found


def _show(figures: dict[str, Any], configs: dict[str, TrainConfig], console: Console) -> None:
    speeds, config = figures[SPEED], next(iter(configs.values()))
    bare, skip, seeds = speeds[BARE], config.frame_skip, figures["seeds"]
    columns = ["agent steps/s, all seeds", "of the bare environment", "seconds per million"]
    columns += ["frames/s"] if skip > 1 else []
    table = Table("", *columns, title=f"{figures['env']}, {seeds} seed{'s' if seeds > 1 else ''}")
    for name, speed in speeds.items():
        table.add_row(
            name,
            f"{speed:,.0f}",
            f"{speed / bare:.2f}",
            f"{1e6 / speed:,.{0 if speed < 1e5 else 3}f}",
            *([f"{speed * skip:,.0f}"] if skip > 1 else []),
        )
    console.print(table)
    for name, speed in figures.get("arrangements", {}).items():
        say(console, f"bare emulators, {name}: {speed:,.0f} agent steps/s")
    for name, value in figures.items():
        if isinstance(value, float):
            say(console, f"{name}: {value:.3f}")
    for preset in configs:
        estimated = memory.show(figures[f"{preset} memory, estimated"])
        peak = memory.show(figures[f"{preset} memory, peak"])
        say(console, f"{preset}: memory estimated {estimated}, peak so far {peak}")


class _KeptOpen:
    """An opener whose environments stay open, for the next to use: emulators take long to load."""

    def __init__(self, opener: Opener) -> None:
        self._opener, self._lock = opener, threading.Lock()
        self._opened: dict[tuple[int, ...], Any] = {}

    def __call__(self, seed: int, indices: list[int], stream: int) -> Any:
        key = (seed, stream, *indices)
        with self._lock:
            if key not in self._opened:
                self._opened[key] = self._opener(seed, indices, stream)
                self._opened[key].close = lambda: None
            return self._opened[key]


def _bare_emulators(kept: _KeptOpen, config: TrainConfig, seconds: float) -> dict[str, float]:
    """Agent steps/s of the emulators with random actions: one group alone, and all in turn."""
    size = config.num_envs // config.on_host.parts
    pools = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        for group in range(config.on_host.parts):
            pool = kept(seed, [group * size + i for i in range(size)], 0)
            assert isinstance(pool, SplitStep)
            pool.reset()
            pools.append(pool)
    drawn = np.random.default_rng(0).integers(0, pools[0].num_actions, (64, size))
    actions = drawn.astype(np.int32)
    speeds = {}
    for used in {1: pools[:1], len(pools): pools}.values():
        for pool in used:
            pool.send(actions[0])
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for pool in used:
                pool.recv()
                pool.send(actions[count % 64])
            count += 1
        for pool in used:
            pool.recv()
        took = time.perf_counter() - began
        speeds[f"{len(used)} × {size} environments"] = count * len(used) * size / took
    return speeds


def _seconds_a_call(
    call: Callable[[int], Any], wait: Callable[[], Any], seconds: float, between: int = 10
) -> float:
    """Seconds a call takes on the mean, waiting for its result every so many."""
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(between):
            call(count)
            count += 1
        wait()
    return (time.perf_counter() - began) / count


def _bare(spec: EnvironmentSpec, config: TrainConfig, seconds: float) -> float:
    """Agent steps per second of the environment alone, in the arrangement that training uses."""
    if spec.device is None:
        pools = [spec.open(seed, range(config.num_envs)) for seed in range(config.seeds)]
        for pool in pools:
            pool.reset()
        shape = (256, config.num_envs)
        actions = np.random.default_rng(0).integers(0, pools[0].num_actions, shape)

        def step(number: int) -> None:
            for pool in pools:
                pool.step(actions[number % 256])

        a_step = _seconds_a_call(step, lambda: None, seconds)
        for pool in pools:
            pool.close()
        return config.num_envs * config.seeds / a_step
    environment, num_envs = spec.device, config.num_envs

    def steps(states: Any, key: jax.Array) -> Any:
        def one(states: Any, key: jax.Array) -> tuple[Any, None]:
            keys = jax.random.split(key, 3)
            action = jax.random.randint(keys[0], (num_envs,), 0, environment.num_actions)
            step_keys = jax.random.split(keys[1], num_envs)
            states, step = jax.vmap(environment.step)(states, action, step_keys)
            fresh, _ = jax.vmap(environment.reset)(jax.random.split(keys[2], num_envs))
            done = step.terminated | step.truncated
            return jax.tree.map(lambda new, old: select(done, new, old), fresh, states), None

        return jax.lax.scan(one, states, jax.random.split(key, config.round_steps))[0]

    keys = jax.random.split(jax.random.key(0), config.seeds)
    reset = compiled_over_seeds(
        lambda key: jax.vmap(environment.reset)(jax.random.split(key, num_envs))[0]
    )
    program, box = compiled_over_seeds(steps, donate=(0,)), [reset(keys)]

    def call(_: int) -> None:
        box[0] = program(box[0], keys)

    call(0)
    a_round = _seconds_a_call(call, lambda: jax.block_until_ready(box[0]), seconds)
    return config.round_agent_steps * config.seeds / a_round


def _publishing(runners: Seeds, config: TrainConfig, seconds: float) -> float:
    """Seconds a round that go into Σ, its factor and the policy made of it."""
    share = seconds / len(runners.runners)
    return sum(_publishing_part(runner, config, share) for runner in runners.runners)


def _publishing_part(runner: Any, config: TrainConfig, seconds: float) -> float:
    learner, progress = runner.state[0], Progress(jnp.int32(config.frames), jnp.int32(0))

    def publish(state: Any, ring: Ring, key: jax.Array) -> jax.Array:
        rows = runner.learner.select(ring, key)
        return runner.agent.publish(state, rows, progress, key)[1].noise

    program = compiled_over_seeds(publish)
    result = [program(learner.agent, learner.replay, learner.key)]

    def call(_: int) -> None:
        result[0] = program(learner.agent, learner.replay, learner.key)

    return _seconds_a_call(call, lambda: jax.block_until_ready(result[0]), seconds)
