"""The figures of a report: what is drawn in which panel."""

from typing import Any

import numpy as np

from spectral_bellman.report.aggregate import comparisons
from spectral_bellman.report.curves import curves_figure, diagnostics_figure, games_figure
from spectral_bellman.report.figures import CHOSEN
from spectral_bellman.report.groups import group_runs

from .made import lines, make, panels


def test_curves_hold_the_mean_the_band_and_the_seeds() -> None:
    returns = [[None, 2.0, 3.0], [1.0, 4.0, 8.0]]
    panel = panels(curves_figure(group_runs([make(returns)])))[
        "minatar/breakout", "training return"
    ]
    assert lines(panel)["dqn"].tolist() == [[20, 3], [30, 5.5]], "from where every seed has a value"
    faint = [line.get_ydata() for line in panel.lines if line.get_alpha() is not None]
    np.testing.assert_array_equal(faint, [[np.nan, 2, 3], [1, 4, 8]])
    corners = panel.collections[0].get_paths()[0].vertices
    assert {(x, y) for x, y in corners} >= {(20, 2), (20, 4), (30, 3), (30, 8)}, (
        "of two seeds, the band spans both"
    )
    alone = panels(curves_figure(group_runs([make([[1.0, 2.0]])])))[
        "minatar/breakout", "training return"
    ]
    assert (len(alone.lines), len(alone.collections)) == (1, 0)


def test_evaluations_have_panels_beside_and_frames_their_unit() -> None:
    runs = [
        make([[1.0, 2.0, 3.0, 4.0]], eval_return=[[..., 5.0, 6.0, 7.0]]),
        make([[1.0, 2.0]], env="gym/x", eval_return=[[5.0, 6.0]]),
        make([[3.0, 4.0]], env="atari/Pong", preset="ts"),
    ]
    drawn = panels(curves_figure(group_runs(runs)))
    assert list(drawn) == [
        ("atari/Pong", "training return"),
        ("gym/x", "training return"),
        ("minatar/breakout", "training return"),
        ("minatar/breakout", "greedy return"),
    ], "two evaluations are no curve"
    evaluated = lines(drawn["minatar/breakout", "greedy return"])["dqn"]
    assert evaluated.tolist() == [[20, 5], [30, 6], [40, 7]]
    assert lines(drawn["atari/Pong", "training return"])["ts"].tolist() == [[10, 3], [20, 4]]
    assert drawn["atari/Pong", "training return"].get_xlabel() == "frames (4 per agent step)"
    assert drawn["minatar/breakout", "training return"].get_xlabel() == "frames (= agent steps)"


def test_many_environments_share_rows() -> None:
    three = [[1.0, 2.0, 3.0]]
    runs = [make(three, env=f"gym/{name}", eval_return=three) for name in "abcd"]
    for count, columns in ((3, 2), (4, 4)):
        figure = curves_figure(group_runs(runs[:count]))
        assert figure.axes[0].get_gridspec().ncols == columns
        assert len(panels(figure)) == 2 * count


def test_both_panels_of_an_environment_stay_in_one_row() -> None:
    three = [[1.0, 2.0, 3.0]]
    runs = [make(three, env=f"gym/{name}", eval_return=three) for name in "bcd"]
    figure = curves_figure(group_runs([make(three, env="gym/a"), *runs]))
    rows = [[title for title, _ in row] for row in _in_rows(figure)]
    assert rows == [["gym/a", "gym/b", "gym/b"], ["gym/c", "gym/c", "gym/d", "gym/d"]]


def _in_rows(figure: Any) -> list[list[tuple[str, str]]]:
    rows: dict[int, list[tuple[str, str]]] = {}
    for name, panel in panels(figure).items():
        rows.setdefault(panel.get_subplotspec().rowspan.start, []).append(name)
    return list(rows.values())


def test_a_panel_has_the_baseline_and_the_best_and_the_legend_says_so() -> None:
    runs = [make([[float(i)]], preset=f"agent-{i}") for i in range(7)]
    groups = group_runs([*runs, make([[-1.0]])])
    figure = curves_figure(groups)
    (panel,) = panels(figure).values()
    assert sorted(lines(panel)) == [*(f"agent-{i}" for i in range(2, 7)), "dqn"]
    (legend,) = figure.legends
    assert CHOSEN in legend.get_title().get_text()
    assert {text.get_text() for text in legend.get_texts()} == set(lines(panel))
    few = curves_figure(group_runs(runs[:6]))
    assert CHOSEN not in few.legends[0].get_title().get_text()


def test_an_agent_has_one_colour_and_the_legend_shows_it() -> None:
    runs = [
        make([[1.0, 2.0]], env=env, preset=f"agent-{i}")
        for env, agents in (("gym/x", range(4, 9)), ("gym/y", range(5)))
        for i in agents
    ]
    figure = curves_figure(group_runs(runs))
    shown = {
        line.get_label(): (line.get_color(), line.get_linestyle())
        for line in figure.legends[0].get_lines()
    }
    assert len(shown) == len(set(shown.values())) == 9
    for panel in panels(figure).values():
        assert panel.lines
        for line in panel.lines:
            assert (line.get_color(), line.get_linestyle()) == shown[line.get_label()]


def test_diagnostics_have_a_panel_each_and_a_log_scale_where_it_helps() -> None:
    def rows(*values: float) -> dict[str, Any]:
        return {
            "diagnostic/wide": [values],
            "diagnostic/signed": [[-v for v in values]],
            "diagnostic/near": [[v + 100 for v in values]],
        }

    runs = [
        make([[0.0, 0.0]], **rows(1.0, 1000.0), loss=[[1.0, 2.0]]),
        make([[0.0, 0.0]], preset="ts", **rows(2.0, 3.0)),
    ]
    figure = diagnostics_figure(group_runs(runs))
    drawn = {title: panel for (title, _), panel in panels(figure).items()}
    assert {title: panel.get_yscale() for title, panel in drawn.items()} == {
        "wide": "log",
        "signed": "linear",
        "near": "linear",
    }
    assert {name: line.tolist() for name, line in lines(drawn["wide"]).items()} == {
        "dqn": [[10, 1], [20, 1000]],
        "ts": [[10, 2], [20, 3]],
    }
    assert diagnostics_figure(group_runs([make([[0.0]])])) is None


def test_diagnostics_of_two_environments_do_not_share_a_panel() -> None:
    runs = [
        make([[0.0]], env=f"gym/{v}", **{"diagnostic/effective_rank": [[float(v)]]}) for v in (1, 2)
    ]
    drawn = panels(diagnostics_figure(group_runs(runs)))
    assert {title: lines(panel)["dqn"].tolist() for (title, _), panel in drawn.items()} == {
        "effective rank\ngym/1": [[10, 1]],
        "effective rank\ngym/2": [[10, 2]],
    }


def test_two_sets_of_as_many_games_have_panels_of_their_own() -> None:
    played = {"dqn": "ab", "ts": "ab", "ucb": "bc", "mse": "bc"}
    games = dict(zip("abc", ("asterix", "breakout", "freeway"), strict=True))
    runs = [
        make([[0.0, 1.0]], preset=preset, env=f"minatar/{games[letter]}")
        for preset, letters in played.items()
        for letter in letters
    ]
    found = comparisons(group_runs(runs))
    assert [each.title for each in found] == ["MinAtar: 2 games"] * 2
    figure = games_figure(found)
    assert figure is not None
    assert [sorted(lines(panel)) for panel in figure.axes] == [
        *[["dqn", "ts"]] * 2,
        *[["mse", "ucb"]] * 2,
    ]
