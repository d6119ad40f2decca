"""What φ learns from, on networks that are a matrix: every number can be had with NumPy."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.representation import (
    Indicators,
    LinearBackup,
    Target,
    features,
    features_taken,
    q_targets,
    representation,
    rewards_and_discounts,
)
from spectral_bellman.networks import feature_network
from spectral_bellman.objective import Covariances, init_covariances
from spectral_bellman.replay import Transition

S, A, D, B = 3, 2, 4, 6
OBSERVATION = jax.ShapeDtypeStruct((S,), jnp.float32)
BASE = AgentConfig(
    network="mlp",
    hidden=(),
    features=D,
    norm="none",
    discount=0.9,
    theta_samples=5,
    feature_orthogonality=0.0,
    pvn_networks=2,
    pvn_outputs=3,
)
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _same_numbers():
    """For every test, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def linear(weight: np.ndarray):
    """φ(s, a) = W[a] s, with W of shape (A, d, S)."""
    network = feature_network("mlp", (), jax.ShapeDtypeStruct(weight.shape[-1:], jnp.float32), *weight.shape[:2], jax.random.key(0))
    return eqx.tree_at(lambda n: n.head.weight, network, jnp.asarray(weight.reshape(-1, weight.shape[-1]), jnp.float32))


WEIGHT, TARGET_WEIGHT = RNG.normal(size=(2, A, D, S))
BATCH = Transition(
    jnp.asarray(RNG.normal(size=(B, S)), jnp.float32),
    jnp.asarray([0, 1, 1, 0, 1, 0]),
    jnp.asarray([0.5, 3.0, -2.0, 0.0, 1.0, -0.25]),
    jnp.asarray([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]),
    jnp.ones(B),
    jnp.asarray(RNG.normal(size=(B, S)), jnp.float32),
)
THETA = RNG.normal(size=D)


def stacked(batch: Transition) -> Transition:
    return jax.tree.map(lambda x: x[None], batch)


def phi_of(weight, observations) -> np.ndarray:
    return np.einsum("ads,bs->bad", weight, np.asarray(observations, np.float64))


def normalised(phi: np.ndarray, norm: str) -> np.ndarray:
    length = np.linalg.norm(phi, axis=-1, keepdims=True)
    rest = np.linalg.norm(phi[..., 1:], axis=-1, keepdims=True)
    value = np.concatenate([phi[..., :1], phi[..., 1:] / rest], axis=-1)
    return {"none": phi, "unit": phi / length, "clip": phi * np.minimum(1, 1 / length), "value": value}[norm]


@pytest.mark.parametrize("norm", ["none", "unit", "clip", "value"])
def test_features_and_those_of_the_action_taken(norm):
    config = dataclasses.replace(BASE, norm=norm)
    weight = 0.7 * WEIGHT  # some inside the unit ball and some outside
    expected = normalised(phi_of(weight, BATCH.observation), norm)
    lengths = np.linalg.norm(phi_of(weight, BATCH.observation), axis=-1)
    assert lengths.min() < 1 < lengths.max()
    np.testing.assert_allclose(features(linear(weight), BATCH.observation, config), expected, rtol=1e-4, atol=1e-5)
    taken = expected[np.arange(B), np.asarray(BATCH.action)]
    np.testing.assert_allclose(features_taken(linear(weight), BATCH, config), taken, rtol=1e-4, atol=1e-5)


def test_a_plain_head_is_not_normalised():
    config = dataclasses.replace(BASE, representation="td", exploration="epsilon", norm="unit")
    weight = WEIGHT[:, :1]
    expected = phi_of(weight, BATCH.observation)
    np.testing.assert_allclose(features(linear(weight), BATCH.observation, config), expected, rtol=1e-4, atol=1e-5)


