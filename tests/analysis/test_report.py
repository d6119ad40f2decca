import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from spectral_bellman.analysis.groups import Group, group_runs
from spectral_bellman.analysis.report import curves_figure, diagnostics_figure, report, summarise
from spectral_bellman.analysis.runs import Run
from spectral_bellman.analysis.statistics import bootstrap_interval

Rows = Sequence[Sequence[float | None]]


def make(
    returns: Rows,
    *,
    env: str = "minatar/breakout",
    preset: str = "dqn",
    first: int = 0,
    every: int = 10,
    name: str = "run",
    **more: Any,
) -> Run:
    """A run with a row of returns for each seed; ``more``: other rows by key, and ``agent``."""
    config = {"preset": preset, "env": env, "agent": more.pop("agent", {}), "provenance": {"command": f"sbm train {preset}"}}
    records = []
    for t in range(len(returns[0])):
        for s in range(len(returns)):
            extra = {key: rows[s][t] for key, rows in more.items() if rows[s][t] is not ...}
            fixed = {"seed": first + s, "frames": every * (t + 1), "frames_per_s": 1000.0 if t else 1.0}
            records.append({**fixed, "return": returns[s][t], **extra})
    return Run(Path(name), config, records)


def save(run: Run, folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.config), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in run.records), encoding="utf-8")
    return folder


def panels(figure: Any) -> dict[tuple[str, str], Axes]:
    return {(panel.get_title(), panel.get_ylabel()): panel for panel in figure.axes if panel.axison}


def lines(panel: Axes) -> dict[str, np.ndarray]:
    """The labelled lines, (T, 2) each."""
    return {str(line.get_label()): line.get_xydata() for line in panel.lines if not str(line.get_label()).startswith("_")}


def test_the_same_agent_is_pooled_over_folders() -> None:
    groups = group_runs([make([[1.0]]), make([[2.0]], first=1, name="other"), make([[3.0]], env="gym/x")])
    assert [(g.env, g.agent, len(g.runs)) for g in groups] == [("gym/x", "dqn", 1), ("minatar/breakout", "dqn", 2)]
    assert summarise(groups[1])["scores"] == [1, 2]
    assert summarise(groups[1])["seeds"] == [0, 1]


def test_a_seed_counts_once() -> None:
    with pytest.raises(ValueError, match=r"seed 1 of dqn in minatar/breakout is in both a and b; give one of them"):
        group_runs([make([[1.0], [2.0]], name="a"), make([[2.0]], first=1, name="b")])


def test_agents_are_labelled_by_what_differs() -> None:
    settings = [
        {"alpha": 0.1, "net": {"width": 8}},
        {"alpha": 0.3, "net": {"width": 8}},
        {"alpha": 0.3, "net": {"width": [9, 9]}},
        {},
    ]
    runs = [make([[1.0]], preset="ts", agent=agent) for agent in settings]
    assert [g.agent for g in group_runs([*runs[:2], make([[1.0]])])] == ["dqn", "ts (alpha=0.1)", "ts (alpha=0.3)"]
    assert [g.agent for g in group_runs(runs)] == [
        "ts (alpha=0.1, net.width=8)",
        "ts (alpha=0.3, net.width=8)",
        "ts (alpha=0.3, net.width=[9, 9])",
        "ts (alpha=1.0, net.width=unset)",
    ]


def test_labels_name_as_few_settings_as_tell_agents_apart() -> None:
    settings = [
        {"alpha": 1, "norm": "unit", "representation": "mse", "width": 8},
        {"alpha": 1, "norm": "unit", "representation": "spectral", "width": 8},
        {"alpha": 2, "norm": "none", "representation": "averaged", "width": 9},
        {"alpha": 1, "norm": "none", "representation": "averaged", "width": 9},
    ]
    runs = [make([[1.0]], preset="sbm", agent=agent) for agent in settings]
    assert [g.agent for g in group_runs(runs[1:3])] == ["sbm (norm=none)", "sbm (norm=unit)"]
    assert {g.agent for g in group_runs(runs[:3])} == {f"sbm (representation={x['representation']})" for x in settings[:3]}
    assert {g.agent for g in group_runs(runs)} == {
        f"sbm (alpha={x['alpha']}, representation={x['representation']})" for x in settings
    }
    numbers = [make([[1.0]], agent=dict(zip("abcd", values, strict=True))) for values in np.eye(5, 4).tolist()]
    assert len({g.agent for g in group_runs(numbers)}) == 5  # more than three are needed, and all are there
    assert group_runs(numbers)[0].agent.count("=") == 4


