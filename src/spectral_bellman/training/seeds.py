"""Seeds side by side: vmapped with device environments on an accelerator, else a runner each.

On a CPU a batched product is no faster than its parts, and a batched factorisation (LAPACK under
``vmap``) can hang where there are few cores. So each seed has a runner of its own there, with one
compiled program for all of them.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from spectral_bellman.training.config import TrainConfig


class Seeds:
    """The runners of a run, which look like one."""

    def __init__(
        self, config: TrainConfig, build: Callable[[TrainConfig], Any], *, host: bool = False
    ) -> None:
        """``host``: environments are on the host, and each seed has a runner of its own."""
        on_cpu = jax.default_backend() == "cpu"
        if host or on_cpu:
            numbers = range(config.first_seed, config.first_seed + config.seeds)
            one = dataclasses.replace(config, seeds=1)
            self.runners = [build(dataclasses.replace(one, first_seed=n)) for n in numbers]
            for runner in self.runners[1:]:
                runner.programs = self.runners[0].programs
        else:
            self.runners = [build(config)]
        self.host, self.agent = host, self.runners[0].agent
        self.background: bool = host and self.runners[0].background
        # On an accelerator the seeds' learners take turns; on a CPU that would gain nothing.
        together = host and not on_cpu and len(self.runners) > 1
        self._pool = (
            ThreadPoolExecutor(len(self.runners), thread_name_prefix="seed") if together else None
        )
        self.ahead = False

    @property
    def state(self) -> tuple[Any, ...]:
        """All there is to save, besides the replays of environments on the host."""
        return tuple(runner.state for runner in self.runners)

    def shapes(self) -> tuple[Any, ...]:
        """The state as shapes, nothing allocated."""
        return tuple(runner.shapes() for runner in self.runners)

    def prepare(self) -> None:
        """Compile, and open the environments of the host, at once: both take long."""
        self.runners[0].prepare()

    def init(self) -> None:
        """A state before the first round."""
        for runner in self.runners:
            runner.init()

    def run_round(self, number: int, *, ahead: bool = False) -> None:
        """Round ``number`` of every seed; ``ahead`` lets host environments go on."""
        self.ahead = ahead

        def run(runner: Any) -> None:
            runner.run_round(number, ahead=ahead)

        for _ in (self._pool.map if self._pool else map)(run, self.runners):
            pass

    def tally(self) -> Any:
        """The tally of every seed."""
        return self._together("tally")

    def diagnostics(self, number: int) -> Any:
        """Diagnostics of every seed."""
        return self._together("diagnostics", number)

    def figures(self) -> list[dict[str, float]]:
        """Of each seed: what asynchronous actors did since the last call."""
        if not self.host:
            return [{} for runner in self.runners for _ in range(runner.config.seeds)]
        return [runner.figures() for runner in self.runners]

    def start_evaluation(self, number: int, episodes: int) -> None:
        """Begin greedy episodes with the policies published last."""
        for runner in self.runners:
            runner.start_evaluation(number, episodes)

    def evaluated(self, wait: bool = False) -> list[tuple[int, int, Any]]:
        """(number, seed, returns (episodes,)) of evaluations that ended since the last call."""
        ended, seed = [], 0
        for runner in self.runners:
            found = runner.evaluated(wait)
            ended += [
                (number, seed + i, row)
                for number, returns in found
                for i, row in enumerate(returns)
            ]
            seed += runner.config.seeds
        return ended

    def extra(self) -> list[dict[str, Any]]:
        """What a checkpoint needs besides the state."""
        return [runner.extra() for runner in self.runners]

    def close(self) -> None:
        """Close the runners."""
        for runner in self.runners:
            runner.close()
        if self._pool:
            self._pool.shutdown()

    def _together(self, method: str, *args: Any) -> Any:
        parts = [getattr(runner, method)(*args) for runner in self.runners]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