def test_unit_features_of_nothing_are_nothing_and_have_a_gradient():
    config = dataclasses.replace(BASE, norm="unit")
    batch = BATCH._replace(observation=jnp.zeros((B, S)))
    gradient = jax.grad(lambda n: jnp.sum(features_taken(n, batch, config)))(linear(WEIGHT))
    np.testing.assert_array_equal(features_taken(linear(WEIGHT), batch, config), np.zeros((B, D)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_rewards_are_clipped_and_discounts_end_with_the_episode():
    reward, discount = rewards_and_discounts(BATCH, dataclasses.replace(BASE, reward_clip=1.5))
    np.testing.assert_allclose(reward, [0.5, 1.5, -1.5, 0, 1, -0.25])
    np.testing.assert_allclose(discount, [0.9, 0, 0.9, 0.9, 0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(rewards_and_discounts(BATCH, dataclasses.replace(BASE, reward_clip=0.0))[0], BATCH.reward)


def test_q_targets_by_hand():
    target = Target(linear(TARGET_WEIGHT), jnp.asarray(THETA, jnp.float32), ())
    best = (phi_of(TARGET_WEIGHT, BATCH.next_observation) @ THETA).max(axis=1)
    expected = np.clip(BATCH.reward, -1, 1) + 0.9 * np.asarray(BATCH.discount) * best
    np.testing.assert_allclose(q_targets(target, BATCH, BASE), expected, rtol=1e-4, atol=1e-5)


def gradients(config: AgentConfig, covariances: Covariances):
    way = representation(config, OBSERVATION)
    backup, frozen = way.init(jax.random.key(3))
    backup = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), backup)
    target = Target(linear(TARGET_WEIGHT), jnp.asarray(THETA, jnp.float32), ())
    prepared = way.prepare(target, frozen, stacked(BATCH), jax.random.key(4))
    prepared = jax.tree.map(lambda x: x[0], prepared)
    loss = lambda network, backup: way.loss(network, backup, BATCH, prepared, covariances)[0]  # noqa: E731
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1)))(linear(WEIGHT), backup))]


def test_spectral_with_alpha_one_has_the_gradient_of_mse():
    old = Covariances(2 * jnp.eye(D), 3 * jnp.eye(D), jnp.ones((), bool))
    mse = gradients(dataclasses.replace(BASE, representation="mse", alpha=1.0), old)
    spectral = gradients(dataclasses.replace(BASE, representation="spectral", alpha=1.0), old)
    averaged = gradients(dataclasses.replace(BASE, representation="spectral", alpha=0.5), old)
    largest = max(np.abs(x).max() for x in mse)
    assert largest > 0.1
    for mine, theirs in zip(spectral, mse, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5 * largest)
    assert max(np.abs(x - y).max() for x, y in zip(averaged, mse, strict=True)) > 0.01 * largest


def test_orthogonality_is_in_the_loss_that_asks_for_it():
    old = init_covariances(D)
    plain = gradients(dataclasses.replace(BASE, representation="spectral"), old)
    with_it = gradients(dataclasses.replace(BASE, representation="spectral", feature_orthogonality=0.5), old)
    assert max(np.abs(x - y).max() for x, y in zip(plain, with_it, strict=True)) > 1e-3


def tabular():
    """Three states and two actions with one-hot φ: d = 6. The last two transitions end their episodes."""
    weight = np.zeros((A, S * A, S))
    for s in range(S):
        for a in range(A):
            weight[a, s * A + a, s] = 1
    state, action = np.divmod(np.arange(S * A), A)
    following, ends = np.array([1, 2, 0, 2, 1, 0]), np.array([0, 0, 0, 0, 1, 1])
    reward = np.array([0.5, -0.5, 0.25, 1, 0, 0.75])
    batch = Transition(
        jnp.asarray(np.eye(S)[state], jnp.float32),
        jnp.asarray(action),
        jnp.asarray(reward, jnp.float32),
        jnp.asarray(1.0 - ends, jnp.float32),
        jnp.ones(S * A),
        jnp.asarray(np.eye(S)[following], jnp.float32),
    )
    theta = np.array([0.3, 1.0, -0.2, 0.4, 0.9, 0.1])
    greedy = theta.reshape(S, A).argmax(axis=1)
    discount = 0.9 * (1 - ends)
    b = reward + discount * theta.reshape(S, A).max(axis=1)[following]
    jacobian = discount[:, None] * np.eye(S * A)[following * A + greedy[following]]
    return linear(weight), batch, theta, LinearBackup(jnp.asarray(b, jnp.float32), jnp.asarray(jacobian, jnp.float32))


