"""Gymnasium environments on the host: many copies stepped together, each episode with a seed of its own.

Episode k of environment i is reset with a seed made from (run seed, i, k). So a checkpoint need not hold an environment's insides:
the numbers and the actions of the running episode bring it back, to the bit if it is deterministic given its seed.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

Maker = Callable[[], gymnasium.Env[Any, Any]]


class HostStep(NamedTuple):
    """What E environments answer; arrays are (E, …)."""

    observation: NDArray[Any]
    """s_t, the true one, also where the episode ended."""
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    following: NDArray[Any]
    """What the agent sees next: s_t, or the first observation of the next episode."""
    first: NDArray[np.bool_]
    """Whether it begins an episode."""


@runtime_checkable
class HostEnvironments(Protocol):
    """Environments on the host that step together: what the loop for them needs."""

    observation: jax.ShapeDtypeStruct
    """What one environment shows: an observation, or a frame of it."""
    stack: int
    """Frames that make an observation; 0 where what is shown is one."""
    num_actions: int

    def __len__(self) -> int: ...

    def reset(self, stretch: int = 0) -> NDArray[Any]:
        """Begin an episode in each; another ``stretch`` has other seeds."""
        ...

    def step(self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None) -> HostStep:
        """One step of each; an episode that ends is followed by the next. Those that are not ``running`` may be left alone."""
        ...

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs."""
        ...

    def restore(self, saved: list[dict[str, Any]], progress: Callable[[float], None]) -> NDArray[Any]:
        """Bring every running episode back; what each environment shows then."""
        ...

    def close(self) -> None:
        """Release what they hold."""
        ...


class GymEnvironments:
    """``copies`` environments for each of the run's seeds, stepped one after the other in this process."""

    stack = 0

    def __init__(self, name: str, make: Maker, seeds: Sequence[int] = (0,), copies: int = 1, stream: int = 0) -> None:
        """``stream`` sets seeds apart: 0 for training, 1 for evaluation."""
        self._environments = [make() for _ in range(len(seeds) * copies)]
        first = self._environments[0]
        self.observation, self.num_actions, self._start = _spaces(name, first)
        self._seeds = [(seed, stream, index) for seed in seeds for index in range(copies)]
        self._steps = [environment.step for environment in self._environments]
        self._blank = np.zeros(self.observation.shape, self.observation.dtype)
        self._episodes = [-1] * len(self._environments)
        self._actions: list[list[int]] = [[] for _ in self._environments]

    def __len__(self) -> int:
        return len(self._environments)

    def reset(self, stretch: int = 0) -> NDArray[Any]:
        """Begin episode number ``stretch`` of each."""
        return np.stack([self._begin(i, stretch) for i in range(len(self))])

    def step(self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None) -> HostStep:
        """One step of each; an episode that ends is followed by the next. Those that are not ``running`` are left alone."""
        count = len(self)
        observations: list[Any] = [self._blank] * count
        rewards: list[Any] = [0.0] * count
        terminated, truncated = [False] * count, [False] * count
        beginnings = []
        # Lists, and one array at the end: an assignment to an array costs as much as a small environment's step.
        for i, action in enumerate(actions.tolist()):
            if running is None or running[i]:
                self._actions[i].append(action)
                observations[i], rewards[i], terminated[i], truncated[i], _ = self._steps[i](self._start + action)
                if terminated[i] or truncated[i]:
                    beginnings.append((i, self._begin(i, self._episodes[i] + 1)))
        observation = following = np.array(observations, self.observation.dtype)
        if beginnings:
            following = observation.copy()
            for i, first in beginnings:
                following[i] = first
        over, cut = np.array(terminated, bool), np.array(truncated, bool)
        return HostStep(observation, np.array(rewards, np.float32), over, cut & ~over, following, over | cut)

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs: the number of each running episode and its actions so far."""
        return [{"episode": k, "actions": list(actions)} for k, actions in zip(self._episodes, self._actions, strict=True)]

    def restore(self, saved: list[dict[str, Any]], progress: Callable[[float], None] = lambda _: None) -> NDArray[Any]:
        """Bring every running episode back by its seed and its actions; what each environment shows then."""
        observations = []
        for i, running in enumerate(saved):
            observation = self._begin(i, running["episode"])
            for action in running["actions"]:
                observation = self._environments[i].step(self._start + action)[0]
            self._actions[i] = list(running["actions"])
            observations.append(np.asarray(observation, self.observation.dtype))
            progress(1 / len(saved))
        return np.stack(observations)

    def render(self) -> NDArray[np.uint8]:
        """A picture of the first environment."""
        return np.asarray(self._environments[0].render())

    def close(self) -> None:
        """Close them all."""
        for environment in self._environments:
            environment.close()

    def _begin(self, i: int, episode: int) -> NDArray[Any]:
        self._episodes[i], self._actions[i] = episode, []
        seed = int(np.random.SeedSequence([*self._seeds[i], episode]).generate_state(1)[0])
        return np.asarray(self._environments[i].reset(seed=seed)[0], self.observation.dtype)


def maker(environment: str | gymnasium.Env[Any, Any] | Maker, **options: Any) -> Maker:
    """A function that makes copies of what the user named or gave."""
    if isinstance(environment, str):
        return lambda: gymnasium.make(environment, disable_env_checker=True, **options)
    if isinstance(environment, gymnasium.Env):
        return lambda: copy.deepcopy(environment)
    return environment


def _spaces(name: str, environment: gymnasium.Env[Any, Any]) -> tuple[jax.ShapeDtypeStruct, int, int]:
    seen, acted = environment.observation_space, environment.action_space
    if not isinstance(acted, gymnasium.spaces.Discrete):
        raise ValueError(f"{name}: actions are {acted}; the method takes a maximum over actions and needs a Discrete space")
    if not isinstance(seen, gymnasium.spaces.Box):
        raise ValueError(f"{name}: observations are {seen}; wrap it in gymnasium.wrappers.FlattenObservation to get a Box")
    dtype = np.uint8 if seen.dtype == np.uint8 else np.float32
    return jax.ShapeDtypeStruct(seen.shape, dtype), int(acted.n), int(acted.start)
