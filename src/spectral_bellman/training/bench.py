"""How fast training is: against the bare environment, and presets against the first of them, all in one run on one machine."""

import dataclasses
import functools
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

from spectral_bellman.agents import AgentState
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import Made, make
from spectral_bellman.environments.gym import GymEnvironments
from spectral_bellman.replay import Replay
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.host_loop import HostLoop, Opener
from spectral_bellman.training.rounds import select
from spectral_bellman.training.run import build, configure, host_opener
from spectral_bellman.training.seeds import Seeds, over_seeds

BARE = "random actions, no agent"


def bench(env: str, presets: Sequence[str], seeds: int, seconds: float, out: Path | None, console: Console) -> dict[str, Any]:
    """Measure and print agent steps per second, all seeds together, after compilation; write them if asked."""
    if not presets:
        raise ValueError("--presets names none: for instance --presets dqn sbm-dqn-ts")
    made, base = make(env), presets[0]
    configs = {preset: configure(preset, made, {"seeds": seeds}).resolved() for preset in presets}
    figures: dict[str, Any] = {"env": made.name, "seeds": seeds, "agent steps per second": {}, "seconds a round": {}}
    with console.status("") as status:
        kept = _Kept(host_opener(configs[base], made)) if made.game is not None else None
        if kept is not None:
            status.update(f"{configs[base].num_envs} emulators: loading; {', '.join(presets)}: compiling")
            loops = {
                name: Seeds(config, functools.partial(_loop_on, kept, made.name), host=True) for name, config in configs.items()
            }
            with ThreadPoolExecutor(len(loops)) as pool:
                list(pool.map(Seeds.prepare, loops.values()))
            figures["arrangements"] = _bare_emulator(kept, configs[base], seconds)
            bare = max(figures["arrangements"].values())
        else:
            status.update("the bare environment, random actions")
            bare = _bare(made, configs[base], seconds)
            loops = {}
        figures["agent steps per second"][BARE] = bare
        for preset, config in configs.items():
            status.update(f"{preset}: compiling")
            loop = loops.pop(preset, None) or build(config, made)
            estimate = memory.estimate(loop)
            status.update(f"{preset}: warming up")
            loop.init()
            # Past the warm-up, so that every round learns.
            begin = -(-config.agent.warmup_steps // config.round_agent_steps) + 3
            for number in range(begin):
                loop.run_round(number, ahead=True)
            loop.tally()
            status.update(f"{preset}: measuring")
            waited = [part.waited for part in loop.loops] if loop.host else []
            a_round = _seconds_a_call(functools.partial(_round_after, loop, begin), loop.tally, seconds, 1 if loop.host else 10)
            figures["seconds a round"][preset] = a_round
            figures["agent steps per second"][preset] = config.round_agent_steps * seeds / a_round
            figures[f"{preset} samples per agent step"] = config.samples_per_step
            figures[f"{preset} memory, estimated"] = estimate.total
            stats = jax.local_devices()[0].memory_stats()
            figures[f"{preset} memory, peak"] = int(stats["peak_bytes_in_use"]) if stats else memory.peak_resident()
            if loop.host:
                rounds = max(1, round(seconds / a_round))
                spent = [part.waited - before for part, before in zip(loop.loops, waited, strict=True)]
                figures[f"{preset}: share of the time that learning waited for environments"] = min(
                    1.0, sum(spent) / len(spent) / (rounds * a_round)
                )
            elif preset == "sbm-dqn-ts":
                figures["share of the precision matrix and its factor"] = _publishing(loop, config, min(seconds, 5)) / a_round
            loop.close()
            del loop
    times, speeds = figures["seconds a round"], figures["agent steps per second"]
    for preset in presets[1:]:
        figures[f"overhead of {preset} over {base}"] = times[preset] / times[base] - 1
    skip = configs[base].round_frames // configs[base].round_agent_steps
    columns = ["agent steps/s, all seeds", "of the bare environment", "seconds per million"] + (["frames/s"] if skip > 1 else [])
    table = Table("", *columns, title=f"{made.name}, {seeds} seed{'s' if seeds > 1 else ''}")
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
        console.print(f"bare emulators, {name}: {speed:,.0f} agent steps/s", highlight=False, soft_wrap=True)
    for name, value in figures.items():
        if isinstance(value, float):
            console.print(f"{name}: {value:.3f}", highlight=False, soft_wrap=True)
    for preset in presets:
        estimated, peak = figures[f"{preset} memory, estimated"], figures[f"{preset} memory, peak"]
        console.print(
            f"{preset}: memory estimated {memory.show(estimated)}, peak so far {memory.show(peak)}", highlight=False, soft_wrap=True
        )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, {**figures, "configs": {k: dataclasses.asdict(v) for k, v in configs.items()}, "provenance": provenance()})
        console.print(str(out))
    return figures


