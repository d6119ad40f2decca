"""The first-order form beside Q, on networks that are a matrix: NumPy can say every number."""

# ruff: noqa: TID252

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.representations import Linear
from spectral_bellman.objective import init_covariances

from ..matrices import (
    ACTION,
    BATCH,
    GAMMA,
    TARGET,
    TARGET_WEIGHT,
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
    target_of,
)
from ..quick import quick

FIRST = np.eye(D)[0]


def others_of(weight, batch) -> np.ndarray:
    """ψ(s, a) of the actions taken."""
    return of_unit_norm(taken_of(phi_of(weight, batch.observation), batch)[:, 1:])


def solved():
    """The three-state problem with φ = (Q*, one-hot of (s, a)), and the J that closes it exactly.

    Returns W, the batch, Q*, and J.
    """
    _, batch, after, discount = tabular()
    reward = np.asarray(batch.reward, np.float64)
    q = np.zeros(S * A)
    for _ in range(500):
        q = reward + discount * q.reshape(S, A).max(axis=1)[after]
    phi = np.concatenate([q[:, None], np.eye(S * A)], axis=1)
    greedy = q.reshape(S, A).argmax(axis=1)
    answer = discount[:, None] * phi[after * A + greedy[after]]
    jacobian = np.concatenate([np.zeros((1, 1 + S * A)), answer])
    weight = np.zeros((A, 1 + S * A, S))
    for s in range(S):
        for a in range(A):
            weight[a, :, s] = phi[s * A + a]
    return weight, batch, q, jacobian


def loss_and_terms(config, weight, jacobian, batch, target_weight):
    """The loss, its terms, and the covariances after the step."""
    part = config.build(problem(), single)
    d = weight.shape[1]
    target = target_of(target_weight, np.eye(d)[0])
    ready = prepared(part, target, (), batch)
    old = init_covariances(d)
    loss, (covariances, terms, _) = quick(functools.partial(loss_of, part))(
        linear(weight), floats(jacobian), old, batch, ready
    )
    return float(loss), terms, covariances


def test_the_loss_is_zero_at_an_exact_solution_and_grows_as_it_says():
    weight, batch, _, jacobian = solved()
    config = Linear(features=1 + S * A, theta_variance=1e-6, spread=0.0)
    loss, _, covariances = loss_and_terms(config, weight, jacobian, batch, weight)
    assert loss == pytest.approx(0, abs=1e-10)
    np.testing.assert_allclose(covariances.feature[1:, 1:], np.eye(6) / 6, rtol=1e-5, atol=1e-7)

    # Q of one pair in six is 0.6 off, and so is Jᵀφ, in three numbers of three pairs.
    off_weight, off_jacobian = weight.copy(), jacobian.copy()
    off_weight[0, 0, 0] += 0.6
    off_jacobian[1 + 1, 2] += 0.3
    off_jacobian[1 + 4, 0] -= 0.6
    loss, terms, _ = loss_and_terms(config, off_weight, off_jacobian, batch, weight)
    np.testing.assert_allclose(terms["value"], 0.36 / 6, rtol=1e-4)
    np.testing.assert_allclose(terms["prediction"], (0.09 + 0.36) / 6, rtol=1e-4)
    np.testing.assert_allclose(loss, 0.06 + 1e-6 * 0.075, rtol=1e-4)


