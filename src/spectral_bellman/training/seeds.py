"""Seeds side by side: vmapped on an accelerator where the environment is there too, else a loop for each.

On a CPU a batched product is no faster than its parts, and a batched factorisation (LAPACK under ``vmap``) can hang where there are
few cores. So each seed has a loop of its own there, with one compiled program for all of them.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from spectral_bellman.training.config import TrainConfig


def over_seeds(function: Callable[..., Any], *, in_axes: Any = 0, donate: tuple[int, ...] = ()) -> Any:
    """``function`` of one seed, vmapped over the first axis of its arguments and compiled."""
    # XLA pairs what is given away with the results in order: an argument left out, because nothing reads it, would shift the pairs.
    return jax.jit(jax.vmap(function, in_axes=in_axes), donate_argnums=donate, keep_unused=bool(donate))


@jax.jit
def fold_keys(keys: jax.Array, *numbers: jax.Array | int) -> jax.Array:
    """The key of every seed, folded with the numbers one after the other."""
    for number in numbers:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
    return keys


class Seeds:
    """The loops of a run, which look like one."""

    def __init__(self, config: TrainConfig, build: Callable[[TrainConfig], Any], *, host: bool = False) -> None:
        """``host``: the environments are not the device's, and each seed has a loop of its own everywhere."""
        on_cpu = jax.default_backend() == "cpu"
        if host or on_cpu:
            numbers = range(config.first_seed, config.first_seed + config.seeds)
            self.loops = [build(dataclasses.replace(config, seeds=1, first_seed=number)) for number in numbers]
            for loop in self.loops[1:]:
                loop.programs = self.loops[0].programs
        else:
            self.loops = [build(config)]
        self.host, self.agent = host, self.loops[0].agent
        self.background: bool = host and self.loops[0].background
        # On an accelerator the seeds' learners take turns piece by piece; on a CPU that would gain nothing.
        together = host and not on_cpu and len(self.loops) > 1
        self._pool = ThreadPoolExecutor(len(self.loops), thread_name_prefix="seed") if together else None
        self.ahead = False

    @property
    def state(self) -> tuple[Any, ...]:
        """All there is to save, besides the replays of environments on the host."""
        return tuple(loop.state for loop in self.loops)

    def shapes(self) -> tuple[Any, ...]:
        """The state as shapes, nothing allocated."""
        return tuple(loop.shapes() for loop in self.loops)

    def prepare(self) -> None:
        """Compile, and open the environments of the host, at once: both take long."""
        self.loops[0].prepare()

    def init(self) -> None:
        """A state before the first round."""
        for loop in self.loops:
            loop.init()

    def run_round(self, number: int, *, ahead: bool = False) -> None:
        """Round ``number`` of every seed; ``ahead`` lets environments on the host go on into the next."""
        self.ahead = ahead
        for _ in (self._pool.map if self._pool else map)(lambda loop: loop.run_round(number, ahead=ahead), self.loops):
            pass

    def tally(self) -> Any:
        """The tally of every seed."""
        return self._together("tally")

    def diagnostics(self, number: int) -> Any:
        """Diagnostics of every seed."""
        return self._together("diagnostics", number)

    def start_evaluation(self, number: int) -> None:
        """Begin greedy episodes with the policies published last."""
        for loop in self.loops:
            loop.start_evaluation(number)

    def evaluated(self, wait: bool = False) -> list[tuple[int, int, Any]]:
        """(number, which seed, returns (episodes,)) of the evaluations that have ended since the last call."""
        ended, seed = [], 0
        for loop in self.loops:
            found = loop.evaluated(wait)
            ended += [(number, seed + i, row) for number, returns in found for i, row in enumerate(returns)]
            seed += loop.config.seeds
        return ended

    def extra(self) -> list[dict[str, Any]]:
        """What a checkpoint needs besides the state."""
        return [loop.extra() for loop in self.loops]

    def close(self) -> None:
        """Close the loops."""
        for loop in self.loops:
            loop.close()
        if self._pool:
            self._pool.shutdown()

    def _together(self, method: str, *args: Any) -> Any:
        return jax.tree.map(lambda *parts: np.concatenate(parts), *(getattr(loop, method)(*args) for loop in self.loops))
