"""DeepSea (Osband et al. 2020), by bsuite's rules.

One of 2^size sequences of actions finds the treasure.
"""

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from spectral_bellman._arrays import RandomKey
from spectral_bellman.environments.api import Changes, EnvironmentSpec, Family, Step

MOVE_COST = 0.01
"""What going right in every row costs together."""

WATER, PATH, TREASURE, DIVER = (12, 44, 84), (24, 84, 140), (240, 196, 40), (255, 255, 255)


class DeepSeaState(NamedTuple):
    """Where the diver is, and whether the episode is lost."""

    row: Int[Array, ""]
    """The number of steps taken; ``size`` when the episode is over."""
    column: Int[Array, ""]
    bad: Bool[Array, ""]
    """Whether an action of the agent has left the diagonal, the only way to the treasure; being
    blown off it does not count."""


@dataclass(frozen=True)
class DeepSea:
    """A grid of ``size`` rows and columns; each step goes down one row, and left or right.

    Going right costs 0.01 / size, and pays 1 in the last column. Which action goes right is drawn
    for each cell. In the stochastic version, going right stays in the column with probability
    1 / size (at the same cost), and a step from either corner of the last row adds N(0, 1) to the
    reward. After the last step the observation is zero.

    In the mixed version, observations are the rows of a fixed random rotation, one for each cell:
    they differ as much as before, and no number of them belongs to one cell.
    """

    size: int = 10
    stochastic: bool = False
    mapping_seed: int | None = 42
    """Seed of the mapping, which is the one that bsuite draws (bsuite's experiments take 42).
    None: action 1 goes right everywhere."""
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(
                f"DeepSea: size is {self.size}; a sea needs at least 2 rows "
                "(bsuite's have 10 to 50)"
            )

    @functools.cached_property
    def mapping(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The action that goes right, by row and column, shape (size, size)."""
        if self.mapping_seed is None:
            return np.ones((self.size, self.size), dtype=np.int32)
        # NumPy's old generator: bsuite draws from it, and its seeds must give bsuite's mapping.
        random = np.random.RandomState(self.mapping_seed)
        return random.binomial(1, 0.5, (self.size, self.size)).astype(np.int32)

    @property
    def num_actions(self) -> int:
        """Left and right, in the order that ``mapping`` gives."""
        return 2

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The grid, one where the diver is; mixed: a number for each cell."""
        shape = (self.size**2,) if self.mixed else (self.size, self.size)
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    @functools.cached_property
    def rotation(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the cells are mixed by."""
        random = np.random.RandomState(0).normal(size=(self.size**2, self.size**2))
        return np.linalg.qr(random)[0].astype(np.float32)

    @property
    def optimal_return(self) -> float:
        """The expected return of always going right: P(stays on the diagonal) − 0.01.

        The probability is 1, or (1 − 1/N)^(N − 1) in the stochastic version.
        """
        return (1 - self.stochastic / self.size) ** (self.size - 1) - MOVE_COST

    def solved(self, bad_episodes: int, episodes: int) -> bool:
        """bsuite's rule, given how many of the episodes so far ended with ``bad``.

        A sea is solved when fewer than 0.9 of the episodes were bad. In the stochastic version the
        limit is 0.8, of at least 100 episodes.
        """
        limit, least = (0.8, 100) if self.stochastic else (0.9, 1)
        return episodes >= least and bad_episodes / episodes < limit

    def reset(self, key: RandomKey) -> tuple[DeepSeaState, Float[Array, "..."]]:
        """The top left corner; nothing is drawn."""
        state = DeepSeaState(
            jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        )
        return state, self._observe(state)

    def step(
        self, state: DeepSeaState, action: Int[Array, ""], key: RandomKey
    ) -> tuple[DeepSeaState, Step]:
        """Go down one row."""
        last = self.size - 1
        right = action.astype(jnp.int32) == jnp.asarray(self.mapping)[state.row, state.column]
        treasure = right & (state.column == last)
        reward = treasure.astype(jnp.float32) - right.astype(jnp.float32) * (MOVE_COST / self.size)
        move = jnp.where(right, 1, -1)
        if self.stochastic:
            wind_key, noise_key = jax.random.split(key)
            move = jnp.where(right & jax.random.bernoulli(wind_key, 1 / self.size), 0, move)
            noisy = (state.row == last) & ((state.column == 0) | (state.column == last))
            reward += jnp.where(noisy, jax.random.normal(noise_key, dtype=jnp.float32), 0)
        column = jnp.clip(state.column + move, 0, last).astype(jnp.int32)
        bad = state.bad | (~right & (state.row == state.column))
        after = DeepSeaState(state.row + 1, column, bad)
        return after, Step(
            self._observe(after), reward, after.row >= self.size, jnp.zeros((), bool)
        )

    def render(self, state: DeepSeaState) -> UInt8[Array, "height width 3"]:
        """The diver in white, the way to the treasure in light blue; at least 160×160 pixels."""
        diagonal = jnp.eye(self.size, dtype=bool)
        treasure = diagonal & (jnp.arange(self.size) == self.size - 1)[None]
        empty = jnp.where(treasure, 2, diagonal.astype(jnp.int32))
        kind = jnp.where(self._grid(state), 3, empty)
        cell = -(-160 // self.size)
        colours = jnp.array([WATER, PATH, TREASURE, DIVER], jnp.uint8)
        return colours[kind].repeat(cell, axis=0).repeat(cell, axis=1)

    def _observe(self, state: DeepSeaState) -> Float[Array, "..."]:
        if not self.mixed:
            return self._grid(state).astype(jnp.float32)
        cell = jnp.minimum(state.row * self.size + state.column, self.size**2 - 1)
        seen = jnp.asarray(self.rotation)[cell]
        return jnp.where(state.row < self.size, seen, jnp.zeros_like(seen))

    def _grid(self, state: DeepSeaState) -> Bool[Array, "size size"]:
        # Below the last row nothing is equal, which makes the zero observation of the end.
        cells = jnp.arange(self.size, dtype=jnp.int32)
        return (cells == state.row)[:, None] & (cells == state.column)[None, :]


def make(name: str) -> EnvironmentSpec:
    """The sea of "deep_sea/N", "deep_sea_stochastic/N" or "deep_sea_mixed/N"."""
    kind, _, size = name.partition("/")
    if not size.isdigit():
        raise ValueError(f"environment {name!r}: deep_sea needs a size, e.g. deep_sea/10")
    sea = DeepSea(
        int(size), stochastic=kind == "deep_sea_stochastic", mixed=kind == "deep_sea_mixed"
    )
    return EnvironmentSpec(name, FAMILY.name, device=sea)


def suited(
    spec: EnvironmentSpec, run: Mapping[str, Any], agent: Mapping[str, Any], chosen: Collection[str]
) -> Changes:
    """All episodes have one length: a round is one of them, and a run three hundred.

    The features have a direction for each state and action that can be met. The precision matrix is
    made from all of the replay: what was seen must not look unseen.
    """
    assert isinstance(spec.device, DeepSea)
    size = spec.device.size
    recurrent = agent.get("backbone") == "recurrent"
    exact = agent.get("exploration") == "propagated" and not spec.device.stochastic
    width = 2 ** max(7, math.ceil(math.log2(size * (size + 1))))
    changes: dict[str, Any] = {
        # Without noise in the rewards, what was seen once is known.
        **({"ridge": 1e-4, "propagated_variance": 1e-4} if exact else {}),
        "propagated_iterations": size,
        "features": width,
        "hidden": (width,),
        "precision_samples": 2_000 * size,
        # Each cell has two actions, and with wind a third outcome. Histories do not repeat.
        "precision_distinct": 0 if recurrent else 2 * size * size,
        "precision_rounds": 1,
    }
    return (
        {"round_steps": size, "frames": 300 * size, "replay_capacity": 500 * size},
        {name: value for name, value in changes.items() if name not in chosen},
    )


FAMILY = Family(
    name="deep_sea",
    title="DeepSea",
    patterns={
        "deep_sea/N": "bsuite's hard exploration: N steps down a grid, one treasure",
        "deep_sea_stochastic/N": "the same with wind and noisy rewards",
        "deep_sea_mixed/N": "the same with observations that a fixed rotation has mixed",
    },
    run={"num_envs": 1, "staleness": 1},
    agent={
        "ridge": 0.01,
        "batch": 128,
        "updates": 10,
        "q_steps": 2,
        "warmup_steps": 0,
        "epsilon_steps": 1_000,
        "reward_clip": 0.0,
        "learning_rate": 1e-4,
        "propagated_draws": 1,
    },
    make=make,
    suited=suited,
)
