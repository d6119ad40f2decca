"""Actors in processes of their own, on this machine or on a cluster, through Ray.

Each has a group of the environments, and is asked for one round after the other. What it is asked
depends on numbers of rounds alone, so a run with N actors is to the bit the run with N groups in
one process (on devices of the same kind), and it is checkpointed and resumed like that one.
``asynchronous`` has actors that do not wait for one another.

An actor that dies is replaced. The new one brings the environments back: their last saved state,
and the actions since. Then it plays the round again that was lost. Nothing of a round is stored
before all of it has come back.
"""

import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from spectral_bellman.agents.api import Agent
from spectral_bellman.environments.api import TRAINING, VectorEnvironment
from spectral_bellman.training.actors import HostActor, HostActorState, Part
from spectral_bellman.training.cluster import connect
from spectral_bellman.training.config import TrainConfig

ANSWER_SECONDS = 600.0
"""An actor that has not answered by then is given up: it compiles, or brings episodes back."""
SAVE_ROUNDS = 32
"""Rounds between two saved states of the environments."""
MOST_DEATHS = 5
"""Deaths of an actor in a row, without a round in between, after which the run ends."""


class Collector:
    """What an actor does in its own process. It keeps nothing but the environments."""

    def __init__(
        self,
        config: TrainConfig,
        opener: Callable[[int, list[int], int], VectorEnvironment],
        build: Callable[[jax.ShapeDtypeStruct, int], Agent[Any, Any, Any]],
        group: int,
        indices: list[int],
    ) -> None:
        from spectral_bellman.training.host_programs import HostPrograms

        self._environments = environments = opener(config.first_seed, indices, TRAINING)
        programs = HostPrograms.of(config, environments, build)
        self._actor = programs.actor(group, environments, programs.blank())

    def collect(
        self, number: int, policy: Any, state: HostActorState, key: NDArray[np.uint32]
    ) -> tuple[Part, HostActorState]:
        """Round ``number``, and where the group stands after it."""
        self._actor.state = jax.tree.map(jnp.asarray, state)
        policy = jax.tree.map(jnp.asarray, policy)
        seed_key = jax.random.wrap_key_data(jnp.asarray(key))
        part = self._actor.collect(number, lambda: policy, seed_key)
        return jax.device_get((part, self._actor.state))

    def begin_alone(self, state: HostActorState, block: int) -> None:
        """Begin this block of episodes, and keep the state of the agent here from now on."""
        frame = self._environments.reset(block)
        first = np.ones(len(frame), bool)
        state = jax.tree.map(jnp.asarray, state._replace(frame=frame, first=first))
        self._actor.state = state

    def collect_alone(
        self, number: int, policy: Any, key: NDArray[np.uint32]
    ) -> tuple[Part, float]:
        """A round from where the last has ended, and the seconds that it took."""
        began = time.perf_counter()
        policy = jax.tree.map(jnp.asarray, policy)
        seed_key = jax.random.wrap_key_data(jnp.asarray(key))
        part = jax.device_get(self._actor.collect(number, lambda: policy, seed_key))
        return part, time.perf_counter() - began

    def process(self) -> int:
        """The number of this process."""
        return os.getpid()

    def begin(self, block: int) -> tuple[NDArray[Any], list[dict[str, Any]]]:
        """Begin this block of episodes; the first frames, and the environments saved there."""
        return self._environments.reset(block), self._environments.save()

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs."""
        return self._environments.save()

    def restore(
        self, saved: list[dict[str, Any]], actions: list[NDArray[np.int32]]
    ) -> NDArray[Any]:
        """Bring the episodes back to where they were saved, and ``actions`` further."""
        frame = self._environments.restore(saved, lambda _: None)
        for round_actions in actions:
            for chosen in round_actions:
                frame = self._environments.step(chosen).next_observation
        return frame


class Shared:
    """Policies in Ray's object store: each is sent once, whatever the number of actors."""

    def __init__(self) -> None:
        self._lock, self._references = threading.Lock(), dict[int, Any]()

    def reference(self, number: int, policy: Any) -> Any:
        """Of the policy that acts in a round."""
        import ray

        with self._lock:
            if number not in self._references:
                self._references = {n: r for n, r in self._references.items() if n >= number - 1}
                self._references[number] = ray.put(jax.device_get(policy))
            return self._references[number]


