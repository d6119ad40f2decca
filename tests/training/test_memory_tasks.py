"""Recurrent agents solve tasks that need memory; dqn, which sees one observation, does not."""

import json

import pytest
from rich.console import Console

from spectral_bellman import train

SOLVED = 0.9
"""Mean return of the last three evaluations; the best is 1."""
WITHOUT_MEMORY = {"t_maze/5": 0.0, "recall/2": 1 / 3}
"""The best mean return without memory."""


def returns(preset, env, folder, **settings):
    """The mean return of the last three evaluations, of the family's default run."""
    train(preset, env, out=folder, console=Console(quiet=True), score_episodes=100, **settings)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scored = [line["eval_return"] for line in lines if line.get("eval_return") is not None][-3:]
    return sum(scored) / 3


@pytest.mark.parametrize(
    ("preset", "env"),
    [
        ("r2d2", "t_maze/5"),
        pytest.param("sbm-r2d2-ts", "recall/2", marks=pytest.mark.slow),
        pytest.param("r2d2", "recall/2", marks=pytest.mark.slow),
        pytest.param("sbm-r2d2", "t_maze/5", marks=pytest.mark.slow),
        pytest.param("sbm-r2d2", "recall/2", marks=pytest.mark.slow),
        pytest.param("sbm-r2d2-ts", "t_maze/5", marks=pytest.mark.slow),
    ],
)
def test_recurrent_agents_remember(preset, env, tmp_path):
    assert returns(preset, env, tmp_path / "run") > SOLVED


@pytest.mark.parametrize("env", ["t_maze/5", pytest.param("recall/2", marks=pytest.mark.slow)])
def test_an_agent_without_memory_does_not_solve_them(env, tmp_path):
    assert returns("dqn", env, tmp_path / "run") < WITHOUT_MEMORY[env] + 0.2


@pytest.mark.slow
def test_a_recurrent_agent_without_memory_does_not_solve_them(tmp_path):
    """The control: with its LSTM and all else, but without what it remembers."""
    assert returns("r2d2", "t_maze/5", tmp_path / "run", memory=False) < 0.2