def test_the_expected_form_is_zero_at_an_exact_solution_and_grows_as_it_says():
    network, batch, theta, backup = tabular()
    config = dataclasses.replace(BASE, representation="expected", features=S * A, theta_variance=0.5)
    way = representation(config, OBSERVATION)
    target = Target(network, jnp.asarray(theta, jnp.float32), ())
    prepared = way.prepare(target, (), stacked(batch), jax.random.key(0))
    prepared = jax.tree.map(lambda x: x[0], prepared)
    old = init_covariances(S * A)
    loss, (covariances, _) = way.loss(network, backup, batch, prepared, old)
    np.testing.assert_allclose(loss, 0, atol=1e-10)
    np.testing.assert_allclose(covariances.feature, np.eye(6) / 6, rtol=1e-5)
    off = LinearBackup(backup.b.at[0].add(0.6), backup.J.at[1, 2].add(0.3).at[4, 0].add(-0.6))
    loss, (_, terms) = way.loss(network, off, batch, prepared, old)
    np.testing.assert_allclose(terms["value"], 0.36 / 6, rtol=1e-4)
    np.testing.assert_allclose(terms["prediction"], (0.09 + 0.36) / 6, rtol=1e-4)
    np.testing.assert_allclose(loss, 0.06 + 0.5 * 0.075, rtol=1e-4)
    # In units of θ̂'s mean square, both terms are those of the rewards and values in another currency.
    way = representation(dataclasses.replace(config, relative_variance=True), OBSERVATION)
    prepared = jax.tree.map(lambda x: x[0], way.prepare(target, (), stacked(batch), jax.random.key(0)))
    loss, _ = way.loss(network, off, batch, prepared, old)
    np.testing.assert_allclose(loss, 0.06 + 0.5 * np.mean(theta**2) * 0.075, rtol=1e-4)


def test_where_the_first_feature_is_q_it_learns_from_the_loss_of_dqn_and_the_others_are_spread():
    config = dataclasses.replace(BASE, norm="value", representation="averaged", theta_variance=0.0)
    backup = representation(config, OBSERVATION).init(jax.random.key(0))[0]
    np.testing.assert_array_equal(backup.b, [1, 0, 0, 0])
    target = Target(linear(TARGET_WEIGHT), backup.b, ())

    def differentiated(weight: float, variance: float):
        way = representation(dataclasses.replace(config, feature_orthogonality=weight, theta_variance=variance), OBSERVATION)
        prepared = jax.tree.map(lambda x: x[0], way.prepare(target, (), stacked(BATCH), jax.random.key(0)))
        old = init_covariances(D)
        gradient, (_, terms) = jax.grad(lambda x: way.loss(*x, BATCH, prepared, old), has_aux=True)((linear(WEIGHT), backup))
        np.testing.assert_array_equal(gradient[1].b, np.zeros(D))  # it stays where it is
        return np.asarray(gradient[0].head.weight).reshape(A, D, S), terms

    plain, terms = differentiated(0.0, 0.0)
    observed, action = np.asarray(BATCH.observation, np.float64), np.asarray(BATCH.action)
    following = phi_of(TARGET_WEIGHT, BATCH.next_observation)[:, :, 0].max(axis=1)
    error = phi_of(WEIGHT, observed)[np.arange(B), action, 0]
    error -= np.clip(np.asarray(BATCH.reward), -1, 1) + 0.9 * np.asarray(BATCH.discount) * following
    expected = np.zeros((A, D, S))
    np.add.at(expected, (action, 0), 2 * error[:, None] * observed / B)
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)
    others = normalised(phi_of(WEIGHT, observed), "value")[np.arange(B), action, 1:]
    spread = np.mean(np.square(others @ others.T))  # over all pairs of transitions
    np.testing.assert_allclose(terms["spread"], spread, rtol=1e-4)
    apart, _ = differentiated(0.5, 0.0)
    np.testing.assert_allclose(apart[:, 0], plain[:, 0], atol=1e-6)
    assert np.abs(apart[:, 1:]).max() > 1e-3
    predicting, _ = differentiated(0.0, 0.5)
    assert np.abs(predicting[:, 1:]).max() > 1e-3