def test_a_run_older_than_a_setting_had_what_it_is_when_nobody_sets_it() -> None:
    old, new, other = ({"representation": "expected"} | more for more in ({}, {"head_rate": 1.0}, {"head_rate": 0.1}))
    runs = [make([[1.0]], first=i, preset="sbm", agent=agent) for i, agent in enumerate((old, new))]
    assert [(g.agent, len(g.runs)) for g in group_runs(runs)] == [("sbm", 2)]
    labels = [g.agent for g in group_runs([*runs, make([[1.0]], preset="sbm", agent=other)])]
    assert labels == ["sbm (head_rate=0.1)", "sbm (head_rate=1.0)"]


def test_a_setting_that_goes_with_the_environment_is_no_label_but_labels_are_the_same_in_all() -> None:
    wide = make([[1.0]], env="gym/x", agent={"alpha": 1, "width": 9})
    narrow = [make([[1.0]], agent={"alpha": alpha, "width": 8}) for alpha in (1, 2)]
    assert [g.agent for g in group_runs([wide, narrow[0]])] == ["dqn", "dqn"]
    assert [(g.env[:3], g.agent) for g in group_runs([wide, *narrow])] == [
        ("gym", "dqn (alpha=1)"),
        ("min", "dqn (alpha=1)"),
        ("min", "dqn (alpha=2)"),
    ]


def test_the_score_is_the_last_evaluation() -> None:
    run = make([[0.0] * 3] * 2, eval_return=[[1.0, ..., 5.0], [2.0, ..., None]])
    assert summarise(Group("e", "a", [run]))["score"] == "eval_return"
    assert summarise(Group("e", "a", [run]))["scores"] == [5, 2]


def test_without_evaluations_it_is_the_end_of_training() -> None:
    """Of 110 frames the last tenth holds two log points; where no episode ended in it, the last one counts."""
    run = make([[0.0] * 9 + [3.0, 5.0], [0.0] * 8 + [4.0, None, 8.0], [0.0] * 8 + [6.0, None, None], [None] * 11])
    row = summarise(Group("e", "a", [run]))
    assert row["score"] == "return"
    assert row["scores"] == [4, 8, 6, None]
    assert row["mean"]["value"] == 6
    evaluated = make([[7.0] * 11], first=5, eval_return=[[1.0] * 11])
    assert summarise(Group("e", "a", [run, evaluated]))["scores"] == [4, 8, 6, None, 7], "one kind of score for all"


def test_every_episode_of_the_end_of_training_counts_once() -> None:
    """One episode that was quick, and then nineteen that began with it."""
    run = make([[0.0] * 9 + [50.0, 10.0]], episodes=[[5] * 9 + [6, 25]])
    assert summarise(Group("e", "a", [run]))["scores"] == [pytest.approx((50 + 19 * 10) / 20)]


def test_the_numbers_of_a_line() -> None:
    scores = [1.0, 2.0, 3.0, 10.0, 20.0]
    row = summarise(Group("e", "a", [make([[0.0, 0.0, score] for score in scores])]))
    assert (row["mean"]["value"], row["median"]["value"], row["IQM"]["value"]) == (7.2, 3, 5)
    expected = bootstrap_interval(scores, np.median)
    assert row["median"] == {"value": 3, "low": expected.low, "high": expected.high}
    assert row["frames"] == [30]
    assert row["frames_per_s"] == 1000, "the first line, with the compilation in it, does not count"
    assert summarise(Group("e", "a", [make([[1.0]])]))["mean"] == {"value": 1, "low": None, "high": None}
    assert summarise(Group("e", "a", [make([[None]])]))["mean"] is None


