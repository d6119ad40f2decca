"""ε-greedy: its schedule, and how every exploration chooses from values."""

# ruff: noqa: TID252

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.explorations import Epsilon, ExplorationConfig, Ladder
from spectral_bellman.agents.explorations.api import ExplorationContext, choose

from ..matrices import floats
from ..quick import quick

SETTING = ExplorationContext(
    dimension=4, discount=0.9, warmup_steps=100, round_items=512, largest_value=10.0
)
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(300, 3))


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, 0.8), (100, 0.8), (150, 0.45), (200, 0.1), (10_000, 0.1)]
)
def test_epsilon_falls_linearly_after_the_warm_up(steps, expected):
    config = Epsilon(epsilon_start=0.8, epsilon_end=0.1, epsilon_steps=100)
    found = config.build(SETTING).epsilon(jnp.asarray(steps))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_actions_are_greedy_in_q_and_nothing_is_kept():
    exploration = Epsilon().build(SETTING)
    phi, theta = RNG.normal(size=(5, 3, 4)), RNG.normal(size=4)
    actor = exploration.init_actor(5, jax.random.key(0))
    noise = exploration.init_noise()
    assert jax.tree.leaves((noise, actor, exploration.init(jax.random.key(0)))) == []
    values = exploration.values(floats(theta), noise, actor, floats(phi))
    np.testing.assert_allclose(values, phi @ theta, rtol=1e-4)
    assert (exploration.rows, exploration.publish) == (0, None)


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
    found = quick(choose)(values, jnp.asarray(epsilon), jax.random.key(0))
    action, probability = (np.asarray(x) for x in found)
    np.testing.assert_allclose(probability, expected[action], rtol=1e-5)
    frequencies = np.bincount(action, minlength=4) / count
    np.testing.assert_allclose(frequencies, expected, atol=5 * np.sqrt(0.25 / count))


@pytest.mark.parametrize(("epsilon", "probability"), [(0.0, 1.0), (1.0, 1 / 3)])
def test_the_ends_of_epsilon(epsilon, probability):
    action, chosen = quick(choose)(floats(VALUES), jnp.asarray(epsilon), jax.random.key(0))
    np.testing.assert_allclose(chosen, np.full(300, probability), rtol=1e-6)
    greedy = np.mean(np.asarray(action) == np.argmax(VALUES, axis=1))
    assert greedy == 1 if epsilon == 0 else abs(greedy - 1 / 3) < 0.15


def test_an_environment_keeps_its_rung_of_the_ladder_when_an_episode_begins():
    exploration = Ladder().build(SETTING)
    rungs = exploration.init_actor(8, jax.random.key(0))
    np.testing.assert_allclose(rungs, 0.4 ** (1 + np.arange(8)), rtol=1e-5)
    later = exploration.begin_episode(rungs[4:], jax.random.key(1))
    np.testing.assert_array_equal(later, rungs[4:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon_start": 1.5}, "--epsilon-start must be between 0 and 1, got 1.5"),
        ({"epsilon_end": -0.1}, "--epsilon-end must be between 0 and 1"),
        ({"epsilon_steps": -1}, "--epsilon-steps must be 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Epsilon(**changes)


def test_an_exploration_without_build_says_so():
    with pytest.raises(NotImplementedError, match="ExplorationConfig needs a method build"):
        ExplorationConfig().build(SETTING)
