"""Exploration against its formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import posterior
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.exploration import (
    Actor,
    Policy,
    action_values,
    begin_episodes,
    choose,
    epsilon_at,
    init_actor,
    no_noise,
    noise_factor,
    posterior_noise,
    propagated_parameters,
)

N, A, D = 5, 3, 4
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers():
    """For every test, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


ROWS = RNG.normal(size=(12, D))
SIGMA = 0.1 * np.eye(D) + ROWS.T @ ROWS
FACTOR = np.linalg.cholesky(SIGMA)
SCALE = 0.7
PHI = RNG.normal(size=(N, A, D)).astype(np.float32)
THETA = RNG.normal(size=D).astype(np.float32)


def config(**changes) -> AgentConfig:
    return AgentConfig(**{"features": D, "propagated_draws": 2, **changes})


def policy(noise) -> Policy:
    return Policy(None, jnp.asarray(THETA), jnp.asarray(noise, jnp.float32), jnp.zeros(()))


def floats(x):
    return jnp.asarray(x, jnp.float32)


def test_posterior_noise_is_the_inverse_of_the_transposed_factor():
    noise = posterior_noise(floats(FACTOR), floats(SCALE))
    np.testing.assert_allclose(noise, np.sqrt(SCALE) * np.linalg.inv(FACTOR).T, rtol=1e-4, atol=1e-5)


def test_thompson_values():
    settings = config(exploration="thompson")
    actor = init_actor(settings, N, jax.random.key(0))
    noise = np.sqrt(SCALE) * np.linalg.inv(FACTOR).T
    drawn = THETA[None] + np.asarray(actor.z) @ noise.T
    expected = np.einsum("nad,nd->na", PHI, drawn)
    np.testing.assert_allclose(action_values(policy(noise), actor, floats(PHI), settings), expected, rtol=1e-4, atol=1e-5)


def test_thompson_noise_is_bounded_when_asked():
    settings = config(exploration="thompson", noise_bound=True, reward_clip=0.5, discount=0.75)  # 0.5/(1 − 0.75) = 2
    z = np.array([[3.0, 4.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0]], np.float32)
    values = action_values(policy(np.eye(D)), Actor(floats(z), jnp.zeros(2, jnp.int32)), floats(PHI[:2]), settings)
    drawn = THETA[None] + np.array([[1.2, 1.6, 0, 0], [0.6, 0.8, 0, 0]])
    np.testing.assert_allclose(values, np.einsum("nad,nd->na", PHI[:2], drawn), rtol=1e-4, atol=1e-5)


def test_ucb_adds_the_bonus_of_the_posterior():
    settings = config(exploration="ucb")
    noise = posterior_noise(floats(FACTOR), floats(SCALE))
    values = action_values(policy(noise), init_actor(settings, N, jax.random.key(0)), floats(PHI), settings)
    bonus = posterior.ucb_bonus(floats(PHI), floats(SIGMA), SCALE)
    brute = np.sqrt(SCALE * np.einsum("nad,de,nae->na", PHI, np.linalg.inv(SIGMA), PHI))
    np.testing.assert_allclose(bonus, brute, rtol=1e-4)
    np.testing.assert_allclose(values, PHI @ THETA + np.asarray(bonus), rtol=1e-4, atol=1e-5)