def test_curves_hold_the_mean_the_band_and_the_seeds() -> None:
    returns = [[None, 2.0, 3.0], [1.0, 4.0, 8.0]]
    panel = panels(curves_figure(group_runs([make(returns)])))["minatar/breakout", "training return"]
    assert lines(panel)["dqn"].tolist() == [[20, 3], [30, 5.5]], "from where every seed has a value"
    faint = [line.get_ydata() for line in panel.lines if line.get_alpha() is not None]
    np.testing.assert_array_equal(faint, [[np.nan, 2, 3], [1, 4, 8]])
    corners = panel.collections[0].get_paths()[0].vertices
    assert {(x, y) for x, y in corners} >= {(20, 2), (20, 4), (30, 3), (30, 8)}, "of two seeds, the band spans both"
    alone = panels(curves_figure(group_runs([make([[1.0, 2.0]])])))["minatar/breakout", "training return"]
    assert (len(alone.lines), len(alone.collections)) == (1, 0)


def test_evaluations_have_panels_beside_and_frames_their_unit() -> None:
    runs = [make([[1.0, 2.0]], eval_return=[[..., 5.0]]), make([[3.0, 4.0]], env="atari/Pong", preset="ts")]
    drawn = panels(curves_figure(group_runs(runs)))
    assert list(drawn) == [
        (env, what) for env in ("atari/Pong", "minatar/breakout") for what in ("training return", "greedy return")
    ]
    assert lines(drawn["minatar/breakout", "greedy return"])["dqn"].tolist() == [[20, 5]]
    assert lines(drawn["atari/Pong", "training return"])["ts"].tolist() == [[10, 3], [20, 4]]
    assert not drawn["atari/Pong", "greedy return"].lines
    assert drawn["atari/Pong", "training return"].get_xlabel() == "frames (4 an agent step)"
    assert drawn["minatar/breakout", "training return"].get_xlabel() == "frames (= agent steps)"


def test_many_environments_share_rows() -> None:
    runs = [make([[1.0]], env=f"gym/{name}", eval_return=[[2.0]]) for name in "abcd"]
    for count, columns in ((3, 2), (4, 4)):
        figure = curves_figure(group_runs(runs[:count]))
        assert figure.axes[0].get_gridspec().ncols == columns
        assert len(panels(figure)) == 2 * count


def test_an_agent_has_one_colour_and_the_legend_shows_it() -> None:
    runs = [
        make([[1.0, 2.0]], env=env, preset=f"agent-{i}") for env in ("gym/x", "gym/y") for i in range(9) if (env, i) != ("gym/x", 0)
    ]
    figure = curves_figure(group_runs(runs))
    shown = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.legends[0].get_lines()}
    assert len(shown) == len(set(shown.values())) == 9
    for panel in panels(figure).values():
        assert panel.lines
        for line in panel.lines:
            assert (line.get_color(), line.get_linestyle()) == shown[line.get_label()]


def test_pooled_runs_that_logged_at_other_frames_are_read_off_at_those_of_the_longest() -> None:
    slow, fast = make([[0.0, 4.0, 8.0]], every=20), make([[1.0, 2.0, 3.0, None, 5.0]], every=10, first=1)
    frames, values = group_runs([fast, slow])[0].curve("return")
    assert frames.tolist() == [20, 40, 60]
    np.testing.assert_array_equal(values, [[2, 3, np.nan], [0, 4, 8]])


def test_nulls_do_not_spread() -> None:
    _, values = Group("e", "a", [make([[0.0] * 4], loss=[[1.0, None, 3.0, None]])]).curve("loss")
    np.testing.assert_array_equal(values, [[1, np.nan, 3, np.nan]])


def test_diagnostics_have_a_panel_each_and_a_log_scale_where_it_helps() -> None:
    def rows(*values: float) -> dict[str, Any]:
        return {
            "diagnostic/wide": [values],
            "diagnostic/signed": [[-v for v in values]],
            "diagnostic/near": [[v + 100 for v in values]],
        }

    runs = [make([[0.0, 0.0]], **rows(1.0, 1000.0), loss=[[1.0, 2.0]]), make([[0.0, 0.0]], preset="ts", **rows(2.0, 3.0))]
    figure = diagnostics_figure(group_runs(runs))
    drawn = {title: panel for (title, _), panel in panels(figure).items()}
    assert {title: panel.get_yscale() for title, panel in drawn.items()} == {"wide": "log", "signed": "linear", "near": "linear"}
    assert {name: line.tolist() for name, line in lines(drawn["wide"]).items()} == {
        "dqn": [[10, 1], [20, 1000]],
        "ts": [[10, 2], [20, 3]],
    }
    assert diagnostics_figure(group_runs([make([[0.0]])])) is None


