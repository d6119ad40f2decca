"""Figures of what runs logged against frames, and of their scores over several games."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectral_bellman.report import aggregate, figures
from spectral_bellman.report.groups import Group
from spectral_bellman.report.statistics import bootstrap_interval
from spectral_bellman.scores import Interval, iqm

DIAGNOSTIC = "diagnostic/"
"""Prefix of the logged keys that are diagnostics."""
FEWEST_EVALUATIONS = 3
"""Evaluations from which on a curve of them is drawn; fewer are in the table only."""


def curves_figure(groups: Sequence[Group]) -> Figure:
    """Training returns against frames, a panel for each environment.

    Where there are enough evaluations, their returns are in a panel beside it.
    """
    names = {"return": "training return", "eval_return": "greedy return"}
    envs = _environments(groups)
    shown = {env: _chosen(groups, env) for env in envs}
    styles = _styles(shown)
    panels = [
        [(env, key) for key in names if key == "return" or _is_evaluated(shown[env])]
        for env in envs
    ]
    columns = 3
    if max(map(len, panels)) > 1:  # both panels of an environment stay in one row
        columns = 2 if len(envs) <= 3 else 4
    figure, axes = figures.grid(_packed(panels, columns), width=5.2, height=3.6)
    for (env, key), panel in axes.items():
        _draw(panel, shown[env], styles, key, single_seeds=True)
        panel.set(title=env, ylabel=names[key])
    drawn = [group for env in envs for group in shown[env]]
    several = any(sum(len(run.seeds) for run in group.runs) > 1 for group in drawn)
    notes = ["mean over seeds, 95% bootstrap interval, single seeds faint"] * several
    _legend(figure, drawn, notes, complete=len(drawn) == len(groups))
    return figure


def games_figure(comparisons: Sequence[aggregate.Comparison]) -> Figure | None:
    """For each comparison the IQM against frames, and the share of runs above each score."""
    if not comparisons:
        return None
    rows = [[(str(i), side) for side in ("curve", "profile")] for i in range(len(comparisons))]
    figure, axes = figures.grid(rows, width=5.2, height=3.6)
    shown = [
        figures.choose({agent: float(iqm(each.table(agent).ravel())) for agent in each.agents})
        for each in comparisons
    ]
    drawn = {agent for agents in shown for agent in agents}
    styles = figures.styles(drawn)
    for i, comparison in enumerate(comparisons):
        left, right = axes[str(i), "curve"], axes[str(i), "profile"]
        for agent in shown[i]:
            _draw_interval(left, agent, styles[agent], *aggregate.curve(comparison, agent))
            _draw_interval(right, agent, styles[agent], *aggregate.profile(comparison, agent))
        figures.tidy(left, comparison.frame_unit)
        figures.tidy(right)
        left.set(title=comparison.title, ylabel=f"IQM of the {comparison.score}")
        right.set(title=comparison.title, ylabel="share of runs above", xlabel=comparison.score)
    notes = ["95% stratified bootstrap interval"]
    if any(len(each.agents) > len(agents) for each, agents in zip(comparisons, shown, strict=True)):
        notes.append(figures.CHOSEN)
    figures.legend(figure, drawn, "\n".join(notes))
    return figure


def diagnostics_figure(groups: Sequence[Group]) -> Figure | None:
    """A panel for each diagnostic and environment; None if no diagnostic was logged."""
    panels: list[list[tuple[str, str]]] = []
    for env in _environments(groups):
        keys = {
            key
            for group in groups
            if group.env == env
            for run in group.runs
            for key in run.keys
            if key.startswith(DIAGNOSTIC)
        }
        panels += _rows([(env, key) for key in sorted(keys)], 3)
    if not panels:
        return None
    figure, axes = figures.grid(panels, width=4.2, height=2.9)
    shown = {env: _chosen(groups, env) for env in _environments(groups)}
    styles = _styles(shown)
    several = len({env for env, _ in axes}) > 1
    for (env, key), panel in axes.items():
        drawn = _draw(panel, shown[env], styles, key)
        name = key.removeprefix(DIAGNOSTIC).replace("_", " ")
        panel.set_title(f"{name}\n{env}" if several else name)
        if drawn.size and drawn.min() > 0 and drawn.max() > 100 * drawn.min():
            panel.set_yscale("log")
    if not several:
        figure.suptitle(next(iter(axes))[0])
    chosen = [group for played in shown.values() for group in played]
    _legend(figure, chosen, [], complete=len(chosen) == len(groups))
    return figure


def _chosen(groups: Sequence[Group], env: str) -> list[Group]:
    """The groups that are drawn for an environment: the baseline, then the best final scores."""
    played = {group.agent: group for group in groups if group.env == env}
    means = {agent: _mean(group.final) for agent, group in played.items()}
    names = figures.choose(means)
    return [group for agent, group in played.items() if agent in names]


def _styles(shown: Mapping[str, Sequence[Group]]) -> dict[str, dict[str, Any]]:
    return figures.styles(group.agent for groups in shown.values() for group in groups)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _legend(
    figure: Figure, drawn: Sequence[Group], notes: Sequence[str], *, complete: bool
) -> None:
    lines = [*notes, *([] if complete else [figures.CHOSEN])]
    figures.legend(figure, {group.agent for group in drawn}, "\n".join(lines) or None)


def _draw_interval(
    panel: Axes, agent: str, style: dict[str, Any], x: np.ndarray, interval: Interval
) -> None:
    marker = "o" if np.ptp(x) == 0 else None  # a single evaluation: a line would have no length
    panel.plot(x, interval.value, **style, marker=marker, ms=4, lw=1.8, label=agent)
    if np.isfinite(interval.low).all():
        panel.fill_between(x, interval.low, interval.high, color=style["color"], alpha=0.17, lw=0)


def _draw(
    panel: Axes,
    groups: Sequence[Group],
    styles: Mapping[str, dict[str, Any]],
    key: str,
    *,
    single_seeds: bool = False,
) -> np.ndarray:
    """A line and a band for each agent; returns the heights of the lines."""
    drawn = [np.zeros(0)]
    for group in groups:
        frames, values = group.curve(key)
        if not len(frames):
            continue
        style = styles[group.agent]
        marker: dict[str, Any] = {"marker": "o", "ms": 3.5} if len(frames) <= 25 else {}
        if single_seeds and len(values) > 1:
            panel.plot(frames, values.T, **style, lw=0.7, alpha=0.25, zorder=1.5)
        # The mean is drawn where all seeds have a value: over changing seeds it would jump.
        shared = np.isfinite(values).all(axis=0)
        x, interval = frames[shared], bootstrap_interval(values[:, shared], np.mean)
        if len(values) > 1:
            color = style["color"]
            panel.fill_between(x, interval.low, interval.high, color=color, alpha=0.17, lw=0)
        panel.plot(x, interval.value, **style, **marker, lw=1.8, label=group.agent)
        drawn.append(interval.value)
    figures.tidy(panel, groups[0].environment.frame_unit)
    return np.concatenate(drawn)


def _environments(groups: Sequence[Group]) -> list[str]:
    return sorted({group.env for group in groups})


def _is_evaluated(groups: Sequence[Group]) -> bool:
    return any(len(group.curve("eval_return")[0]) >= FEWEST_EVALUATIONS for group in groups)


def _packed(blocks: Sequence[list[tuple[str, str]]], columns: int) -> list[list[tuple[str, str]]]:
    """The panels in rows, without a break inside a block."""
    rows: list[list[tuple[str, str]]] = [[]]
    for block in blocks:
        if len(rows[-1]) + len(block) > columns:
            rows.append([])
        rows[-1] += block
    return rows


def _rows(panels: Sequence[tuple[str, str]], columns: int) -> list[list[tuple[str, str]]]:
    return [list(panels[i : i + columns]) for i in range(0, len(panels), columns)]
