"""φ closed under the Bellman operator, on networks that are a matrix: NumPy has every number."""

# ruff: noqa: TID252

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.representations import MSE, Spectral
from spectral_bellman.agents.representations.api import AdamSolver
from spectral_bellman.objective import Covariances, init_covariances

from ..matrices import (
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
    of_unit_norm,
    phi_of,
    prepared,
    problem,
    single,
    tabular,
    taken_of,
)
from ..quick import quick

OLD = Covariances(2 * jnp.eye(D), 3 * jnp.eye(D), jnp.ones((), bool))
SMALL = {"features": D, "theta_samples": 5, "feature_orthogonality": 0.0}


@functools.cache
def moved_theta_tilde():
    """θ̃ away from its start, where it is the identity."""
    part, rng = Spectral(**SMALL).build(problem(), single), np.random.default_rng(2)
    theta_tilde, _ = quick(part.init)(jax.random.key(3), jnp.zeros(D))
    return jax.tree.map(lambda x: x + floats(0.1 * rng.normal(size=x.shape)), theta_tilde)


@functools.cache
def ready():
    """What the losses need; φ⁻ has unit norm, and M is 5."""
    return prepared(Spectral(**SMALL).build(problem(), single), TARGET, (), BATCH, key=4)


class Differentiated(NamedTuple):
    phi: list[np.ndarray]
    theta_tilde: list[np.ndarray]
    covariances: Covariances


def differentiated(*configs, covariances=OLD) -> list[Differentiated]:
    """Gradients in φ and in θ̃, and the covariances after the step, for each of the configs."""

    def gradient(config, trained, covariances):
        part = config.build(problem(), single)

        def loss(trained):
            return loss_of(part, *trained, covariances, BATCH, ready())

        found, (after, _, priorities) = jax.grad(loss, has_aux=True)(trained)
        assert priorities is None
        return Differentiated(*(jax.tree.leaves(g) for g in found), after)

    ready()
    trained = (linear(WEIGHT), moved_theta_tilde())
    found = quick(lambda *given: [gradient(config, *given) for config in configs])(
        trained, covariances
    )
    return jax.tree.map(np.asarray, found)


def apart(one, other) -> float:
    return max(np.abs(x - y).max() for x, y in zip(one, other, strict=True))


def test_spectral_with_alpha_one_has_the_gradient_of_mse():
    mse, spectral, averaged = (
        found.phi + found.theta_tilde
        for found in differentiated(
            MSE(features=D, theta_samples=5),
            Spectral(**SMALL, alpha=1.0),
            Spectral(**SMALL, alpha=0.5),
        )
    )
    largest = max(np.abs(x).max() for x in mse)
    assert largest > 0.1
    for mine, other in zip(spectral, mse, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5 * largest)
    assert apart(averaged, mse) > 0.01 * largest


def test_the_mean_squared_error_over_the_grid_by_hand():
    part = MSE(features=D, theta_samples=5, norm="unit").build(problem(), single)
    theta = np.asarray(ready().theta, np.float64)
    assert theta.shape == (5, D)
    following = of_unit_norm(phi_of(TARGET_WEIGHT, BATCH.next_observation))
    targets = backups(np.einsum("bad,md->bam", following, theta), BATCH)
    np.testing.assert_allclose(ready().targets, targets, rtol=1e-4, atol=1e-5)
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    theta_tilde = moved_theta_tilde()
    answer = np.asarray(jax.vmap(theta_tilde)(ready().theta), np.float64)
    value, (_, terms, _) = quick(functools.partial(loss_of, part))(
        linear(WEIGHT), theta_tilde, init_covariances(D), BATCH, ready()
    )
    np.testing.assert_allclose(value, np.mean((phi @ answer.T - targets) ** 2), rtol=1e-4)
    assert all(np.isfinite(x) for x in terms.values())


