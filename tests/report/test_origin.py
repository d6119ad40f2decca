"""Where runs come from, as a table."""

from spectral_bellman.report.groups import group_runs
from spectral_bellman.report.origin import origin_table
from spectral_bellman.report.runs import Run

from .made import make


def known(run: Run, **facts: object) -> Run:
    return Run(run.folder, {**run.config, "provenance": facts}, run.records)


def test_each_agent_names_its_seeds_commits_and_hardware() -> None:
    cpu = {"device": ["cpu"], "processor": "AMD"}
    runs = [
        known(make([[0.0]] * 3), commit="0123456789abcdef", **cpu),
        known(make([[0.0]], first=5, name="more"), commit="fedcba9876543210+", **cpu),
        known(make([[0.0]], env="gym/x"), commit=None, device=["NVIDIA H200"], processor="Xeon"),
        make([[0.0]], preset="ts"),
    ]
    table = origin_table(group_runs(runs))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["dqn", "2", "0–2, 5", "0123456, fedcba9+, not known", "AMD, NVIDIA H200"],
        ["ts", "1", "0", "not known", "not known"],
    ]
