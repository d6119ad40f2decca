"""Actors that never wait for one another: learning takes the rounds that come first.

Each actor keeps its episodes and the state of its agent in its own process, acts on the newest
policy that it finds, and hands in one round after the other. A round of learning takes as many of
these as there are actors, whoever they are from, so that learning and acting keep their ratio. It
waits for an actor only where its policy has become too old.

What acts depends on timing, so no two runs are the same. An actor that dies is replaced. Its
unfinished episodes are given up, and no part of a round that did not arrive is stored.
"""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from spectral_bellman.training import ray_actors
from spectral_bellman.training.actors import HostActorState, Part
from spectral_bellman.training.ray_actors import RayActor, Shared

STOP_SECONDS = 10.0


class Arrived(NamedTuple):
    """A round of one actor."""

    group: int
    version: int
    """The round that published its policy."""
    part: Part
    begun_anew: bool
    """Whether its environments left their episodes unfinished before it."""


class FreeActor(RayActor):
    """A group of environments in another process, which keeps its state there."""

    def __init__(self, group: int, begin: Callable[[], Any], shared: Shared) -> None:
        super().__init__(group, begin, shared)
        self.version: int | None = None
        """The policy of the round that is under way."""
        self.waited = 0.0
        """Seconds in which it had nothing to do."""
        self._blocks, self._ended = itertools.count(), False

    def begin(self, state: HostActorState, block: int) -> None:
        """Begin episodes, from this block on; again with later ones whenever it is replaced."""
        self._begun = jax.device_get(state)
        self._blocks = itertools.count(block)
        self.ask("begin_alone", self._begun, next(self._blocks))

    def round(self, number: int, version: int, policy: Any, key: Any) -> tuple[Arrived, float]:
        """A round with a policy, and the seconds that the actor worked for it."""
        deaths = self.deaths
        part, seconds = self.ask("collect_alone", number, policy, key)
        return Arrived(self._group, version, part, self.deaths != deaths), seconds

    def end(self) -> None:
        """Not to be replaced any more."""
        self._ended = True

    def _replace(self) -> None:
        if self._ended:
            raise RuntimeError("the run was stopped")
        super()._replace()

    def _restored(self) -> tuple[str, Any, Any]:
        return "begin_alone", self._begun, next(self._blocks)


class FreeActors:
    """All actors of a run, each with a thread here that asks it for rounds."""

    def __init__(self, actors: Sequence[FreeActor], shared: Shared, most_stale: int) -> None:
        """``most_stale``: rounds that learning may be ahead of the policy of an actor."""
        self._actors, self._shared, self._most_stale = actors, shared, most_stale
        self._arrived: collections.deque[Arrived | BaseException] = collections.deque()
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._newest: tuple[int, Any] = (0, None)
        self._since, self._waited = time.perf_counter(), 0.0
        self._seen: dict[str, list[float]] = {"staleness": [], "queue": [], "megabytes": []}

    def start(self, version: int, policy: Any, key: Array) -> None:
        """Let them go on, with the policy of a round."""
        self.publish(version, policy)
        data = np.asarray(jax.random.key_data(key))
        for actor in self._actors:
            given = (actor, version + 1, data)
            self._threads.append(threading.Thread(target=self._run, args=given, daemon=True))
            self._threads[-1].start()

    def publish(self, version: int, policy: Any) -> None:
        """The policy of round ``version``, which actors take from now on."""
        self._newest = (version, policy)

    def take(self, number: int) -> list[Arrived]:
        """What round ``number`` learns from: the rounds of actors that came first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._behind(number), ray_actors.ANSWER_SECONDS)
            return [self._next(number) for _ in self._actors]

    def _next(self, number: int) -> Arrived:
        if not self._changed.wait_for(lambda: bool(self._arrived), ray_actors.ANSWER_SECONDS):
            raise RuntimeError(
                f"no actor has answered for {ray_actors.ANSWER_SECONDS:.0f} s: look at their "
                "machines and their network. Nothing is lost: sbm resume goes on from the last "
                "checkpoint"
            )
        one = self._arrived.popleft()
        self._changed.notify_all()
        if isinstance(one, BaseException):
            raise one
        self._seen["staleness"].append(number - one.version)
        self._seen["queue"].append(len(self._arrived))
        size = sum(np.asarray(x).nbytes for x in jax.tree.leaves(one.part))
        self._seen["megabytes"].append(size / 1e6)
        return one

    def figures(self, learner_waited: float) -> dict[str, float]:
        """What has happened since the last call, for the log.

        ``learner_waited``: seconds since the start that learning has waited for actors.
        """
        seen, now = self._seen, time.perf_counter()
        self._seen = {name: [] for name in seen}
        elapsed, self._since = max(now - self._since, 1e-9), now
        learner, self._waited = learner_waited - self._waited, learner_waited
        waited = [actor.waited for actor in self._actors]
        for actor in self._actors:
            actor.waited = 0.0
        if not seen["staleness"]:
            return {}
        return {
            "staleness": float(np.mean(seen["staleness"])),
            "most_stale": float(np.max(seen["staleness"])),
            "queue": float(np.mean(seen["queue"])),
            "megabytes": float(np.sum(seen["megabytes"])),
            "idle_share": min(1.0, float(np.mean(waited)) / elapsed),
            "learner_idle_share": min(1.0, learner / elapsed),
            "deaths": float(sum(actor.deaths for actor in self._actors)),
        }

    def stop(self) -> None:
        """Ask for no more rounds, and wait a while for those that are under way."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        for actor in self._actors:
            actor.end()
        for thread in self._threads:
            thread.join(STOP_SECONDS)

    def _behind(self, number: int) -> bool:
        versions = [actor.version for actor in self._actors]
        failed = any(isinstance(one, BaseException) for one in self._arrived)
        return not failed and any(v is not None and v < number - self._most_stale for v in versions)

    def _run(self, actor: FreeActor, number: int, key: Any) -> None:
        """Rounds of one actor; ``number`` is the first, and gives the random numbers."""
        try:
            while not self._stopped.is_set():
                began = time.perf_counter()
                actor.version, policy = self._newest
                reference = self._shared.reference(actor.version, policy)
                one, worked = actor.round(number, actor.version, reference, key)
                with self._changed:
                    actor.version = None
                    self._changed.notify_all()
                    # One round of an actor may wait to be learned from.
                    self._changed.wait_for(lambda: not self._waits(one))  # noqa: B023
                    self._arrived.append(one)
                    self._changed.notify_all()
                actor.waited += max(0.0, time.perf_counter() - began - worked)
                number += 1
        except BaseException as error:
            with self._changed:
                self._arrived.append(error)
                self._changed.notify_all()

    def _waits(self, one: Arrived) -> bool:
        groups = [other.group for other in self._arrived if isinstance(other, Arrived)]
        return one.group in groups and not self._stopped.is_set()
