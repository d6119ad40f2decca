"""Episodes needed to solve DeepSea, by bsuite's rule."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spectral_bellman.disk.archive import read_file
from spectral_bellman.disk.run_folder import SUMMARY
from spectral_bellman.report.figures import CHOSEN, choose, legend, styles, tidy
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
    """Episodes against size: a dot for each seed that solved it, and a line through the medians.

    A cross above the line "not solved" stands for an infinite median. None if no seed solved it.
    """
    results = _results(groups)
    if not any(n is not None for row in results.values() for ns in row.values() for n in ns):
        return None
    agents = choose({agent: _solved(row) for agent, row in results.items()})
    sizes, look = _sizes(results), styles(agents)
    numbers = [n for agent in agents for ns in results[agent].values() for n in ns if n is not None]
    border = 2 * max(numbers, default=1)
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    panel = figure.subplots()
    # Agents stand beside each other, so that no dot and no cross hides another.
    step = 0.012 * (sizes[-1] - sizes[0] + 2)
    for i, agent in enumerate(sorted(agents)):
        shift = step * (i - (len(agents) - 1) / 2)
        row, style = results[agent], look[agent]
        for size in row:
            known = [n for n in row[size] if n is not None]
            panel.plot(
                [size + shift] * len(known), known, "o", color=style["color"], ms=3, alpha=0.35
            )
        medians = {size: median_episodes(row[size]) for size in sorted(row)}
        finite = [(size + shift, m) for size, m in medians.items() if math.isfinite(m)]
        unsolved = [size + shift for size, m in medians.items() if not math.isfinite(m)]
        # An agent without a line is in the legend all the same.
        x, y = zip(*finite, strict=True) if finite else ((), ())
        panel.plot(x, y, **style, marker="o", lw=1.8, label=agent)
        panel.plot(unsolved, [1.4 * border] * len(unsolved), "x", color=style["color"], ms=6)
    panel.axhline(border, color="0.5", lw=0.8)
    panel.text(sizes[0] - 1, 1.08 * border, " not solved", color="0.3", fontsize=8)
    panel.set(xlabel="size N", ylabel="episodes to solve, median", yscale="log", title="DeepSea")
    tidy(panel)
    panel.set(xlim=(sizes[0] - 1, sizes[-1] + 1), ylim=(None, 2.2 * border), xticks=sizes)
    note = "dots: seeds that solved it; cross: at most half of the seeds solved it"
    legend(figure, agents, note + f"\n{CHOSEN}" * (len(results) > len(agents)))
    return figure


def _solved(row: Mapping[int, Sequence[int | None]]) -> float:
    """Seeds that solved it, over all sizes."""
    return float(sum(n is not None for numbers in row.values() for n in numbers))


def _cell(numbers: list[int | None] | None) -> Cell:
    if numbers is None:
        return Cell("")
    median = median_episodes(numbers)
    solved = sum(number is not None for number in numbers)
    text = f"{median:,.0f}" if math.isfinite(median) else "∞"
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
    try:
        return json.loads(read_file(folder / SUMMARY))
    except FileNotFoundError:
        return {}
