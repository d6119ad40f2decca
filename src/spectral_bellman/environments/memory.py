"""Tasks that cannot be solved from the newest observation: a T-maze, and recall of symbols."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.environments.api import EnvironmentSpec, Family, Step

SYMBOLS = 3
"""Symbols of the recall task."""


class MazeState(NamedTuple):
    """Where the agent stands in a T-maze."""

    place: Int[Array, ""]
    cue: Int[Array, ""]
    """The arm with the reward: 0 or 1."""
    time: Int[Array, ""]


class TMaze(eqx.Module):
    """A corridor of ``length`` steps to a junction; the first observation says which arm pays.

    Actions: forward, left, right. In the corridor only forward moves, and any other action costs
    0.1. At the junction left and right end the episode with +1 in the arm of the cue and −1 in the
    other. An episode is cut after 3 · length + 3 steps. Without memory the best mean return is 0.
    """

    length: int = eqx.field(static=True)

    num_actions = 3
    observation = jax.ShapeDtypeStruct((4,), jnp.float32)
    """Cue for the left arm, cue for the right arm, corridor, junction."""

    def reset(self, key: RandomKey) -> tuple[MazeState, Float[Array, "4"]]:
        """A new cue."""
        zero = jnp.zeros((), jnp.int32)
        state = MazeState(zero, jax.random.randint(key, (), 0, 2), zero)
        return state, self._observe(state)

    def step(
        self, state: MazeState, action: Int[Array, ""], key: RandomKey
    ) -> tuple[MazeState, Step]:
        """One step."""
        junction = state.place >= self.length
        forward = action == 0
        place = jnp.minimum(state.place + forward.astype(jnp.int32), self.length)
        after = MazeState(place, state.cue, state.time + 1)
        terminated = junction & ~forward
        paid = jnp.where(action == state.cue + 1, 1.0, -1.0)
        wasted = jnp.where(junction | ~forward, -0.1, 0.0)
        truncated = (after.time >= 3 * self.length + 3) & ~terminated
        reward = jnp.where(terminated, paid, wasted)
        return after, Step(self._observe(after), reward, terminated, truncated)

    def _observe(self, state: MazeState) -> Float[Array, "4"]:
        start, junction = state.time == 0, state.place >= self.length
        parts = [start & (state.cue == 0), start & (state.cue == 1), ~start & ~junction, junction]
        return jnp.stack(parts).astype(jnp.float32)


class RecallState(NamedTuple):
    """A sequence of symbols, and how far the episode has come."""

    symbols: Int[Array, " k"]
    time: Int[Array, ""]


class Recall(eqx.Module):
    """``count`` symbols are shown one by one, then asked for in the same order.

    Each right answer pays 1/count. Actions before the questions do not matter. Without memory the
    best mean return is 1/3.
    """

    count: int = eqx.field(static=True)

    num_actions = SYMBOLS
    observation = jax.ShapeDtypeStruct((SYMBOLS + 1,), jnp.float32)
    """The symbol that is shown, and whether one is asked for."""

    def reset(self, key: RandomKey) -> tuple[RecallState, Float[Array, "4"]]:
        """New symbols."""
        symbols = jax.random.randint(key, (self.count,), 0, SYMBOLS)
        state = RecallState(symbols, jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(
        self, state: RecallState, action: Int[Array, ""], key: RandomKey
    ) -> tuple[RecallState, Step]:
        """One step."""
        asked = state.time - self.count
        right = (asked >= 0) & (action == state.symbols[jnp.maximum(asked, 0)])
        after = RecallState(state.symbols, state.time + 1)
        reward = jnp.where(right, 1 / self.count, 0.0).astype(jnp.float32)
        terminated = after.time >= 2 * self.count
        return after, Step(self._observe(after), reward, terminated, jnp.zeros((), bool))

    def _observe(self, state: RecallState) -> Float[Array, "4"]:
        shown = state.symbols[jnp.minimum(state.time, self.count - 1)]
        symbol = jax.nn.one_hot(shown, SYMBOLS)
        asking = state.time >= self.count
        return jnp.append(jnp.where(asking, 0.0, symbol), asking.astype(jnp.float32))


def make(name: str) -> EnvironmentSpec:
    """The task of "t_maze/N" or "recall/N"."""
    kind, _, size = name.partition("/")
    if not size.isdigit() or int(size) < 1:
        raise ValueError(f"environment {name!r}: {kind} needs a size of at least 1, e.g. {kind}/5")
    device = TMaze(int(size)) if kind == "t_maze" else Recall(int(size))
    return EnvironmentSpec(name, FAMILY.name, device=device)


FAMILY = Family(
    name="memory",
    title="Memory",
    patterns={
        "t_maze/N": "a corridor of N steps; the first observation says which arm pays at its end",
        "recall/N": "N symbols are shown one by one, then asked for",
    },
    run={
        "num_envs": 16,
        "round_steps": 10,
        "replay_capacity": 20_000,
        "frames": 20_000,
        "staleness": 1,
    },
    agent={
        "hidden": (32,),
        "features": 32,
        "batch": 32,
        "updates": 8,
        "q_steps": 2,
        "reward_clip": 0.0,
        "learning_rate": 2e-3,
        "warmup_steps": 500,
        "epsilon_steps": 10_000,
    },
    make=make,
)
