"""Seeds side by side: vmapped on an accelerator, one after the other on a CPU.

On a CPU a batched product is no faster than its parts, and a batched factorisation (LAPACK under ``vmap``) can hang where there are
few cores. So each seed has a loop of its own there, with one compiled program for all of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from spectral_bellman.training.config import TrainConfig


def over_seeds(function: Callable[..., Any], *, in_axes: Any = 0, donate: tuple[int, ...] = ()) -> Any:
    """``function`` of one seed, vmapped over the first axis of its arguments and compiled."""
    return jax.jit(jax.vmap(function, in_axes=in_axes), donate_argnums=donate)


@jax.jit
def fold_keys(keys: jax.Array, *numbers: jax.Array | int) -> jax.Array:
    """The key of every seed, folded with the numbers one after the other."""
    for number in numbers:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
    return keys


class Seeds:
    """The loops of a run, which look like one."""

    def __init__(self, config: TrainConfig, build: Callable[[TrainConfig], Any]) -> None:
        if jax.default_backend() == "cpu":
            numbers = range(config.first_seed, config.first_seed + config.seeds)
            self.loops = [build(dataclasses.replace(config, seeds=1, first_seed=number)) for number in numbers]
            for loop in self.loops[1:]:
                loop.programs = self.loops[0].programs
        else:
            self.loops = [build(config)]
        self.agent = self.loops[0].agent

    @property
    def state(self) -> tuple[Any, ...]:
        """All there is to save."""
        return tuple(loop.state for loop in self.loops)

    def shapes(self) -> tuple[Any, ...]:
        """The state as shapes, nothing allocated."""
        return tuple(loop.shapes() for loop in self.loops)

    def init(self) -> None:
        """A state before the first round."""
        for loop in self.loops:
            loop.init()

    def run_round(self, number: int) -> None:
        """Round ``number`` of every seed."""
        for loop in self.loops:
            loop.run_round(number)

    def tally(self) -> Any:
        """The tally of every seed."""
        return self._together("tally")

    def diagnostics(self, number: int) -> Any:
        """Diagnostics of every seed."""
        return self._together("diagnostics", number)

    def evaluate(self, number: int) -> Any:
        """Returns of greedy episodes, (seeds, episodes)."""
        return self._together("evaluate", number)

    def extra(self) -> list[dict[str, Any]]:
        """What a checkpoint needs besides the state."""
        return [loop.extra() for loop in self.loops]

    def restore(self, states: tuple[Any, ...], extras: list[dict[str, Any]]) -> list[str]:
        """Go on from a checkpoint; what went wrong, if anything."""
        problems = [loop.restore(state, extra) for loop, state, extra in zip(self.loops, states, extras, strict=True)]
        return [problem for problem in problems if problem]

    def close(self) -> None:
        """Close the loops."""
        for loop in self.loops:
            loop.close()

    def _together(self, method: str, *args: Any) -> Any:
        return jax.tree.map(lambda *parts: np.concatenate(parts), *(getattr(loop, method)(*args) for loop in self.loops))
