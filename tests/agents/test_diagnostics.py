"""What is looked at when an agent does not learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import AgentConfig, QAgent, diagnostics
from spectral_bellman.agents.explorations import Epsilon, Thompson
from spectral_bellman.agents.representations import Plain, Spectral
from spectral_bellman.replay import Rows, Transition

from .matrices import features
from .quick import quick

D, A, COUNT = 6, 4, 200
SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)
CONFIGS = {
    "plain": AgentConfig(representation=Plain(), exploration=Epsilon(), hidden=(8,)),
    "spectral": AgentConfig(
        representation=Spectral(features=D, theta_samples=8, theta_variance=0.25),
        exploration=Thompson(ridge=0.5),
        hidden=(8,),
    ),
}


@functools.cache
def seen(name):
    """The agent, a state whose values are not zero, transitions, and the diagnostics."""
    agent, rng = QAgent(CONFIGS[name], SHAPE, A), np.random.default_rng(0)
    state = quick(agent.init)(jax.random.key(0))

    def drawn(x):
        return jnp.asarray(rng.normal(size=x.shape), jnp.float32)

    network = jax.tree.map(drawn, state.network)
    theta = state.theta if name == "plain" else drawn(state.theta)
    state = state._replace(
        network=network, theta=theta, target=state.target._replace(network=network, theta=theta)
    )
    observation = drawn(jnp.zeros((COUNT, 3)))
    items = Transition(
        observation=observation,
        action=jnp.asarray(rng.integers(A, size=COUNT)),
        reward=drawn(jnp.zeros(COUNT)),
        discount=jnp.ones(COUNT),
        extras=(),
        next_observation=observation,
    )
    weight = jnp.asarray(rng.uniform(size=COUNT), jnp.float32)
    slot, held = jnp.arange(COUNT), jnp.float32(COUNT)
    rows = Rows(items, weight, slot, held) if agent.diagnostic_rows else None
    policy = agent.init_policy(state)
    found = quick(agent.diagnose)(state, policy, items, rows, jax.random.key(3))
    return agent, state, items, rows, {key: float(value) for key, value in found.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_values_and_the_gap_between_actions(name):
    agent, state, items, _, found = seen(name)
    values = np.asarray(agent.values(agent.init_policy(state), items.observation))
    assert values.std() > 0.1
    assert found["q_mean"] == pytest.approx(values.mean(), rel=1e-3, abs=1e-4)
    assert found["q_max"] == pytest.approx(values.max(), rel=1e-4)
    gap = values.max(axis=1) - values.mean(axis=1)
    assert found["action_gap"] == pytest.approx(gap.mean(), rel=1e-4)


def test_a_plain_head_has_no_features_to_look_at():
    *_, found = seen("plain")
    assert set(found) == {"q_mean", "q_max", "action_gap"}


def test_the_spectrum_of_the_precision_matrix():
    """Σ = λI + Σ_n w_n φ_n φ_nᵀ, with the exploration's own λ."""
    agent, state, items, rows, found = seen("spectral")
    phi = np.asarray(agent.features_taken(state.network, items), np.float64)
    sigma = 0.5 * np.eye(D) + phi.T @ (phi * np.asarray(rows.weight)[:, None])
    smallest = np.linalg.eigvalsh(sigma)[0]
    assert found["sigma_min_eigenvalue"] == pytest.approx(smallest, rel=1e-3)
    rank = np.trace(sigma) ** 2 / np.sum(sigma**2)
    assert found["sigma_effective_rank"] == pytest.approx(rank, rel=1e-3)
    assert found["feature_norm"] == pytest.approx(1, rel=1e-4)
    assert found["theta_norm"] == pytest.approx(np.linalg.norm(state.theta), rel=1e-4)
    raw = np.asarray(jax.vmap(state.network)(items.observation))
    lengths = np.linalg.norm(raw[np.arange(COUNT), np.asarray(items.action)], axis=1)
    assert found["share_outside_unit_ball"] == pytest.approx(np.mean(lengths > 1), abs=1e-6)


def test_the_error_of_the_backup_is_relative_to_the_spread_of_its_targets():
    """θ̃ is the identity at first, so that φᵀθ̃(θ) is Q_θ."""
    agent, state, items, _, found = seen("spectral")
    keys = jax.random.split(jax.random.key(3), 4)
    drawn = agent.representation.theta_draws(keys[2], state.target.theta)
    theta = np.concatenate([np.asarray(state.theta)[None], np.asarray(drawn)])
    phi = np.asarray(agent.features_taken(state.network, items))
    following = np.asarray(features(agent.representation, state.network, items.next_observation))
    best = np.einsum("bad,md->bam", following, theta).max(axis=1)
    targets = np.clip(items.reward, -1, 1)[:, None] + 0.99 * best
    error = np.mean((phi @ theta.T - targets) ** 2) / np.var(targets)
    assert found["backup_error"] == pytest.approx(error, rel=1e-3)
    assert found["theta_tilde_gap"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_effective_rank_of_a_projection_is_its_rank(rank):
    basis = np.linalg.qr(np.random.default_rng(rank).normal(size=(5, 5)))[0][:, :rank]
    projection = jnp.asarray(7 * basis @ basis.T, jnp.float32)
    assert float(diagnostics.effective_rank(projection)) == pytest.approx(rank, rel=1e-4)


@pytest.mark.parametrize(("samples", "rows"), [(0, 50 * 64), (700, 700), (10**6, 50 * 64)])
def test_sigma_is_shown_from_as_many_rows_as_the_noise_comes_from(samples, rows):
    config = AgentConfig(
        representation=Spectral(features=64),
        exploration=Thompson(precision_samples=samples),
        hidden=(8,),
    )
    assert QAgent(config, SHAPE, A).diagnostic_rows == rows
