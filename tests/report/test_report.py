"""The report from end to end: its tables, its files and its numbers."""

import io
import json
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.disk.archive import add_runs
from spectral_bellman.report.groups import Group
from spectral_bellman.report.report import report, summarise
from spectral_bellman.report.runs import Run
from spectral_bellman.report.scoring import GREEDY_NOTE, TRAINING_NOTE
from spectral_bellman.report.statistics import bootstrap_interval

from .made import make, save


def test_the_numbers_of_a_line() -> None:
    scores = [1.0, 2.0, 3.0, 10.0, 20.0]
    row = summarise(Group("e", "a", [make([[0.0, 0.0, score] for score in scores])]))
    assert (row["mean"]["value"], row["median"]["value"], row["IQM"]["value"]) == (7.2, 3, 5)
    expected = bootstrap_interval(scores, np.median)
    assert row["median"] == {"value": 3, "low": expected.low, "high": expected.high}
    assert row["frames"] == [30]
    assert row["frames_per_s"] == 1000, "the first line, with the compilation in it, does not count"
    assert summarise(Group("e", "a", [make([[1.0]])]))["mean"] == {
        "value": 1,
        "low": None,
        "high": None,
    }
    assert summarise(Group("e", "a", [make([[None]])]))["mean"] is None


def test_a_report_from_end_to_end(tmp_path: Path) -> None:
    extra = {
        "eval_return": [[1.0, 12.0], [1.0, 14.0]],
        "diagnostic/theta_norm": [[1.0, 2.0], [1.0, 2.0]],
    }
    save(make([[0.0, 1.0]] * 2, preset="ts", **extra), tmp_path / "runs" / "a")
    save(make([[0.0, 1500.0]], env="atari/Pong"), tmp_path / "runs" / "b")
    save(Run(tmp_path, {"schema": 2, "preset": "new", "env": "gym/x"}, []), tmp_path / "runs" / "c")
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
        "| minatar/breakout | ts | 2 | 20 | 1 × 10 episodes | 13 [12, 14] | 13 [12, 14] "
        "| 13 [12, 14] | 1 | 500 |",
        "",
        f"- {GREEDY_NOTE}",
        f"- {TRAINING_NOTE}",
        "- [ ]: 95% bootstrap interval over seeds",
        "",
        "## Where the runs come from",
        "",
        "| agent | environments | seeds | commit | hardware |",
        "| --- | --- | --- | --- | --- |",
        "| dqn | 1 | 0 | not known | not known |",
        "| ts | 1 | 0–1 | not known | not known |",
        "",
        "- commit: of the source; + stands for changed files",
        "- commands: in each config.json",
    ]
    assert "breakout & ts & 2 & 20 & 1 $\\times$ 10 episodes & 13 [12, 14]" in (
        tmp_path / "out" / "tables.tex"
    ).read_text(encoding="utf-8")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    links = re.findall(r'(?:src|href)="([^"]*)', page)
    assert all(link.startswith("data:") for link in links), "no external files"
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


def test_agents_are_compared_with_the_one_that_is_named(tmp_path: Path) -> None:
    for preset in ("dqn", "mine"):
        for game in ("asterix", "breakout"):
            run = make([[1.0]], preset=preset, env=f"minatar/{game}")
            save(run, tmp_path / "runs" / f"{preset}-{game}")
    folders, out, quiet = [tmp_path / "runs"], tmp_path / "out", Console(quiet=True)
    report(folders, out, quiet, against="mine")
    assert "| P(better than mine) |" in (out / "table.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="--against 'others' is none of the agents: dqn, mine"):
        report(folders, out, quiet, against="others")


def test_the_papers_rows_come_from_the_caller(tmp_path: Path) -> None:
    for game in ("asterix", "breakout"):
        save(make([[1.0]], preset="ts", env=f"minatar/{game}"), tmp_path / "runs" / game)
    for rows, name in (({}, ""), ({"ts": "SBM + DQN (TS)"}, "SBM + DQN (TS)")):
        report([tmp_path / "runs"], tmp_path / "out", Console(quiet=True), rows)
        row = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()[4]
        assert row.startswith(f"| ts | {name} | training |")


def test_where_a_report_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = save(make([[1.0]]), tmp_path / "runs" / "a")
    assert {path.parent for path in report([tmp_path / "runs"], None, Console(quiet=True))} == {
        first
    }
    files = {name: (first / name).read_bytes() for name in ("config.json", "metrics.jsonl")}
    add_runs(tmp_path / "kept" / "runs.zip", {"a": files})
    assert {path.parent for path in report([tmp_path / "kept"], None, Console(quiet=True))} == {
        Path("out/report")
    }
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["runs.zip"]
    save(make([[1.0]], preset="ts"), tmp_path / "runs" / "b")
    assert {path.parent for path in report([tmp_path / "runs"], None, Console(quiet=True))} == {
        Path("out/report")
    }


def test_nothing_logged_is_an_error(tmp_path: Path) -> None:
    folder = save(Run(tmp_path, {"schema": 2, "preset": "new", "env": "gym/x"}, []), tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"nothing logged yet in .*a; come back"):
        report([folder], None, Console(quiet=True))
