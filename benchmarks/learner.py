"""Gradient steps per second of the learner alone, without environments, on Atari's screens.

The replay holds random screens. Each preset learns with the batch that is asked for, by default the
paper's 64 sequences of 120 steps; the overhead of a preset is its time for an equal number of
gradient steps, against the first preset.

    python benchmarks/learner.py --presets r2d2 sbm-r2d2 sbm-r2d2-ts --peak 989
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console

from spectral_bellman import replay
from spectral_bellman.agents import Progress, QAgent, choices
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.presets import agent_config
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.catalogue import FAMILIES
from spectral_bellman.networks.impala import SECTIONS
from spectral_bellman.training.learner import Learner, Learning, extras_of

STACK, ENVS, ROLLOUT = 4, 16, 100


@dataclass(frozen=True)
class Benchmark:
    """Speed of the learner alone."""

    presets: tuple[str, ...] = ("r2d2", "sbm-r2d2", "sbm-r2d2-ts")
    """The first is what the others are compared with."""
    batch: int = 64
    """Sequences."""
    burn_in: int = 40
    """Steps of a sequence before those that are learned from."""
    trained: int = 80
    """Steps of a sequence that are learned from."""
    updates: int = 36
    """Gradient steps a round, of which a ninth fit θ̂ where the preset fits it."""
    screen: int = 84
    """Height and width of a screen."""
    actions: int = 18
    """Actions of the game."""
    precision: str = "float32"
    """What the torso computes in: float32 or bfloat16."""
    seconds: float = 10.0
    """How long each preset is timed, after compilation."""
    peak: float = 0.0
    """Peak TFLOP/s of the device, to state the share of it that the torso uses; 0: no share."""
    out: Path = Path("out/learner.json")
    """Where the figures go."""


def main(config: Benchmark) -> None:
    """Time every preset, and print."""
    console = Console()
    figures: dict[str, Any] = {"gradient steps per second": {}}
    speeds = figures["gradient steps per second"]
    flops = torso_flops(config)
    for preset in config.presets:
        with console.status(f"{preset}: compiling, then {config.seconds:g} seconds"):
            speeds[preset] = speed(config, preset)
        line = f"{preset}: {speeds[preset]:.1f} gradient steps/s"
        if config.peak:
            share = flops * speeds[preset] / (config.peak * 1e12)
            figures[f"{preset}: share of the peak, torso alone"] = share
            line += f", the torso alone computes at {share:.1%} of {config.peak:g} TFLOP/s"
        console.print(line, highlight=False)
    first = config.presets[0]
    for preset in config.presets[1:]:
        overhead = speeds[first] / speeds[preset] - 1
        figures[f"overhead of {preset} over {first}"] = overhead
        console.print(f"{preset}: {overhead:.0%} more time than {first}", highlight=False)
    settings = {k: str(v) for k, v in vars(config).items()}
    config.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(config.out, {**figures, "config": settings, "provenance": provenance()})
    console.print(str(config.out))


def settings_of(config: Benchmark, preset: str) -> AgentConfig:
    """The preset's settings on Atari, with the batch and the length that are asked for."""
    changes = {
        "batch": config.batch,
        "burn_in": config.burn_in,
        "trained": config.trained,
        "period": config.trained // 2,
        "updates": config.updates,
        "q_steps": config.updates // 9,
        "torso_precision": config.precision,
        "warmup_steps": 0,
    }
    return choices.suited(agent_config(preset, "atari", {}, FAMILIES["atari"].agent), changes)


def speed(config: Benchmark, preset: str) -> float:
    """Gradient steps per second."""
    screen = jax.ShapeDtypeStruct((STACK, config.screen, config.screen), jnp.uint8)
    agent = QAgent(settings_of(config, preset), screen, config.actions)
    learner = Learner(agent)
    ring = filled(config, agent)
    priorities = learner.init_priorities(ring)
    priorities = agent.sampler.admit(priorities, ring, ring.head)
    state = Learning(jax.jit(agent.init)(jax.random.key(0)), priorities)

    def once(state: Learning, number: jax.Array) -> Learning:
        progress = Progress(jnp.int32(10**6), number)
        return learner.learn(state, ring, progress, jax.random.key(number))[0]

    learn = jax.jit(once, donate_argnums=0)
    state = jax.block_until_ready(learn(state, jnp.int32(0)))
    began, rounds = time.perf_counter(), 0
    # Whole cycles of rounds: not every round estimates Σ.
    while time.perf_counter() - began < config.seconds or rounds % agent.publish_every:
        rounds += 1
        state = jax.block_until_ready(learn(state, jnp.int32(rounds)))
    return config.updates * rounds / (time.perf_counter() - began)


def filled(config: Benchmark, agent: Any) -> Any:
    """A replay of random screens, with episodes that are longer than a sequence."""
    steps = max(4 * (config.burn_in + config.trained), 3 * ROLLOUT)
    frame = jax.ShapeDtypeStruct((config.screen, config.screen), jnp.uint8)
    ring = replay.init_ring(frame, extras_of(agent), ENVS, ENVS * steps, ROLLOUT, STACK)
    rng = np.random.default_rng(0)
    shape = (ROLLOUT, ENVS)
    extras = jax.tree.map(lambda x: jnp.ones((*shape, *x.shape), x.dtype), extras_of(agent))
    add = jax.jit(replay.add, donate_argnums=0)
    for number in range(steps // ROLLOUT + 1):
        rollout = replay.Rollout(
            observation=rng.integers(0, 256, (*shape, *frame.shape), np.uint8),
            action=rng.integers(0, config.actions, shape, np.int32),
            reward=rng.normal(size=shape).astype(np.float32),
            discount=np.ones(shape, np.float32),
            first=np.broadcast_to((np.arange(ROLLOUT) + number == 0)[:, None], shape),
            truncated=np.zeros(shape, bool),
            last_observation=rng.integers(0, 256, (*shape, *frame.shape), np.uint8),
            extras=extras,
        )
        ring = add(ring, rollout)
    return ring


def torso_flops(config: Benchmark) -> float:
    """FLOPs of the torso in one gradient step: two for each multiplication that it is defined by.

    The trained steps and one more are read by the network that learns and by the target network;
    their gradient costs twice as much again. The burn-in is read by both, without a gradient.
    """
    side, channels, products = config.screen, STACK, 0
    for filters in SECTIONS:
        pooled = -(-side // 2)
        products += 9 * filters * (side**2 * channels + 4 * pooled**2 * filters)
        side, channels = pooled, filters
    products += side**2 * channels * 256
    frames = config.batch * (4 * (config.trained + 1) + 2 * config.burn_in)
    return 2.0 * products * frames


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
