"""What is looked at when an agent does not learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import diagnostics
from spectral_bellman.agents.agent import Agent
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.representation import features
from spectral_bellman.replay import Transition

CONFIG = AgentConfig(features=6, hidden=(8,), representation="td", exploration="epsilon", batch=4)


@pytest.fixture(scope="module")
def seen():
    """An agent whose values are not zero, its state, and what is held out."""
    agent = Agent(CONFIG, jax.ShapeDtypeStruct((3,), jnp.float32), 4)
    state = agent.init(jax.random.key(0))
    head = state.network.head.weight
    network = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape) if x.shape == head.shape else x, state.network)
    observations = jax.random.normal(jax.random.key(2), (200, 3))
    zeros = jnp.zeros(200)
    batch = Transition(observations, jnp.zeros(200, jnp.int32), zeros, zeros, zeros, observations)
    return agent, state._replace(network=network), batch


def looked_at(agent, state, batch):
    found = diagnostics.diagnose(agent, state, agent.init_policy(state), (batch, None), jax.random.key(3))
    return {name: float(value) for name, value in found.items()}


def test_values_and_the_gap_between_actions(seen):
    agent, state, batch = seen
    values = np.asarray(features(state.network, batch.observation, CONFIG) @ state.theta)
    assert values.std() > 0.1
    found = looked_at(agent, state, batch)
    assert found["q_mean"] == pytest.approx(values.mean(), rel=1e-4)
    assert found["q_max"] == pytest.approx(values.max(), rel=1e-4)
    assert found["action_gap"] == pytest.approx((values.max(1) - values.mean(1)).mean(), rel=1e-4)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_effective_rank_of_a_projection_is_its_rank(rank):
    basis = np.linalg.qr(np.random.default_rng(rank).normal(size=(5, 5)))[0][:, :rank]
    assert float(diagnostics.effective_rank(jnp.asarray(7 * basis @ basis.T, jnp.float32))) == pytest.approx(rank, rel=1e-4)
