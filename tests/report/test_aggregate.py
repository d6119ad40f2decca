"""Agents over several games: which are compared on which, and the numbers against ``scores``."""

import numpy as np
import pytest

from spectral_bellman import scores
from spectral_bellman.report.aggregate import (
    aggregate_table,
    comparisons,
    curve,
    games_table,
    profile,
)
from spectral_bellman.report.curves import games_figure
from spectral_bellman.report.groups import group_runs

from .made import make

ROWS = {"sbm-dqn-ts": "SBM + DQN (TS)"}
BREAKOUT = {"dqn": [1.0, 2.0, 3.0], "sbm-dqn-ts": [4.0, 5.0, 6.0], "mse-dqn-ts": [0.0, 0.0, 9.0]}
ASTERIX = {"dqn": [3.0, 4.0, 5.0], "sbm-dqn-ts": [2.0, 6.0, 4.0, 5.0]}


def runs():
    made = [make([[0.0, x] for x in v], preset=p) for p, v in BREAKOUT.items()]
    made += [
        make([[0.0, x] for x in v], preset=p, env="minatar/asterix") for p, v in ASTERIX.items()
    ]
    return [*made, make([[1.0]], preset="dqn", env="gym/x")]


def normal(game, values):
    one, zero = scores.MINATAR[game]
    return (np.array(values) - zero) / (one - zero)


@pytest.fixture(scope="module")
def compared():
    (found,) = comparisons(group_runs(runs()))
    return found


def test_agents_are_compared_on_the_games_they_have_all_played(compared):
    assert compared.games == ("minatar/asterix", "minatar/breakout")
    assert list(compared.agents) == ["dqn", "sbm-dqn-ts"]
    np.testing.assert_allclose(
        compared.table("dqn"),
        np.stack([normal("asterix", [3, 4, 5]), normal("breakout", [1, 2, 3])], axis=1),
    )
    # One seed more on Asterix: as many as every game has.
    assert compared.table("sbm-dqn-ts").shape == (3, 2)


def test_every_set_of_games_is_a_comparison():
    more = [
        make([[1.0]], preset=name, env=f"minatar/{game}")
        for name in ("mse-dqn-ts", "dqn-ts")
        for game in ("asterix", "freeway")
    ]
    found = comparisons(group_runs(runs() + more))
    # All three games were played by mse-dqn-ts alone.
    assert [(f.games, list(f.agents)) for f in found] == [
        (("minatar/asterix", "minatar/breakout"), ["dqn", "mse-dqn-ts", "sbm-dqn-ts"]),
        (("minatar/asterix", "minatar/freeway"), ["dqn-ts", "mse-dqn-ts"]),
    ]


def test_sparse_atari_games_are_a_comparison_of_their_own():
    games = ("pong", "freeway", "boxing", "air_raid")
    found = comparisons(group_runs([make([[1.0]], env=f"atari/{game}") for game in games]))
    assert [f.title for f in found] == ["Atari: 3 games", "Atari: 2 games with sparse rewards"]
    assert found[1].games == ("atari/freeway", "atari/pong")
    assert found[0].table("dqn")[0, 0] == pytest.approx(scores.human_normalized("boxing", 1.0))


def test_the_aggregate_table(compared):
    table = aggregate_table(compared, ROWS)
    lines = {row[0].text: row for row in table.rows}
    for agent, row in lines.items():
        wanted = scores.aggregate(compared.table(agent))
        assert [cell.value for cell in row[4:7]] == [
            wanted[name].value for name in ("iqm", "median", "mean")
        ]
        assert [cell.best for cell in row[4:7]] == [agent == "sbm-dqn-ts"] * 3
    assert [cell.text for cell in lines["dqn"][7:]] == ["–", "–"]
    both = compared.table("sbm-dqn-ts"), compared.table("dqn")
    assert [cell.value for cell in lines["sbm-dqn-ts"][7:]] == [
        scores.iqm_difference(*both).value,
        scores.probability_of_improvement(*both).value,
    ]
    assert lines["sbm-dqn-ts"][1].text == "SBM + DQN (TS)"


