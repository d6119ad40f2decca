"""A round of learning: what is fitted to what, and what is published."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.agent import Agent
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.representation import features, features_taken, q_targets
from spectral_bellman.replay import Transition, init_replay, sample
from spectral_bellman.replay.transitions import add

CONFIG = AgentConfig(features=6, hidden=(8,), exploration="epsilon", batch=32, representation_steps=40, q_steps=400)
SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)


@pytest.fixture(scope="module")
def replay():
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (40, 2)
    steps = Transition(
        jax.random.normal(keys[0], (*shape, 3)),
        jax.random.randint(keys[1], shape, 0, 3),
        jax.random.normal(keys[2], shape),
        jnp.ones(shape),
        jnp.ones(shape),
        jax.random.normal(keys[3], (*shape, 3)),
    )
    return add(init_replay(SHAPE, 2, 90, 20), steps, jnp.zeros(shape, bool), jnp.zeros(shape, bool))


def rounds(config, replay, count):
    """(state, policy) after each round."""
    agent = Agent(config, SHAPE, 3)
    learn = jax.jit(agent.learn)
    state, found = agent.init(jax.random.key(1)), []
    for number in range(count):
        state, policy, _ = learn(state, replay, jnp.int32(10**6), jnp.int32(number), jax.random.fold_in(jax.random.key(2), number))
        found.append((state, policy))
    return agent, found


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("representation", ["spectral", "mse", "expected", "averaged", "pvn", "td"])
def test_the_target_is_the_pair_that_was_published(replay, representation):
    _, found = rounds(dataclasses.replace(CONFIG, representation=representation, q_steps=4), replay, 2)
    for state, policy in found:
        assert equal((state.target.network, state.target.theta), (policy.network, policy.theta))
        # φ has been learned since, but by td, which publishes what it has learned.
        assert equal(state.network, policy.network) == (representation == "td")


def test_the_parameters_are_fitted_to_the_backup_of_what_was_published_last(replay):
    """Before φ was learned, not after: θ̂ of a round does not belong to the φ of the next."""
    config = dataclasses.replace(CONFIG, q_learning_rate=1e-2)
    _, ((state, _), (_, following)) = rounds(config, replay, 2)
    batch = sample(replay, jax.random.key(5), (4_000,))
    phi = np.asarray(features_taken(following.network, batch, config), np.float64)

    def misfit(target):
        wanted = np.asarray(q_targets(target, batch, config), np.float64)
        return np.mean((phi @ np.asarray(following.theta) - wanted) ** 2), np.mean(
            (phi @ np.linalg.lstsq(phi, wanted, rcond=None)[0] - wanted) ** 2
        )

    fitted, best = misfit(state.target)
    assert fitted == pytest.approx(best, rel=0.05)
    # Of the pair that was never fitted together the backup is another.
    other, _ = misfit(state.target._replace(network=state.network))
    assert other > fitted * 1.02


def test_the_target_stays_for_as_many_rounds_as_it_should(replay):
    _, found = rounds(dataclasses.replace(CONFIG, q_steps=4, target_rounds=3), replay, 7)
    assert equal(found[1][0].target.network, found[0][0].target.network)
    changed = [not equal(a[0].target, b[0].target) for a, b in itertools.pairwise(found)]
    assert changed == [False, True, False, False, True, False]
    for number in (2, 5):
        assert equal(found[number][0].target.network, found[number][1].network)


def test_values_are_learned_where_they_are_known(replay):
    """Without a future, Q is the mean of the reward given (s, a): here a linear regression of clipped rewards on φ."""
    config = dataclasses.replace(CONFIG, discount=0.0, representation_steps=0, q_learning_rate=1e-2, q_steps=2_000)
    _, ((state, policy),) = rounds(config, replay, 1)
    batch = sample(replay, jax.random.key(6), (4_000,))
    phi = np.asarray(features_taken(state.network, batch, config), np.float64)
    best = np.linalg.lstsq(phi, np.clip(np.asarray(batch.reward), -1, 1), rcond=None)[0]
    values = np.asarray(features(policy.network, batch.observation, config) @ policy.theta)
    expected = np.asarray(features(state.network, batch.observation, config), np.float64) @ best
    assert np.corrcoef(values.ravel(), expected.ravel())[0, 1] > 0.97


@pytest.mark.parametrize("representation", ["td", "spectral"])
def test_the_head_may_learn_slower(replay, representation):
    """By so much, and nothing else in the first step."""
    config = dataclasses.replace(CONFIG, representation=representation, representation_steps=1, q_steps=0, q_start="backup")
    before = Agent(config, SHAPE, 3).init(jax.random.key(1)).network
    moved = []
    for rate in (1.0, 0.25):
        _, ((state, _),) = rounds(dataclasses.replace(config, head_rate=rate), replay, 1)
        moved.append(jax.tree.map(lambda after, start: after - start, state.network, before))
    full, slowed = moved
    np.testing.assert_allclose(slowed.head.weight, 0.25 * full.head.weight, atol=1e-6)
    assert np.abs(full.head.weight).max() > 1e-4
    jax.tree.map(np.testing.assert_array_equal, slowed.torso, full.torso)


@pytest.mark.parametrize("representation", ["td", "spectral", "averaged", "pvn"])
def test_where_the_first_feature_is_q_it_starts_at_nothing(replay, representation):
    config = dataclasses.replace(CONFIG, representation=representation, exploration="thompson", norm="value")
    agent = Agent(config, SHAPE, 3)
    state = agent.init(jax.random.key(1))
    phi = features(state.network, jnp.ones((1, 3)), config)
    np.testing.assert_array_equal(phi @ state.theta, np.zeros((1, 3)))
    np.testing.assert_allclose(np.linalg.norm(phi[..., 1:], axis=-1), 1, rtol=1e-5)
    _, ((after, _), *_) = rounds(config, replay, 1)
    assert np.abs(features(after.network, jnp.ones((1, 3)), config)[..., 0]).max() > 0


@pytest.mark.parametrize(("exploration", "outputs"), [("epsilon", 3), ("thompson", 3 * CONFIG.features)])
def test_weights_may_start_as_they_do_in_pytorch(exploration, outputs):
    config = dataclasses.replace(CONFIG, representation="td", exploration=exploration, hidden=(400,), initial_weights="uniform")
    state = Agent(config, SHAPE, 3).init(jax.random.key(1))
    hidden, head = state.network.torso.layers[0], state.network.head
    for layer, (out, fan_in) in ((hidden, (400, 3)), (head, (outputs, 400))):
        assert layer.weight.shape == (out, fan_in)
        for drawn in (layer.weight, layer.bias):
            assert np.abs(drawn).max() <= fan_in**-0.5
            assert np.std(drawn) > 0.2 * fan_in**-0.5, "not all alike, and a head that is not 0"
    assert np.std(head.weight) == pytest.approx((3 * 400) ** -0.5, rel=0.1)
    again = Agent(config, SHAPE, 3).init(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, again.network, state.network)


@pytest.mark.parametrize("representation", ["spectral", "expected", "pvn"])
def test_parameters_that_nothing_would_move_are_refused(representation):
    with pytest.raises(ValueError, match=r"--q-steps 0 leaves θ̂ where it starts.*--q-start backup"):
        dataclasses.replace(CONFIG, representation=representation, q_steps=0)
    dataclasses.replace(CONFIG, representation=representation, q_steps=0, q_solver="least_squares")
    dataclasses.replace(CONFIG, representation="averaged", norm="value", q_steps=0)


def test_q_and_one_other_feature_at_least():
    with pytest.raises(ValueError, match="--features must be 2 or more with --norm value"):
        dataclasses.replace(CONFIG, norm="value", features=1)


def test_rmsprop_is_centred_and_adds_its_epsilon_to_the_root():
    agent = Agent(dataclasses.replace(CONFIG, optimiser="rmsprop", q_learning_rate=0.1, adam_epsilon=0.02), SHAPE, 3)
    state, x = agent.theta_optimiser.init(jnp.zeros(2)), np.zeros(2)
    square, mean = np.zeros(2), np.zeros(2)
    for gradient in np.asarray([[1.0, -0.01], [0.5, 0.02], [-2.0, 0.0]]):
        update, state = agent.theta_optimiser.update(jnp.asarray(gradient, jnp.float32), state)
        square, mean = 0.95 * square + 0.05 * gradient**2, 0.95 * mean + 0.05 * gradient
        x = -0.1 * gradient / (np.sqrt(square - mean**2) + 0.02)
        np.testing.assert_allclose(update, x, rtol=1e-4)


def test_rmsprop_survives_gradients_that_do_not_change():
    """Their variance is 0, and in single precision as often less."""
    agent = Agent(dataclasses.replace(CONFIG, optimiser="rmsprop", q_learning_rate=0.1, adam_epsilon=0.02), SHAPE, 3)
    gradient = jnp.linspace(0.1, 3, 1_000)
    state = agent.theta_optimiser.init(gradient)
    for _ in range(600):
        update, state = agent.theta_optimiser.update(gradient, state)
    np.testing.assert_allclose(update, -5 * np.asarray(gradient), rtol=0.3)


@pytest.mark.parametrize("representation", ["mse", "spectral", "expected"])
def test_the_fit_may_start_at_the_backup_of_the_target(replay, representation):
    config = dataclasses.replace(CONFIG, representation=representation, q_start="backup", q_steps=0)
    agent, ((first, _), (second, policy)) = rounds(config, replay, 2)
    backup = agent.representation.theta_tilde(first.backup, first.target.theta[None], first.target.theta)[0]
    np.testing.assert_allclose(first.theta, backup, rtol=1e-5)
    # Without steps of its own, that is what is published and aimed at next.
    np.testing.assert_array_equal(policy.theta, first.theta)
    np.testing.assert_array_equal(second.target.theta, first.theta)
    assert np.linalg.norm(backup - first.target.theta) > 0.01
