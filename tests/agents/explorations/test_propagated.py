"""Propagated noise: value iteration on noisy targets, against NumPy."""

# ruff: noqa: TID252

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import Progress
from spectral_bellman.agents.explorations import Propagated, ReplayFeatures
from spectral_bellman.agents.explorations.api import ExplorationContext
from spectral_bellman.agents.explorations.propagated import Draws, propagated_parameters

from ..matrices import floats
from ..quick import quick

N, A, D = 5, 3, 4
SETTING = ExplorationContext(
    dimension=D, discount=0.9, warmup_steps=100, round_items=512, largest_value=10.0
)
RNG = np.random.default_rng(0)
ROWS, ROWS_NEXT = RNG.normal(size=(6, D)), RNG.normal(size=(6, A, D)) / 4
REWARD = RNG.normal(size=6)
PHI = RNG.normal(size=(N, A, D))


def replay_features(phi, phi_next, reward, discount, weight) -> ReplayFeatures:
    values = (floats(x) for x in (phi, phi_next, reward, discount, weight))
    return ReplayFeatures(*values, slot=jnp.arange(len(phi)))


def factor_of(phi, weight, ridge):
    scatter = phi.T @ (phi * weight[:, None])
    return floats(np.linalg.cholesky(ridge * np.eye(phi.shape[1]) + scatter))


def solved(
    given: ReplayFeatures, *, ridge, iterations, noise=None, prior=None, start=None, bound=100.0
):
    """The parameters of the draws; without noise there is one."""
    noise = np.zeros((len(given.phi), 1)) if noise is None else noise
    shape = (noise.shape[1], given.phi.shape[1])
    prior, start = (np.zeros(shape) if x is None else x for x in (prior, start))
    phi, weight = (np.asarray(x, np.float64) for x in (given.phi, given.weight))
    factor = factor_of(phi, weight, ridge)
    found = quick(propagated_parameters, static_argnums=(4, 5))(
        given, floats(noise), floats(prior), factor, iterations, bound, floats(start)
    )
    return np.asarray(found)


def progress(number: int) -> Progress:
    return Progress(jnp.asarray(1_000), jnp.asarray(number))


def test_values_are_those_of_the_draw_that_each_environment_follows():
    exploration = Propagated(propagated_draws=3).build(SETTING)
    draws, theta = RNG.normal(size=(3, D)), jnp.full(D, 100.0)
    actor = exploration.init_actor(N, jax.random.key(0))
    actor = actor._replace(draw=jnp.asarray([0, 1, 1, 0, 1]))
    noise = Draws(floats(draws), jnp.asarray([4, 7, 2]))
    followed = exploration.update_actor(noise, actor)
    values = exploration.values(theta, noise, followed, floats(PHI))
    expected = np.einsum("nad,nd->na", PHI, draws[[0, 1, 1, 0, 1]])
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    assert float(exploration.epsilon(jnp.asarray(10_000))) == 0


def test_an_episode_keeps_its_draw_when_another_takes_its_place():
    """As long as the draw lives, its parameters move with what is published."""
    exploration = Propagated(propagated_draws=2).build(SETTING)
    first, second, third = (floats(RNG.normal(size=(2, D))) for _ in range(3))
    actor = exploration.init_actor(2, jax.random.key(0))._replace(draw=jnp.asarray([0, 1]))
    actor = exploration.update_actor(Draws(first, jnp.asarray([5, 5])), actor)
    np.testing.assert_array_equal(actor.parameters, first)
    actor = exploration.update_actor(Draws(second, jnp.asarray([6, 5])), actor)
    np.testing.assert_array_equal(actor.parameters, [first[0], second[1]])
    actor = exploration.update_actor(Draws(third, jnp.asarray([6, 6])), actor)
    np.testing.assert_array_equal(actor.parameters, [first[0], second[1]])
    # An episode that begins takes the draw as it is.
    fresh = exploration.init_actor(2, jax.random.key(1))._replace(draw=jnp.asarray([0, 1]))
    fresh = exploration.update_actor(Draws(third, jnp.asarray([6, 6])), fresh)
    np.testing.assert_array_equal(fresh.parameters, third)


