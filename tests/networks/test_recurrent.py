"""The LSTM against equinox's, resets, context, and the torso in bfloat16."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.networks import RecurrentNetwork, torso_of
from spectral_bellman.networks.recurrent import LSTM, Carry, Inputs, zero_carry

SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)


def network(**changes) -> RecurrentNetwork:
    torso, width = torso_of("mlp", (6,), SHAPE, jax.random.key(0))
    settings = {"shown_actions": 4, **changes}
    return RecurrentNetwork(torso, width, 5, (8,), 4, 2, jax.random.key(1), **settings)


def inputs(count: int) -> Inputs:
    rng = np.random.default_rng(0)
    return Inputs(
        jnp.asarray(rng.normal(size=(count, 3)), jnp.float32),
        jnp.zeros(count, bool),
        jnp.asarray(rng.integers(4, size=count), jnp.int32),
        jnp.asarray(rng.normal(size=count), jnp.float32),
    )


def test_a_step_is_equinox_lstm_with_a_forget_bias_of_one():
    core, cell = LSTM(3, 5, jax.random.key(0)), eqx.nn.LSTMCell(3, 5, key=jax.random.key(1))
    core = jax.tree.map(lambda x: x + 0.05, core)
    # Our gates are input, cell, forget, output; equinox has forget before cell.
    order = np.concatenate([np.arange(5), np.arange(10, 15), np.arange(5, 10), np.arange(15, 20)])
    bias = (core.input.bias + core.recurrent.bias).at[10:15].add(1.0)
    cell = eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias),
        cell,
        tuple(x[order] for x in (core.input.weight, core.recurrent.weight, bias)),
    )
    carry = Carry(jnp.linspace(-1, 1, 5), jnp.linspace(2, -2, 5))
    x = jnp.asarray([0.3, -1.0, 2.0])
    found, expected = core.step(carry, core.input(x)), cell(x, tuple(carry))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_unrolling_is_one_step_after_the_other_and_resets_where_an_episode_begins():
    net, given = network(), inputs(7)
    given = given._replace(first=given.first.at[4].set(True))
    start = Carry(jnp.ones(5), -jnp.ones(5))
    last, hidden = net.unroll(start, given)
    carry, gates = start, net.embed(given)
    for t in range(7):
        carry = net.core.step(zero_carry(5) if t == 4 else carry, gates[t])
        np.testing.assert_allclose(hidden[t], carry.hidden, rtol=1e-5, atol=1e-6)
    for a, b in zip(last, carry, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert net.features(hidden[0]).shape == (4, 2)


def test_without_memory_every_step_starts_from_zero():
    net, given = network(memory=False), inputs(4)
    _, hidden = net.unroll(Carry(jnp.ones(5), -jnp.ones(5)), given)
    for gates, found in zip(net.embed(given), hidden, strict=True):
        expected = net.core.step(zero_carry(5), gates).hidden
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_last_action_and_reward_are_shown_but_not_across_episodes():
    given = inputs(3)
    other = given._replace(
        previous_action=(given.previous_action + 1) % 4, previous_reward=given.previous_reward + 2
    )
    net = network()
    moved = np.abs(np.asarray(net.embed(given) - net.embed(other))).max(axis=1)
    assert (moved > 1e-3).all()
    begins = jnp.ones(3, bool)
    np.testing.assert_array_equal(
        net.embed(given._replace(first=begins)), net.embed(other._replace(first=begins))
    )
    bare = network(shown_actions=0)
    np.testing.assert_array_equal(bare.embed(given), bare.embed(other))


def test_the_torso_alone_may_be_in_bfloat16():
    given = inputs(5)
    exact, rough = network().embed(given), network(low_precision=True).embed(given)
    assert exact.dtype == rough.dtype == jnp.float32
    assert not np.array_equal(exact, rough)
    np.testing.assert_allclose(rough, exact, rtol=0.05, atol=0.02)
