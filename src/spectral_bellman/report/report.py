"""Runs compared: tables of final scores and figures of curves, as files and as one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.report import aggregate
from spectral_bellman.report.curves import curves_figure, diagnostics_figure, games_figure
from spectral_bellman.report.deep_sea import deep_sea_figure, deep_sea_table
from spectral_bellman.report.groups import Group, group_runs, merged_notes
from spectral_bellman.report.origin import origin_table
from spectral_bellman.report.page import page
from spectral_bellman.report.runs import find_runs, load_run
from spectral_bellman.report.scoring import TRAINING
from spectral_bellman.report.statistics import Statistic, bootstrap_interval
from spectral_bellman.report.tables import (
    Cell,
    Table,
    estimate,
    number,
    to_latex,
    to_markdown,
    to_screen,
)
from spectral_bellman.scores import Interval, iqm

STATISTICS: dict[str, Statistic] = {"mean": np.mean, "median": np.median, "IQM": iqm}
CONFIDENCE = 0.95
CAPTION = "[ ]: 95% bootstrap interval over seeds"


def report(
    folders: Sequence[Path],
    out: Path | None,
    console: Console,
    rows: Mapping[str, str] = MappingProxyType({}),
    against: str = "dqn",
) -> list[Path]:
    """Print the tables, and write them with the figures and the numbers.

    Args:
      folders: runs, or folders or archives with runs.
      out: where the files go; by default the folder of the run if there is only one and it is not
        in an archive, else `out/report`.
      console: where the tables are printed.
      rows: the name that each preset's row has in the paper's tables.
      against: the agent that tables over several games compare the others with.

    Returns:
      The paths written.
    """
    paths = find_runs(folders)
    groups = _groups(paths, console)
    agents = sorted({group.agent for group in groups})
    if against not in agents and against != "dqn":
        raise ValueError(f"--against {against!r} is none of the agents: {', '.join(agents)}")
    summaries = [summarise(group) for group in groups]
    with console.status("intervals"):
        tables, drawn = tables_of(groups, summaries, rows, against), _figures(groups)
    facts = provenance()
    if out is None:
        alone = len(paths) == 1 and paths[0].is_dir()
        out = paths[0] if alone else Path("out") / "report"
    out.mkdir(parents=True, exist_ok=True)
    pictures, written = {}, []
    for name, (caption, figure) in drawn.items():
        if figure is not None:
            pictures[caption] = to_png(figure)
            (out / name).write_bytes(pictures[caption])
            written.append(out / name)
    origin = {**facts, "runs": [str(path) for path in paths]}
    texts = {
        "table.md": "\n".join(map(to_markdown, tables)),
        "tables.tex": "\n".join(map(to_latex, tables)),
        "index.html": page("Runs compared", tables, pictures, origin),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    numbers = {"provenance": facts, "confidence": CONFIDENCE, "groups": summaries}
    write_json(out / "report.json", numbers)
    written += [*(out / name for name in texts), out / "report.json"]
    for table in tables:
        console.print(to_screen(table, console.width))
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True, markup=False)
    return written


def summarise(group: Group) -> dict[str, Any]:
    """The numbers of a row of the table, for JSON: null where there is none."""
    known = group.final[np.isfinite(group.final)]
    intervals = {
        name: _interval(bootstrap_interval(known, statistic, CONFIDENCE)) if len(known) else None
        for name, statistic in STATISTICS.items()
    }
    return {
        "env": group.env,
        "agent": group.agent,
        "seeds": [seed for run in group.runs for seed in run.seeds],
        "frames": group.frames,
        "score": group.key,
        "rule": group.rule,
        "notes": group.notes,
        "scores": [_number(value) for value in group.final],
        **intervals,
        "training": [_number(value) for value in group.training],
        "frames_per_s": _number(group.frames_per_s),
        "runs": [{"folder": str(run.folder), **run.config} for run in group.runs],
    }


def scores_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each agent in each environment, from what `summarise` found."""
    header = ("env", "agent", "seeds", "frames", "score", *STATISTICS, "training", "frames/s")
    spread = any(row["mean"] and row["mean"]["low"] is not None for row in summaries)
    rules = aggregate.rule_notes([*(row["rule"] for row in summaries), TRAINING])
    about = merged_notes((row["agent"], row["notes"]) for row in summaries)
    notes = rules + [CAPTION] * spread + about
    minor = ("frames", "score", "median", "IQM", "frames/s")
    return Table("Final scores", header, [_cells(row) for row in summaries], notes, minor)


def _groups(paths: Sequence[Path], console: Console) -> list[Group]:
    runs = [load_run(path) for path in paths]
    for run in runs:
        if not run.records:
            text = f"Nothing logged yet, left out: {run.folder}"
            console.print(text, soft_wrap=True, markup=False)
    groups = group_runs([run for run in runs if run.records])
    if not groups:
        raise FileNotFoundError(
            f"nothing logged yet in {', '.join(map(str, paths))}; "
            "come back when a run has written its first line"
        )
    return groups


def tables_of(
    groups: Sequence[Group],
    summaries: Sequence[Mapping[str, Any]],
    rows: Mapping[str, str],
    against: str = "dqn",
) -> list[Table]:
    """The tables of a report, the ones over several environments first."""
    tables = []
    for comparison in aggregate.comparisons(groups):
        tables.append(aggregate.aggregate_table(comparison, rows, against))
        tables.append(aggregate.games_table(comparison))
    deep_sea = deep_sea_table(groups)
    tables += [deep_sea] if deep_sea else []
    return [*tables, scores_table(summaries), origin_table(groups)]


def _figures(groups: Sequence[Group]) -> dict[str, tuple[str, Figure | None]]:
    """The figures by file name, with their captions."""
    return {
        "games.png": ("Over all games", games_figure(aggregate.comparisons(groups))),
        "deep_sea.png": ("DeepSea: episodes to solve", deep_sea_figure(groups)),
        "curves.png": ("Each environment", curves_figure(groups)),
        "diagnostics.png": ("Diagnostics", diagnostics_figure(groups)),
    }


def _number(value: float | np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: _number(end) for name, end in interval._asdict().items()}


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    known = sum(score is not None for score in row["scores"])
    total = len(row["seeds"])
    frames = sorted({min(row["frames"]), max(row["frames"])})
    trained = [value for value in row["training"] if value is not None]
    training = float(np.mean(trained)) if trained else None
    speed = row["frames_per_s"]
    return [
        Cell(row["env"]),
        Cell(row["agent"]),
        Cell(str(known) if known == total else f"{known} of {total}", known),
        Cell("–".join(f"{frame:,}" for frame in frames), frames[-1]),
        Cell(row["rule"]),
        *(estimate(**row[name]) if row[name] else Cell("–") for name in STATISTICS),
        Cell(number(training), training),
        Cell("–" if speed is None else f"{speed:,.0f}", speed),
    ]
