"""φ(h, ·) of a history: a torso for each observation, an LSTM over time, and the head.

Like all networks here, modules have no batch axis. The time axis comes first.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.networks.features import started


class Carry(NamedTuple):
    """The state of an LSTM."""

    hidden: Float[Array, "... h"]
    cell: Float[Array, "... h"]


def zero_carry(width: int, *axes: int) -> Carry:
    """The state at the beginning of an episode."""
    return Carry(jnp.zeros((*axes, width)), jnp.zeros((*axes, width)))


class LSTM(eqx.Module):
    """An LSTM whose input is multiplied for all times at once; the forget gate has a bias of 1."""

    input: eqx.nn.Linear
    recurrent: eqx.nn.Linear

    def __init__(self, inputs: int, width: int, key: RandomKey) -> None:
        keys = jax.random.split(key)
        # PyTorch's default: uniform within ±1/√h.
        bound = width**-0.5

        def uniform(columns: int, key: RandomKey) -> eqx.nn.Linear:
            layer = eqx.nn.Linear(columns, 4 * width, key=key)
            weight = jax.random.uniform(key, layer.weight.shape, minval=-bound, maxval=bound)
            return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros(4 * width)))

        self.input, self.recurrent = uniform(inputs, keys[0]), uniform(width, keys[1])

    @property
    def width(self) -> int:
        """h."""
        return self.recurrent.weight.shape[1]

    def step(self, carry: Carry, gates: Float[Array, " gates"]) -> Carry:
        """One time step; ``gates`` is ``input`` of x, (4h,)."""
        entry, new, forget, output = jnp.split(gates + self.recurrent(carry.hidden), 4)
        cell = jax.nn.sigmoid(forget + 1) * carry.cell + jax.nn.sigmoid(entry) * jnp.tanh(new)
        return Carry(jax.nn.sigmoid(output) * jnp.tanh(cell), cell)


class Inputs(NamedTuple):
    """What the network is shown at T times."""

    observation: Array
    """(T, …)"""
    first: Bool[Array, " T"]
    """Whether the observation begins an episode: the state is reset before it."""
    previous_action: Int[Array, " T"]
    previous_reward: Float[Array, " T"]


class RecurrentNetwork(eqx.Module):
    """φ(h_t, ·) = head(LSTM(torso(o_t), a_{t-1}, tanh r_t)), before any norm."""

    torso: Callable[[Array], Array]
    core: LSTM
    hidden: tuple[eqx.nn.Linear, ...]
    """Layers between the LSTM and the head."""
    head: eqx.nn.Linear
    actions: int = eqx.field(static=True)
    """Rows of φ."""
    shown_actions: int = eqx.field(static=True)
    """The number of actions of the environment; 0 without context."""
    memory: bool = eqx.field(static=True)
    """Whether the LSTM's state is kept from step to step."""
    low_precision: bool = eqx.field(static=True)
    """Whether the torso computes in bfloat16."""

    def __init__(
        self,
        torso: Callable[[Array], Array],
        torso_width: int,
        width: int,
        hidden: tuple[int, ...],
        actions: int,
        d: int,
        key: RandomKey,
        *,
        shown_actions: int,
        memory: bool = True,
        low_precision: bool = False,
    ) -> None:
        core_key, head_key, *keys = jax.random.split(key, 2 + len(hidden))
        self.torso, self.actions, self.shown_actions = torso, actions, shown_actions
        self.memory, self.low_precision = memory, low_precision
        context = shown_actions + 1 if shown_actions else 0
        self.core = LSTM(torso_width + context, width, core_key)
        sizes = (width, *hidden)
        self.hidden = tuple(
            started(eqx.nn.Linear(before, after, key=k), k)
            for before, after, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.head = started(eqx.nn.Linear(sizes[-1], actions * d, key=head_key), head_key)

    def embed(self, inputs: Inputs) -> Float[Array, "T gates"]:
        """What each time contributes to the gates, (T, 4h)."""
        torso = self.torso
        if self.low_precision:
            torso = jax.tree.map(lambda x: x.astype(jnp.bfloat16), torso)
        seen = jax.vmap(torso)(inputs.observation).astype(jnp.float32)
        if self.shown_actions:
            begins = inputs.first[:, None]
            action = jax.nn.one_hot(inputs.previous_action, self.shown_actions)
            reward = jnp.tanh(inputs.previous_reward)[:, None]
            context = jnp.concatenate([action, reward], axis=1)
            seen = jnp.concatenate([seen, jnp.where(begins, 0.0, context)], axis=1)
        return jax.vmap(self.core.input)(seen)

    def step(self, carry: Carry, gates: Float[Array, " gates"]) -> Carry:
        """The state after one more time; ``gates`` is from ``embed``."""
        kept = carry if self.memory else zero_carry(self.core.width)
        return self.core.step(kept, gates)

    def unroll(self, carry: Carry, inputs: Inputs) -> tuple[Carry, Float[Array, "T h"]]:
        """The state after T times, and the hidden states on the way."""

        def one(carry: Carry, given: tuple[Array, Array]) -> tuple[Carry, Array]:
            gates, first = given
            kept = jax.tree.map(lambda x: jnp.where(first, 0.0, x), carry)
            carry = self.step(kept, gates)
            return carry, carry.hidden

        return jax.lax.scan(one, carry, (self.embed(inputs), inputs.first))

    def features(self, hidden: Float[Array, " h"]) -> Float[Array, "A d"]:
        """φ of a hidden state."""
        for layer in self.hidden:
            hidden = jax.nn.relu(layer(hidden))
        return self.head(hidden).reshape(self.actions, -1)
