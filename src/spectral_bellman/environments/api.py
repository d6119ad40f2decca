"""What an environment is, and what the package knows about a family of environments.

There are two kinds of environment. An ``Environment`` is written in JAX and runs on the device. A
``VectorEnvironment`` runs on the host and steps many copies together. ``EnvironmentSpec`` is one
environment that is ready for a run; ``Family`` is one entry of the catalogue. The entries
themselves lie beside the environments; ``catalogue`` lists them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman._names import did_you_mean

TRAINING, EVALUATION = 0, 1
"""Streams of seeds: what an environment shows in training is never shown in an evaluation."""


class Step(NamedTuple):
    """The result of one step of an ``Environment``."""

    observation: Array
    """s_t, the true one: the first observation of the next episode never replaces it."""
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    """The episode ended in a terminal state: the value of s_t is zero."""
    truncated: Bool[Array, ""]
    """The episode was cut, for instance by a time limit: the agent bootstraps from s_t."""


@runtime_checkable
class Environment(Protocol):
    """An environment on the device: pure functions of one state, without batch axes.

    The state is a pytree of arrays. Nothing resets by itself: the caller resets after a step that
    terminated or truncated. An environment that can be rendered also has
    ``render(state) -> (height, width, 3) uint8``.
    """

    @property
    def num_actions(self) -> int:
        """Actions are 0, …, num_actions − 1."""
        ...

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an observation."""
        ...

    def reset(self, key: RandomKey) -> tuple[Any, Array]:
        """The state and the observation at the start of an episode."""
        ...

    def step(self, state: Any, action: Int[Array, ""], key: RandomKey) -> tuple[Any, Step]:
        """One agent step."""
        ...


class HostStep(NamedTuple):
    """The result of one step of a ``VectorEnvironment`` with E environments: arrays are (E, …)."""

    observation: NDArray[Any]
    """s_t, the true one, also where the episode ended."""
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_observation: NDArray[Any]
    """What the agent acts on next: s_t, or the first observation of the next episode."""
    first: NDArray[np.bool_]
    """Whether ``next_observation`` begins an episode."""


@runtime_checkable
class VectorEnvironment(Protocol):
    """Environments on the host that step together. An episode that ends is followed by the next.

    The episodes of an environment form blocks. A block is a number of episodes that are played
    one after the other from one seed; ``block_seed`` makes that seed. So the number of a block and
    the actions in it determine everything that a deterministic environment has shown since the
    block began.
    """

    observation: jax.ShapeDtypeStruct
    """What one environment returns: an observation, or a single frame of it."""
    stack: int
    """Number of frames in an observation; 0 if the environment returns whole observations."""
    num_actions: int

    def __len__(self) -> int: ...

    def reset(self, block: int = 0) -> NDArray[Any]:
        """Begin the first episode of this block in every environment; the first observations."""
        ...

    def step(
        self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None
    ) -> HostStep:
        """One step of each environment. Those that are not ``running`` may be left alone."""
        ...

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs, ready for JSON: one entry for each environment."""
        ...

    def restore(
        self, saved: list[dict[str, Any]], progress: Callable[[float], None]
    ) -> NDArray[Any]:
        """Bring every running episode back; the observations that the agent acts on next."""
        ...

    def close(self) -> None:
        """Release threads, windows and memory."""
        ...


@runtime_checkable
class SplitStep(VectorEnvironment, Protocol):
    """A ``VectorEnvironment`` whose bare step can be started and awaited apart, for benchmarks."""

    def send(self, actions: NDArray[np.integer[Any]]) -> None:
        """Start a step of all environments, without the bookkeeping of ``step``."""
        ...

    def recv(self) -> None:
        """Wait until the step has ended."""
        ...


def block_seed(seed: int, stream: int, index: int, block: int) -> int:
    """The seed, below 2³², of a block of episodes of environment ``index`` of a run's seed."""
    return int(np.random.SeedSequence([seed, stream, index, block]).generate_state(1)[0])


class RenderedStep(NamedTuple):
    """A picture of a replayed episode, and the reward of the step that led to it."""

    picture: NDArray[np.uint8]
    """(height, width, 3)"""
    reward: float
    """0 for the picture before the first step."""


