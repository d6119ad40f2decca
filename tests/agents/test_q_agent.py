"""A round of learning: what is fitted to what, what is published, and who acts."""

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import AgentConfig, Progress, QAgent, Timestep, choices
from spectral_bellman.agents.explorations import (
    UCB,
    Epsilon,
    Exploration,
    ExplorationConfig,
    Propagated,
    Thompson,
)
from spectral_bellman.agents.representations import (
    MSE,
    PVN,
    TD,
    Linear,
    Plain,
    Representation,
    RepresentationConfig,
    Spectral,
)
from spectral_bellman.agents.representations.api import (
    AdamSolver,
    LeastSquares,
    adam,
    first_feature,
)
from spectral_bellman.replay import OneStep, Rollout, add, init_ring, sample
from spectral_bellman.training.learner import Learner, Learning, extras_of

from .matrices import features, floats
from .quick import quick

D, A, STEPS, NUM_ENVS = 6, 3, 40, 2
SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)
FEW, MANY = (
    AdamSolver(q_steps=4, q_learning_rate=1e-2),
    AdamSolver(q_steps=400, q_learning_rate=1e-2),
)
SPECTRAL = Spectral(features=D, theta_samples=8, solver=FEW)
CONFIG = AgentConfig(
    representation=SPECTRAL, exploration=Epsilon(), hidden=(8,), batch=32, updates=24
)
FITTED = {
    "spectral": SPECTRAL,
    "mse": MSE(features=D, theta_samples=8, solver=FEW),
    "pvn": PVN(features=D, pvn_networks=2, pvn_outputs=3, solver=FEW),
}
TOGETHER = {
    "plain": Plain(),
    "td": TD(features=D),
    "linear": Linear(features=D, theta_samples=8),
}
KNOWN = {**FITTED, **TOGETHER}
EXPLORATIONS = {
    "epsilon": Epsilon(),
    "thompson": Thompson(precision_samples=64),
    "ucb": UCB(precision_samples=64),
    "propagated": Propagated(precision_samples=64, propagated_draws=3, propagated_iterations=4),
}

# The agents that learn in the least time, with each exploration.
CHEAP = {
    name: dataclasses.replace(
        CONFIG,
        representation=Plain() if name == "epsilon" else TD(features=D),
        exploration=exploration,
        updates=2,
        warmup_steps=100,
    )
    for name, exploration in EXPLORATIONS.items()
}


@functools.cache
def ring():
    """80 transitions of endless episodes; action a is paid by number a of the observation."""
    rng, shape = np.random.default_rng(0), (STEPS, NUM_ENVS)
    observation, action = rng.normal(size=(*shape, 3)), rng.integers(A, size=shape)
    known = np.take_along_axis(observation, action[..., None], axis=-1)[..., 0]
    rollout = Rollout(
        observation=floats(observation),
        action=jnp.asarray(action, jnp.int32),
        reward=floats(0.5 * known + 0.2 * rng.normal(size=shape)),
        discount=jnp.ones(shape),
        first=jnp.zeros(shape, bool),
        truncated=jnp.zeros(shape, bool),
        last_observation=floats(rng.normal(size=(*shape, 3))),
        extras={"behaviour_prob": jnp.ones(shape)},
    )
    extras = {"behaviour_prob": jax.ShapeDtypeStruct((), jnp.float32)}
    return quick(add)(init_ring(SHAPE, extras, NUM_ENVS, 90, 20), rollout)


@functools.cache
def held(count: int = 4_000):
    """Transitions drawn from it."""
    draw = quick(lambda ring, key: sample(ring, OneStep(), key, (count,)).items)
    return draw(ring(), jax.random.key(5))


@functools.cache
def programs(config: AgentConfig):
    """The agent, and compiled ``init`` and ``learn``."""
    agent = QAgent(config, SHAPE, A)
    return agent, quick(agent.init), quick(Learner(agent).learn)


@functools.cache
def learned(config: AgentConfig, count: int, agent_steps: int = 10**6):
    """The agent, and (state, policy, terms) after each round."""
    agent, init, learn = programs(config)
    state, found = Learning(init(jax.random.key(1)), ()), []
    for number in range(count):
        key = jax.random.fold_in(jax.random.key(2), number)
        progress = Progress(jnp.int32(agent_steps), jnp.int32(number))
        state, policy, terms = learn(state, ring(), progress, key)
        found.append((state.agent, policy, terms))
    return agent, found


def q_targets(agent: QAgent, target, items):
    """TQ with the target's own parameters."""
    norm = agent.representation.normalise
    backup = agent.backbone.backup(norm, target, target.network, items)
    return backup.of(target.theta, target.theta)


