"""Runs made up for tests, and what their figures show."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from spectral_bellman.report.runs import Run

Rows = Sequence[Sequence[float | None]]


def make(
    returns: Rows,
    *,
    env: str = "minatar/breakout",
    preset: str = "dqn",
    first: int = 0,
    every: int = 10,
    name: str = "run",
    **more: Any,
) -> Run:
    """A run with a row of returns for each seed.

    `more` has other rows by key, and the settings `agent` and `planned`, the episodes of an
    evaluation. An `...` in a row leaves the key out of that line.
    """
    config = {
        "schema": 2,
        "preset": preset,
        "env": env,
        "agent": more.pop("agent", {}),
        "eval_episodes": more.pop("planned", 10),
        "provenance": {"command": f"sbm train {preset}"},
    }
    records = []
    for t in range(len(returns[0])):
        for s in range(len(returns)):
            extra = {key: rows[s][t] for key, rows in more.items() if rows[s][t] is not ...}
            fixed = {
                "seed": first + s,
                "frames": every * (t + 1),
                "frames_per_s": 1000.0 if t else 1.0,
            }
            records.append({**fixed, "return": returns[s][t], **extra})
    return Run(Path(name), config, records)


def save(run: Run, folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.config), encoding="utf-8")
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in run.records), encoding="utf-8"
    )
    return folder


def panels(figure: Any) -> dict[tuple[str, str], Axes]:
    return {(panel.get_title(), panel.get_ylabel()): panel for panel in figure.axes if panel.axison}


def lines(panel: Axes) -> dict[str, np.ndarray]:
    """The labelled lines, (T, 2) each."""
    return {
        str(line.get_label()): line.get_xydata()
        for line in panel.lines
        if not str(line.get_label()).startswith("_")
    }
