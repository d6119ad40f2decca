"""What all representations share: φ with its norm, targets of Q, and the solvers of θ̂."""

# ruff: noqa: TID252

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.representations import PVN, TD, Linear, Plain, Spectral
from spectral_bellman.agents.representations.api import (
    AdamSolver,
    Batch,
    LeastSquares,
    RepresentationConfig,
    first_feature,
)

from ..matrices import (
    BATCH,
    TARGET,
    TARGET_WEIGHT,
    THETA,
    WEIGHT,
    B,
    D,
    S,
    backbone,
    backups,
    features,
    features_taken,
    linear,
    of_unit_norm,
    phi_of,
    problem,
    q_targets,
    single,
    taken_of,
)


def clipped(phi: np.ndarray) -> np.ndarray:
    return phi * np.minimum(1, 1 / np.linalg.norm(phi, axis=-1, keepdims=True))


def q_and_unit(phi: np.ndarray) -> np.ndarray:
    return np.concatenate([phi[..., :1], of_unit_norm(phi[..., 1:])], axis=-1)


@pytest.mark.parametrize(
    ("config", "norm"),
    [
        (TD(features=D), of_unit_norm),
        (Spectral(features=D, norm="unit"), of_unit_norm),
        (PVN(features=D, norm="clip"), clipped),
        (Linear(features=D), q_and_unit),
        (Plain(), lambda phi: phi),
    ],
    ids=["td", "unit", "clip", "linear", "plain"],
)
def test_features_and_the_rows_of_the_actions_taken(config, norm):
    part = config.build(problem(), single)
    weight = WEIGHT[:, : part.dimension]
    # Half of the features are inside the unit ball, half outside.
    weight = weight / np.median(np.linalg.norm(phi_of(weight, BATCH.observation), axis=-1))
    raw = phi_of(weight, BATCH.observation)
    expected = norm(raw)
    found = features(part, linear(weight), BATCH.observation)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found = features_taken(part, linear(weight), BATCH)
    np.testing.assert_allclose(found, taken_of(expected, BATCH), rtol=1e-4, atol=1e-5)


def test_unit_features_of_zeros_are_zeros_and_have_a_gradient():
    part = Spectral(features=D).build(problem(), single)
    batch = BATCH._replace(observation=jnp.zeros((B, S)))
    gradient = jax.grad(lambda n: jnp.sum(features_taken(part, n, batch)))(linear(WEIGHT))
    np.testing.assert_array_equal(features_taken(part, linear(WEIGHT), batch), np.zeros((B, D)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_rewards_are_clipped_and_discounts_end_with_the_episode():
    view = backbone(reward_clip=1.5).view(linear(WEIGHT), BATCH)
    reward, discount = view.reward, view.discount
    np.testing.assert_allclose(reward, [0.5, 1.5, -1.5, 0, 1, -0.25])
    np.testing.assert_allclose(discount, [0.9, 0, 0.9, 0.9, 0, 0.9], rtol=1e-6)
    reward = backbone(reward_clip=0.0).view(linear(WEIGHT), BATCH).reward
    np.testing.assert_array_equal(reward, BATCH.reward)


@pytest.mark.parametrize("norm", ["unit", "clip"])
def test_q_targets_by_hand(norm):
    part = Spectral(features=D, norm=norm).build(problem(), single)
    form = of_unit_norm if norm == "unit" else clipped
    values = form(phi_of(TARGET_WEIGHT, BATCH.next_observation)) @ THETA
    found = q_targets(part, TARGET, BATCH)
    np.testing.assert_allclose(found, backups(values, BATCH), rtol=1e-4, atol=1e-5)


def test_the_mean_over_rows_is_weighted():
    values, phi = jnp.asarray([1.0, 2.0, 6.0]), jnp.zeros((3, D))
    assert float(Batch(phi).mean(values)) == 3
    assert float(Batch(phi, jnp.asarray([1.0, 0.0, 3.0])).mean(values)) == 4.75
    assert float(Batch(phi, jnp.zeros(3)).mean(values)) == 0  # nothing but padding


def test_the_parameters_of_the_first_feature():
    np.testing.assert_array_equal(first_feature(3), [1, 0, 0])


@pytest.mark.parametrize(
    ("solver", "changes", "message"),
    [
        (AdamSolver, {"q_steps": -1}, "--q-steps must be 0 or more"),
        (AdamSolver, {"q_learning_rate": 0.0}, "--q-learning-rate must be positive"),
        (LeastSquares, {"q_rows": 0}, "--q-rows must be at least 1"),
        (LeastSquares, {"q_ridge": 0.0}, "--q-ridge must be positive"),
        (Spectral, {"features": 0}, "--features must be at least 1"),
        (Spectral, {"alpha": 1.5}, "--alpha must be between 0 and 1"),
        (Spectral, {"theta_samples": 0}, "--theta-samples must be at least 1"),
        (Spectral, {"theta_variance": -0.1}, "--theta-variance must be 0 or more"),
        (Spectral, {"param_orthogonality": -1.0}, "--param-orthogonality must be 0 or more"),
        (Linear, {"features": 1}, "--features must be 2 or more: Q and others"),
        (Linear, {"spread": -1.0}, "--spread must be 0 or more"),
        (PVN, {"pvn_outputs": 0}, "--pvn-outputs must be at least 1"),
        (PVN, {"pvn_quantile": 1.5}, "--pvn-quantile must be between 0 and 1"),
        (TD, {"q_learning_rate": -1.0}, "--q-learning-rate must be positive"),
    ],
)
def test_numbers_out_of_range_are_refused(solver, changes, message):
    with pytest.raises(ValueError, match=message):
        solver(**changes)


def test_a_representation_without_build_says_so():
    with pytest.raises(NotImplementedError, match="RepresentationConfig needs a method build"):
        RepresentationConfig().build(problem(), single)