def equal(a, b) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


@pytest.mark.parametrize("name", KNOWN)
def test_the_target_is_the_pair_that_was_published(name):
    _, found = learned(dataclasses.replace(CONFIG, representation=KNOWN[name]), 2)
    for state, policy, _ in found:
        assert equal((state.target.network, state.target.theta), (policy.network, policy.theta))
        # φ has been learned since, but by those that publish what they have learned.
        assert equal(state.network, policy.network) == (name in TOGETHER)
    (before, _, _), (after, _, _) = found
    assert not equal(before.network, after.network)
    assert equal(before.theta, after.theta) == (name in ("plain", "linear"))


def test_the_parameters_are_fitted_to_the_backup_of_what_was_published_last():
    """Before φ was learned, not after: θ̂ of a round does not belong to the φ of the next."""
    part = dataclasses.replace(SPECTRAL, solver=MANY)
    config = dataclasses.replace(
        CONFIG, representation=part, updates=440, learning_rate=1e-2, batch=256
    )
    agent, found = learned(config, 3)
    _, (state, _, _), (_, following, _) = found
    batch = held()
    phi = np.asarray(agent.features_taken(following.network, batch), np.float64)

    def excess(target):
        """How much closer to the backup the best θ̂ would be, and the error that is left."""
        wanted = np.asarray(q_targets(agent, target, batch), np.float64)
        best = np.mean((phi @ np.linalg.lstsq(phi, wanted, rcond=None)[0] - wanted) ** 2)
        return np.mean((phi @ np.asarray(following.theta) - wanted) ** 2) - best, best

    fitted, best = excess(state.target)
    assert fitted < 0.01 * best
    # The pair that was never fitted together has another backup.
    other, _ = excess(state.target._replace(network=state.network))
    assert other > 8 * fitted


