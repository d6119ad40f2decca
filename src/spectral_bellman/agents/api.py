"""The protocol of agents, which actors, learners and evaluation use.

An agent is pure functions over pytrees of arrays, whose shapes never change. ``S`` is the train
state, ``P`` the policy (a snapshot that acts), ``A`` the actor state (of environments).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.replay import Rows, Sampler, Window

Terms = dict[str, Array]
"""Terms of a loss, or diagnostics, by name; scalars."""

S = TypeVar("S")
P = TypeVar("P")
A = TypeVar("A")


class Timestep(NamedTuple):
    """What N environments show an agent that is about to act."""

    observation: Any
    """s_t, (N, …)."""
    first: Any
    """Whether s_t begins an episode, (N,) booleans."""
    reward: Any
    """r_t, which came with s_t, (N,); 0 where s_t begins an episode."""
    previous_action: Any
    """a_tm1, which led to s_t, (N,); 0 where s_t begins an episode."""


class Progress(NamedTuple):
    """How far a run has come."""

    agent_steps: Int[Array, ""]
    """Steps taken by all environments of a seed together."""
    round: Int[Array, ""]


class Phase(NamedTuple):
    """Gradient steps with targets that stand still."""

    steps: int
    prepare: Callable[[Any, Any, RandomKey], Any]
    """(state, sample (S, B, …), key) -> prepared, with leading axis S. For many steps at once."""
    update: Callable[[Any, Any, Any], tuple[Any, Terms, Array | None]]
    """(state, sample (B, …), prepared) -> state, terms of the loss, and new priorities (B,)."""
    finish: Callable[[Any], Any] = lambda state: state
    """state -> state, after each chunk of steps."""
    batch: int = 1
    """B, items in a step."""
    rows: int = 0
    """If positive, a step gets at most this many weighted ``Rows`` in place of a sample. They
    represent the whole replay."""
    step_bytes: int = 0
    """Memory that ``prepare`` needs for one step."""
    one_by_one: bool = False
    """Whether ``prepare`` must see the state before each step, and not before several."""


@runtime_checkable
class Agent(Protocol[S, P, A]):
    """An agent for environments with one observation array and discrete actions."""

    observation: jax.ShapeDtypeStruct
    num_actions: int

    @property
    def window(self) -> Window:
        """What the agent learns from: one transition, n steps, or a sequence."""
        ...

    @property
    def sampler(self) -> Sampler:
        """How windows are drawn for gradient steps."""
        ...

    publish_rows: int
    """Items of the replay that ``publish`` needs; 0 for none."""
    publish_distinct: int
    """If positive, equal ones of these items are one, and ``publish`` gets so many."""
    publish_every: int
    """``publish`` gets these items every so many rounds, and None otherwise."""
    diagnostic_items: int
    """Held-out items that ``diagnose`` needs."""
    diagnostic_rows: int
    """Items of the replay that ``diagnose`` needs as ``Rows``; 0 for none."""

    def init(self, key: RandomKey) -> S:
        """A state that has learned nothing."""
        ...

    def init_actor(self, num_envs: int, key: RandomKey) -> A:
        """What belongs to each of ``num_envs`` environments."""
        ...

    def init_policy(self, state: S) -> P:
        """The policy before the first round: random actions."""
        ...

    def act(
        self, policy: P, actor: A, timestep: Timestep, key: RandomKey, *, greedy: bool = False
    ) -> tuple[Int[Array, " N"], Any, A]:
        """Actions of N environments, extras for the replay, and the actor state after them.

        With ``greedy`` the agent does not explore: this is how it is evaluated.
        """
        ...

    def phases(self) -> tuple[Sequence[Phase], Sequence[Phase]]:
        """What is learned in a round before the policy is published, and what after."""
        ...

    def publish(
        self, state: S, rows: Rows | None, progress: Progress, key: RandomKey
    ) -> tuple[S, P]:
        """The state after publishing, and the policy that acts until the next one is published."""
        ...

    def diagnose(
        self, state: S, policy: P, items: Any, rows: Rows | None, key: RandomKey, /
    ) -> Terms:
        """Diagnostics on held-out items and rows of the replay."""
        ...


def where_first(first: Bool[Array, " N"], fresh: Any, kept: Any) -> Any:
    """``fresh`` where an episode begins, ``kept`` elsewhere; leaves are (N, …)."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(first.reshape(first.shape + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, fresh, kept)


def first_timestep(observation: Any) -> Timestep:
    """What N environments show at the very beginning."""
    num_envs = len(observation)
    return Timestep(
        observation,
        jnp.ones(num_envs, bool),
        jnp.zeros(num_envs),
        jnp.zeros(num_envs, jnp.int32),
    )
