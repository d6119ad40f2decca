"""What is kept under results/: its size, its links, and that its tables can be made again."""

import re
import zipfile
from pathlib import Path

import pytest

from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.commands.suites import SUITES
from spectral_bellman.report.groups import group_runs
from spectral_bellman.report.report import summarise, tables_of
from spectral_bellman.report.runs import find_runs, load_run
from spectral_bellman.report.tables import to_markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MOST_BYTES = 4_000_000
TABLES = {
    *("demo", "tabular", "memory", "minatar", "minatar_controls", "hidden_minatar"),
    *("atari", "deep_sea", "dqn_check", "speed"),
}
WITHOUT_RUNS = {"atari_55", "atari_r2d2", "deep_sea_features"}
"""Tables of suites of which no run is kept."""
ARCHIVES = sorted(path.parent.name for path in RESULTS.glob("*/runs.zip"))


def test_results_stay_small() -> None:
    sizes = {path: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < MOST_BYTES


def test_every_folder_is_a_table_that_the_docs_link_to() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(\.\./results/(\w+)", text))
    assert {path.name for path in RESULTS.iterdir()} == linked == TABLES


def test_runs_are_kept_in_archives_of_tables() -> None:
    assert {"minatar", "atari", "deep_sea", "dqn_check"} <= set(ARCHIVES)
    assert {suite.table for suite in SUITES.values()} <= TABLES | WITHOUT_RUNS
    assert not list(RESULTS.rglob("metrics.jsonl"))


def test_nothing_kept_names_a_folder_of_somebodys_machine() -> None:
    texts = {path: path.read_bytes() for path in RESULTS.rglob("*") if path.suffix != ".zip"
             and path.is_file()}  # fmt: skip
    for name in ARCHIVES:
        with zipfile.ZipFile(RESULTS / name / "runs.zip") as file:
            texts |= {RESULTS / name / each: file.read(each) for each in file.namelist()}
    for path, data in texts.items():
        if path.suffix != ".png":
            assert not re.search(rb"[\s\"=](/home|/root|/work|/tmp|/Users)/", data), path


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_table_can_be_made_again_from_the_runs(name: str) -> None:
    groups = group_runs([load_run(path) for path in find_runs([RESULTS / name])])
    rows = {preset: value.row for preset, value in PRESETS.items()}
    tables = tables_of(groups, [summarise(group) for group in groups], rows)
    kept = (RESULTS / name / "table.md").read_text(encoding="utf-8")
    assert "\n".join(map(to_markdown, tables)) == kept
