"""DeepSea (Osband et al. 2020): a grid whose treasure only one of 2^size action sequences finds, by bsuite's rules."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from spectral_bellman._arrays import RandomKey
from spectral_bellman.environments.base import Step

MOVE_COST = 0.01
"""What going right in every row costs together."""

WATER, PATH, TREASURE, DIVER = (12, 44, 84), (24, 84, 140), (240, 196, 40), (255, 255, 255)


class DeepSeaState(NamedTuple):
    """Where the diver is, and whether the episode is lost."""

    row: Int[Array, ""]
    """The number of steps taken; ``size`` when the episode is over."""
    column: Int[Array, ""]
    bad: Bool[Array, ""]
    """Whether the agent itself has left the diagonal, which alone leads to the treasure; being blown off it does not count."""


@dataclass(frozen=True)
class DeepSea:
    """Each of ``size`` steps sinks one row and goes left or right; going right costs 0.01 / size, and in the last column pays 1.

    Which action is right is drawn per cell. In the stochastic version going right stays in the column with probability 1 / size (at
    the same cost), and a step from either corner of the last row adds N(0, 1) to the reward. After the last step the observation is
    zero.
    """

    size: int = 10
    stochastic: bool = False
    mapping_seed: int | None = 42
    """Draws the mapping that bsuite draws from it (whose own experiments take 42); None: action 1 goes right everywhere."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"DeepSea: size is {self.size}; a sea needs at least 2 rows (bsuite's have 10 to 50)")

    @functools.cached_property
    def mapping(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The action that goes right, by row and column, shape (size, size)."""
        if self.mapping_seed is None:
            return np.ones((self.size, self.size), dtype=np.int32)
        # NumPy's old generator, because bsuite's seeds mean what it makes of them.
        return np.random.RandomState(self.mapping_seed).binomial(1, 0.5, (self.size, self.size)).astype(np.int32)

    @property
    def num_actions(self) -> int:
        """Left and right, in the order that ``mapping`` gives."""
        return 2

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The grid, one where the diver is."""
        return jax.ShapeDtypeStruct((self.size, self.size), jnp.float32)

    @property
    def optimal_return(self) -> float:
        """The expected return of going right always: P(stays on the diagonal) − 0.01; that is 1, or (1 − 1/N)^(N − 1) in wind."""
        return (1 - self.stochastic / self.size) ** (self.size - 1) - MOVE_COST

    def solved(self, bad_episodes: int, episodes: int) -> bool:
        """bsuite's rule, given how many of the episodes so far ended with ``bad``.

        Solved once less than 0.9 of them did; in the stochastic version, where luck spares episodes too, less than 0.8 of at least
        100.
        """
        limit, least = (0.8, 100) if self.stochastic else (0.9, 1)
        return episodes >= least and bad_episodes / episodes < limit

    def reset(self, key: RandomKey) -> tuple[DeepSeaState, Float[Array, "size size"]]:
        """The top left corner; nothing is drawn."""
        state = DeepSeaState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        return state, self._observe(state)

    def step(self, state: DeepSeaState, action: Int[Array, ""], key: RandomKey) -> tuple[DeepSeaState, Step]:
        """Sink one row."""
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
        after = DeepSeaState(state.row + 1, column, state.bad | (~right & (state.row == state.column)))
        return after, Step(self._observe(after), reward, after.row >= self.size, jnp.zeros((), bool))

    def render(self, state: DeepSeaState) -> UInt8[Array, "height width 3"]:
        """The diver in white, the way to the treasure in light blue; at least 160 pixels each way."""
        diagonal = jnp.eye(self.size, dtype=bool)
        treasure = diagonal & (jnp.arange(self.size) == self.size - 1)[None]
        kind = jnp.where(self._observe(state) > 0, 3, jnp.where(treasure, 2, diagonal.astype(jnp.int32)))
        cell = -(-160 // self.size)
        return jnp.array([WATER, PATH, TREASURE, DIVER], jnp.uint8)[kind].repeat(cell, axis=0).repeat(cell, axis=1)

    def _observe(self, state: DeepSeaState) -> Float[Array, "size size"]:
        # Below the last row nothing is equal, which makes the zero observation of the end.
        cells = jnp.arange(self.size, dtype=jnp.int32)
        return ((cells == state.row)[:, None] & (cells == state.column)[None, :]).astype(jnp.float32)
