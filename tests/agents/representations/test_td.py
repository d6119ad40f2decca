"""The DQN loss, on networks that are a matrix: every number can be had with NumPy."""

# ruff: noqa: TID252

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.optimisers import descend
from spectral_bellman.agents.representations import TD, Plain, Target

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
    phi_of,
    prepared,
    problem,
    taken_of,
)
from ..quick import quick


def differentiated(part, weight, beside, target):
    """The gradient in φ's matrix and in what is beside it, the terms, and the priorities."""
    ready = prepared(part, target, (), BATCH)
    loss = quick(jax.grad(lambda x: part.loss(*x, (), BATCH, ready), has_aux=True))
    (network, beside), (_, terms, priorities) = loss((linear(weight), beside))
    return np.asarray(network.head.weight).reshape(weight.shape), beside, terms, priorities


def test_the_loss_of_plain_dqn_by_hand():
    part = Plain().build(problem())
    weight, target_weight = WEIGHT[:, :1], TARGET_WEIGHT[:, :1]
    target = Target(linear(target_weight), jnp.ones(1), ())
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
    part = TD(features=D, norm="clip").build(problem())
    weight = 0.1 * WEIGHT  # all features are inside the unit ball, where clip does nothing
    target = Target(linear(0.1 * TARGET_WEIGHT), floats(THETA), ())
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
    part = TD(features=D, q_learning_rate=0.05).build(problem(learning_rate=1e-3, head_rate=0.5))
    trained = (linear(WEIGHT), floats(THETA))
    ones = jax.tree.map(jnp.ones_like, trained)
    (network, theta), _ = descend(part.optimiser, ones, part.optimiser.init(trained), trained)
    # Adam's first step is its learning rate, whatever the gradient.
    moved = trained[0].head.weight - network.head.weight
    np.testing.assert_allclose(moved, np.full((A * D, S), 5e-4), rtol=1e-2)
    np.testing.assert_allclose(trained[1] - theta, np.full(D, 0.05), rtol=1e-4)
    np.testing.assert_array_equal(part.theta_of(theta), theta)


def test_parameters_start_random_and_of_unit_size():
    part = TD(features=4_000).build(problem())
    theta = part.init_theta(jax.random.key(0))
    assert np.linalg.norm(theta) == pytest.approx(1, rel=0.05)
    beside, _ = part.init(jax.random.key(1), theta)
    np.testing.assert_array_equal(beside, theta)


def test_targets_do_not_depend_on_what_is_trained():
    part = TD(features=D).build(problem())
    ready = prepared(part, TARGET, (), BATCH)
    assert ready.shape == (B,)
    values = phi_of(TARGET_WEIGHT, BATCH.next_observation)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    np.testing.assert_allclose(ready, backups(values @ THETA, BATCH), rtol=1e-4, atol=1e-5)