def test_environments_cover_all_draws():
    exploration = Propagated(propagated_draws=4).build(SETTING)
    counts = np.bincount(exploration.init_actor(400, jax.random.key(0)).draw, minlength=4)
    assert counts.shape == (4,)
    assert counts.min() > 60


def chain():
    """Four states in a row: action 1 goes right, and from the last ends with reward 1.

    Action 0 goes left for 0.1.
    """
    states, gamma = 4, 0.9
    rewards, discounts, after = np.zeros((4, 2)), np.full((4, 2), gamma), np.zeros((4, 2), int)
    for s in range(states):
        rewards[s, 0], after[s, 0], after[s, 1] = 0.1, max(s - 1, 0), min(s + 1, 3)
    rewards[3, 1], discounts[3, 1] = 1.0, 0.0
    return rewards, discounts, after


@pytest.mark.parametrize(("iterations", "started"), [(1, True), (3, False), (8, False)])
def test_propagation_without_noise_is_value_iteration(iterations, started):
    rewards, discounts, after = chain()
    values = RNG.normal(size=(4, 2)) if started else np.zeros((4, 2))
    start = np.broadcast_to(values.ravel(), (3, 8))
    for _ in range(iterations):
        values = rewards + discounts * values.max(axis=1)[after]
    phi_next = np.eye(8).reshape(4, 2, 8)[after.ravel()]
    given = replay_features(np.eye(8), phi_next, rewards.ravel(), discounts.ravel(), np.ones(8))
    noise = np.zeros((8, 3))
    found = solved(given, noise=noise, ridge=1e-7, iterations=iterations, start=start)
    expected = np.broadcast_to(values.ravel(), (3, 8))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_targets_are_clipped_to_the_bound():
    given = replay_features(np.eye(2), np.zeros((2, 1, 2)), [5.0, -5.0], np.zeros(2), np.ones(2))
    found = solved(given, ridge=1e-7, iterations=2, bound=1.5)
    np.testing.assert_allclose(found, [[1.5, -1.5]], rtol=1e-5)


def test_a_weight_of_two_is_the_transition_given_twice():
    def solve(index, weight):
        discount = np.full(len(index), 0.5)
        given = replay_features(ROWS[index], ROWS_NEXT[index], REWARD[index], discount, weight)
        return solved(given, ridge=0.1, iterations=5)

    weighted = solve([0, 1, 2, 3, 4, 5], np.array([1, 2, 1, 1, 1, 1.0]))
    repeated = solve([0, 1, 1, 2, 3, 4, 5], np.ones(7))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-3, atol=1e-4)
    assert np.abs(weighted - solve([0, 1, 2, 3, 4, 5], np.ones(6))).max() > 0.01


def test_noise_and_prior_of_one_backup_by_hand():
    """w = Σ⁻¹(ζ + Σ_n min(w_n, √w_n) ξ_n φ_n) where there is no reward.

    A weight w ≥ 1 has noise of variance w.
    """
    phi, weight = ROWS[:5], np.array([1, 4, 0.25, 0, 9])
    noise, prior = RNG.normal(size=(5, 2)), RNG.normal(size=(2, D))
    given = replay_features(phi, np.zeros((5, A, D)), np.zeros(5), np.ones(5), weight)
    found = solved(given, noise=noise, prior=prior, ridge=0.1, iterations=1)
    sigma = 0.1 * np.eye(D) + phi.T @ (phi * weight[:, None])
    factors = np.array([1, 2, 0.25, 0, 3])
    expected = np.linalg.solve(sigma, (prior + (noise * factors[:, None]).T @ phi).T).T
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_every_round_replaces_the_oldest_and_the_others_go_on():
    """With the noise that they had, by slot: a transition keeps it wherever its row lies."""
    config = Propagated(propagated_draws=3, propagated_iterations=40, propagated_variance=0.5)
    exploration = config.build(SETTING)
    publish = quick(exploration.publish)
    given = replay_features(ROWS, ROWS_NEXT, REWARD, np.full(6, 0.5), np.ones(6))
    kept = exploration.init(jax.random.key(0))
    for number in range(4):
        before, before_keys = kept.draws, jax.random.key_data(kept.keys)
        kept, draws = publish(kept, given, progress(number), jax.random.key(number))
        oldest = np.arange(3) == number % 3
        changed = np.any(jax.random.key_data(kept.keys) != before_keys, axis=1)
        np.testing.assert_array_equal(changed, oldest)
        np.testing.assert_array_equal(draws.generation - before.generation, oldest)
        if number:  # by then value iteration has converged
            moved = np.abs(draws.parameters - before.parameters).max(axis=1)
            np.testing.assert_array_equal(moved > 1e-3, oldest)
    order = np.asarray([3, 1, 5, 0, 4, 2])
    shuffled = jax.tree.map(lambda x: x[order], given)
    _, again = publish(kept, shuffled, progress(3), jax.random.key(3))
    np.testing.assert_allclose(again.parameters, draws.parameters, rtol=1e-3, atol=1e-4)
    # Without replay features nothing moves.
    same, published = exploration.publish(kept, None, progress(4), jax.random.key(4))
    assert same is kept
    np.testing.assert_array_equal(published.parameters, kept.draws.parameters)
    np.testing.assert_array_equal(published.generation, kept.draws.generation)