def test_the_others_add_to_q_where_the_parameters_are_those_of_the_backup():
    config = dataclasses.replace(
        BASE, norm="value", representation="averaged", q_start="backup", theta_variance=0.0, feature_orthogonality=0.0
    )
    way = representation(config, OBSERVATION)
    backup = way.init(jax.random.key(0))[0]._replace(b=jnp.array([1.0, 0.5, -2.0, 0.0]))
    target = Target(linear(TARGET_WEIGHT), backup.b, ())
    prepared = jax.tree.map(lambda x: x[0], way.prepare(target, (), stacked(BATCH), jax.random.key(0)))
    gradient, (_, terms) = jax.grad(lambda x: way.loss(linear(WEIGHT), x, BATCH, prepared, init_covariances(D)), has_aux=True)(
        backup
    )
    phi = normalised(phi_of(WEIGHT, BATCH.observation), "value")[np.arange(B), np.asarray(BATCH.action)]
    following = (normalised(phi_of(TARGET_WEIGHT, BATCH.next_observation), "value") @ np.asarray(backup.b)).max(axis=1)
    error = phi @ np.asarray(backup.b) - np.clip(np.asarray(BATCH.reward), -1, 1)
    error -= 0.9 * np.asarray(BATCH.discount) * following
    np.testing.assert_allclose(terms["value"], np.mean(error**2), rtol=1e-4)
    np.testing.assert_allclose(gradient.b[1:], 2 * error @ phi[:, 1:] / B, rtol=1e-3, atol=1e-5)
    assert gradient.b[0] == 0  # the first feature is free, so the scale of both would not be determined


@pytest.mark.parametrize("variance", [1e-6, 0.3])
def test_the_averaged_form_predicts_what_the_backup_answers_to_the_noise_with(variance):
    """E[ε TQ_θ] = σ E[∇TQ_θ], by draws of ε here; where ν is narrow that is what the expected form has."""
    network, batch, theta, _ = tabular()
    target = Target(network, jnp.asarray(theta, jnp.float32), ())

    def predicted(**changes):
        config = dataclasses.replace(BASE, features=S * A, theta_variance=variance, **changes)
        prepared = representation(config, OBSERVATION).prepare(target, (), stacked(batch), jax.random.key(0))
        return np.asarray(prepared[1][0])

    found = predicted(representation="averaged", theta_samples=20_000)
    noise, sigma = RNG.normal(size=(200_000, S * A)), np.sqrt(variance)
    best = (theta + sigma * noise).reshape(-1, S, A).max(axis=2)[:, np.asarray(batch.next_observation).argmax(axis=1)]
    backups = 0.9 * np.asarray(batch.discount) * (best - best.mean(axis=0))
    np.testing.assert_allclose(found, backups.T @ noise / len(noise) / sigma, atol=0.02)
    greedy = predicted(representation="expected")
    assert np.abs(found - greedy).max() < 1e-6 if variance < 0.1 else np.abs(found - greedy).max() > 0.1


