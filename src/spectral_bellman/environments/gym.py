"""Gymnasium environments on the host: copies stepped one after the other, each episode seeded.

Here a block of episodes is one episode: episode k of environment i is reset with a seed made from
(run seed, stream, i, k). So a checkpoint need not hold the state of an environment: the number and
the actions of the running episode bring it back, to the bit if it is deterministic given its seed.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from spectral_bellman.environments.api import (
    TRAINING,
    EnvironmentSpec,
    Family,
    HostStep,
    RenderedStep,
    block_seed,
    nearest,
)

# Gymnasium is imported in the functions that need it: the catalogue imports this module.

Maker = Callable[[], Any]
"""Makes a ``gymnasium.Env``."""


class GymEnvironments:
    """The environments ``indices`` of a run's seed, stepped one after the other in this process."""

    stack = 0

    def __init__(
        self,
        name: str,
        make: Maker,
        seed: int = 0,
        indices: Sequence[int] = (0,),
        stream: int = TRAINING,
    ) -> None:
        self._environments = [make() for _ in indices]
        self.observation, self.num_actions, self._start = _spaces(name, self._environments[0])
        self._seeds = [(seed, stream, index) for index in indices]
        self._steps = [environment.step for environment in self._environments]
        self._blank = np.zeros(self.observation.shape, self.observation.dtype)
        self._episodes = [-1] * len(self._environments)
        self._actions: list[list[int]] = [[] for _ in self._environments]

    def __len__(self) -> int:
        return len(self._environments)

    def reset(self, block: int = 0) -> NDArray[Any]:
        """Begin episode number ``block`` of each environment."""
        return np.stack([self._begin(i, block) for i in range(len(self))])

    def step(
        self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None
    ) -> HostStep:
        """One step of each; those that are not ``running`` are left alone."""
        count = len(self)
        observations: list[Any] = [self._blank] * count
        rewards: list[Any] = [0.0] * count
        terminated, truncated = [False] * count, [False] * count
        beginnings = []
        # Lists, and one array at the end: an assignment to an array costs as much as a small
        # environment's step.
        for i, action in enumerate(actions.tolist()):
            if running is None or running[i]:
                self._actions[i].append(action)
                observations[i], rewards[i], terminated[i], truncated[i], _ = self._steps[i](
                    self._start + action
                )
                if terminated[i] or truncated[i]:
                    beginnings.append((i, self._begin(i, self._episodes[i] + 1)))
        observation = next_observation = np.array(observations, self.observation.dtype)
        if beginnings:
            next_observation = observation.copy()
            for i, beginning in beginnings:
                next_observation[i] = beginning
        over, cut = np.array(terminated, bool), np.array(truncated, bool)
        reward = np.array(rewards, np.float32)
        return HostStep(observation, reward, over, cut & ~over, next_observation, over | cut)

    def save(self) -> list[dict[str, Any]]:
        """The number of each running episode and its actions so far."""
        return [
            {"episode": episode, "actions": list(actions)}
            for episode, actions in zip(self._episodes, self._actions, strict=True)
        ]

    def restore(
        self, saved: list[dict[str, Any]], progress: Callable[[float], None] = lambda _: None
    ) -> NDArray[Any]:
        """Bring every running episode back by its seed and its actions; the observations then."""
        observations = []
        for i, running in enumerate(saved):
            observation = self._begin(i, running["episode"])
            for action in running["actions"]:
                observation = self._steps[i](self._start + action)[0]
            self._actions[i] = list(running["actions"])
            observations.append(np.asarray(observation, self.observation.dtype))
            progress(1 / len(saved))
        return np.stack(observations)

    def close(self) -> None:
        """Close them all."""
        for environment in self._environments:
            environment.close()

    def _begin(self, i: int, episode: int) -> NDArray[Any]:
        self._episodes[i], self._actions[i] = episode, []
        seed = block_seed(*self._seeds[i], episode)
        return np.asarray(self._environments[i].reset(seed=seed)[0], self.observation.dtype)