def test_least_squares_is_the_ridge_regression_on_the_backup():
    solver = LeastSquares(q_ridge=0.3, q_rows=200)  # all that the replay holds
    part = dataclasses.replace(SPECTRAL, solver=solver)
    agent, found = learned(dataclasses.replace(CONFIG, representation=part), 2)
    (state, _, _), (_, policy, _) = found
    rows = OneStep().take(ring(), *jnp.nonzero(ring().held))
    assert len(rows.action) == STEPS * NUM_ENVS
    phi = np.asarray(agent.features_taken(policy.network, rows), np.float64)
    targets = q_targets(agent, state.target, rows)
    sigma = 0.3 * np.eye(D) + phi.T @ phi
    expected = np.linalg.solve(sigma, phi.T @ np.asarray(targets, np.float64))
    np.testing.assert_allclose(policy.theta, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(expected).max() > 0.01


def test_the_target_stays_for_as_many_rounds_as_it_should():
    _, found = learned(dataclasses.replace(CHEAP["epsilon"], target_rounds=3), 7)
    assert equal(found[1][0].target.network, found[0][0].target.network)
    moved = [not equal(a[0].target, b[0].target) for a, b in itertools.pairwise(found)]
    assert moved == [False, True, False, False, True, False]
    for number in (2, 5):
        assert equal(found[number][0].target.network, found[number][1].network)


def test_values_are_learned_where_they_are_known():
    """Without a future, Q is a linear regression of clipped rewards on φ."""
    solver = AdamSolver(q_steps=2_000, q_learning_rate=1e-2)
    part = dataclasses.replace(SPECTRAL, solver=solver)
    config = dataclasses.replace(
        CONFIG, representation=part, discount=0.0, updates=2_000, batch=256
    )
    agent, ((state, policy, _),) = learned(config, 1)
    batch = held()
    phi = np.asarray(agent.features_taken(state.network, batch), np.float64)
    reward = np.clip(np.asarray(batch.reward), -1, 1)
    values = np.asarray(agent.values(policy, batch.observation))
    fitted = np.mean((values[np.arange(len(reward)), batch.action] - reward) ** 2)
    best = np.mean((phi @ np.linalg.lstsq(phi, reward, rcond=None)[0] - reward) ** 2)
    assert best < 0.8 * np.mean(reward**2)
    assert best < fitted < 1.01 * best


@pytest.mark.parametrize("name", ["plain", "linear"])
def test_where_the_first_feature_is_q_it_starts_at_nothing(name):
    agent, found = learned(dataclasses.replace(CONFIG, representation=KNOWN[name]), 2)
    observation = held().observation[:5]
    state = programs(agent.config)[1](jax.random.key(1))
    phi = features(agent.representation, state.network, observation)
    np.testing.assert_array_equal(phi @ state.theta, np.zeros((5, A)))
    if name == "linear":
        np.testing.assert_allclose(np.linalg.norm(phi[..., 1:], axis=-1), 1, rtol=1e-5)
    assert np.abs(agent.values(found[0][1], observation)).max() > 0
    np.testing.assert_array_equal(found[1][0].theta, np.eye(phi.shape[-1])[0])


@pytest.mark.parametrize(("name", "outputs"), [("plain", A), ("td", A * D)])
@pytest.mark.parametrize("weights", ["uniform", "xavier"])
def test_weights_may_start_as_they_do_elsewhere(name, outputs, weights):
    """uniform: as in PyTorch, weights and biases within ±1/√(fan in). xavier: as in Dopamine."""
    config = dataclasses.replace(
        CONFIG, representation=KNOWN[name], hidden=(400,), initial_weights=weights
    )
    init = quick(QAgent(config, SHAPE, A).init)
    network = init(jax.random.key(1)).network
    for layer, (out, fan_in) in (
        (network.torso.layers[0], (400, 3)),
        (network.head, (outputs, 400)),
    ):
        assert layer.weight.shape == (out, fan_in)
        bound = fan_in**-0.5 if weights == "uniform" else (6 / (fan_in + out)) ** 0.5
        for drawn in (layer.weight, layer.bias) if weights == "uniform" else (layer.weight,):
            assert np.abs(drawn).max() <= bound
            assert np.std(drawn) > 0.2 * bound, "not all alike, and a head that is not 0"
        assert weights == "uniform" or not np.any(layer.bias)
        assert np.std(layer.weight) == pytest.approx(bound / 3**0.5, rel=0.1)
    assert equal(init(jax.random.key(1)).network, network)
    assert not equal(init(jax.random.key(2)).network, network)


@pytest.mark.parametrize("name", ["mse", "spectral"])
def test_the_fit_may_start_at_the_backup_of_the_target(name):
    solver = dataclasses.replace(FEW, q_start="backup")
    part = dataclasses.replace(FITTED[name], solver=solver)
    agent, found = learned(dataclasses.replace(CONFIG, representation=part), 2)
    (first, _, _), _ = found
    theta = first.target.theta
    backup = agent.representation.theta_tilde(first.beside, theta[None], theta)[0]
    np.testing.assert_allclose(first.theta, backup, rtol=1e-5)
    assert np.linalg.norm(backup - theta) > 0.01


@pytest.mark.parametrize("name", ["mse", "spectral"])
def test_without_q_steps_what_was_learned_is_published_after_learning(name):
    solver = AdamSolver(q_steps=0, q_start="backup")
    part = dataclasses.replace(FITTED[name], solver=solver)
    agent, found = learned(dataclasses.replace(CONFIG, representation=part), 2)
    (first, _, _), (second, policy, _) = found
    # The pair that acts and that is aimed at next is the pair of this round, as in DQN.
    for theta in (policy.theta, second.target.theta):
        np.testing.assert_array_equal(theta, second.theta)
    assert equal(policy.network, second.network)
    assert not equal(policy.network, first.network)
    before = first.target.theta
    backup = agent.representation.theta_tilde(second.beside, before[None], before)[0]
    np.testing.assert_allclose(second.theta, backup, rtol=1e-5)


@pytest.mark.parametrize("name", KNOWN)
def test_a_round_has_as_many_gradient_steps_as_it_says(name):
    agent = QAgent(dataclasses.replace(CONFIG, representation=KNOWN[name]), SHAPE, A)
    before, after = agent.phases()
    assert [phase.steps for phase in before] == ([4] if name in FITTED else [24])
    assert [phase.steps for phase in after] == ([20] if name in FITTED else [])
    assert all(phase.batch == 32 for phase in (*before, *after))


@pytest.mark.parametrize("name", ["mse", "spectral"])
def test_every_gradient_step_draws_parameters_of_its_own(name):
    agent = QAgent(dataclasses.replace(CONFIG, representation=KNOWN[name]), SHAPE, A)
    _, (phase,) = agent.phases()
    state = quick(agent.init)(jax.random.key(1))
    two = quick(lambda ring, key: sample(ring, OneStep(), key, (2, 32)))
    samples = two(ring(), jax.random.key(2))
    # The same items in both steps: only the draws can differ.
    samples = jax.tree.map(lambda x: jnp.stack([x[0], x[0]]), samples)
    prepared = quick(phase.prepare)(state, samples, jax.random.key(0))
    theta = np.asarray(prepared.theta)
    assert theta.shape == (2, 8, D)
    assert np.abs(theta[0] - theta[1]).max() > 0.01


@pytest.mark.parametrize("name", EXPLORATIONS)
def test_a_policy_acts_at_random_in_the_warm_up_and_explores_after_it(name):
    agent, ((state, early, _),) = learned(CHEAP[name], 1, 99)
    _, ((_, late, _),) = learned(CHEAP[name], 1, 100)
    assert float(early.epsilon) == 1
    assert float(late.epsilon) == (1 if name == "epsilon" else 0)
    first = agent.init_policy(state)
    assert float(first.epsilon) == 1
    assert not any(np.any(x) for x in jax.tree.leaves(first.noise))
    assert all(np.any(x) for x in jax.tree.leaves(late.noise))


@pytest.mark.parametrize("name", EXPLORATIONS)
def test_greedy_actions_have_the_epsilon_of_evaluation_and_no_noise(name):
    _, ((_, policy, _),) = learned(CHEAP[name], 1, 100)
    agent = QAgent(dataclasses.replace(CHEAP[name], eval_epsilon=0.3), SHAPE, A)
    loud = policy._replace(
        noise=jax.tree.map(lambda x: x if x.dtype == jnp.int32 else 100 * x, policy.noise),
        epsilon=jnp.ones(()),
    )
    count = 4_000
    zeros = jnp.zeros(count)
    timestep = Timestep(held().observation, zeros == 1, zeros, zeros.astype(jnp.int32))
    actor = agent.init_actor(count, jax.random.key(3))
    act = quick(agent.act, static_argnames="greedy")
    action, extras, after = act(loud, actor, timestep, jax.random.key(4), greedy=True)
    best = np.argmax(agent.values(policy, timestep.observation), axis=1)
    taken = np.asarray(action) == best
    np.testing.assert_allclose(extras["behaviour_prob"], np.where(taken, 0.8, 0.1), rtol=1e-5)
    assert np.mean(taken) == pytest.approx(0.8, abs=0.03)
    assert equal(after, actor)
    # While it trains it explores.
    action, extras, _ = act(loud, actor, timestep, jax.random.key(4))
    np.testing.assert_allclose(extras["behaviour_prob"], np.full(count, 1 / A), rtol=1e-5)
    assert np.mean(np.asarray(action) == best) == pytest.approx(1 / A, abs=0.04)
    if name != "epsilon":
        quiet = loud._replace(epsilon=jnp.zeros(()))
        assert np.mean(np.asarray(act(quiet, actor, timestep, jax.random.key(4))[0]) == best) < 0.9


@pytest.mark.parametrize("name", ["thompson", "propagated"])
def test_what_was_drawn_is_kept_within_an_episode_and_redrawn_where_one_begins(name):
    count = 400
    agent, init, _ = programs(CHEAP[name])
    policy = agent.init_policy(init(jax.random.key(1)))
    first = np.arange(count) % 2 == 0
    zeros = jnp.zeros(count)
    timestep = Timestep(jnp.zeros((count, 3)), jnp.asarray(first), zeros, zeros.astype(jnp.int32))
    actor = agent.init_actor(count, jax.random.key(3))
    moved = quick(agent.act)(policy, actor, timestep, jax.random.key(4))[2]
    kept = (actor.exploration, moved.exploration)
    before, after = (np.asarray(x if name == "thompson" else x.draw) for x in kept)
    same = np.all((before == after).reshape(count, -1), axis=1)
    assert np.all(same[~first])
    # By chance one of three draws is drawn again; the z of Thompson sampling never is.
    share = {"thompson": 0.0, "propagated": 1 / 3}[name]
    assert np.mean(same[first]) == pytest.approx(share, abs=0.12)
    assert len(np.unique(after[first], axis=0)) == {"thompson": count // 2, "propagated": 3}[name]


def test_precision_is_rebuilt_in_the_rounds_that_are_due():
    exploration = dataclasses.replace(EXPLORATIONS["ucb"], precision_rounds=2)
    agent, found = learned(dataclasses.replace(CHEAP["ucb"], exploration=exploration), 4)
    assert agent.publish_every == 2
    moved = [not equal(a[1].noise, b[1].noise) for a, b in itertools.pairwise(found)]
    assert moved == [False, True, False]
    assert np.any(found[0][1].noise)


@dataclass(frozen=True)
class Alternating(ExplorationConfig):
    """Adds a bonus, the less the more rounds were published, to an action drawn for an episode."""

    name: ClassVar[str] = "alternating"
    needs_features: ClassVar[bool] = False
    bonus: float = 100.0

    def build(self, setting):
        def publish(kept, replay, progress, key):
            kept += 1
            return kept, {"bonus": self.bonus / kept, "seen": jnp.sum(replay.weight)}

        def values(theta, noise, drawn, phi):
            return phi @ theta + noise["bonus"] * jax.nn.one_hot(drawn, phi.shape[1])

        return Exploration(
            init_noise=lambda: {"bonus": jnp.zeros(()), "seen": jnp.zeros(())},
            init_actor=lambda num_envs, key: jax.random.randint(key, (num_envs,), 0, A),
            update_actor=lambda noise, actor: actor,
            values=values,
            epsilon=lambda agent_steps: jnp.full((), 0.25),
            rows=200,
            init=lambda key: jnp.zeros(()),
            publish=publish,
            diagnose=lambda noise, *_: {"seen": noise["seen"]},
        )


@dataclass(frozen=True)
class Myopic(RepresentationConfig):
    """The first feature predicts the reward, and the state counts its own gradient steps."""

    name: ClassVar[str] = "myopic"
    width: int = 2

    def build(self, problem, single):
        def prepare(backup, beside, kept, key):
            nothing = jnp.zeros(self.width)  # the backup of Q = 0 is the reward
            return backup.of(nothing, nothing)

        def loss(batch, beside, kept, reward):
            value = batch.phi[:, 0] - reward
            loss = batch.mean(jnp.square(value))
            return loss, (kept + 1, {"myopic": loss}, jnp.abs(value))

        return Representation(
            dimension=self.width,
            init=lambda key, theta: ((), jnp.zeros((), jnp.int32)),
            init_theta=lambda key: first_feature(self.width),
            normalise=lambda phi: phi,
            prepare=prepare,
            loss=loss,
            optimiser=adam(problem),
            theta_of=lambda beside: first_feature(self.width),
        )


@pytest.fixture
def _toys(monkeypatch):
    """Known for one test."""
    monkeypatch.setattr(choices, "KINDS", {k: dict(v) for k, v in choices.KINDS.items()})
    Alternating.register()
    Myopic.register()


@pytest.mark.usefixtures("_toys")
def test_an_exploration_of_ones_own_that_needs_no_features_goes_with_plain_q():
    config = choices.override(
        CONFIG, {"representation": "plain", "exploration": "alternating", "bonus": 3.0}
    )
    assert config.exploration == Alternating(bonus=3.0)


@pytest.mark.usefixtures("_toys")
def test_an_exploration_and_a_representation_of_ones_own_need_one_class_each():
    own = {"representation": "myopic", "exploration": "alternating", "width": 3, "bonus": 50.0}
    config = choices.override(CONFIG, {**own, "learning_rate": 1e-2, "updates": 200})
    assert config.representation == Myopic(width=3)
    assert config.exploration == Alternating(bonus=50.0)
    assert choices.from_json(AgentConfig(), choices.to_json(config)) == config
    with pytest.raises(ValueError, match="setting of exploration alternating"):
        choices.override(CONFIG, {"bonus": 1.0})

    agent, ((state, first, _), (_, policy, terms)) = learned(config, 2)
    assert int(state.kept) == 200
    assert terms["myopic"].shape == (1,)
    spread = np.var(np.clip(held().reward, -1, 1))
    assert float(terms["myopic"][-1]) < 0.9 * spread
    assert [float(p.noise["bonus"]) for p in (first, policy)] == [50, 25]
    assert float(policy.noise["seen"]) == STEPS * NUM_ENVS

    count = 2_000
    zeros = jnp.zeros(count)
    timestep = Timestep(held(count).observation, zeros == 1, zeros, zeros.astype(jnp.int32))
    actor = agent.init_actor(count, jax.random.key(3))
    action, extras, after = quick(agent.act)(policy, actor, timestep, jax.random.key(4))
    bonus = np.asarray(action) == np.asarray(actor.exploration)
    np.testing.assert_allclose(
        extras["behaviour_prob"], np.where(bonus, 0.75 + 0.25 / A, 0.25 / A), rtol=1e-5
    )
    assert np.mean(bonus) == pytest.approx(0.75 + 0.25 / A, abs=0.05)
    np.testing.assert_array_equal(after.exploration, actor.exploration)
    assert extras_of(agent) == {"behaviour_prob": jax.ShapeDtypeStruct((), jnp.float32)}

    def look(ring, key):
        return agent.diagnose(state, policy, *Learner(agent).held_out(ring, key), key)

    seen = quick(look)(ring(), jax.random.key(0))
    assert float(seen["seen"]) == STEPS * NUM_ENVS
    assert np.isfinite(float(seen["sigma_min_eigenvalue"]))
