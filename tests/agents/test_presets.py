"""The presets are the paper's rows, one algorithm on every environment, and all of them build."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import QAgent
from spectral_bellman.agents.choices import KINDS, flat
from spectral_bellman.agents.presets import PRESETS, agent_config, find_preset
from spectral_bellman.environments import FAMILIES
from spectral_bellman.environments.api import EnvironmentSpec
from spectral_bellman.environments.deep_sea import DeepSea
from spectral_bellman.environments.probes import probes
from spectral_bellman.replay import init_ring
from spectral_bellman.training.config import configure
from spectral_bellman.training.learner import Learner, extras_of

from .quick import quick, quick_and_slow

ROWS = {
    "dqn": ("plain", "epsilon"),
    "dqn-ts": ("td", "thompson"),
    "mse-dqn-ts": ("mse", "thompson"),
    "sbm-dqn-ts-no-orth": ("spectral", "thompson"),
    "pvn-dqn": ("pvn", "epsilon"),
    "pvn-dqn-ts": ("pvn", "thompson"),
    "sbm-dqn": ("spectral", "epsilon"),
    "sbm-dqn-ts": ("spectral", "thompson"),
    "sbm-linear-dqn": ("linear", "epsilon"),
    "sbm-linear-dqn-ts": ("linear", "thompson"),
    "sbm-dqn-ts-paper": ("spectral", "thompson"),
    "r2d2": ("plain", "ladder"),
    "sbm-r2d2": ("spectral", "ladder"),
    "sbm-r2d2-ts": ("spectral", "thompson"),
    "sbm-r2d2-ts-paper": ("spectral", "thompson"),
    "dqn-minatar": ("plain", "epsilon"),
    "dqn-dopamine": ("plain", "epsilon"),
}
EVERY = [(preset, family) for preset in PRESETS for family in FAMILIES]


def of(preset, family):
    return agent_config(preset, family, {}, FAMILIES[family].agent)


@functools.cache
def configured(preset, family):
    """The settings of a run on the family; only DeepSea's depend on the environment itself."""
    device = DeepSea(6) if family == "deep_sea" else jax.tree.map(lambda x: x[0], probes()[1])
    spec = EnvironmentSpec("x", family, device=device, protocol=FAMILIES[family].protocol)
    return configure(preset, spec)


def test_every_row_of_the_paper_is_there():
    rows = {
        name: (preset.agent["representation"], preset.agent["exploration"])
        for name, preset in PRESETS.items()
    }
    assert rows == ROWS
    for name in PRESETS:
        names = flat(of(name, "jax"))
        kinds = tuple(names[kind] for kind in ("backbone", "operator", "sampling"))
        recurrent = ("recurrent", "retrace", "prioritised")
        assert kinds == (recurrent if "r2d2" in name else ("feed_forward", "one_step", "uniform"))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_one_algorithm_on_every_family(preset):
    """A family may change its numbers, never its choices: whatever is not a number is the same."""
    found = [flat(of(preset, family)) for family in FAMILIES]
    choices = [
        {k: v for k, v in names.items() if k in KINDS or isinstance(v, (str, bool))}
        for names in found
    ]
    # Where the fit of θ̂ starts is tuned on MinAtar, and the torso is the environment's.
    tuned = {"q_start", "network", "torso_precision"}
    for names in choices:
        assert {k: v for k, v in names.items() if k not in tuned} == {
            k: v for k, v in choices[0].items() if k not in tuned
        }
    assert [(names["representation"], names["exploration"]) for names in found] == [
        ROWS[preset]
    ] * len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_orthogonality_is_sbm_without_orthogonality_and_nothing_else(family):
    with_it, without = (flat(of(name, family)) for name in ("sbm-dqn-ts", "sbm-dqn-ts-no-orth"))
    assert with_it["feature_orthogonality"] > 0
    different = {name for name in {*with_it, *without} if with_it.get(name) != without.get(name)}
    assert different == {"feature_orthogonality"}
    assert (without["feature_orthogonality"], without["param_orthogonality"]) == (0, 0)
    one, other = (configured(name, family) for name in ("sbm-dqn-ts", "sbm-dqn-ts-no-orth"))
    changes = {k for k, v in flat(one).items() if flat(other)[k] != v}
    assert changes == {"preset", "feature_orthogonality"}