def _round_after(loop: Seeds, begin: int, number: int) -> None:
    loop.run_round(begin + number, ahead=True)


def _loop_on(kept: "_Kept", name: str, config: TrainConfig) -> HostLoop:
    return HostLoop(config, name, kept)


class _Kept:
    """An opener whose environments stay open, for the next to use: emulators take long to load."""

    def __init__(self, opener: Opener) -> None:
        self._opener, self.opened, self._lock = opener, dict[tuple[int, ...], Any](), threading.Lock()

    def __call__(self, seed: int, indices: Sequence[int], stream: int) -> Any:
        key = (seed, stream, *indices)
        with self._lock:
            if key not in self.opened:
                self.opened[key] = self._opener(seed, indices, stream)
                self.opened[key].close = lambda: None
            return self.opened[key]


def _bare_emulator(kept: _Kept, config: TrainConfig, seconds: float) -> dict[str, float]:
    """Agent steps per second of the emulators that training uses, with random actions: one group of them alone, and all in turn."""
    size = config.num_envs // config.groups
    pools = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        for group in range(config.groups):
            environments = kept(seed, [group * size + i for i in range(size)], 0)
            environments.reset()
            pools.append(environments.emulators)
    actions = np.random.default_rng(0).integers(0, pools[0].single_action_space.n, (64, size)).astype(np.int32)
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
        speeds[f"{len(used)} × {size} environments"] = count * len(used) * size / (time.perf_counter() - began)
    return speeds


def _seconds_a_call(call: Callable[[int], Any], wait: Callable[[], Any], seconds: float, between: int = 10) -> float:
    """Seconds a call takes on the mean, waiting for its result every so many."""
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(between):
            call(count)
            count += 1
        wait()
    return (time.perf_counter() - began) / count


def _bare(made: Made, config: TrainConfig, seconds: float) -> float:
    """Agent steps per second of the environment alone, in the arrangement that training uses."""
    if made.device is None:
        assert made.host is not None
        environments = GymEnvironments(made.name, made.host, range(config.seeds), config.num_envs)
        environments.reset()
        actions = np.random.default_rng(0).integers(0, environments.num_actions, (256, len(environments)))
        a_step = _seconds_a_call(lambda n: environments.step(actions[n % 256]), lambda: None, seconds)
        environments.close()
        return len(environments) / a_step
    environment, num_envs = made.device, config.num_envs

    def steps(states: Any, key: jax.Array) -> Any:
        def one(states: Any, key: jax.Array) -> tuple[Any, None]:
            keys = jax.random.split(key, 3)
            action = jax.random.randint(keys[0], (num_envs,), 0, environment.num_actions)
            states, step = jax.vmap(environment.step)(states, action, jax.random.split(keys[1], num_envs))
            fresh, _ = jax.vmap(environment.reset)(jax.random.split(keys[2], num_envs))
            done = step.terminated | step.truncated
            return jax.tree.map(lambda new, old: select(done, new, old), fresh, states), None

        return jax.lax.scan(one, states, jax.random.split(key, config.round_steps))[0]

    keys = jax.random.split(jax.random.key(0), config.seeds)
    states = over_seeds(lambda key: jax.vmap(environment.reset)(jax.random.split(key, num_envs))[0])(keys)
    program, box = over_seeds(steps, donate=(0,)), [states]

    def call(_: int) -> None:
        box[0] = program(box[0], keys)

    call(0)
    return config.round_agent_steps * config.seeds / _seconds_a_call(call, lambda: jax.block_until_ready(box[0]), seconds)


def _publishing(loop: Seeds, config: TrainConfig, seconds: float) -> float:
    """Seconds a round that go into Σ, its factor and the policy made of it."""
    return sum(_publishing_part(part, config, seconds / len(loop.loops)) for part in loop.loops)


def _publishing_part(part: Any, config: TrainConfig, seconds: float) -> float:
    learner, steps, number = part.state[0], jnp.int32(config.frames), jnp.int32(0)

    def publish(state: AgentState, replay: Replay, key: jax.Array) -> jax.Array:
        return part.agent.publish(state, part.agent.select(replay, key), steps, number, key)[1].noise

    program = over_seeds(publish)
    result = [program(learner.agent, learner.replay, learner.key)]

    def call(_: int) -> None:
        result[0] = program(learner.agent, learner.replay, learner.key)

    return _seconds_a_call(call, lambda: jax.block_until_ready(result[0]), seconds)