def test_propagated_values_are_those_of_the_draw_that_each_follows():
    settings = config(exploration="propagated")
    draws = RNG.normal(size=(2, D)).astype(np.float32)
    actor = Actor(jnp.zeros((N, 0)), jnp.asarray([0, 1, 1, 0, 1]))
    values = action_values(policy(draws), actor, floats(PHI), settings)
    np.testing.assert_allclose(values, np.einsum("nad,nd->na", PHI, draws[[0, 1, 1, 0, 1]]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exploration", ["epsilon", "thompson", "ucb"])
def test_without_noise_all_are_greedy_in_the_mean(exploration):
    settings = config(exploration=exploration)
    actor = init_actor(settings, N, jax.random.key(0))
    np.testing.assert_allclose(action_values(policy(no_noise(settings)), actor, floats(PHI), settings), PHI @ THETA, rtol=1e-4)


def test_z_is_kept_within_an_episode_and_redrawn_where_one_begins():
    settings = config(exploration="thompson")
    actor = init_actor(settings, N, jax.random.key(0))
    first = np.array([False, True, False, False, True])
    moved = begin_episodes(actor, jnp.asarray(first), settings, jax.random.key(1))
    kept = np.all(np.asarray(moved.z) == np.asarray(actor.z), axis=1)
    np.testing.assert_array_equal(kept, ~first)
    assert not np.any(np.asarray(moved.z)[first] == np.asarray(actor.z)[first])
    assert not np.allclose(np.asarray(moved.z)[1], np.asarray(moved.z)[4])


def test_draws_are_kept_within_an_episode_and_cover_all():
    settings = config(exploration="propagated", propagated_draws=4)
    actor = init_actor(settings, 400, jax.random.key(0))
    first = np.arange(400) % 2 == 0
    moved = begin_episodes(actor, jnp.asarray(first), settings, jax.random.key(1))
    np.testing.assert_array_equal(np.asarray(moved.draw)[~first], np.asarray(actor.draw)[~first])
    assert 0.05 < np.mean(np.asarray(moved.draw)[first] == np.asarray(actor.draw)[first]) < 0.45  # a quarter by chance
    assert set(np.asarray(actor.draw).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(("steps", "expected"), [(0, 1.0), (99, 1.0), (100, 0.8), (150, 0.45), (200, 0.1), (10_000, 0.1)])
def test_epsilon_falls_linearly_after_the_warm_up(steps, expected):
    settings = config(exploration="epsilon", warmup_steps=100, epsilon_start=0.8, epsilon_end=0.1, epsilon_steps=100)
    np.testing.assert_allclose(epsilon_at(jnp.asarray(steps), settings), expected, rtol=1e-5)


@pytest.mark.parametrize("exploration", ["thompson", "ucb", "propagated"])
def test_those_with_noise_act_at_random_in_the_warm_up_only(exploration):
    settings = config(exploration=exploration, warmup_steps=100, epsilon_start=0.8)
    assert [float(epsilon_at(jnp.asarray(n), settings)) for n in (0, 99, 100, 101)] == [1, 1, 0, 0]


def test_noise_factor_by_hand():
    fixed = config(noise_scale=0.5, warmup_steps=100)
    assert float(noise_factor(jnp.asarray(10_000), fixed)) == 0.5
    falling = config(noise_scale=0.5, warmup_steps=100, noise_anneal_steps=200)
    factors = [float(noise_factor(jnp.asarray(n), falling)) for n in (0, 100, 150, 200, 300, 1_000)]
    np.testing.assert_allclose(factors, [0.5, 0.5, 0.375, 0.25, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.5, -0.2, 0.4], [0.075, 0.775, 0.075, 0.075]),
        ([0.5, 0.5, -0.2, 0.4], [0.425, 0.425, 0.075, 0.075]),
        ([0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),  # nothing is known yet
    ],
)
def test_choices_have_the_probabilities_they_say(values, expected):
    count, epsilon, expected = 40_000, 0.3, np.array(expected)
    values = jnp.broadcast_to(jnp.asarray(values), (count, 4))
    action, probability = (np.asarray(x) for x in choose(values, jnp.asarray(epsilon), jax.random.key(0)))
    np.testing.assert_allclose(probability, expected[action], rtol=1e-5)
    frequencies = np.bincount(action, minlength=4) / count
    np.testing.assert_allclose(frequencies, expected, atol=5 * np.sqrt(0.25 / count))


@pytest.mark.parametrize(("epsilon", "probability"), [(0.0, 1.0), (1.0, 1 / 3)])
def test_the_ends_of_epsilon(epsilon, probability):
    values = floats(RNG.normal(size=(300, 3)))
    action, chosen = choose(values, jnp.asarray(epsilon), jax.random.key(0))
    np.testing.assert_allclose(chosen, probability, rtol=1e-6)
    greedy = np.mean(np.asarray(action) == np.argmax(np.asarray(values), axis=1))
    assert greedy == 1 if epsilon == 0 else abs(greedy - 1 / 3) < 0.15


def factor_of(phi, weight, ridge):
    return floats(np.linalg.cholesky(ridge * np.eye(phi.shape[1]) + phi.T @ (phi * weight[:, None])))


def chain():
    """Four states in a row; action 1 goes right and ends the episode of the last with reward 1, 0 goes left for 0.1."""
    states, gamma = 4, 0.9
    rewards, discounts, following = np.zeros((4, 2)), np.full((4, 2), gamma), np.zeros((4, 2), int)
    for s in range(states):
        rewards[s, 0], following[s, 0], following[s, 1] = 0.1, max(s - 1, 0), min(s + 1, 3)
    rewards[3, 1], discounts[3, 1] = 1.0, 0.0
    return rewards, discounts, following


@pytest.mark.parametrize("iterations", [1, 3, 8])
def test_propagation_without_noise_is_value_iteration(iterations):
    rewards, discounts, following = chain()
    values = np.zeros((4, 2))
    for _ in range(iterations):
        values = rewards + discounts * values.max(axis=1)[following]
    phi, weight = np.eye(8), np.ones(8)
    phi_next = np.eye(8).reshape(4, 2, 8)[following.ravel()]
    found = propagated_parameters(
        floats(phi),
        floats(phi_next),
        floats(rewards.ravel()),
        floats(discounts.ravel()),
        floats(weight),
        jnp.zeros((8, 3)),
        jnp.zeros((3, 8)),
        factor_of(phi, weight, 1e-7),
        iterations,
        100.0,
    )
    np.testing.assert_allclose(found, np.broadcast_to(values.ravel(), (3, 8)), rtol=1e-4, atol=1e-5)


def test_targets_are_clipped_to_the_bound():
    phi = np.eye(2)
    found = propagated_parameters(
        floats(phi),
        floats(np.zeros((2, 1, 2))),
        floats([5.0, -5.0]),
        jnp.zeros(2),
        jnp.ones(2),
        jnp.zeros((2, 1)),
        jnp.zeros((1, 2)),
        factor_of(phi, np.ones(2), 1e-7),
        2,
        1.5,
    )
    np.testing.assert_allclose(found, [[1.5, -1.5]], rtol=1e-5)


def test_a_weight_of_two_is_the_transition_given_twice():
    phi, phi_next = RNG.normal(size=(6, D)), RNG.normal(size=(6, A, D)) / 4
    rewards, discounts = RNG.normal(size=6), np.full(6, 0.5)
    weight = np.array([1, 2, 1, 1, 1, 1.0])
    twice = [0, 1, 1, 2, 3, 4, 5]

    def solve(index, weight):
        return np.asarray(
            propagated_parameters(
                floats(phi[index]),
                floats(phi_next[index]),
                floats(rewards[index]),
                floats(discounts[index]),
                floats(weight),
                jnp.zeros((len(index), 1)),
                jnp.zeros((1, D)),
                factor_of(phi[index], weight, 0.1),
                5,
                100.0,
            )
        )

    weighted, repeated = solve(range(6), weight), solve(twice, np.ones(7))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-3, atol=1e-4)
    assert np.abs(weighted - solve(range(6), np.ones(6))).max() > 0.01


def test_noise_and_prior_of_one_backup_by_hand():
    """w = Σ⁻¹(ζ + Σ_n min(w_n, √w_n) ξ_n φ_n) where there is nothing to gain: a weight w ≥ 1 has noise of variance w."""
    phi, weight = RNG.normal(size=(5, D)), np.array([1, 4, 0.25, 0, 9])
    noise, prior = RNG.normal(size=(5, 2)), RNG.normal(size=(2, D))
    found = propagated_parameters(
        floats(phi),
        jnp.zeros((5, A, D)),
        jnp.zeros(5),
        jnp.ones(5),
        floats(weight),
        floats(noise),
        floats(prior),
        factor_of(phi, weight, 0.1),
        1,
        100.0,
    )
    sigma = 0.1 * np.eye(D) + phi.T @ (phi * weight[:, None])
    factors = np.array([1, 2, 0.25, 0, 3])
    expected = np.linalg.solve(sigma, (prior + (noise * factors[:, None]).T @ phi).T).T
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