def test_agents_are_compared_with_another_than_dqn(compared):
    table = aggregate_table(compared, ROWS, "sbm-dqn-ts")
    assert table.header[7:] == ("IQM minus sbm-dqn-ts's", "P(better than sbm-dqn-ts)")
    lines = {row[0].text: row for row in table.rows}
    assert lines["sbm-dqn-ts"][7].text == "–"
    assert lines["dqn"][7].value < 0


def test_training_has_a_column_where_there_are_evaluations(compared):
    assert "IQM in training" not in aggregate_table(compared, ROWS).header
    made = [
        make([[x] for x in returns], preset=preset, env=f"minatar/{game}", eval_return=[[9.0]] * 3)
        for preset, returns in (
            ("dqn", [1.0, 2.0, 3.0]),
            ("sbm-dqn-ts", [2.0, 3.0, 4.0]),
            ("dqn-ts", [None] * 3),
        )
        for game in ("asterix", "breakout")
    ]
    (both,) = comparisons(group_runs(made))
    table = aggregate_table(both, {})
    cells = {row[0].text: row[table.header.index("IQM in training")] for row in table.rows}
    wanted = scores.aggregate(
        np.stack([normal(game, [2, 3, 4]) for game in ("asterix", "breakout")], axis=1)
    )["iqm"]
    assert (cells["sbm-dqn-ts"].value, cells["sbm-dqn-ts"].best) == (
        pytest.approx(wanted.value),
        True,
    )
    assert not cells["dqn"].best
    assert cells["dqn-ts"].text == "–", "no episode of its ended"


def test_the_table_by_games(compared):
    table = games_table(compared)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["asterix", "4", "4.25"],
        ["breakout", "2", "5"],
    ]
    assert [[cell.best for cell in row] for row in table.rows] == [[False, False, True]] * 2
    atari = comparisons(
        group_runs([make([[7.0]], env=f"atari/{game}") for game in ("boxing", "pong")])
    )[0]
    assert [cell.text for cell in games_table(atari).rows[1]] == ["pong", "-20.7", "14.6", "7"]


def test_curves_end_where_the_scores_are_and_profiles_fall_from_all_to_none(compared):
    frames, interval = curve(compared, "dqn")
    assert (frames[0], frames[-1]) == (10, 20)
    assert interval.value[-1] == pytest.approx(scores.aggregate(compared.table("dqn"))["iqm"].value)
    assert np.all(interval.low <= interval.value + 1e-9)
    thresholds, shares = profile(compared, "sbm-dqn-ts")
    assert (shares.value[0], shares.value[-1]) == (1, 0)
    assert np.mean(compared.table("sbm-dqn-ts") > thresholds[20]) == shares.value[20]


def test_a_seed_without_an_episode_is_left_out_of_the_curve():
    seeds = [[0.0, 1.0], [None, None], [None, 3.0]]
    compared = comparisons(
        group_runs([make(seeds, env=f"minatar/{game}") for game in ("asterix", "breakout")])
    )[0]
    frames, interval = curve(compared, "dqn")
    assert (frames[0], frames[-1]) == (20, 20)  # where both of the others have a score
    middle = sorted([*normal("asterix", [1, 3]), *normal("breakout", [1, 3])])[1:3]
    assert interval.value[-1] == pytest.approx(np.mean(middle))
    assert compared.table("dqn").shape == (2, 2)


def test_the_figure_has_a_curve_and_a_profile_for_each_comparison(compared):
    figure = games_figure([compared])
    assert [len(panel.lines) for panel in figure.axes] == [2, 2]
    assert games_figure([]) is None


def test_one_evaluation_is_a_point_that_can_be_seen(compared):
    once = comparisons(
        group_runs([make([[5.0]], env=f"minatar/{game}") for game in ("asterix", "breakout")])
    )
    left, right = games_figure(once).axes
    assert [line.get_marker() for line in left.lines] == ["o"]
    assert [
        line.get_marker()
        for panel in (right, games_figure([compared]).axes[0])
        for line in panel.lines
    ] == ["None"] * 3