@pytest.mark.parametrize(("started", "weight"), [(False, 1.0), (True, 0.25)])
def test_the_covariances_are_those_of_the_first_batch_and_then_moving_averages(started, weight):
    config = Spectral(**SMALL, alpha=0.25)
    old = OLD._replace(started=jnp.asarray(started))
    after = differentiated(config, covariances=old)[0].covariances
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    expected = (1 - weight) * 2 * np.eye(D) + weight * phi.T @ phi / B
    np.testing.assert_allclose(after.feature, expected, rtol=1e-4, atol=1e-5)
    assert bool(after.started)


def test_theta_tilde_without_a_network_is_fitted_to_each_batch():
    """Many steps: θ̃(θ) solves least squares on the batch; one step is not enough."""
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    best = np.linalg.lstsq(phi, np.asarray(ready().targets, np.float64), rcond=None)[0]
    smallest = np.mean((phi @ best - np.asarray(ready().targets)) ** 2)
    found = {}
    for steps in (1, 5_000):
        part = MSE(features=D, theta_samples=5, theta_tilde_steps=steps).build(problem(), single)
        beside, _ = part.init(jax.random.key(3), jnp.zeros(D))
        assert jax.tree.leaves(beside) == []
        found[steps], _ = quick(functools.partial(loss_of, part))(
            linear(WEIGHT), beside, init_covariances(D), BATCH, ready()
        )
    np.testing.assert_allclose(found[5_000], smallest, rtol=1e-3)
    assert found[1] > 1.05 * smallest


def test_a_theta_tilde_without_a_network_cannot_start_the_fit_of_theta_hat():
    with pytest.raises(ValueError, match="take --q-start last"):
        Spectral(theta_tilde_steps=8, solver=AdamSolver(q_start="backup"))


def test_each_orthogonality_moves_what_it_is_named_after():
    plain, of_features, of_parameters = differentiated(
        Spectral(**SMALL),
        Spectral(features=D, theta_samples=5, feature_orthogonality=0.5),
        Spectral(**SMALL, param_orthogonality=0.5),
    )
    assert apart(of_features.phi, plain.phi) > 1e-3
    assert apart(of_features.theta_tilde, plain.theta_tilde) < 1e-6
    assert apart(of_parameters.phi, plain.phi) < 1e-6
    assert apart(of_parameters.theta_tilde, plain.theta_tilde) > 1e-3


