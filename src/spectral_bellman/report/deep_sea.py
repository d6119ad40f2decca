"""Episodes needed to solve DeepSea, by bsuite's rule."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spectral_bellman.disk.run_folder import SUMMARY
from spectral_bellman.report.figures import styles, tidy
from spectral_bellman.report.groups import Group
from spectral_bellman.report.runs import Run
from spectral_bellman.report.tables import Cell, Table

KEY = "episodes_to_solve"
"""In the summary of a kept run, whose log is too sparse to compute it again."""
MOVE_COST = 0.01
"""What an episode of DeepSea costs at most, shared by the moves to the right."""
RULE = (
    "Solved, by bsuite's rule: the first log point at which fewer than 90% of all episodes so far "
    "missed the treasure"
)
MEDIAN = (
    "Median over all seeds, where an unsolved seed counts as ∞ (number of seeds that solved it)"
)


def episodes_to_solve(run: Run) -> dict[int, int | None]:
    """Seed -> episodes until it was solved, None if it was not; as exact as the log is dense."""
    kept = _summary(run.folder).get(KEY)
    if kept is not None:
        return {int(seed): episodes for seed, episodes in kept.items()}
    return {seed: _solved_after(run, seed) for seed in run.seeds}


def _solved_after(run: Run, seed: int) -> int | None:
    episodes, found = 0, 0.0
    for record in run.lines(seed, "episodes"):
        new = record["episodes"] - episodes
        if new and record["return"] is not None:
            # An episode with treasure returns 1 - cost, one without it between -cost and 0.
            found += round(new * (record["return"] + MOVE_COST / 2) / (1 - MOVE_COST / 2))
        episodes = record["episodes"]
        if episodes and (episodes - found) / episodes < 0.9:
            return int(episodes)
    return None


def median_episodes(numbers: Sequence[int | None]) -> float:
    """The median over seeds; an unsolved seed counts as infinity."""
    return float(np.median([math.inf if number is None else number for number in numbers]))


def deep_sea_table(groups: Sequence[Group]) -> Table | None:
    """A row for each agent, a column for each size; None if no group played DeepSea."""
    results = _results(groups)
    if not results:
        return None
    sizes = _sizes(results)
    rows = [
        [Cell(agent), *(_cell(row.get(size)) for size in sizes)] for agent, row in results.items()
    ]
    header = ("agent", *(f"N = {size}" for size in sizes))
    return Table("DeepSea: episodes to solve", header, rows, [RULE, MEDIAN])


def deep_sea_figure(groups: Sequence[Group]) -> Figure | None:
    """Episodes against size: a dot for each seed, a line through the finite medians.

    None if no seed solved it.
    """
    results = _results(groups)
    if not any(n is not None for row in results.values() for ns in row.values() for n in ns):
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel, look = figure.subplots(), styles(groups)
    for agent, row in results.items():
        for size in sorted(row):
            known = [n for n in row[size] if n is not None]
            color = look[agent]["color"]
            panel.plot([size] * len(known), known, "o", color=color, ms=3, alpha=0.35)
        medians = [(size, median_episodes(row[size])) for size in sorted(row)]
        finite = [(size, median) for size, median in medians if math.isfinite(median)]
        # An agent without a line is in the legend all the same.
        x, y = zip(*finite, strict=True) if finite else ((), ())
        panel.plot(x, y, **look[agent], marker="o", lw=1.8, label=agent)
    panel.set(xlabel="size N", ylabel="episodes to solve", yscale="log", title="DeepSea")
    tidy(panel)
    sizes = _sizes(results)
    panel.set(xlim=(sizes[0] - 1, sizes[-1] + 1), xticks=sizes)
    panel.legend(frameon=False)
    return figure


def _cell(numbers: list[int | None] | None) -> Cell:
    if numbers is None:
        return Cell("")
    median = median_episodes(numbers)
    solved = sum(number is not None for number in numbers)
    text = f"{median:,.0f}" if math.isfinite(median) else "not solved"
    return Cell(f"{text} ({solved} of {len(numbers)})", median)


def _results(groups: Sequence[Group]) -> dict[str, dict[int, list[int | None]]]:
    """Agent -> size -> the episodes of each seed."""
    results: dict[str, dict[int, list[int | None]]] = {}
    for group in groups:
        if match := re.fullmatch(r"deep_sea/(\d+)", group.env):
            numbers = [n for run in group.runs for n in episodes_to_solve(run).values()]
            results.setdefault(group.agent, {})[int(match[1])] = numbers
    return results


def _sizes(results: dict[str, dict[int, list[int | None]]]) -> list[int]:
    return sorted({size for row in results.values() for size in row})


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    return json.loads(path.read_bytes()) if path.exists() else {}
