"""Episodes to solve DeepSea, against bsuite's own rule on the same episodes."""

import json

import numpy as np
import pandas as pd
import pytest

from spectral_bellman.environments.deep_sea import MOVE_COST
from spectral_bellman.report import deep_sea
from spectral_bellman.report.deep_sea import (
    KEY,
    deep_sea_figure,
    deep_sea_table,
    episodes_to_solve,
)
from spectral_bellman.report.figures import LOOKS
from spectral_bellman.report.groups import group_runs
from spectral_bellman.report.runs import Run
from spectral_bellman.report.tables import Cell

from .made import make

SIZE = 10


def played(path, found, *, every=1, first=0, size=SIZE, preset="dqn"):
    """A run whose episodes found the treasure or not, (seeds, episodes), logged every so many."""
    run = make([[0.0]], env=f"deep_sea/{size}", preset=preset, first=first)
    records = []
    for seed, row in enumerate(found):
        cost = np.random.default_rng(seed).uniform(0, 0.01, len(row))
        returns = np.where(row, 0.99, -cost)
        for end in range(every, len(row) + 1, every):
            mean = float(returns[end - every : end].mean())
            records.append(
                {"seed": first + seed, "frames": end * size, "episodes": end, "return": mean}
            )
    return Run(path, run.config, records)


def bsuites(row):
    """The rule of `bsuite.experiments.deep_sea.analysis.find_solution`.

    That code needs an old version of pandas.
    """
    episode = np.arange(1, len(row) + 1)
    frame = pd.DataFrame({"episode": episode, "total_bad_episodes": np.cumsum(~row)})
    solved = frame[frame.total_bad_episodes / frame.episode < 0.9].episode
    return int(solved.min()) if len(solved) else None


@pytest.mark.parametrize("rate", [0.0, 0.08, 0.12, 0.5, 1.0])
def test_it_is_the_rule_of_bsuite(tmp_path, rate):
    found = np.random.default_rng(3).random((6, 400)) < np.linspace(0, 2 * rate, 400)
    solved = episodes_to_solve(played(tmp_path, found, first=4))
    assert solved == {4 + i: bsuites(row) for i, row in enumerate(found)}
    # Logged less often, the number is the next log point at which the rule holds.
    for seed, number in episodes_to_solve(played(tmp_path, found, every=20)).items():
        exact = bsuites(found[seed])
        assert (number is None) or (number % 20 == 0 and exact <= number)


def test_what_is_kept_of_a_thinned_run_goes_before_its_log(tmp_path):
    run = played(tmp_path, np.zeros((2, 20), bool))
    assert episodes_to_solve(run) == {0: None, 1: None}
    (tmp_path / "summary.json").write_text(
        json.dumps({KEY: {"0": 12, "1": None}}), encoding="utf-8"
    )
    assert episodes_to_solve(run) == {0: 12, 1: None}


def test_the_table_and_the_figure(tmp_path):
    never, always = np.zeros((3, 40), bool), np.ones((3, 40), bool)
    some = np.stack([always[0], never[0], always[0]])
    groups = group_runs(
        [
            played(tmp_path, always, every=10),
            played(tmp_path, some, every=10, size=20),
            played(tmp_path, never, preset="dqn-ts"),
        ]
    )
    table = deep_sea_table(groups)
    assert list(table.header) == ["agent", "N = 10", "N = 20"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["dqn", "10 (3 of 3)", "10 (2 of 3)"],
        ["dqn-ts", "∞ (0 of 3)", ""],
    ]
    (panel,) = deep_sea_figure(groups).axes
    lines = {
        line.get_label(): line.get_xydata().tolist()
        for line in panel.lines
        if not line.get_label().startswith("_")
    }
    # Beside each other by a fiftieth of the axis at most.
    assert {name: np.round(line).astype(int).tolist() for name, line in lines.items()} == {
        "dqn": [[10, 10], [20, 10]],
        "dqn-ts": [],
    }
    (cross,) = [line for line in panel.lines if line.get_marker() == "x" and len(line.get_xdata())]
    (border,) = [line.get_ydata()[0] for line in panel.lines if len(set(line.get_ydata())) == 1
                 and line.get_marker() == "None"]  # fmt: skip
    assert round(float(cross.get_xdata()[0])) == 10
    assert cross.get_ydata()[0] > border > 10, "unsolved, above all that was solved"
    assert cross.get_color() == LOOKS["dqn-ts"][0]
    unsolved = [group for group in groups if group.agent == "dqn-ts"]
    assert deep_sea_figure(unsolved) is None
    others = group_runs([make([[1.0]])])
    assert deep_sea_table(others) is None
    assert deep_sea_figure(others) is None


def test_an_unsolved_seed_counts_as_infinity_in_the_median(tmp_path):
    """Three of five: the median of 10, 20, 30, ∞, ∞. Two of four: the median is infinite."""

    def run(count, first_solved, **more):
        found = np.zeros((count, 40), bool)
        for seed, episode in enumerate(first_solved):
            found[seed, episode - 1 :] = True
            found[seed, : episode - 1] = False
        return played(tmp_path, found, **more)

    three, two = run(5, [10, 20, 30]), run(4, [10, 20], preset="dqn-ts")
    solved = [n for n in episodes_to_solve(three).values() if n is not None]
    assert len(solved) == 3
    groups = group_runs([three, two])
    cells = {row[0].text: row[1] for row in deep_sea_table(groups).rows}
    assert cells["dqn"].value == max(solved)
    assert cells["dqn"].text == f"{max(solved)} (3 of 5)"
    assert cells["dqn-ts"] == Cell("∞ (2 of 4)", np.inf)
    (panel,) = deep_sea_figure(groups).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert (drawn["dqn"], drawn["dqn-ts"]) == ([max(solved)], [])


def test_the_cost_of_the_moves_is_that_of_the_environment():
    assert deep_sea.MOVE_COST == MOVE_COST
