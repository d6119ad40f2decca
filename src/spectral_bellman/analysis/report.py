"""Runs compared: tables of final scores and figures of their curves, with intervals over seeds, as files and as one page."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from spectral_bellman.analysis import aggregate, figures
from spectral_bellman.analysis.deep_sea import deep_sea_figure, deep_sea_sheet
from spectral_bellman.analysis.groups import SCORES, Group, group_runs
from spectral_bellman.analysis.page import page
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.analysis.runs import find_runs, load_run
from spectral_bellman.analysis.sheets import Cell, Sheet, estimate, latex, markdown, number, on_screen
from spectral_bellman.analysis.statistics import Interval, Statistic, bootstrap_interval, iqm

STATISTICS: dict[str, Statistic] = {"mean": np.mean, "median": np.median, "IQM": iqm}
CAPTION = "[ ]: 95% bootstrap interval over seeds"
DIAGNOSTIC = "diagnostic/"


def report(folders: list[Path], out: Path | None, console: Console) -> list[Path]:
    """Print the tables and write them with the figures and the numbers; returns the paths written.

    They go to ``out``: by default the folder of the run if there is one, else ``out/report``.
    """
    paths = find_runs(folders)
    runs = [load_run(path) for path in paths]
    for run in runs:
        if not run.records:
            console.print(f"Nothing logged yet, left out: {run.folder}", soft_wrap=True, markup=False)
    groups = group_runs([run for run in runs if run.records])
    if not groups:
        raise FileNotFoundError(
            f"nothing logged yet in {', '.join(map(str, paths))}; come back when a run has written its first line"
        )
    rows = [summarise(group) for group in groups]
    with console.status("intervals"):
        fields = aggregate.fields(groups)
        sheets = [sheet(field) for field in fields for sheet in (aggregate.aggregate_sheet, aggregate.games_sheet)]
        sheets += [sheet for sheet in (deep_sea_sheet(groups), scores_sheet(rows)) if sheet is not None]
        drawn = {
            "games.png": ("Over all games", games_figure(fields)),
            "deep_sea.png": ("DeepSea: episodes to solve", deep_sea_figure(groups)),
            "curves.png": ("Each environment", curves_figure(groups)),
            "diagnostics.png": ("Diagnostics", diagnostics_figure(groups)),
        }
    facts = provenance()
    if out is None:
        out = paths[0] if len(paths) == 1 else Path("out") / "report"
    out.mkdir(parents=True, exist_ok=True)
    pictures, written = {}, []
    for name, (caption, figure) in drawn.items():
        if figure is not None:
            file = io.BytesIO()
            figure.savefig(file, dpi=150, format="png")
            (out / name).write_bytes(file.getvalue())
            pictures[caption] = file.getvalue()
            written.append(out / name)
    texts = {
        "table.md": "\n".join(map(markdown, sheets)),
        "tables.tex": "\n".join(map(latex, sheets)),
        "index.html": page("Runs compared", sheets, pictures, {**facts, "runs": [str(path) for path in paths]}),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    write_json(out / "report.json", {"provenance": facts, "confidence": 0.95, "groups": rows})
    written += [*(out / name for name in texts), out / "report.json"]
    for sheet in sheets:
        console.print(on_screen(sheet, console.width))
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True, markup=False)
    return written


def summarise(group: Group) -> dict[str, Any]:
    """The numbers of a line of the table, fit for JSON: null where there is none, as for the interval of one seed."""
    final = group.final()
    known = final.values[np.isfinite(final.values)]
    intervals = {name: bootstrap_interval(known, statistic) if len(known) else None for name, statistic in STATISTICS.items()}
    return {
        "env": group.env,
        "agent": group.agent,
        "seeds": [seed for run in group.runs for seed in run.seeds],
        "frames": group.frames,
        "score": final.key,
        "scores": [_number(value) for value in final.values],
        **{name: interval and _interval(interval) for name, interval in intervals.items()},
        "training": [_number(value) for value in group.training()],
        "frames_per_s": _number(group.frames_per_s),
        "runs": [{"folder": str(run.folder), **run.config} for run in group.runs],
    }


def curves_figure(groups: Sequence[Group]) -> Figure:
    """The training return against frames, a panel for each environment, and the greedy return next to it if there is any."""
    evaluated = any("eval_return" in run.keys for group in groups for run in group.runs)
    names = {"return": "training return", **({"eval_return": "greedy return"} if evaluated else {})}
    envs = _environments(groups)
    columns = 3 if not evaluated else 2 if len(envs) <= 3 else 4  # what belongs to one environment stays side by side
    panels = _rows([(env, key) for env in envs for key in names], columns)
    figure, axes = figures.grid(panels, width=5.2, height=3.6)
    for (env, key), panel in axes.items():
        _draw(panel, groups, env, key, single_seeds=True)
        panel.set(title=env, ylabel=names[key])
    several = any(len(run.seeds) > 1 for group in groups for run in group.runs) or any(len(group.runs) > 1 for group in groups)
    figures.legend(figure, groups, "mean over seeds, 95% bootstrap interval, single seeds faint" if several else None)
    return figure


def games_figure(fields: Sequence[aggregate.Field]) -> Figure | None:
    """For each field of games the IQM against frames, and beside it the share of runs above each score."""
    if not fields:
        return None
    figure, axes = figures.grid([[(field.title, side) for side in ("curve", "profile")] for field in fields], width=5.2, height=3.6)
    groups = [group for field in fields for parts in field.agents.values() for group in parts]
    styles = figures.styles(groups)
    for field in fields:
        left, right = axes[field.title, "curve"], axes[field.title, "profile"]
        for agent in field.agents:
            for panel, (x, interval) in ((left, aggregate.curve(field, agent)), (right, aggregate.profile(field, agent))):
                marker = "o" if np.ptp(x) == 0 else None  # evaluated once: a line would have no length
                panel.plot(x, interval.value, **styles[agent], marker=marker, ms=4, lw=1.8, label=agent)
                if np.isfinite(interval.low).all():
                    panel.fill_between(x, interval.low, interval.high, color=styles[agent]["color"], alpha=0.17, lw=0)
        figures.tidy(left, field.games[0])
        figures.tidy(right)
        left.set(title=field.title, ylabel=f"IQM of the {field.score}")
        right.set(title=field.title, ylabel="share of runs above", xlabel=field.score)
    figures.legend(figure, groups, "95% stratified bootstrap interval")
    return figure


def diagnostics_figure(groups: Sequence[Group]) -> Figure | None:
    """A panel for each diagnostic and environment, or nothing if none was logged."""
    panels: list[list[tuple[str, str]]] = []
    for env in _environments(groups):
        keys = {key for group in groups if group.env == env for run in group.runs for key in run.keys if key.startswith(DIAGNOSTIC)}
        panels += _rows([(env, key) for key in sorted(keys)], 3)
    if not panels:
        return None
    figure, axes = figures.grid(panels, width=4.2, height=2.9)
    several = len({env for env, _ in axes}) > 1
    for (env, key), panel in axes.items():
        drawn = _draw(panel, groups, env, key)
        name = key.removeprefix(DIAGNOSTIC).replace("_", " ")
        panel.set_title(f"{name}\n{env}" if several else name)
        if drawn.size and drawn.min() > 0 and drawn.max() > 100 * drawn.min():
            panel.set_yscale("log")
    if not several:
        figure.suptitle(next(iter(axes))[0])
    figures.legend(figure, groups, None)
    return figure


def _draw(panel: Axes, groups: Sequence[Group], env: str, key: str, *, single_seeds: bool = False) -> np.ndarray:
    """A line and a band for each agent; returns the heights of the lines."""
    drawn, styles = [np.zeros(0)], figures.styles(groups)
    for group in groups:
        frames, values = group.curve(key) if group.env == env else (np.zeros(0), np.zeros((0, 0)))
        whole = np.isfinite(values).all(axis=0)  # a mean over now these, now those seeds would jump
        if not len(frames):
            continue
        style = styles[group.agent]
        marker: dict[str, Any] = {"marker": "o", "ms": 3.5} if len(frames) <= 25 else {}
        if single_seeds and len(values) > 1:
            panel.plot(frames, values.T, **style, lw=0.7, alpha=0.25, zorder=1.5)
        interval = bootstrap_interval(values[:, whole], np.mean)
        if len(values) > 1:
            panel.fill_between(frames[whole], interval.low, interval.high, color=style["color"], alpha=0.17, lw=0)
        panel.plot(frames[whole], interval.value, **style, **marker, lw=1.8, label=group.agent)
        drawn.append(interval.value)
    figures.tidy(panel, env)
    return np.concatenate(drawn)


def _environments(groups: Sequence[Group]) -> list[str]:
    return sorted({group.env for group in groups})


def _rows(panels: Sequence[tuple[str, str]], columns: int) -> list[list[tuple[str, str]]]:
    return [list(panels[i : i + columns]) for i in range(0, len(panels), columns)]


def _number(value: float | np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: _number(end) for name, end in interval._asdict().items()}


def scores_sheet(rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """A line for each agent in each environment, by what ``summarise`` found."""
    header = ("env", "agent", "seeds", "frames", "score", *STATISTICS, "training", "frames/s")
    used = {row["score"] for row in rows} | {"return"}
    spread = any(row["mean"] and row["mean"]["low"] is not None for row in rows)
    notes = [text for key, (_, text) in SCORES.items() if key in used] + [CAPTION] * spread
    minor = ("frames", "score", "median", "IQM", "frames/s")
    return Sheet("Final scores", header, [_cells(row) for row in rows], notes, minor)


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    known = sum(score is not None for score in row["scores"])
    frames = sorted({min(row["frames"]), max(row["frames"])})
    speed, trained = row["frames_per_s"], [value for value in row["training"] if value is not None]
    training = float(np.mean(trained)) if trained else None
    return [
        Cell(row["env"]),
        Cell(row["agent"]),
        Cell(str(known) if known == len(row["seeds"]) else f"{known} of {len(row['seeds'])}", known),
        Cell("–".join(f"{frame:,}" for frame in frames), frames[-1]),
        Cell(SCORES[row["score"]][0]),
        *(estimate(**row[name]) if row[name] else Cell("–") for name in STATISTICS),
        Cell(number(training), training),
        Cell("–" if speed is None else f"{speed:,.0f}", speed),
    ]