def test_the_loss_weighs_its_terms_by_the_settings():
    weight, batch, _, jacobian = solved()
    config = Linear(features=1 + S * A, theta_variance=0.5, spread=0.25)
    loss, terms, _ = loss_and_terms(config, weight, jacobian + 0.1, batch, weight)
    np.testing.assert_allclose(terms["spread"], 6 / 36, rtol=1e-5)  # E[ψψᵀ] = I/6
    assert terms["prediction"] > 0.01
    expected = terms["value"] + 0.5 * terms["prediction"] + 0.25 * terms["spread"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_q_learns_from_the_loss_of_dqn_and_the_others_are_spread():
    target = target_of(TARGET_WEIGHT, FIRST)

    def differentiated(spread: float, variance: float):
        part = Linear(features=D, theta_variance=variance, spread=spread).build(problem(), single)
        ready = prepared(part, target, (), BATCH)
        jacobian, old = part.init(jax.random.key(0), floats(FIRST))
        np.testing.assert_array_equal(jacobian, np.eye(D))

        def loss(network):
            return loss_of(part, network, jacobian, old, BATCH, ready)

        gradient, (_, terms, error) = quick(jax.grad(loss, has_aux=True))(linear(WEIGHT))
        return np.asarray(gradient.head.weight).reshape(A, D, S), terms, error

    plain, terms, priorities = differentiated(0.0, 0.0)
    observed = np.asarray(BATCH.observation, np.float64)
    targets = backups(phi_of(TARGET_WEIGHT, BATCH.next_observation)[:, :, 0], BATCH)
    error = taken_of(phi_of(WEIGHT, observed), BATCH)[:, 0] - targets
    expected = np.zeros((A, D, S))
    np.add.at(expected, (ACTION, 0), 2 * error[:, None] * observed / B)
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(terms["value"], np.mean(error**2), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.abs(error), rtol=1e-4)
    others = others_of(WEIGHT, BATCH)
    spread = np.mean(np.square(others @ others.T))  # over all pairs of transitions
    np.testing.assert_allclose(terms["spread"], spread, rtol=1e-4)
    spread_out, *_ = differentiated(0.5, 0.0)
    np.testing.assert_allclose(spread_out[:, 0], plain[:, 0], atol=1e-6)
    assert np.abs(spread_out[:, 1:]).max() > 1e-3
    predicting, *_ = differentiated(0.0, 0.5)
    assert np.abs(predicting[:, 1:]).max() > 1e-3


@pytest.mark.parametrize("variance", [1e-6, 0.3])
def test_the_prediction_is_the_answer_of_the_backup_to_the_noise(variance):
    """E[ε TQ_θ] = σ E[∇TQ_θ], by draws of ε here; where ν is narrow π is greedy in θ̂."""
    network, batch, after, discount = tabular()
    theta = np.array([0.3, 1.0, -0.2, 0.4, 0.9, 0.1])
    config = Linear(features=S * A, theta_variance=variance, theta_samples=20_000)
    target = TARGET._replace(network=network, theta=floats(theta))
    found = np.asarray(prepared(config.build(problem(), single), target, (), batch).phi_next)
    rng, sigma = np.random.default_rng(2), np.sqrt(variance)
    noise = rng.normal(size=(200_000, S * A))
    best = (theta + sigma * noise).reshape(-1, S, A).max(axis=2)[:, after]
    answers = discount * (best - best.mean(axis=0))
    np.testing.assert_allclose(found, answers.T @ noise / len(noise) / sigma, atol=0.02)
    greedy = after * A + theta.reshape(S, A).argmax(axis=1)[after]
    off = np.abs(found - discount[:, None] * np.eye(S * A)[greedy]).max()
    assert off < 1e-6 if variance < 0.1 else off > 0.1


def test_theta_tilde_is_the_bellman_operator_near_its_centre():
    """Where the greedy actions of θ are those of θ̂ = e₁, φᵀθ̃(θ) = TQ_θ."""
    weight, batch, q, jacobian = solved()
    d = 1 + S * A
    part = Linear(features=d).build(problem(), single)
    centre = np.eye(d)[0]
    gap = np.abs(np.diff(q.reshape(S, A), axis=1)).min()
    near = centre + gap / 4 * np.random.default_rng(3).uniform(-1, 1, size=(7, d))
    near[:, 0] = 1
    following = np.einsum("bad,md->bam", phi_of(weight, batch.next_observation), near)
    expected = backups(following, batch)
    theta_tilde = part.theta_tilde(floats(jacobian), floats(near), floats(centre))
    phi = taken_of(phi_of(weight, batch.observation), batch)
    np.testing.assert_allclose(phi @ np.asarray(theta_tilde).T, expected, rtol=1e-4, atol=1e-5)
    drawn = np.asarray(part.theta_draws(jax.random.key(0), floats(centre)))
    assert drawn.shape == (64, d)
    assert np.std(drawn - centre) == pytest.approx(0.1, rel=0.15)


def test_the_parameters_are_those_of_the_first_feature_whatever_is_learned():
    part = Linear(features=D).build(problem(), single)
    np.testing.assert_array_equal(part.init_theta(jax.random.key(0)), FIRST)
    np.testing.assert_array_equal(part.theta_of(jnp.ones((D, D))), FIRST)
    assert part.solver is None
    assert problem().discount == GAMMA


def test_double_q_learning_chooses_by_the_first_feature_of_the_network_that_learns():
    part = Linear(features=D).build(problem(double=True), single)
    target = target_of(TARGET_WEIGHT, FIRST)
    given = prepared(part, target, (), BATCH, network=linear(WEIGHT), double=True)
    online, rated = (
        phi_of(weight, BATCH.next_observation)[:, :, 0] for weight in (WEIGHT, TARGET_WEIGHT)
    )
    chosen = np.take_along_axis(rated, online.argmax(axis=1)[:, None], axis=1)
    np.testing.assert_allclose(given.targets, backups(chosen, BATCH), rtol=1e-4, atol=1e-5)
    assert np.any((chosen[:, 0] != rated.max(axis=1))[np.asarray(BATCH.discount) > 0])


def test_the_weights_of_rows_count_in_every_term():
    part = Linear(features=D, theta_variance=0.5, spread=0.25).build(problem(), single)
    ready = prepared(part, target_of(TARGET_WEIGHT, FIRST), (), BATCH)
    jacobian, counts = floats(np.eye(D) + 0.1), np.array([2, 0, 1, 1, 0.5, 0.5])
    _, (after, terms, _) = quick(functools.partial(loss_of, part))(
        linear(WEIGHT), jacobian, init_covariances(D), BATCH, ready, floats(counts)
    )
    raw = taken_of(phi_of(WEIGHT, BATCH.observation), BATCH)
    phi = np.concatenate([raw[:, :1], others_of(WEIGHT, BATCH)], axis=1)
    value = (phi[:, 0] - np.asarray(ready.targets)) ** 2
    off = phi @ np.asarray(jacobian) - np.asarray(ready.phi_next)
    np.testing.assert_allclose(terms["value"], np.sum(counts * value) / 5, rtol=1e-4)
    prediction = np.sum(counts * np.sum(off**2, axis=1)) / 5
    np.testing.assert_allclose(terms["prediction"], prediction, rtol=1e-4)
    covariance = phi.T @ (phi * counts[:, None]) / 5
    np.testing.assert_allclose(after.feature, covariance, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(terms["spread"], np.sum(covariance[1:, 1:] ** 2), rtol=1e-4)
