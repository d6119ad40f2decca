"""The DQN loss, on networks that are a matrix: every number can be had with NumPy."""

# ruff: noqa: TID252

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.optimisers import descend
from spectral_bellman.agents.representations import TD, Plain

from ..matrices import (
    ACTION,
    BATCH,
    TARGET,
    TARGET_WEIGHT,
    THETA,
    WEIGHT,
    A,
    B,
    D,
    S,
    backups,
    floats,
    linear,
    loss_of,
    phi_of,
    prepared,
    problem,
    single,
    taken_of,
    target_of,
)
from ..quick import quick


def differentiated(part, weight, beside, target):
    """The gradient in φ's matrix and in what is beside it, the terms, and the priorities."""
    ready = prepared(part, target, (), BATCH)
    loss = quick(jax.grad(lambda x: loss_of(part, *x, (), BATCH, ready), has_aux=True))
    (network, beside), (_, terms, priorities) = loss((linear(weight), beside))
    return np.asarray(network.head.weight).reshape(weight.shape), beside, terms, priorities


def test_the_loss_of_plain_dqn_by_hand():
    part = Plain().build(problem(), single)
    weight, target_weight = WEIGHT[:, :1], TARGET_WEIGHT[:, :1]
    target = target_of(target_weight, np.ones(1))
    gradient, beside, terms, priorities = differentiated(part, weight, (), target)
    targets = backups(phi_of(target_weight, BATCH.next_observation)[..., 0], BATCH)
    error = taken_of(phi_of(weight, BATCH.observation), BATCH)[:, 0] - targets
    expected = np.zeros((A, 1, S))
    np.add.at(expected, (ACTION, 0), 2 * error[:, None] * np.asarray(BATCH.observation) / B)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(terms["td"], np.mean(error**2), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.abs(error), rtol=1e-4)
    assert beside == ()
    assert part.dimension == 1
    np.testing.assert_array_equal(part.theta_of(beside), [1])


def test_the_loss_moves_features_and_parameters_together():
    part = TD(features=D, norm="clip").build(problem(), single)
    weight = 0.1 * WEIGHT  # all features are inside the unit ball, where clip does nothing
    target = target_of(0.1 * TARGET_WEIGHT, THETA)
    gradient, theta, terms, priorities = differentiated(part, weight, floats(THETA), target)
    targets = backups(phi_of(0.1 * TARGET_WEIGHT, BATCH.next_observation) @ THETA, BATCH)
    phi = taken_of(phi_of(weight, BATCH.observation), BATCH)
    error = phi @ THETA - targets
    expected = np.zeros((A, D, S))
    outer = THETA[None, :, None] * np.asarray(BATCH.observation)[:, None]
    np.add.at(expected, ACTION, 2 * error[:, None, None] * outer / B)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(theta, 2 * error @ phi / B, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(terms["td"], np.mean(error**2), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.abs(error), rtol=1e-4)


def test_the_parameters_have_a_learning_rate_of_their_own():
    part = TD(features=D, q_learning_rate=0.05).build(
        problem(learning_rate=1e-3, head_rate=0.5), single
    )
    trained = (linear(WEIGHT), floats(THETA))
    ones = jax.tree.map(jnp.ones_like, trained)
    (network, theta), _ = descend(part.optimiser, ones, part.optimiser.init(trained), trained)
    # Adam's first step is its learning rate, whatever the gradient.
    moved = trained[0].head.weight - network.head.weight
    np.testing.assert_allclose(moved, np.full((A * D, S), 5e-4), rtol=1e-2)
    np.testing.assert_allclose(trained[1] - theta, np.full(D, 0.05), rtol=1e-4)
    np.testing.assert_array_equal(part.theta_of(theta), theta)


def test_parameters_start_random_and_of_unit_size():
    part = TD(features=4_000).build(problem(), single)
    theta = part.init_theta(jax.random.key(0))
    assert np.linalg.norm(theta) == pytest.approx(1, rel=0.05)
    beside, _ = part.init(jax.random.key(1), theta)
    np.testing.assert_array_equal(beside, theta)


def test_targets_do_not_depend_on_what_is_trained():
    part = TD(features=D).build(problem(), single)
    ready = prepared(part, TARGET, (), BATCH)
    assert ready.shape == (B,)
    trained = {"beside": jnp.ones(D), "network": linear(WEIGHT)}
    np.testing.assert_array_equal(prepared(part, TARGET, (), BATCH, **trained), ready)
    values = phi_of(TARGET_WEIGHT, BATCH.next_observation)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    np.testing.assert_allclose(ready, backups(values @ THETA, BATCH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "td"])
def test_double_q_learning_chooses_by_the_network_that_learns(plain):
    """With the θ that is learned: the target network rates the action."""
    part = (Plain() if plain else TD(features=D, norm="clip")).build(problem(double=True), single)
    columns = slice(0, 1 if plain else D)
    weight, target_weight = 0.1 * WEIGHT[:, columns], 0.1 * TARGET_WEIGHT[:, columns]
    theta, learned = (np.ones(1), np.ones(1)) if plain else (THETA, -THETA)
    beside = () if plain else floats(learned)
    target = target_of(target_weight, theta)
    found = prepared(part, target, (), BATCH, beside=beside, network=linear(weight), double=True)
    online = phi_of(weight, BATCH.next_observation) @ learned
    rated = phi_of(target_weight, BATCH.next_observation) @ theta
    chosen = np.take_along_axis(rated, online.argmax(axis=1)[:, None], axis=1)
    np.testing.assert_allclose(found, backups(chosen, BATCH), rtol=1e-4, atol=1e-5)
    continues = np.asarray(BATCH.discount) > 0
    assert np.any((chosen[:, 0] != rated.max(axis=1))[continues])


def test_the_weights_of_rows_count_in_the_loss():
    part = TD(features=D, norm="clip").build(problem(), single)
    weight, target = 0.1 * WEIGHT, target_of(0.1 * TARGET_WEIGHT, THETA)
    counts = np.array([2, 0, 1, 1, 0.5, 0.5])
    ready = prepared(part, target, (), BATCH)
    loss, (_, terms, errors) = quick(functools.partial(loss_of, part))(
        linear(weight), floats(THETA), (), BATCH, ready, floats(counts)
    )
    error = taken_of(phi_of(weight, BATCH.observation), BATCH) @ THETA - np.asarray(ready)
    np.testing.assert_allclose(loss, np.sum(counts * error**2) / 5, rtol=1e-4)
    np.testing.assert_allclose(terms["td"], loss)
    np.testing.assert_allclose(errors, np.abs(error), rtol=1e-3, atol=1e-5)  # not weighted
