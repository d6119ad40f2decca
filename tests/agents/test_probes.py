"""Every representation, exploration and solver solves environments with known answers.

The values that an agent has learned must be those of the environment. All probes are one program.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import operators
from spectral_bellman.agents import AgentConfig, Progress, QAgent, Timestep
from spectral_bellman.agents.api import where_first
from spectral_bellman.agents.choices import KINDS, flat, override, suited
from spectral_bellman.agents.presets import PRESETS, agent_config
from spectral_bellman.environments import FAMILIES
from spectral_bellman.environments.probes import STATES, answers, probes
from spectral_bellman.replay import init_ring
from spectral_bellman.training.learner import Learner, Learning, extras_of
from spectral_bellman.training.rollout import (
    collect,
    collection_key,
    init_actor_state,
    learning_key,
)

from .quick import quick

NUM_ENVS, STEPS, ROUNDS = 16, 8, 60

SMALL = {
    "network": "mlp",
    "hidden": (32,),
    "features": 16,
    "batch": 64,
    "updates": 32,
    "q_steps": 20,
    "theta_samples": 16,
    "discount": 0.5,
    "learning_rate": 3e-3,
    "q_learning_rate": 2e-2,
    "warmup_steps": 0,
    "epsilon_end": 0.3,
    "epsilon_steps": 1_000,
    "precision_samples": 256,
    "precision_rounds": 1,
    "pvn_networks": 2,
    "pvn_outputs": 4,
    "propagated_draws": 4,
    "n_steps": 2,
    "lstm": 16,
    "burn_in": 1,
    "trained": 4,
    "period": 2,
}
# Every representation, exploration and solver at least once, on as few programs as that takes.
COMPOSITIONS = {
    "plain": ("dqn", {}),
    "td, ucb": ("dqn-ts", {"exploration": "ucb"}),
    "mse, propagated": ("mse-dqn-ts", {"exploration": "propagated"}),
    "spectral, thompson": ("sbm-dqn-ts", {}),
    "linear, thompson annealed and bounded": (
        "sbm-linear-dqn-ts",
        {"noise_anneal_steps": 5_000, "noise_bound": True},
    ),
    "pvn, least squares": ("pvn-dqn", {"q_solver": "least_squares", "q_ridge": 0.01}),
    "n steps, double": ("dqn", {"operator": "n_step", "double": True}),
    "recurrent, ladder, Retrace, by priority": ("r2d2", {}),
}
OTHERS = {
    **{preset: (preset, {}) for preset in PRESETS if preset not in ("dqn", "sbm-dqn-ts", "r2d2")},
    "spectral, ucb": ("sbm-dqn-ts", {"exploration": "ucb"}),
    "spectral, propagated": ("sbm-dqn-ts", {"exploration": "propagated"}),
    "spectral, least squares": ("sbm-dqn-ts", {"q_solver": "least_squares", "q_ridge": 0.01}),
    "spectral, backup": ("sbm-dqn-ts", {"q_start": "backup", "q_steps": 0}),
    "linear, epsilon": ("sbm-linear-dqn", {}),
    "spectral, n steps, double": ("sbm-dqn-ts", {"operator": "n_step", "double": True}),
    "by priority": ("dqn", {"sampling": "prioritised"}),
    "recurrent, n steps, double": ("r2d2", {"operator": "n_step", "double": True}),
    "Σ every third round": ("dqn-ts", {"precision_rounds": 3}),
}


def small(preset: str, changes: dict) -> AgentConfig:
    """The preset in small; the paper's own learning rate stays."""
    kinds = {name: value for name, value in changes.items() if name in KINDS}
    config = agent_config(preset, "jax", kinds, FAMILIES["jax"].agent)
    less = {k: v for k, v in SMALL.items() if "paper" not in preset or k != "learning_rate"}
    return override(suited(config, less), changes)


def train(agent: QAgent, probe, key):
    """The policy after some rounds on one probe, and whether all terms were finite."""
    learner = Learner(agent)
    agent_key, actor_key, run_key = jax.random.split(key, 3)
    ring = init_ring(agent.observation, extras_of(agent), NUM_ENVS, 2_000, STEPS)
    state = Learning(agent.init(agent_key), learner.init_priorities(ring))
    actor = init_actor_state(agent, probe, actor_key, NUM_ENVS)

    def one(carry, number):
        state, policy, ring, actor = carry
        acting = collection_key(run_key, number)
        actor, rollout, _ = collect(agent, probe, policy, actor, acting, STEPS)
        ring, priorities = learner.store(ring, state.priorities, rollout)
        state = state._replace(priorities=priorities)
        progress = Progress((number + 1) * NUM_ENVS * STEPS, number)
        state, policy, terms = learner.learn(state, ring, progress, learning_key(run_key, number))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in terms.values()]))
        return (state, policy, ring, actor), finite

    start = (state, agent.init_policy(state.agent), ring, actor)
    (_, policy, _, _), finite = jax.lax.scan(one, start, jnp.arange(ROUNDS))
    return policy, jnp.all(finite)


def values_met(agent: QAgent, policy, probe):
    """Q of every state: met first if episodes start there, else by action 0 in the state before."""
    carry, found = agent.backbone.init_carry(1), []
    for state in range(STATES):
        first = probe.start[state : state + 1] > 0
        carry = where_first(first, agent.backbone.init_carry(1), carry)
        reward = jnp.where(first, 0.0, probe.reward[max(state - 1, 0), 0])
        timestep = Timestep(probe.observe[state][None], first, reward, jnp.zeros(1, jnp.int32))
        raw, carry = agent.backbone.step(policy.network, carry, timestep)
        found.append(agent.representation.normalise(raw)[0] @ policy.theta)
    values, transform = jnp.stack(found), agent.problem.transform
    return values if transform is None else operators.signed_parabolic(values, transform)


def solve(name: str, preset: str, changes: dict) -> None:
    config = small(preset, changes)
    names, stacked = probes()
    shape = jax.ShapeDtypeStruct(stacked.observe.shape[2:], jnp.float32)
    agent = QAgent(config, shape, 2)
    program = quick(functools.partial(jax.lax.map, lambda x: train(agent, *x)))
    policies, finite = program((stacked, jax.random.split(jax.random.key(0), len(names))))
    assert np.all(finite)
    found = jax.vmap(functools.partial(values_met, agent))(policies, stacked)
    known = jax.vmap(answers, (0, None))(stacked, config.discount)
    for probe, learned, expected, met in zip(names, found, *known, strict=True):
        learned, expected = np.asarray(learned), np.asarray(expected)
        seen, best = np.asarray(met).any(axis=1), expected.max(axis=1)
        off = np.abs(learned.max(axis=1) - best)[seen].max()
        assert off < 0.1, f"{name} on {probe}: off by {off:.3f}\n{learned}\n{expected}"
        chosen = expected[np.arange(len(best)), learned.argmax(axis=1)]
        message = f"{name} on {probe}: not the best action"
        np.testing.assert_allclose(chosen[seen], best[seen], atol=1e-5, err_msg=message)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_choice_solves_every_probe(name):
    solve(name, *COMPOSITIONS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_preset_and_other_pairs_solve_every_probe(name):
    solve(name, *OTHERS[name])


def test_every_choice_is_among_those_tried():
    tried = [flat(small(*given)) for given in COMPOSITIONS.values()]
    for kind, choices in KINDS.items():
        assert {names.get(kind) for names in tried} >= set(choices)
