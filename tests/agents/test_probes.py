"""Every preset solves environments with known answers: the values it has learned are those of the environment."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import Agent
from spectral_bellman.agents.presets import PRESETS, preset_settings
from spectral_bellman.agents.representation import features
from spectral_bellman.environments.probes import answers, probes
from spectral_bellman.replay import init_replay
from spectral_bellman.training import rounds

NUM_ENVS, STEPS = 16, 8

SMALL = {
    "network": "mlp",
    "hidden": (32,),
    "features": 16,
    "batch": 64,
    "representation_steps": 12,
    "q_steps": 20,
    "theta_samples": 16,
    "discount": 0.5,
    "learning_rate": 3e-3,
    "q_learning_rate": 2e-2,
    "warmup_steps": 0,
    "epsilon_end": 0.3,
    "epsilon_steps": 1_000,
    "precision_samples": 256,
    "pvn_networks": 2,
    "pvn_outputs": 4,
}
VARIANTS = {
    **{name: (name, {}) for name in PRESETS},
    "ucb": ("sbm-dqn-ts", {"exploration": "ucb"}),
    "propagated noise": ("sbm-dqn-ts", {"exploration": "propagated", "propagated_draws": 4}),
    "annealed scale": ("sbm-dqn-ts", {"noise_anneal_steps": 5_000, "noise_bound": True}),
    "least squares": ("sbm-dqn-ts", {"q_solver": "least_squares", "ridge": 0.01}),
    "no sampling noise": ("sbm-dqn-ts", {"representation": "expected"}),
    "no sampling noise, and actions as ν has them": ("sbm-dqn-ts", {"representation": "averaged"}),
    "Q for a feature, and no fit": ("sbm-dqn-ts", {"representation": "averaged", "norm": "value", "q_steps": 0}),
    "Q of a feature and of what the others add": (
        "sbm-dqn-ts",
        {"representation": "averaged", "norm": "value", "q_steps": 0, "q_start": "backup"},
    ),
    "Q for a feature, θ sampled": ("sbm-dqn-ts", {"norm": "value"}),
}


def train(agent: Agent, probe, key, number_of_rounds: int):
    """The agent and policy after some rounds on one probe; vmapped over probes, all of them are one program."""
    learner_key, scene_key = jax.random.split(key)
    learner, policy = rounds.init_learner(agent, learner_key, NUM_ENVS)
    learner = learner._replace(replay=init_replay(agent.observation, NUM_ENVS, 2_000, STEPS))
    scene = rounds.init_scene(agent, probe, scene_key, NUM_ENVS)

    def one(carry, number):
        learner, policy, scene = carry
        scene, collected = rounds.collect(agent, probe, policy, scene, rounds.collection_key(learner.key, number), STEPS)
        learner, policy = rounds.learn(agent, learner, policy, collected, number, log_rounds=10, learning=True)
        return (learner, policy, scene), None

    return jax.lax.scan(one, (learner, policy, scene), jnp.arange(number_of_rounds))[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_preset_solves_every_probe(variant):
    preset, changes = VARIANTS[variant]
    config = preset_settings(preset, "jax")[1]
    # The paper's own numbers stay where they can: its batch and steps are only a matter of time.
    small = {k: v for k, v in SMALL.items() if preset != "sbm-dqn-ts-paper" or k not in ("learning_rate",)}
    config = dataclasses.replace(config, **{**small, **changes})
    names, stacked = probes()
    agent = Agent(config, jax.ShapeDtypeStruct(stacked.observe.shape[2:], jnp.float32), 2)
    program = jax.jit(functools.partial(jax.lax.map, lambda x: train(agent, *x, 60)))
    learner, policy, _ = program((stacked, jax.random.split(jax.random.key(0), len(names))))
    assert all(int(np.min(values)) == rounds.NEVER for values in learner.tally.broken.values())
    for i, name in enumerate(names):
        probe, mine = (jax.tree.map(lambda x, i=i: x[i], tree) for tree in (stacked, policy))
        expected, met = (np.asarray(x) for x in answers(probe, config.discount))
        learned = np.asarray(features(mine.network, probe.observe, config) @ mine.theta)
        seen = met.any(axis=1)
        best = expected.max(axis=1)
        off = np.abs(learned.max(axis=1) - best)[seen].max()
        assert off < 0.1, f"{variant} on {name}: values are off by {off:.3f}\n{learned}\n{expected}"
        chosen = expected[np.arange(len(best)), learned.argmax(axis=1)]
        np.testing.assert_allclose(chosen[seen], best[seen], atol=1e-5, err_msg=f"{variant} on {name}: not the best action")