def maker(environment: Any, **options: Any) -> Maker:
    """A function that makes copies of what the user gave: a name, an environment or a maker."""
    import gymnasium

    if isinstance(environment, str):
        return functools.partial(gymnasium.make, environment, disable_env_checker=True, **options)
    if isinstance(environment, gymnasium.Env):
        return functools.partial(copy.deepcopy, environment)
    return environment


def make(name: str) -> EnvironmentSpec:
    """The environment "gym/ID"."""
    import gymnasium

    identity = name.partition("/")[2]
    if not identity:
        raise ValueError(f"environment {name!r} needs the name of a Gymnasium environment")
    try:
        gymnasium.spec(identity)
    except gymnasium.error.Error as error:
        hint = nearest(identity, gymnasium.registry)
        raise ValueError(f"environment {name!r}: {error}{hint}") from error
    return _spec(name, maker(identity), functools.partial(_replay, identity))


def adopt(environment: Any) -> EnvironmentSpec | None:
    """A ``gymnasium.Env``, of which copies are made, or a function that makes one."""
    import gymnasium

    if not (isinstance(environment, gymnasium.Env) or callable(environment)):
        return None
    name = getattr(environment, "__name__", None) or type(environment).__name__
    return _spec(name, maker(environment))


def _spec(name: str, maker: Maker, replayer: Any = None) -> EnvironmentSpec:
    opener = functools.partial(_open, name, maker)
    return EnvironmentSpec(name, FAMILY.name, opener=opener, replayer=replayer)


def _open(
    name: str, maker: Maker, _: None, seed: int, indices: Sequence[int], stream: int, threads: int
) -> GymEnvironments:
    return GymEnvironments(name, maker, seed, indices, stream)


def _replay(
    identity: str,
    _: None,
    seed: int,
    index: int,
    stream: int,
    block: int,
    actions: Sequence[int],
) -> Iterator[RenderedStep]:
    """The pictures of an episode, by a copy of the environment in a mode that renders."""
    environment = maker(identity, render_mode="rgb_array")()
    try:
        start = int(environment.action_space.start)
        environment.reset(seed=block_seed(seed, stream, index, block))
        yield RenderedStep(np.asarray(environment.render()), 0.0)
        for action in actions:
            reward = environment.step(start + int(action))[1]
            yield RenderedStep(np.asarray(environment.render()), float(reward))
    finally:
        environment.close()


def _names() -> Iterable[str]:
    import gymnasium

    return [f"gym/{identity}" for identity in gymnasium.registry]


def _spaces(name: str, environment: Any) -> tuple[jax.ShapeDtypeStruct, int, int]:
    """The observation, the number of actions, and the first of them."""
    from gymnasium.spaces import Box, Discrete

    seen, acted = environment.observation_space, environment.action_space
    if not isinstance(acted, Discrete):
        raise ValueError(
            f"{name}: actions are {acted}; the method takes a maximum over actions and needs a "
            "Discrete space"
        )
    if not isinstance(seen, Box):
        raise ValueError(
            f"{name}: observations are {seen}; wrap it in gymnasium.wrappers.FlattenObservation to "
            "get a Box"
        )
    dtype = np.uint8 if seen.dtype == np.uint8 else np.float32
    return jax.ShapeDtypeStruct(seen.shape, dtype), int(acted.n), int(acted.start)


FAMILY = Family(
    name="gym",
    title="Gymnasium",
    patterns={
        "gym/ID": "any Gymnasium environment with Discrete actions and Box observations, "
        "e.g. gym/CartPole-v1"
    },
    run={
        "num_envs": 64,
        "round_steps": 4,
        "replay_capacity": 10_000,
        "frames": 100_000,
        "staleness": 2,
    },
    agent={
        "hidden": (120, 84),
        "batch": 128,
        "updates": 16,
        "q_steps": 4,
        "learning_rate": 5e-4,
        "warmup_steps": 1_000,
        "epsilon_steps": 10_000,
        "epsilon_end": 0.1,
        "reward_clip": 0.0,
    },
    make=make,
    adopt=adopt,
    names=_names,
)
