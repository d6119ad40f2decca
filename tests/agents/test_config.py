"""The settings of an agent: what fits together, and what is refused."""

import dataclasses

import pytest

from spectral_bellman.agents import AgentConfig
from spectral_bellman.agents.backbones import Recurrent
from spectral_bellman.agents.explorations import UCB, Epsilon, Propagated, Thompson
from spectral_bellman.agents.representations import MSE, PVN, TD, Linear, Plain, Spectral
from spectral_bellman.agents.representations.api import AdamSolver, LeastSquares

NONE, ONE = AdamSolver(q_steps=0), AdamSolver(q_steps=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "--batch must be at least 1, got 0"),
        ({"batch": 1}, "--batch must be 2 or more where φ has features"),
        ({"target_rounds": 0}, "--target-rounds must be at least 1"),
        ({"updates": -1}, "--updates must be 0 or more"),
        ({"warmup_steps": -1}, "--warmup-steps must be 0 or more"),
        ({"reward_clip": -0.5}, "--reward-clip must be 0 or more"),
        ({"learning_rate": -1.0}, "--learning-rate must be 0 or more"),
        ({"head_rate": 0.0}, "--head-rate must be positive"),
        ({"adam_epsilon": 0.0}, "--adam-epsilon must be positive"),
        ({"eval_epsilon": 1.5}, "--eval-epsilon must be between 0 and 1"),
        ({"discount": 1.0}, r"--discount must be in \[0, 1\)"),
        ({"updates": 3}, "--q-steps 4 are among the --updates 3 of a round: raise --updates"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AgentConfig(**changes)


@pytest.mark.parametrize("exploration", [Thompson(), UCB(), Propagated()])
def test_a_plain_head_has_no_features_to_explore_with(exploration):
    with pytest.raises(ValueError, match=r"needs features.*--representation td, or.* dqn-ts"):
        AgentConfig(representation=Plain(), exploration=exploration)
    for representation in (TD(), MSE(), Spectral(), Linear(), PVN()):
        AgentConfig(representation=representation, exploration=exploration)
    AgentConfig(representation=Plain(), exploration=Epsilon(), batch=1)


@pytest.mark.parametrize("representation", [Spectral, MSE, PVN])
def test_parameters_that_nothing_would_move_are_refused(representation):
    message = r"--q-steps 0 leaves θ̂ where it starts.*--q-start backup"
    with pytest.raises(ValueError, match=message):
        AgentConfig(representation=representation(solver=NONE))
    AgentConfig(representation=representation(solver=ONE))
    AgentConfig(representation=representation(solver=LeastSquares()))
    if representation is not PVN:
        solver = AdamSolver(q_steps=0, q_start="backup")
        AgentConfig(representation=representation(solver=solver))


def test_the_solver_is_the_representations():
    assert AgentConfig(representation=Spectral(solver=ONE)).solver == ONE
    assert AgentConfig(representation=Linear()).solver is None
    plain = AgentConfig(representation=Plain(), exploration=Epsilon(), updates=1)
    assert plain.solver is None


def test_the_largest_value_is_that_of_the_largest_reward_for_ever():
    config = AgentConfig(discount=0.75, reward_clip=0.5)
    assert config.largest_value == 2
    assert dataclasses.replace(config, reward_clip=0.0).largest_value == 4


def test_sequences_are_not_merged():
    recurrent = {"backbone": Recurrent(), "exploration": Thompson(precision_distinct=5)}
    with pytest.raises(ValueError, match=r"--precision-distinct merges .* learns from sequences"):
        AgentConfig(representation=TD(), **recurrent)