@pytest.mark.parametrize(("config", "variance"), [(Spectral, 0.25), (MSE, 0.01)])
def test_the_distribution_over_parameters_is_as_wide_as_it_should_be(config, variance):
    network, batch, *_ = tabular()
    count, deviation = 4_000, variance**0.5
    settings = {"features": S * A, "theta_variance": variance, "theta_samples": count}
    part = config(**settings).build(problem(), single)
    centre = np.tile([3.0, -3.0], S * A // 2)
    target = TARGET._replace(network=network, theta=floats(centre))
    found = prepared(part, target, (), batch).theta
    drawn = part.theta_draws(jax.random.key(1), floats(centre))
    for theta in (found, drawn):
        np.testing.assert_allclose(np.std(theta, axis=0), np.full(S * A, deviation), rtol=0.06)
        error = 5 * deviation / count**0.5
        np.testing.assert_allclose(np.mean(theta, axis=0), centre, atol=error)


def test_theta_tilde_starts_as_the_identity_and_may_be_where_the_fit_starts():
    last = Spectral(**SMALL, solver=AdamSolver(q_start="last")).build(problem(), single)
    assert last.start_theta is None
    part = Spectral(**SMALL, solver=AdamSolver(q_start="backup")).build(problem(), single)
    fresh, covariances = quick(part.init)(jax.random.key(0), jnp.zeros(D))
    np.testing.assert_array_equal(part.start_theta(fresh, TARGET.theta), TARGET.theta)
    moved = moved_theta_tilde()
    found = part.start_theta(moved, TARGET.theta)
    np.testing.assert_allclose(found, moved(floats(THETA)), rtol=1e-6)
    assert np.abs(np.asarray(found) - THETA).max() > 0.01
    assert not bool(part.covariances(covariances).started)
    np.testing.assert_array_equal(part.init_theta(jax.random.key(0)), np.zeros(D))


@pytest.mark.parametrize("config", [Spectral, MSE])
def test_priorities_are_the_errors_at_the_centre(config):
    """|φᵀθ̃(θ⁻) − TQ_θ⁻|, where the replay is sampled by priorities; all else is the same."""
    settings = {"features": D, "theta_samples": 5}
    plain = config(**settings).build(problem(), single)
    part = config(**settings).build(problem(priorities=True), single)
    theta_tilde, old = moved_theta_tilde(), init_covariances(D)
    given = prepared(part, TARGET, (), BATCH, key=4, beside=theta_tilde, priorities=True)
    np.testing.assert_array_equal(given.theta, ready().theta)
    np.testing.assert_allclose(given.targets, ready().targets, rtol=1e-5, atol=1e-6)
    found = (
        quick(functools.partial(loss_of, one))(linear(WEIGHT), theta_tilde, old, BATCH, needed)
        for one, needed in ((part, given), (plain, ready()))
    )
    (value, (_, _, errors)), (plain_value, (_, _, nothing)) = found
    values = of_unit_norm(phi_of(TARGET_WEIGHT, BATCH.next_observation)) @ THETA
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    answer = np.asarray(theta_tilde(floats(THETA)), np.float64)
    expected = np.abs(phi @ answer - backups(values, BATCH))
    np.testing.assert_allclose(errors, expected, rtol=1e-4, atol=1e-5)
    assert expected.min() > 0.01
    assert nothing is None
    np.testing.assert_allclose(value, plain_value, rtol=1e-5)


def test_double_q_learning_chooses_by_what_phi_learns():
    """The network that learns, with θ̃(θ), chooses the action that the target rates with θ."""
    part = MSE(features=D, theta_samples=5).build(problem(double=True), single)
    theta_tilde, network = jax.tree.map(lambda x: 5 * x, moved_theta_tilde()), linear(WEIGHT)
    given = prepared(
        part, TARGET, (), BATCH, key=4, beside=theta_tilde, network=network, double=True
    )
    theta = np.asarray(given.theta, np.float64)
    answer = np.asarray(jax.vmap(theta_tilde)(given.theta), np.float64)
    following = BATCH.next_observation
    online = np.einsum("bad,md->bma", of_unit_norm(phi_of(WEIGHT, following)), answer)
    rated = np.einsum("bad,md->bma", of_unit_norm(phi_of(TARGET_WEIGHT, following)), theta)
    chosen = np.take_along_axis(rated, online.argmax(axis=2)[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(given.targets, backups(chosen[:, None], BATCH), rtol=1e-4, atol=1e-5)
    assert np.any(online.argmax(axis=2) != rated.argmax(axis=2))
    # Nor is the choice that of θ itself.
    direct = np.einsum("bad,md->bma", of_unit_norm(phi_of(WEIGHT, following)), theta)
    assert np.any(online.argmax(axis=2) != direct.argmax(axis=2))


def test_the_weights_of_rows_count_in_the_mean_squared_error():
    part = MSE(features=D, theta_samples=5).build(problem(), single)
    weight = np.array([0.5, 0, 2, 1, 0, 3])
    theta_tilde = moved_theta_tilde()
    value, _ = quick(functools.partial(loss_of, part))(
        linear(WEIGHT), theta_tilde, init_covariances(D), BATCH, ready(), floats(weight)
    )
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    answer = np.asarray(jax.vmap(theta_tilde)(ready().theta), np.float64)
    error = np.mean((phi @ answer.T - np.asarray(ready().targets)) ** 2, axis=1)
    np.testing.assert_allclose(value, np.sum(weight * error) / 6.5, rtol=1e-4)
