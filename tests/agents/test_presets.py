"""The presets are the paper's rows, and all of them build."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import Agent
from spectral_bellman.agents.diagnostics import diagnose, material
from spectral_bellman.agents.presets import FAMILIES, PRESETS, preset_settings
from spectral_bellman.agents.representation import features
from spectral_bellman.replay import init_replay
from spectral_bellman.training.config import TrainConfig

ROWS = {
    "dqn": ("td", "epsilon"),
    "dqn-ts": ("td", "thompson"),
    "mse-dqn-ts": ("mse", "thompson"),
    "sbm-dqn-ts-no-orth": ("spectral", "thompson"),
    "pvn-dqn": ("pvn", "epsilon"),
    "pvn-dqn-ts": ("pvn", "thompson"),
    "sbm-dqn": ("spectral", "epsilon"),
    "sbm-dqn-ts": ("spectral", "thompson"),
    "sbm-dqn-ts-paper": ("spectral", "thompson"),
    "dqn-minatar": ("td", "epsilon"),
    "dqn-dopamine": ("td", "epsilon"),
}


def test_every_row_of_the_paper_is_there():
    assert {name: (p.agent["representation"], p.agent["exploration"]) for name, p in PRESETS.items()} == ROWS


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_builds_on_every_family(preset):
    for family in FAMILIES:
        run, config = preset_settings(preset, family)
        TrainConfig(preset, "x", agent=config, **run)
        pictures = config.network == "nature"
        agent = Agent(config, jax.ShapeDtypeStruct((4, 84, 84) if pictures else (4,), jnp.uint8 if pictures else jnp.float32), 3)
        state = jax.eval_shape(agent.init, jax.random.key(0))
        d = 1 if config.plain else config.features
        assert state.theta.shape == (d,)
        assert state.network.head.out_features == 3 * d
        # The same loss with the expectation over ν taken.
        closed = family in ("minatar", "atari") and preset in ("sbm-dqn", "sbm-dqn-ts")
        assert (config.representation, config.exploration) == (("averaged", ROWS[preset][1]) if closed else ROWS[preset])


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_looked_at_in_every_family(preset):
    """The diagnostics of an agent with the settings as they are: nothing is computed."""
    for family in FAMILIES:
        config = preset_settings(preset, family)[1]
        agent = Agent(config, jax.ShapeDtypeStruct((1, 36, 36), jnp.uint8), 3)

        def look(key, agent=agent):
            state, replay = agent.init(key), init_replay(agent.observation, 1, 4, 1)
            return diagnose(agent, state, agent.init_policy(state), material(agent, replay, key), key)

        seen = jax.eval_shape(look, jax.random.key(0))
        assert all(x.shape == () for x in seen.values())
        assert ("feature_norm" in seen) == (not config.plain)


def test_rows_without_orthogonality_have_none():
    for preset in ("mse-dqn-ts", "sbm-dqn-ts-no-orth"):
        config = preset_settings(preset, "minatar")[1]
        assert (config.feature_orthogonality, config.param_orthogonality) == (0, 0)
    assert preset_settings("sbm-dqn-ts", "minatar")[1].feature_orthogonality > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_paper_preset_has_the_numbers_of_the_paper(family):
    run, config = preset_settings("sbm-dqn-ts-paper", family)
    assert config.features == 256
    assert config.learning_rate == config.q_learning_rate == 3e-4
    assert config.batch == 256
    assert (config.representation_steps, config.q_steps) == (512, 64)
    assert (config.theta_variance, config.relative_variance) == (1e-2, False)
    assert config.ridge == 0.1
    assert config.alpha == 0.1
    assert config.reward_clip == 1
    assert config.discount == 0.99
    assert config.norm == "clip"
    assert (config.noise_scale, config.noise_anneal_steps) == (1, 0)
    assert (config.q_solver, config.q_start, config.adam_epsilon) == ("adam", "last", 1e-8)
    assert run["num_envs"] == 128


def test_a_preset_goes_before_its_family():
    plain, paper = (preset_settings(name, "deep_sea")[1] for name in ("sbm-dqn-ts", "sbm-dqn-ts-paper"))
    assert (plain.ridge, plain.batch, plain.reward_clip) == (0.01, 128, 0)
    assert paper.propagated_draws == plain.propagated_draws == 1  # where the preset is silent the family speaks
    assert (paper.ridge, paper.batch) == (0.1, 256)


@pytest.mark.parametrize(("preset", "family", "samples"), [("dqn-minatar", "minatar", 32), ("dqn-dopamine", "atari", 8)])
def test_the_dqn_of_others_has_their_numbers(preset, family, samples):
    run, config = preset_settings(preset, family)
    steps = run["num_envs"] * run["round_steps"]
    assert config.updates * config.batch == samples * steps
    assert config.plain
    assert config.target_rounds * steps == {"minatar": 1_024, "atari": 8_192}[family]
    assert (config.epsilon_end, config.epsilon_steps) == {"minatar": (0.1, 100_000), "atari": (0.01, 250_000)}[family]
    assert config.optimiser == {"minatar": "rmsprop", "atari": "adam"}[family]


def test_dqn_has_one_plain_output_an_action():
    config = preset_settings("dqn", "jax")[1]
    agent = Agent(config, jax.ShapeDtypeStruct((4,), jnp.float32), 3)
    state = agent.init(jax.random.key(0))
    np.testing.assert_array_equal(state.theta, [1])
    observation = jnp.asarray([[0.3, -2.0, 1.0, 4.0]])
    np.testing.assert_array_equal(features(state.network, observation, config) @ state.theta, np.zeros((1, 3)))
    network = eqx.tree_at(
        lambda x: x.head.weight, state.network, jax.random.normal(jax.random.key(1), state.network.head.weight.shape)
    )
    outputs = network.head(network.torso(observation[0]))
    values = features(network, observation, config) @ state.theta
    np.testing.assert_allclose(values, outputs[None], rtol=1e-5)
    assert np.linalg.norm(values) > 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sbm-dqn-tss", "did you mean sbm-dqn-ts "),
        ("DQN-ts", "dqn-ts"),
        ("zzzz", "sbm presets lists them"),
    ],
)
def test_a_misspelt_preset_is_answered_with_the_nearest(name, hint):
    with pytest.raises(ValueError, match=f"no preset '{name}'.*{hint}"):
        preset_settings(name, "gym")