def test_diagnostics_of_two_environments_do_not_share_a_panel() -> None:
    runs = [make([[0.0]], env=f"gym/{v}", **{"diagnostic/effective_rank": [[float(v)]]}) for v in (1, 2)]
    drawn = panels(diagnostics_figure(group_runs(runs)))
    assert {title: lines(panel)["dqn"].tolist() for (title, _), panel in drawn.items()} == {
        "effective rank\ngym/1": [[10, 1]],
        "effective rank\ngym/2": [[10, 2]],
    }


def test_a_report_from_end_to_end(tmp_path: Path) -> None:
    extra = {"eval_return": [[1.0, 12.0], [1.0, 14.0]], "diagnostic/theta_norm": [[1.0, 2.0], [1.0, 2.0]]}
    save(make([[0.0, 1.0]] * 2, preset="ts", **extra), tmp_path / "runs" / "a")
    save(make([[0.0, 1500.0]], env="atari/Pong"), tmp_path / "runs" / "b")
    save(Run(tmp_path, {"preset": "new", "env": "gym/x"}, []), tmp_path / "runs" / "c")
    console = Console(width=200, record=True, file=io.StringIO())
    written = report([tmp_path / "runs"], tmp_path / "out", console)
    assert [path.name for path in written] == [
        "curves.png",
        "diagnostics.png",
        "table.md",
        "tables.tex",
        "index.html",
        "report.json",
    ]
    printed = console.export_text()
    assert all(f"Written: {path}" in printed for path in written)
    assert f"Nothing logged yet, left out: {tmp_path / 'runs' / 'c'}" in printed
    assert "[12, 14]" in printed
    for path in written[:2]:
        image = matplotlib.image.imread(path)
        assert image.shape[1] > 500
        assert len(np.unique(image[..., :3] @ np.array([1, 10, 100]))) > 20
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines() == [
        "## Final scores",
        "",
        "| env | agent | seeds | frames | score | mean | median | IQM | training | frames/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| atari/Pong | dqn | 1 | 20 | training | 1,500 | 1,500 | 1,500 | 1,500 | 500 |",
        "| minatar/breakout | ts | 2 | 20 | greedy | 13 [12, 14] | 13 [12, 14] | 13 [12, 14] | 1 | 500 |",
        "",
        "- greedy: the last evaluation of each seed",
        "- training: the return of the training policy, mean over the episodes that ended in the last tenth of the frames",
        "- [ ]: 95% bootstrap interval over seeds",
    ]
    assert "breakout & ts & 2 & 20 & greedy & 13 [12, 14]" in (tmp_path / "out" / "tables.tex").read_text(encoding="utf-8")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"]*)', page))  # nothing but itself
    numbers = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert numbers["provenance"]["command"]
    assert [group["mean"]["value"] for group in numbers["groups"]] == [1500, 13]
    assert numbers["groups"][1]["runs"][0]["provenance"] == {"command": "sbm train ts"}
    assert numbers["groups"][1]["runs"][0]["folder"] == str(tmp_path / "runs" / "a")


def test_missing_scores_and_uneven_runs_are_told_in_the_table(tmp_path: Path) -> None:
    save(make([[None, None], [1.0, 2.0]]), tmp_path / "runs" / "a")
    save(make([[4.0] * 3], first=2), tmp_path / "runs" / "b")
    report([tmp_path / "runs"], tmp_path / "out", Console(quiet=True))
    row = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()[4]
    assert "| 2 of 3 | 20–30 | training | 3 [2, 4] |" in row


def test_where_a_report_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = save(make([[1.0]]), tmp_path / "runs" / "a")
    assert {path.parent for path in report([tmp_path / "runs"], None, Console(quiet=True))} == {first}
    save(make([[1.0]], preset="ts"), tmp_path / "runs" / "b")
    assert {path.parent for path in report([tmp_path / "runs"], None, Console(quiet=True))} == {Path("out/report")}


def test_nothing_logged_is_an_error(tmp_path: Path) -> None:
    folder = save(Run(tmp_path, {"preset": "new", "env": "gym/x"}, []), tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"nothing logged yet in .*a; come back"):
        report([folder], None, Console(quiet=True))
