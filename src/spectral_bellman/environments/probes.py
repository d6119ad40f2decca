"""Probes: tiny problems with exact answers, each for one thing that an agent must get right.

All have the same shapes: ``jax.vmap`` over the stacked ``Probe`` runs them in one compiled program.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey, Scalar
from spectral_bellman.environments.api import Step

STATES, ACTIONS = 4, 2


class Probe(eqx.Module):
    """A finite MDP as arrays, deterministic except for the state that an episode starts in.

    ``*n`` are the axes of a stack of probes.
    """

    transition: Int[Array, "*n S A"]
    """The next state."""
    reward: Float[Array, "*n S A"]
    terminal: Bool[Array, "*n S A"]
    """Whether the episode is over after this action."""
    start: Float[Array, "*n S"]
    """The probability that an episode starts here."""
    observe: Float[Array, "*n S k"]
    """The observation of each state."""

    @property
    def num_actions(self) -> int:
        """A."""
        return self.reward.shape[-1]

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """k numbers."""
        return jax.ShapeDtypeStruct(self.observe.shape[-1:], self.observe.dtype)

    def reset(self, key: RandomKey) -> tuple[Int[Array, ""], Float[Array, " k"]]:
        """A state drawn from ``start``."""
        state = jax.random.categorical(key, jnp.log(self.start)).astype(self.transition.dtype)
        return state, self.observe[state]

    def step(
        self, state: Int[Array, ""], action: Int[Array, ""], key: RandomKey
    ) -> tuple[Int[Array, ""], Step]:
        """Look it up."""
        after = self.transition[state, action]
        reward, terminated = self.reward[state, action], self.terminal[state, action]
        return after, Step(self.observe[after], reward, terminated, jnp.zeros((), bool))


def probes() -> tuple[list[str], Probe]:
    """The names of the probes, and the probes stacked along the first axis, simple ones first.

    Each probe adds one thing to the probes before it. If it is the first that fails, that is wrong.
    """
    one_of_two = [0.5, 0.5, 0.0, 0.0]
    named = {
        # The value of anything at all: the loss, the optimiser.
        "reward": _probe([[1, 1]]),
        # The gradient reaches the layers that read the observation.
        "observation": _probe([[-1, -1], [1, 1]], start=one_of_two),
        # Bootstrapping from the next state.
        "delay": _probe([[0, 0], [1, 1]], chain=True),
        # Discounting, more than once.
        "discount": _probe([[0, 0], [0, 0], [0, 0], [1, 1]], chain=True),
        # Values differ by action.
        "action": _probe([[-1, 1]]),
        # Which action is better differs by observation.
        "action and observation": _probe([[1, -1], [-1, 1]], start=one_of_two),
    }
    return list(named), jax.tree.map(lambda *leaves: jnp.stack(leaves), *named.values())


def answers(probe: Probe, discount: Scalar) -> tuple[Float[Array, "S A"], Bool[Array, "S A"]]:
    """Q*(s, a) by value iteration, and which pairs (s, a) some policy meets.

    There are as many sweeps as states. That is exact for probes that enter no state twice in an
    episode, as it is in all of ``probes``.
    """
    states = probe.reward.shape[0]

    def sweep(q: Float[Array, "S A"], reached: Bool[Array, " S"]) -> tuple[Array, Array]:
        ahead = jnp.where(probe.terminal, 0, q.max(axis=1)[probe.transition])
        onward = reached[:, None] & ~probe.terminal
        return probe.reward + discount * ahead, reached.at[probe.transition].max(onward)

    start = (jnp.zeros_like(probe.reward), probe.start > 0)
    q, reached = jax.lax.fori_loop(0, states, lambda _, both: sweep(*both), start)
    return q, jnp.broadcast_to(reached[:, None], q.shape)


def _probe(
    reward: list[list[int]], *, start: list[float] | None = None, chain: bool = False
) -> Probe:
    """One probe from the rewards of the states it uses.

    An episode takes one step, or with ``chain`` goes through all these states. The last step leads
    to state 0, which has a value in every probe: an agent that bootstraps past the end is wrong.
    """
    used = len(reward)
    state = jnp.arange(STATES, dtype=jnp.int32)
    terminal = (state >= used - 1) | jnp.array(not chain)
    transition = jnp.where(terminal, 0, state + 1)
    rewards = (
        jnp.zeros((STATES, ACTIONS), jnp.float32).at[:used].set(jnp.array(reward, jnp.float32))
    )
    begin = jnp.array([1, 0, 0, 0] if start is None else start, jnp.float32)
    corners = jnp.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], jnp.float32)
    both = (STATES, ACTIONS)
    return Probe(
        jnp.broadcast_to(transition[:, None], both),
        rewards,
        jnp.broadcast_to(terminal[:, None], both),
        begin,
        corners,
    )
