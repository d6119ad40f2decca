"""How many episodes it took to solve DeepSea, by bsuite's rule."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spectral_bellman.analysis.figures import styles, tidy
from spectral_bellman.analysis.groups import Group
from spectral_bellman.analysis.runs import Run
from spectral_bellman.analysis.sheets import Cell, Sheet
from spectral_bellman.environments.deep_sea import MOVE_COST

KEY = "episodes_to_solve"
"""In the summary of a run that is kept, whose log is thinned."""
RULE = "Solved, by bsuite's rule: the first log point at which fewer than 90% of all episodes so far missed the treasure"


def episodes_to_solve(run: Run) -> dict[int, int | None]:
    """Seed -> the episodes it took, None if it was not solved; as exact as the log points are close."""
    kept = _summary(run.folder).get(KEY)
    if kept is not None:
        return {int(seed): episodes for seed, episodes in kept.items()}
    solved: dict[int, int | None] = {}
    for seed in run.seeds:
        episodes, found, solved[seed] = 0, 0.0, None
        for record in sorted((r for r in run.records if r["seed"] == seed and "episodes" in r), key=lambda r: int(r["frames"])):
            more = record["episodes"] - episodes
            if more and record["return"] is not None:
                # An episode with treasure returns 1 − cost, one without it between −cost and 0.
                found += round(more * (record["return"] + MOVE_COST / 2) / (1 - MOVE_COST / 2))
            episodes = record["episodes"]
            if episodes and (episodes - found) / episodes < 0.9:
                solved[seed] = episodes
                break
    return solved


def deep_sea_sheet(groups: Sequence[Group]) -> Sheet | None:
    """A line for each agent, a column for each size; None where nobody played it."""
    table = _table(groups)
    if not table:
        return None
    sizes = sorted({size for row in table.values() for size in row})
    rows = [[Cell(agent), *(_cell(row.get(size)) for size in sizes)] for agent, row in table.items()]
    header = ("agent", *(f"N = {size}" for size in sizes))
    return Sheet("DeepSea: episodes to solve", header, rows, [RULE, "Median over the seeds that solved it (how many did)"])


def deep_sea_figure(groups: Sequence[Group]) -> Figure | None:
    """Episodes against size: every seed a dot, the median of all a line where half of them solved it; None if nobody did."""
    table = _table(groups)
    if not any(number is not None for row in table.values() for numbers in row.values() for number in numbers):
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel, look = figure.subplots(), styles(groups)
    for agent, row in table.items():
        sizes = sorted(row)
        for size in sizes:
            known = [n for n in row[size] if n is not None]
            panel.plot([size] * len(known), known, "o", color=look[agent]["color"], ms=3, alpha=0.35)
        medians = [(size, float(np.median([np.inf if n is None else n for n in row[size]]))) for size in sizes]
        inside = [(size, median) for size, median in medians if np.isfinite(median)]
        # An agent without a line is in the legend all the same.
        x, y = zip(*inside, strict=True) if inside else ((), ())
        panel.plot(x, y, **look[agent], marker="o", lw=1.8, label=agent)
    panel.set(xlabel="size N", ylabel="episodes to solve", yscale="log", title="DeepSea")
    tidy(panel)
    sizes = sorted({size for row in table.values() for size in row})
    panel.set(xlim=(sizes[0] - 1, sizes[-1] + 1), xticks=sizes)
    panel.legend(frameon=False)
    return figure


def _cell(numbers: list[int | None] | None) -> Cell:
    if numbers is None:
        return Cell("")
    known = [number for number in numbers if number is not None]
    median = float(np.median(known)) if known else None
    return Cell(f"{'–' if median is None else f'{median:,.0f}'} ({len(known)} of {len(numbers)})", median)


def _table(groups: Sequence[Group]) -> dict[str, dict[int, list[int | None]]]:
    """Agent -> size -> the episodes of each seed."""
    table: dict[str, dict[int, list[int | None]]] = {}
    for group in groups:
        if match := re.fullmatch(r"deep_sea/(\d+)", group.env):
            numbers = [number for run in group.runs for number in episodes_to_solve(run).values()]
            table.setdefault(group.agent, {})[int(match[1])] = numbers
    return table


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    return json.loads(path.read_bytes()) if path.exists() else {}