@runtime_checkable
class PlayProtocol(Protocol):
    """How environments are played: a frozen dataclass whose fields users override like settings.

    ``str(protocol)`` is one line with all of it.
    """

    @property
    def frame_skip(self) -> int:
        """Frames in an agent step."""
        ...


Opener = Callable[[Any, int, Sequence[int], int, int], VectorEnvironment]
"""(protocol, seed, indices, stream, threads) -> these environments."""

Replayer = Callable[[Any, int, int, int, int, Sequence[int]], Iterator[RenderedStep]]
"""(protocol, seed, index, stream, block, actions) -> the pictures of that episode."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """One environment that is ready for a run: either ``device`` or ``opener`` is given."""

    name: str
    family: str
    """Its entry in the catalogue."""
    device: Environment | None = None
    opener: Opener | None = field(default=None, repr=False)
    """Opens host environments; call ``open`` instead."""
    replayer: Replayer | None = field(default=None, repr=False)
    """Renders an episode of a host environment; call ``replay`` instead."""
    protocol: PlayProtocol | None = None
    """How it is played, for environments with a choice."""
    played: Callable[[Any], Environment] | None = field(default=None, repr=False)
    """Play settings -> ``device``, for a device environment that has play settings."""

    def __post_init__(self) -> None:
        if (self.device is None) == (self.opener is None):
            raise ValueError(
                f"{self.name}: give a device environment, or an opener of host environments"
            )

    @property
    def frame_skip(self) -> int:
        """Frames in an agent step."""
        return 1 if self.protocol is None else self.protocol.frame_skip

    def with_protocol(self, protocol: PlayProtocol | None) -> "EnvironmentSpec":
        """The same environment, played by another protocol."""
        device = self.device if self.played is None else self.played(protocol)
        return replace(self, protocol=protocol, device=device)

    def open(
        self, seed: int, indices: Sequence[int], stream: int = TRAINING, threads: int = 1
    ) -> VectorEnvironment:
        """Open the host environments ``indices`` of a run's seed; the caller closes them.

        Args:
          seed: of the run.
          indices: which environments of this seed; groups of one run share the numbering.
          stream: ``TRAINING`` or ``EVALUATION``, whose episodes have different seeds.
          threads: to step them with, where the family can.
        """
        if self.opener is None:
            raise ValueError(f"{self.name} runs on the device: there is nothing to open")
        return self.opener(self.protocol, seed, indices, stream, threads)

    @property
    def can_render(self) -> bool:
        """Whether ``render`` (on the device) or ``replay`` (on the host) gives pictures."""
        return self.replayer is not None or hasattr(self.device, "render")

    def check_can_render(self) -> None:
        """Refuse an environment that has no pictures, and say why."""
        if self.can_render:
            return
        if self.device is not None:
            raise ValueError(f"{self.name} cannot be shown: it has no render(state)")
        raise ValueError(
            f"{self.name} cannot be shown: only environments that Gymnasium knows by name can be "
            "asked for pictures"
        )

    def render(self, state: Any) -> Array:
        """A picture of a state on the device, (height, width, 3) uint8; it may be jitted."""
        self.check_can_render()
        device: Any = self.device
        if device is None:
            raise ValueError(f"{self.name} runs on the host: replay an episode to see it")
        return device.render(state)

    def replay(
        self, seed: int, index: int, stream: int, block: int, actions: Sequence[int]
    ) -> Iterator[RenderedStep]:
        """The first episode of a block once more, with its actions: len(actions) + 1 pictures.

        The rewards are those of the episode that was played, if the environment is deterministic
        given its seed and its actions. The caller may compare them.
        """
        self.check_can_render()
        if self.replayer is None:
            raise ValueError(f"{self.name} runs on the device: render its states to see them")
        return self.replayer(self.protocol, seed, index, stream, block, actions)


@dataclass(frozen=True)
class ScoreScale:
    """Puts the scores of a family's environments on one scale, on which they can be averaged."""

    label: str
    """The name of the scaled score, for tables and axes."""
    bounds: Callable[[str], tuple[float, float] | None]
    """Name of an environment -> the scores that count as 0 and as 1; None if nobody knows them."""
    ends: tuple[str, str] | None = None
    """Names of the two bounds, such as ("random", "human"), for a column each in tables."""
    subsets: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Name of a part of the family -> its environments. Each part is also averaged on its own."""

    def normalized(self, name: str, score: ArrayLike) -> NDArray[np.float64] | None:
        """(score − zero)/(one − zero); None for an environment without bounds."""
        bounds = self.bounds(name)
        if bounds is None:
            return None
        zero, one = bounds
        return (np.asarray(score, np.float64) - zero) / (one - zero)


Changes = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Changes to a run's settings and to an agent's, each flat name -> value."""