@pytest.mark.parametrize(("preset", "family"), EVERY)
def test_every_number_of_a_preset_is_used(preset, family):
    """On its family as it is; the environment and the machine may change it, not leave it out."""
    found, names = PRESETS[preset], flat(of(preset, family))
    wanted = {**found.agent, **found.tuned.get(family, {})}
    assert {name: names.get(name, "not used") for name in wanted} == wanted
    config = configured(preset, family)
    assert set(wanted) <= set(flat(config.agent))
    assert set(found.tuned) <= set(FAMILIES)
    if family != "atari":  # on a CPU with fewer emulators
        # Settings of the host are for environments that step there.
        run = {k: getattr(config, k) for k in found.run if k in flat(config)}
        sized = {"round_steps", "frames", "replay_capacity"} if family == "deep_sea" else set()
        assert {k: v for k, v in run.items() if k not in sized} == {
            k: v for k, v in found.run.items() if k not in sized | {"dispatch_steps"}
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_a_family_is_used_by_some_preset(family):
    names = set().union(*(flat(of(preset, family)) for preset in PRESETS))
    names |= set(flat(agent_config("sbm-dqn-ts", family, {"exploration": "propagated"})))
    assert set(FAMILIES[family].agent) <= names


def test_other_choices_take_the_numbers_that_they_use():
    config = agent_config(
        "sbm-dqn-ts", "minatar", {"exploration": "epsilon"}, {"epsilon_end": 0.3, "spread": 9.0}
    )
    assert (config.representation.name, config.exploration.name) == ("spectral", "epsilon")
    assert config.exploration.epsilon_end == 0.3
    assert config.representation.theta_variance == 0.1


SCREEN = jax.ShapeDtypeStruct((1, 36, 36), jnp.uint8)


@pytest.mark.parametrize(("preset", "family"), EVERY)
def test_every_preset_builds_on_every_family(preset, family):
    config = configured(preset, family).agent
    agent = QAgent(config, SCREEN, 3)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    d = config.representation.features if config.representation.has_features else 1
    assert state.theta.shape == (d,)
    assert state.network.head.out_features == 3 * d


@pytest.mark.parametrize("preset", quick_and_slow(PRESETS))
def test_every_preset_learns_and_can_be_looked_at(preset):
    """With its settings on Atari, as shapes: nothing is computed."""
    config = of(preset, "atari")
    agent = QAgent(config, SCREEN, 3)
    learner = Learner(agent)

    def look(key):
        slots = agent.window.room + 4
        state, ring = agent.init(key), init_ring(SCREEN, extras_of(agent), 1, slots, 1)
        items, rows = learner.held_out(ring, key)
        return agent.diagnose(state, agent.init_policy(state), items, rows, key)

    seen = jax.eval_shape(look, jax.random.key(0))
    assert all(x.shape == () for x in seen.values())
    assert ("feature_norm" in seen) == config.representation.has_features
    assert learner.terms()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_paper_preset_has_the_numbers_of_the_paper(family):
    config = of("sbm-dqn-ts-paper", family)
    part, way = config.representation, config.exploration
    assert (part.features, part.norm, part.alpha) == (256, "clip", 0.1)
    assert config.learning_rate == part.solver.q_learning_rate == 3e-4
    assert (config.batch, config.adam_epsilon) == (256, 1e-8)
    assert (config.updates - part.solver.q_steps, part.solver.q_steps) == (512, 64)
    assert (part.theta_variance, part.solver.q_start) == (1e-2, "last")
    assert (way.ridge, way.noise_scale, way.noise_anneal_steps) == (0.1, 1, 0)
    assert (config.reward_clip, config.discount) == (1, 0.99)
    assert PRESETS["sbm-dqn-ts-paper"].run["num_envs"] == 128


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recurrent_paper_preset_has_the_numbers_of_the_paper_and_of_r2d2(family):
    config = of("sbm-r2d2-ts-paper", family)
    part, way, core = config.representation, config.exploration, config.backbone
    assert (part.features, part.norm, part.alpha, part.theta_variance) == (256, "clip", 0.1, 1e-2)
    assert config.learning_rate == part.solver.q_learning_rate == 3e-4
    assert (config.updates - part.solver.q_steps, part.solver.q_steps) == (512, 64)
    assert (config.batch, core.burn_in, core.trained, core.period) == (64, 40, 80, 40)
    assert (core.lstm, core.core_inputs, core.head_hidden) == (512, "torso", (512,))
    assert (config.operator.trace_decay, config.operator.policy_epsilon_steps) == (0.95, 250_000)
    chosen = config.sampling
    assert (chosen.priority_exponent, chosen.priority_max_share) == (0.9, 0.9)
    assert chosen.importance_exponent == 0.6
    assert (way.ridge, way.noise_scale, way.noise_anneal_steps) == (0.1, 1, 0)
    assert (config.reward_clip, config.rescaling, config.discount) == (0, 1e-3, 0.997)
    assert (config.gradient_clip, config.adam_epsilon) == (40, 1e-3)


def test_a_preset_goes_before_its_family():
    plain, paper = (of(name, "deep_sea") for name in ("sbm-dqn-ts", "sbm-dqn-ts-paper"))
    assert (plain.exploration.ridge, plain.batch, plain.reward_clip) == (0.01, 128, 0)
    assert (paper.exploration.ridge, paper.batch, paper.reward_clip) == (0.1, 256, 1)
    # Where the preset is silent the family speaks.
    for name in ("sbm-dqn-ts", "sbm-dqn-ts-paper"):
        config = agent_config(
            name, "deep_sea", {"exploration": "propagated"}, FAMILIES["deep_sea"].agent
        )
        assert config.exploration.propagated_draws == 1


@pytest.mark.parametrize(
    ("preset", "family", "samples", "frames", "epsilon", "optimiser", "clip"),
    [
        ("dqn-minatar", "minatar", 32, 1_024, (0.1, 100_000), "rmsprop", 0),
        ("dqn-dopamine", "atari", 8, 8_192, (0.01, 250_000), "adam", 1),
    ],
)
def test_the_dqn_of_others_has_their_numbers(
    preset, family, samples, frames, epsilon, optimiser, clip
):
    config, run = of(preset, family), PRESETS[preset].run
    steps = run["num_envs"] * run["round_steps"]
    assert config.updates * config.batch == samples * steps
    assert config.target_rounds * steps == frames
    assert (config.exploration.epsilon_end, config.exploration.epsilon_steps) == epsilon
    assert (config.representation.optimiser, config.reward_clip) == (optimiser, clip)


def test_dqn_has_one_plain_output_an_action():
    agent = QAgent(of("dqn", "jax"), jax.ShapeDtypeStruct((4,), jnp.float32), 3)
    state = quick(agent.init)(jax.random.key(0))
    policy = agent.init_policy(state)
    np.testing.assert_array_equal(state.theta, [1])
    observation = jnp.asarray([[0.3, -2.0, 1.0, 4.0]])
    np.testing.assert_array_equal(agent.values(policy, observation), np.zeros((1, 3)))
    weight = jax.random.normal(jax.random.key(1), state.network.head.weight.shape)
    network = eqx.tree_at(lambda x: x.head.weight, state.network, weight)
    outputs = network.head(network.torso(observation[0]))
    values = agent.values(policy._replace(network=network), observation)
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
    for find in (find_preset, lambda name: agent_config(name, "gym", {})):
        with pytest.raises(ValueError, match=f"no preset '{name}'.*{hint}"):
            find(name)


def test_a_name_that_meant_another_agent_says_so():
    for preset in ("sbm-dqn", "sbm-dqn-ts"):
        for family in ("minatar", "atari"):
            text = PRESETS[preset].changed[family]
            assert preset in text
            assert preset.replace("sbm-", "sbm-linear-") in text