@pytest.mark.parametrize(("relative", "deviation"), [(False, 0.5), (True, 1.5)])
def test_the_distribution_over_parameters_is_as_wide_as_it_should_be(relative, deviation):
    _, batch, _, _ = tabular()
    config = dataclasses.replace(
        BASE, representation="spectral", features=S * A, theta_variance=0.25, relative_variance=relative, theta_samples=4_000
    )
    centre = jnp.asarray([3.0, -3.0] * (S * A // 2))
    target = Target(tabular()[0], centre, ())
    theta, _ = representation(config, OBSERVATION).prepare(target, (), stacked(batch), jax.random.key(0))
    np.testing.assert_allclose(np.std(np.asarray(theta[0]) - np.asarray(centre)), deviation, rtol=0.03)


def test_the_linear_backup_is_the_bellman_operator_near_its_centre():
    """Where the greedy actions of θ are those of θ̂, φᵀθ̃(θ) = TQ_θ."""
    _, batch, theta, backup = tabular()
    way = representation(dataclasses.replace(BASE, representation="expected", features=S * A), OBSERVATION)
    near = theta + 0.05 * RNG.uniform(-1, 1, size=(7, S * A))
    following = np.asarray(batch.next_observation).argmax(axis=1)
    best = near.reshape(7, S, A).max(axis=2)[:, following]
    expected = np.asarray(batch.reward) + 0.9 * np.asarray(batch.discount) * best
    found = way.theta_tilde(backup, jnp.asarray(near, jnp.float32), jnp.asarray(theta, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pvn_by_hand():
    config = dataclasses.replace(BASE, representation="pvn", pvn_quantile=0.2)
    way = representation(config, OBSERVATION)
    backup, frozen = way.init(jax.random.key(0))
    assert backup.weights.shape == (6, D)
    old_weights = RNG.normal(size=(6, D))
    target = Target(linear(TARGET_WEIGHT), jnp.zeros(D), Indicators(jnp.asarray(old_weights, jnp.float32), jnp.zeros(6)))
    output, following = (np.asarray(x)[0] for x in way.prepare(target, frozen, stacked(BATCH), jax.random.key(1)))
    frozen_weight = np.asarray(frozen.head.weight)  # (networks, outputs, S)
    assert not np.allclose(frozen_weight[0], frozen_weight[1])
    expected = np.einsum("nos,bs->bno", frozen_weight, np.asarray(BATCH.observation)).reshape(B, 6)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    mean = phi_of(TARGET_WEIGHT, BATCH.next_observation).mean(axis=1)
    discount = 0.9 * np.asarray(BATCH.discount)
    np.testing.assert_allclose(following, discount[:, None] * (mean @ old_weights.T), rtol=1e-4, atol=1e-5)
    bias = RNG.normal(size=6)
    loss, (_, terms) = way.loss(
        linear(WEIGHT),
        backup._replace(bias=jnp.asarray(bias, jnp.float32)),
        BATCH,
        (jnp.asarray(output), jnp.asarray(following)),
        init_covariances(D),
    )
    excess = output + bias
    phi = phi_of(WEIGHT, BATCH.observation)[np.arange(B), np.asarray(BATCH.action)]
    error = phi @ np.asarray(backup.weights).T - (excess > 0) - following
    np.testing.assert_allclose(terms["pvn"], np.mean(error**2), rtol=1e-4)
    np.testing.assert_allclose(terms["quantile"], np.mean(np.where(excess > 0, 0.8 * excess, -0.2 * excess)), rtol=1e-4)
    np.testing.assert_allclose(loss, terms["pvn"] + terms["quantile"], rtol=1e-5)


def test_the_bias_of_pvn_learns_to_fire_on_the_share_that_was_asked():
    config = dataclasses.replace(BASE, representation="pvn", pvn_quantile=0.1)
    way = representation(config, OBSERVATION)
    count, tasks = 2_000, 6
    output = jnp.asarray(RNG.normal(size=(count, tasks)) * np.linspace(0.5, 1.5, tasks) + np.linspace(-1, 1, tasks), jnp.float32)
    batch = Transition(
        jnp.zeros((count, S)),
        jnp.zeros(count, jnp.int32),
        jnp.zeros(count),
        jnp.zeros(count),
        jnp.ones(count),
        jnp.zeros((count, S)),
    )
    network, cov = linear(WEIGHT), init_covariances(D)

    def loss(bias):
        return way.loss(network, Indicators(jnp.zeros((tasks, D)), bias), batch, (output, jnp.zeros((count, tasks))), cov)[0]

    bias = jax.jit(lambda b: jax.lax.fori_loop(0, 300, lambda _, b: b - tasks * jax.grad(loss)(b), b))(jnp.zeros(tasks))
    shares = np.mean(np.asarray(output) + np.asarray(bias) > 0, axis=0)
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
