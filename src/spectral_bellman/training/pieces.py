"""A stage of learning in pieces, short enough that choosing an action need not wait for a round of gradient steps."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import AgentState
from spectral_bellman.agents.agent import Stage, largest_divisor
from spectral_bellman.agents.representation import Terms
from spectral_bellman.replay import Replay


class Pieces:
    """A stage of learning in pieces of at most so many gradient steps, 0 for any; each piece is sent to the device as one."""

    def __init__(self, stage: Stage, most: int) -> None:
        self._stage = stage
        self._times = largest_divisor(stage.times, most // max(stage.steps, 1) if most else stage.times)
        self.count = stage.times // self._times

    def _keys(self, key: RandomKey, index: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(jax.random.split(key, self._stage.times), index * self._times, self._times)

    def draw(self, replay: Replay, key: RandomKey, index: Array) -> Any:
        """All that piece ``index`` learns from."""
        return jax.lax.map(lambda key: self._stage.draw(replay, key), self._keys(key, index))

    def run(self, state: AgentState, drawn: Any, key: RandomKey, index: Array) -> tuple[AgentState, Array]:
        """Learn from what was drawn; the number of the next piece, for those who wait until this one is done."""
        return self._scan(self._stage.run, state, (drawn, self._keys(key, index))), index + 1

    def run_from(self, state: AgentState, replay: Replay, key: RandomKey, index: Array) -> tuple[AgentState, Array]:
        """Draw and learn, in turn."""
        return self._scan(self._drawing(replay), state, (self._keys(key, index),)), index + 1

    def finish(self, state: AgentState, drawn: Any, key: RandomKey, index: Array) -> tuple[AgentState, Terms]:
        """``run`` for the last piece, with the terms of its last step: nobody pays for those that are not read."""
        return self._finish(self._stage.run, state, (drawn, self._keys(key, index)))

    def finish_from(self, state: AgentState, replay: Replay, key: RandomKey, index: Array) -> tuple[AgentState, Terms]:
        """``run_from`` for the last piece, with the terms of its last step."""
        return self._finish(self._drawing(replay), state, (self._keys(key, index),))

    def _drawing(self, replay: Replay) -> Callable[..., tuple[AgentState, Terms]]:
        return lambda state, key: self._stage.run(state, self._stage.draw(replay, key), key)

    def _scan(self, once: Callable[..., tuple[AgentState, Terms]], state: AgentState, inputs: tuple[Any, ...]) -> AgentState:
        return jax.lax.scan(lambda state, x: (once(state, *x)[0], None), state, inputs)[0]

    def _finish(self, once: Callable[..., Any], state: AgentState, inputs: tuple[Any, ...]) -> tuple[AgentState, Terms]:
        state = self._scan(once, state, jax.tree.map(lambda x: x[:-1], inputs))
        return once(state, *jax.tree.map(lambda x: x[-1], inputs))