def test_draws_are_replaced_in_turn_where_only_some_rounds_have_evidence():
    config = Propagated(propagated_draws=3, precision_rounds=5, propagated_iterations=1)
    exploration = config.build(SETTING)
    assert exploration.every == 5
    publish = quick(exploration.publish)
    given = replay_features(ROWS, ROWS_NEXT, REWARD, np.full(6, 0.5), np.ones(6))
    kept, found = exploration.init(jax.random.key(0)), []
    for number in (0, 5, 10, 15):
        kept, draws = publish(kept, given, progress(number), jax.random.key(number))
        found.append(np.asarray(draws.generation).tolist())
    assert found == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1]]


def test_value_iteration_goes_on_from_the_round_before():
    """Two rounds of 2 backups, with one noise, are one of 4."""
    given = replay_features(ROWS, ROWS_NEXT, REWARD, np.full(6, 0.5), np.ones(6))
    start, draws = None, Propagated(propagated_draws=2, propagated_variance=0.0)
    for iterations in (2, 2):
        start = solved(given, ridge=0.1, iterations=iterations, start=start)
    at_once = solved(given, ridge=0.1, iterations=4)
    np.testing.assert_allclose(start, at_once, rtol=1e-3, atol=1e-5)
    assert np.abs(solved(given, ridge=0.1, iterations=2) - at_once).max() > 1e-3

    exploration = dataclasses.replace(draws, propagated_iterations=2).build(SETTING)
    kept = exploration.init(jax.random.key(0))
    for number in range(2):
        kept, published = quick(exploration.publish)(
            kept, given, progress(number), jax.random.key(number)
        )
    expected = np.broadcast_to(at_once, (2, D))
    np.testing.assert_allclose(published.parameters, expected, rtol=1e-3, atol=1e-4)


def test_the_noise_has_the_variance_that_was_asked():
    """With targets of 0 and one backup, w ~ N(0, v Σ⁻¹): what is drawn is the posterior."""
    draws, variance, ridge = 4_000, 0.09, 0.5
    config = Propagated(
        propagated_draws=draws, propagated_iterations=1, propagated_variance=variance, ridge=ridge
    )
    exploration = config.build(SETTING)
    given = replay_features(ROWS, np.zeros((6, A, D)), np.zeros(6), np.zeros(6), np.ones(6))
    kept = exploration.init(jax.random.key(0))
    _, found = quick(exploration.publish)(kept, given, progress(0), jax.random.key(1))
    parameters = np.asarray(found.parameters)
    expected = variance * np.linalg.inv(ridge * np.eye(D) + ROWS.T @ ROWS)
    np.testing.assert_allclose(np.mean(parameters, axis=0), np.zeros(D), atol=0.02)
    error = 5 * np.diag(expected).max() * np.sqrt(2 / draws)
    np.testing.assert_allclose(np.cov(parameters.T), expected, atol=error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propagated_variance": -1.0}, "--propagated-variance must be 0 or more"),
        ({"propagated_iterations": 0}, "--propagated-iterations must be at least 1"),
        ({"propagated_draws": 0}, "--propagated-draws must be at least 1"),
        ({"ridge": -0.1}, "--ridge must be positive"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Propagated(**changes)
