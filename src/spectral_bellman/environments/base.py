"""The protocol of environments written in JAX. Those that run on the host (Gymnasium) are in ``gym``."""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey

State = TypeVar("State")


class Step(NamedTuple):
    """What an environment answers to an action."""

    observation: Array
    """s_t, the true one: the last observation of an episode is never replaced by the first of the next."""
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    """The episode is over and nothing follows: the value of s_t is zero."""
    truncated: Bool[Array, ""]
    """The episode was cut (by a limit of time): s_t has a value, which the agent bootstraps from."""


@runtime_checkable
class Environment(Protocol):
    """An environment as pure functions of one state, without batch axes; the state is a pytree of arrays.

    Nothing resets by itself: after a step that terminated or truncated, the caller resets. An environment that can be looked at has
    ``render(state) -> (height, width, 3) uint8`` besides.
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
