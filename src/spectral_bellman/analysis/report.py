"""Runs compared: a table of final scores and figures of their curves, with intervals over seeds."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.analysis.runs import Run, find_runs, load_run, series
from spectral_bellman.analysis.statistics import Interval, Statistic, bootstrap_interval, iqm

STATISTICS: dict[str, Statistic] = {"mean": np.mean, "median": np.median, "IQM": iqm}
# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STROKES = ("-", "--", ":", "-.")
STEPS = "frames (= agent steps)"
FRAMES = {"minatar": STEPS, "deep_sea": STEPS, "gym": STEPS, "atari": "frames (4 an agent step)"}
"""What a frame is, by the family of the environment (its name up to the slash)."""
SCORES = {
    "eval_return": ("greedy", "greedy: the last evaluation of each seed"),
    "return": ("training", "training: the return of the training policy, mean over the last 10% of log points"),
}
CAPTION = "[ ]: 95% bootstrap interval over seeds"
DIAGNOSTIC = "diagnostic/"


class Final(NamedTuple):
    """The score that each seed of a group ends with."""

    key: str
    """What it is made of, a key of ``SCORES``."""
    values: np.ndarray
    """NaN for a seed that never finished an episode."""


@dataclass(frozen=True)
class Group:
    """One agent in one environment: the seeds of all its runs."""

    env: str
    agent: str
    runs: Sequence[Run]

    @property
    def frames(self) -> list[int]:
        """How far each run has come."""
        return [max(record["frames"] for record in run.records) for run in self.runs]

    @property
    def frames_per_s(self) -> float:
        """The median over log lines, which the first one, with the compilation in it, does not move."""
        speeds = [record.get("frames_per_s") for run in self.runs for record in run.records]
        known = [speed for speed in speeds if speed is not None]
        return float(np.median(known)) if known else math.nan

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Frames (T,) and values (seeds, T) of a key; seeds of runs without that key are left out.

        Where runs logged at different frames, all are read off at those of the longest: NaN beyond the end of a run.
        """
        parts = [series(run, key) for run in self.runs if key in run.keys]
        if not parts:
            return np.zeros(0, int), np.zeros((0, 0))
        grid = max((frames for frames, _ in parts), key=lambda frames: int(frames[-1]))
        rows = [np.interp(grid, frames, row, left=np.nan, right=np.nan) for frames, values in parts for row in values]
        return grid, np.array(rows)

    def final(self) -> Final:
        """The last evaluation of each seed; if a run has none, for all seeds the training return of the last 10% of log points."""
        key = "eval_return" if all("eval_return" in run.keys for run in self.runs) else "return"
        rows = [row for run in self.runs for row in series(run, key)[1]]
        if key == "return":
            rows = [row[-math.ceil(len(row) / 10) :] for row in rows]
        known = [row[np.isfinite(row)] for row in rows]
        return Final(key, np.array([np.nan if not len(row) else row.mean() if key == "return" else row[-1] for row in known]))


def report(folders: list[Path], out: Path | None, console: Console) -> list[Path]:
    """Print the table and write it with the figures and the numbers; returns the paths written.

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
    facts = provenance()
    if out is None:
        out = paths[0] if len(paths) == 1 else Path("out") / "report"
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in (("curves.png", curves_figure(groups)), ("diagnostics.png", diagnostics_figure(groups))):
        if figure is not None:
            figure.savefig(out / name, dpi=150)
            written.append(out / name)
    (out / "table.md").write_text(_markdown(rows), encoding="utf-8")
    write_json(out / "report.json", {"provenance": facts, "confidence": 0.95, "groups": rows})
    written += [out / "table.md", out / "report.json"]
    console.print(_table(rows))
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True, markup=False)
    return written


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of one preset in one environment pooled, except where settings of the agent differ, which the label then names."""
    settings = [_flat(run.config.get("agent") or {}) for run in runs]
    # A setting is named if it differs within an environment: one that only goes with the environment tells no agents apart.
    differing: dict[str, set[str]] = {}
    for i, run in enumerate(runs):
        for j, other in enumerate(runs[:i]):
            if (run.config["env"], run.config["preset"]) == (other.config["env"], other.config["preset"]):
                keys = {key for key in settings[i] | settings[j] if settings[i].get(key) != settings[j].get(key)}
                differing.setdefault(run.config["preset"], set()).update(keys)
    pooled: dict[tuple[str, str], list[Run]] = {}
    for run, setting in zip(runs, settings, strict=True):
        preset = run.config["preset"]
        named = ", ".join(f"{key}={setting.get(key, 'unset')}" for key in sorted(differing.get(preset, ())))
        pooled.setdefault((run.config["env"], f"{preset} ({named})" if named else preset), []).append(run)
    for (env, agent), members in pooled.items():
        owner: dict[int, Path] = {}
        for run in members:
            for seed in run.seeds:
                if seed in owner:
                    place = f"{owner[seed]} and {run.folder}"
                    raise ValueError(
                        f"seed {seed} of {agent} in {env} is in both {place}; give one of them, or train with other seeds"
                    )
                owner[seed] = run.folder
    return [Group(env, agent, members) for (env, agent), members in sorted(pooled.items(), key=lambda item: item[0])]


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
        "frames_per_s": _number(group.frames_per_s),
        "runs": [{"folder": str(run.folder), **run.config} for run in group.runs],
    }