class RemoteEnvironments:
    """The part of a ``VectorEnvironment`` that a run asks for between two rounds."""

    def __init__(self, actor: "RayActor") -> None:
        self._actor = actor

    def reset(self, block: int = 0) -> NDArray[Any]:
        """Begin this block of episodes; the first frames."""
        frame, saved = self._actor.ask("begin", block)
        self._actor.remember(saved)
        return frame

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs, ready for JSON."""
        return self._actor.ask("save")

    def restore(
        self, saved: list[dict[str, Any]], progress: Callable[[float], None]
    ) -> NDArray[Any]:
        """Bring every running episode back; the frames that the agent acts on next."""
        frame = self._actor.ask("restore", saved, [])
        self._actor.remember(saved)
        progress(1.0)
        return frame

    def close(self) -> None:
        """End the process."""
        self._actor.kill()


class RayActor(HostActor):
    """A group of environments in another process. A thread here asks it for rounds."""

    def __init__(self, group: int, begin: Callable[[], Any], shared: Shared) -> None:
        """``begin`` starts a ``Collector`` and returns Ray's handle of it."""
        self._group, self._begin, self._shared = group, begin, shared
        self._handle = begin()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"actor-{group}")
        self.environments: Any = RemoteEnvironments(self)
        self.state: HostActorState | None = None
        self.deaths = 0
        """How often it has been replaced."""
        self._saved: list[dict[str, Any]] | None = None
        self._since: list[NDArray[np.int32]] = []

    def remember(self, saved: list[dict[str, Any]]) -> None:
        """The environments stand where they were saved just now."""
        self._saved, self._since = saved, []

    def ask(self, name: str, *given: Any) -> Any:
        """Call a method of the ``Collector``; again, with a new one, if it dies meanwhile."""
        import ray

        for _ in range(MOST_DEATHS):
            try:
                reference = getattr(self._handle, name).remote(*given)
                return ray.get(reference, timeout=ANSWER_SECONDS)
            except ray.exceptions.GetTimeoutError:
                raise RuntimeError(
                    f"actor {self._group} has not answered for {ANSWER_SECONDS:.0f} s: look at its "
                    "machine and its network. Nothing is lost: sbm resume goes on from the last "
                    "checkpoint"
                ) from None
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None  # as if it had happened here
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
                self._replace()
        raise RuntimeError(
            f"actor {self._group} died {MOST_DEATHS} times in a row: look at the memory of its "
            "machine, and at Ray's logs in /tmp/ray/session_latest/logs there"
        )

    def _replace(self) -> None:
        import ray

        self.deaths += 1
        self.kill()
        self._handle = self._begin()
        if (again := self._restored()) is None:
            return
        try:
            ray.get(getattr(self._handle, again[0]).remote(*again[1:]), timeout=ANSWER_SECONDS)
        except ray.exceptions.RayActorError:
            return  # the next question finds it dead

    def _restored(self) -> tuple[str, Any, Any] | None:
        """What brings a new actor to where the last one was: a method and what it is given."""
        return None if self._saved is None else ("restore", self._saved, self._since)

    def collect(self, number: int, policy_of: Callable[[], Any], key: Array) -> Part:
        """A round."""
        policy = self._shared.reference(number, policy_of())
        data = np.asarray(jax.random.key_data(key))
        state = jax.device_get(self.state)
        part, self.state = self.ask("collect", number, policy, state, data)
        self._since.append(part.buffer.action)
        if len(self._since) >= SAVE_ROUNDS:
            self.remember(self.ask("save"))
        return part

    def kill(self) -> None:
        """End the process."""
        import ray

        if ray.is_initialized():
            ray.kill(self._handle)


def start(
    config: TrainConfig,
    opener: Callable[[int, list[int], int], VectorEnvironment],
    build: Callable[[jax.ShapeDtypeStruct, int], Agent[Any, Any, Any]],
    indices: list[list[int]],
    shared: Shared,
    kind: type[RayActor] = RayActor,
) -> list[Any]:
    """An actor for each group of environments."""
    cluster = config.on_host.cluster
    ray = connect(cluster)
    # Acting is light, and an accelerator belongs to the learner. On one machine the system shares
    # the cores, however many actors there are.
    runtime = {"env_vars": {"JAX_PLATFORMS": "cpu"}}
    cores = 1 if cluster else 0
    remote: Any = ray.remote(num_cpus=cores, max_restarts=0, runtime_env=runtime)(Collector)

    def begin(group: int, part: list[int]) -> Any:
        return remote.options(scheduling_strategy="SPREAD").remote(
            config, opener, build, group, part
        )

    return [
        kind(group, functools.partial(begin, group, part), shared)
        for group, part in enumerate(indices)
    ]
