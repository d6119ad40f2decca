"""Where the runs of a report come from: seeds, commits and hardware of each agent."""

from collections.abc import Iterable, Sequence
from typing import Any

from spectral_bellman.report.groups import Group
from spectral_bellman.report.tables import Cell, Table

UNKNOWN = "not known"
"""For a run whose config does not say."""
DIGITS = 7
"""Digits of a commit."""


def origin_table(groups: Sequence[Group]) -> Table:
    """A row for each agent, with what its runs have stored."""
    header = ("agent", "environments", "seeds", "commit", "hardware")
    agents: dict[str, list[Group]] = {}
    for group in groups:
        agents.setdefault(group.agent, []).append(group)
    rows = []
    for agent, played in agents.items():
        facts = [run.provenance for group in played for run in group.runs]
        seeds = {seed for group in played for run in group.runs for seed in run.seeds}
        texts = (
            _ranges(seeds),
            _listed(_commit(fact) for fact in facts),
            _listed(_hardware(fact) for fact in facts),
        )
        rows.append([Cell(agent), Cell(str(len(played)), len(played)), *map(Cell, texts)])
    notes = ["commit: of the source; + stands for changed files", "commands: in each config.json"]
    return Table("Where the runs come from", header, rows, notes, ("environments", "hardware"))


def _commit(facts: dict[str, Any]) -> str:
    commit = facts.get("commit")
    return commit[:DIGITS] + "+" * commit.endswith("+") if commit else UNKNOWN


def _hardware(facts: dict[str, Any]) -> str:
    """The accelerator, or the processor where JAX had nothing else."""
    devices = [name for name in facts.get("device") or [] if name != "cpu"]
    return ", ".join(devices) or facts.get("processor") or UNKNOWN


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2 and 5 as "0–2, 5"."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join("–".join(map(str, ends)) for ends in ranges)