def _refuse(_: Any) -> None:
    """Adopt no object."""
    return


def _no_changes(*_: Any) -> Changes:
    return {}, {}


@dataclass(frozen=True)
class Family:
    """A family of environments, and everything that is particular to it."""

    name: str
    title: str
    """As people write it, for reports."""
    run: Mapping[str, Any]
    """Default settings of a run. ``staleness`` must be there: the policy that round t − staleness
    published acts in round t. The other settings only if they differ from ``TrainConfig``."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """Default numbers of an agent: flat setting name -> value. An agent reads those it uses."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """Names for ``sbm envs`` -> one line of help. The text before the slash selects this family."""
    make: Callable[[str], EnvironmentSpec] | None = None
    """Full name, for instance "deep_sea/10", -> the environment. None: the family has no names."""
    adopt: Callable[[Any], EnvironmentSpec | None] = _refuse
    """An object of the user's -> the environment, or None if the object is not of this family."""
    names: Callable[[], Iterable[str]] = tuple
    """All names for which a pattern has a placeholder, to suggest one after a typing error."""
    suited: Callable[
        [EnvironmentSpec, Mapping[str, Any], Mapping[str, Any], Collection[str]], Changes
    ] = _no_changes
    """``suited(spec, run, agent, chosen)``: changes to the settings that depend on the
    environment. ``run`` and ``agent`` are the settings so far: the family's, then the preset's.
    ``chosen`` are the names of the agent's settings that the preset itself sets. The changes win
    over the settings so far, and a user's own settings win over the changes."""
    machine: Callable[[str, Mapping[str, Any], Mapping[str, Any]], Changes] = _no_changes
    """``machine(backend, run, agent)``: further changes that depend on JAX's backend, "cpu" or
    "gpu". They must not change how much is learned per agent step (gradient steps × batch, copies
    to the target network): reports treat runs that differ in these changes alone as runs of the
    same agent."""
    protocol: PlayProtocol | None = None
    """Default play settings of its environments; None if they have none."""
    frame_unit: str = "frames (= agent steps)"
    """What a frame is, for axes."""
    frames_per_second: float = 15.0
    """Of a video that shows every frame. A video of agent steps has this divided by frame_skip."""
    film: Literal["gif", "mp4"] = "gif"
    """The file format that suits the pictures."""
    steps_beside_python: bool = False
    """Whether host environments step outside Python's lock, so that an evaluation can go on beside
    training. Environments written in Python would only take turns with it."""
    score_scale: ScoreScale | None = None
    """The common scale of the scores; None if the family has none."""

    def facts(self, name: str) -> dict[str, Any]:
        """What reports need to know of an environment of this family, for ``config.json``."""
        scale = self.score_scale
        bounds = scale.bounds(name) if scale else None
        score = None
        if scale and bounds:
            score = {
                "label": scale.label,
                "zero": float(bounds[0]),
                "one": float(bounds[1]),
                "ends": list(scale.ends) if scale.ends else None,
                "subsets": [part for part, names in scale.subsets.items() if name in names],
            }
        return {
            "family": self.name,
            "title": self.title,
            "frame_unit": self.frame_unit,
            "score": score,
        }

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What names of this family have before the slash."""
        return tuple(dict.fromkeys(pattern.partition("/")[0] for pattern in self.patterns))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for the end of an error message; empty if no known name is near."""
    hint = did_you_mean(name, known)
    return f"; {hint}" if hint else ""
