"""The runner for environments on the device: a compiled round over seeds, its state donated."""

import collections
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.environments import make
from spectral_bellman.training.config import TrainConfig, configure, flat
from spectral_bellman.training.device_runner import DeviceRunner

from .counting import numbers, same
from .stubs import Corridor, Dice, Scribe, phase

SMALL = {
    "frames": 4_000,
    "seeds": 2,
    "hidden": (16,),
    "features": 8,
    "batch": 32,
    "warmup_steps": 0,
    "theta_samples": 8,
    "precision_samples": 64,
    "burn_in": 2,
    "trained": 6,
    "period": 3,
}


def small(preset: str, **choices) -> DeviceRunner:
    """A runner for a preset on a small sea, with those of the settings that it has."""
    spec = make("deep_sea/4")
    known = flat(configure(preset, spec, choices))
    settings = {name: value for name, value in SMALL.items() if name in known}
    config = configure(preset, spec, {**settings, **choices}).resolved()
    agent = QAgent(config.agent, spec.device.observation, spec.device.num_actions)
    return DeviceRunner(config, spec.device, agent)


def types_of(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("preset", ["dqn", "sbm-dqn-ts", slow("dqn-ts"), slow("pvn-dqn")])
def test_every_round_publishes_what_was_learned_and_makes_it_the_target(preset):
    """On a GPU too: there a round once returned old policies and targets, without an error."""
    runner = small(preset)
    runner.init()
    types = types_of(runner.state)
    published = [numbers(runner.state.policies[-1].network)]
    for number in range(3):
        runner.run_round(number)
        state, policy = runner.state.learner.agent, runner.state.policies[-1]
        assert same((state.target.network, state.target.theta), (policy.network, policy.theta))
        assert same(state.network, policy.network) == preset.startswith("dqn")
        published.append(numbers(policy.network))
        # A compiled round takes the very types that it returned, and refuses others.
        assert types_of(runner.state) == types
    assert all(np.isfinite(x).all() for x in published[-1])
    changed = [not same(a, b) for a, b in itertools.pairwise(published)]
    # A policy has the φ that θ̂ was fitted to. Agents that learn φ after it publish a round later.
    assert changed == ([True, True, True] if preset.startswith("dqn") else [False, True, True])


@pytest.mark.parametrize(
    ("preset", "choices"),
    [
        # dqn-dopamine is for screens. Those left out by `make test` compile what others do.
        *(
            pytest.param(preset, {}, marks=() if preset.endswith("-ts") else pytest.mark.slow)
            for preset in PRESETS
            if preset not in ("dqn", "r2d2", "dqn-dopamine")
        ),
        *(("dqn", {}), ("r2d2", {})),
        ("sbm-dqn-ts", {"exploration": "propagated"}),
        ("sbm-dqn-ts", {"exploration": "ucb"}),
        ("sbm-dqn-ts", {"q_solver": "least_squares"}),
    ],
)
def test_results_of_a_round_take_the_places_of_their_arguments_and_none_comes_twice(
    preset, choices
):
    """A GPU may write a result that is returned twice only once (jax issue 39625)."""
    runner = small(preset, **choices)
    text = runner._lowered(learning=True).as_text()
    main = text[text.index("func.func public @main") :]
    leaves = len(jax.tree.leaves(runner.shapes()))
    results = re.search(r"\n    return (.*?) :", main).group(1).split(", ")
    assert len(results) == leaves
    assert max(collections.Counter(results).values()) == 1
    signature = re.search(r"@main[(](.*?)[)] -> ", main, re.DOTALL)[1]
    pairs = [
        re.search("tf.aliasing_output = ([0-9]+)", argument)
        for argument in re.findall("%arg[0-9]+: [^%]*", signature)
    ]
    assert len(pairs) == leaves + 1  # and the number of the round
    assert [int(pair[1]) for pair in pairs if pair] == list(range(leaves))


@pytest.mark.parametrize("staleness", [1, 3])
def test_only_what_comes_back_in_its_own_place_is_donated(staleness):
    """Of several policies each comes back in the place of another, which a GPU may mix up."""
    runner = scribes(staleness=staleness)
    (learner, policies, actor, number), _ = runner._lowered(learning=True).args_info

    def donated(tree):
        return {leaf.donated for leaf in jax.tree.leaves(tree)}

    assert donated((learner, actor)) == {True}
    assert donated(policies) == {staleness == 1}
    assert donated(number) == {False}


STEPS, ENVS = 4, 3


def scribes(environment=None, **changes) -> DeviceRunner:
    """Agents that write down what they do."""
    environment = environment or Corridor()
    config = TrainConfig(
        "sbm-dqn",
        "corridor",
        frames=100 * STEPS * ENVS,
        num_envs=ENVS,
        round_steps=STEPS,
        replay_capacity=100 * ENVS,
        log_frames=3 * STEPS * ENVS,
        eval_episodes=2,
        eval_max_steps=20,
        **{"seeds": 2, "first_seed": 5, **changes},
    )
    object.__setattr__(config.agent, "warmup_steps", 2 * STEPS * ENVS)
    agent = Scribe(environment.observation, [phase(1, 2)], [phase(2, 1)])
    return DeviceRunner(config, environment, agent)


@pytest.fixture(scope="module")
def seeds():
    """Two seeds after five rounds, and what their tally said after each."""
    runner = scribes()
    runner.init()
    tallies = []
    for number in range(5):
        runner.run_round(number)
        tallies.append(runner.tally())
    return runner, tallies


def test_seeds_side_by_side_are_what_each_is_alone(seeds):
    together, _ = seeds
    alone = scribes(seeds=1, first_seed=6)
    alone.init()
    for number in range(5):
        alone.run_round(number)
    second = jax.tree.map(lambda x: x[1:], together.state)
    assert same(alone.state, second)
    first = jax.tree.map(lambda x: x[0], together.state.learner.agent)
    assert not same(first, jax.tree.map(lambda x: x[1], together.state.learner.agent))


def test_a_round_counts_episodes_and_learns_after_the_warm_up(seeds):
    runner, tallies = seeds
    assert [tally.rounds.tolist() for tally in tallies] == [
        [0, 0],  # warm-up
        [1, 1],
        [2, 2],
        [1, 1],  # a line of the log is due after three rounds
        [2, 2],
    ]
    count = runner.state.learner.agent.count
    assert count.tolist() == [4 * (2 + 1 + 1 + 1 + 1)] * 2  # updates, two chunks, publishing
    ring = runner.state.learner.replay
    begun = jnp.sum((ring.age == 0) & ring.valid, axis=(1, 2))
    assert (tallies[-1].running_length > 0).all()
    assert tallies[-1].episodes.tolist() == (begun - ENVS).tolist()


def test_more_episodes_than_are_played_at_once_are_played_in_parts():
    runner = scribes(Dice())
    runner.init()
    runner.start_evaluation(3, 5)
    runner.start_evaluation(4, 2)
    (first, returns), (second, more) = runner.evaluated()
    assert runner.evaluated() == []
    assert (first, returns.shape, second, more.shape) == (3, (2, 5), 4, (2, 2))
    assert len(np.unique(np.concatenate([returns.ravel(), more.ravel()]))) == 14
    runner.start_evaluation(3, 5)
    ((_, again),) = runner.evaluated(wait=True)
    np.testing.assert_array_equal(returns, again)


def test_diagnostics_are_of_every_seed(seeds):
    runner, _ = seeds
    found = runner.diagnostics(5)
    assert {name: x.shape for name, x in found.items()} == {"reward": (2,)}
    assert ((found["reward"] >= 0.25) & (found["reward"] <= 1)).all()


def test_prepare_compiles_all_that_a_run_calls():
    runner = scribes()
    runner.prepare()
    assert set(runner.programs) == {"init", "warm up", "learn", "diagnose", "evaluate"}
    before = dict(runner.programs)
    runner.init()
    for number in range(3):
        runner.run_round(number)
    runner.diagnostics(3)
    runner.start_evaluation(3, 2)
    assert runner.programs == before
    assert runner.working() > 0


def test_the_newest_policy_is_of_the_first_seed(seeds):
    runner, _ = seeds
    assert int(runner.newest_policy()) == 4
    assert runner.newest_policy().shape == ()


def test_a_restored_runner_goes_on_as_it_would_have(seeds):
    runner, again = scribes(), scribes()
    runner.programs = again.programs = seeds[0].programs
    runner.init()
    runner.run_round(0)
    again.restore(jax.tree.map(functools.partial(jnp.array, copy=True), runner.state))
    for number in (1, 2):
        runner.run_round(number)
        again.run_round(number)
    assert same(runner.state, again.state)