def curves_figure(groups: Sequence[Group]) -> Figure:
    """The training return against frames, a panel for each environment, and the greedy return next to it if there is any."""
    evaluated = any("eval_return" in run.keys for group in groups for run in group.runs)
    names = {"return": "training return", **({"eval_return": "greedy return"} if evaluated else {})}
    panels = [[(env, key) for key in names] for env in _environments(groups)]
    if not evaluated:  # nothing to set side by side: the environments fill the rows
        panels = _rows([panel for row in panels for panel in row], 3)
    figure, axes = _grid(panels, width=5.2, height=3.6)
    for (env, key), panel in axes.items():
        _draw(panel, groups, env, key, single_seeds=True)
        panel.set(title=env, ylabel=names[key])
    several = any(len(run.seeds) > 1 for group in groups for run in group.runs) or any(len(group.runs) > 1 for group in groups)
    _legend(figure, groups, "mean over seeds, 95% bootstrap interval, single seeds faint" if several else None)
    return figure


def diagnostics_figure(groups: Sequence[Group]) -> Figure | None:
    """A panel for each diagnostic and environment, or nothing if none was logged."""
    panels: list[list[tuple[str, str]]] = []
    for env in _environments(groups):
        keys = {key for group in groups if group.env == env for run in group.runs for key in run.keys if key.startswith(DIAGNOSTIC)}
        panels += _rows([(env, key) for key in sorted(keys)], 3)
    if not panels:
        return None
    figure, axes = _grid(panels, width=4.2, height=2.9)
    several = len({env for env, _ in axes}) > 1
    for (env, key), panel in axes.items():
        drawn = _draw(panel, groups, env, key)
        name = key.removeprefix(DIAGNOSTIC).replace("_", " ")
        panel.set_title(f"{name}\n{env}" if several else name)
        if drawn.size and drawn.min() > 0 and drawn.max() > 100 * drawn.min():
            panel.set_yscale("log")
    if not several:
        figure.suptitle(next(iter(axes))[0])
    _legend(figure, groups, None)
    return figure


def _draw(panel: Axes, groups: Sequence[Group], env: str, key: str, *, single_seeds: bool = False) -> np.ndarray:
    """A line and a band for each agent; returns the heights of the lines."""
    drawn, styles = [np.zeros(0)], _styles(groups)
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
    panel.set_xlabel(FRAMES.get(env.partition("/")[0], "frames"))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    panel.set_xlim(left=0)
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    return np.concatenate(drawn)


def _grid(rows: Sequence[Sequence[tuple[str, str]]], width: float, height: float) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A figure with the panels of each row; what a row lacks is left blank."""
    columns = max(map(len, rows))
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width * columns, height * len(rows)), layout=layout)
    cells: Any = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, cells, strict=True):
        for cell in line[len(row) :]:
            cell.set_axis_off()
    return figure, {panel: cells[i, j] for i, row in enumerate(rows) for j, panel in enumerate(row)}


def _legend(figure: Figure, groups: Sequence[Group], title: str | None) -> None:
    """One legend below all panels, for which the figure grows: colours mean the same in each."""
    styles = _styles(groups)
    letters = 13 * figure.get_figwidth() - 2  # what fits into a line of the figure, at this size of type
    columns = max(1, min(len(styles), int(letters / (max(map(len, styles)) + 6))))
    lines = math.ceil(len(styles) / columns) + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.25 * lines + 0.2)
    handles = [Line2D([], [], label=agent, lw=1.8, **style) for agent, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, title=title, title_fontsize=9)


def _styles(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The colour of each agent, and the stroke where colours run out."""
    agents = sorted({group.agent for group in groups})
    strokes = {agent: STROKES[i // len(COLORS) % len(STROKES)] for i, agent in enumerate(agents)}
    return {agent: {"color": COLORS[i % len(COLORS)], "ls": strokes[agent]} for i, agent in enumerate(agents)}


def _environments(groups: Sequence[Group]) -> list[str]:
    return sorted({group.env for group in groups})


def _rows(panels: Sequence[tuple[str, str]], columns: int) -> list[list[tuple[str, str]]]:
    return [list(panels[i : i + columns]) for i in range(0, len(panels), columns)]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as text under dotted names."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _number(value: float | np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: _number(end) for name, end in interval._asdict().items()}


HEADER = ("env", "agent", "seeds", "frames", "score", *STATISTICS, "frames/s")


def _cells(row: Mapping[str, Any], between: str) -> list[str]:
    """A line of the table; ``between`` parts a number from its interval."""
    known = sum(score is not None for score in row["scores"])
    frames = sorted({min(row["frames"]), max(row["frames"])})
    return [
        row["env"],
        row["agent"],
        str(known) if known == len(row["seeds"]) else f"{known} of {len(row['seeds'])}",
        "–".join(f"{frame:,}" for frame in frames),
        SCORES[row["score"]][0],
        *(_text(row[name], between) for name in STATISTICS),
        "–" if row["frames_per_s"] is None else f"{row['frames_per_s']:,.0f}",
    ]


def _text(interval: Mapping[str, float | None] | None, between: str) -> str:
    value, low, high = (None,) * 3 if interval is None else (interval[name] for name in Interval._fields)
    if value is None:
        return "–"
    return _short(value) + (f"{between}[{_short(low)}, {_short(high)}]" if low is not None and high is not None else "")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _captions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    used = {row["score"] for row in rows}
    spread = any(row["mean"] and row["mean"]["low"] is not None for row in rows)
    return [text for key, (_, text) in SCORES.items() if key in used] + [CAPTION] * spread


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    caption = Text("\n".join(_captions(rows)))
    table = Table(title="Final scores", title_justify="left", caption=caption, caption_justify="left", show_lines=len(rows) > 1)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("env", "agent", "score") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row, "\n")))  # Text: brackets are not markup
    return table


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *(_cells(row, " ") for row in rows)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{table}\n\n" + "".join(f"- {text}\n" for text in _captions(rows))
