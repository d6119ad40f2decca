"""The settings tried on MinAtar: Breakout score against Asterix score, and the table in the docs.

    python benchmarks/minatar_tuning.py

Draws `results/minatar/tuning.png` from `tuning.json` beside it, which holds the command, the commit
and the seeds of each run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.report.figures import styles
from spectral_bellman.scores import MINATAR

GAMES = ("breakout", "asterix")
REMOVED = "forms that were removed"
ROWS: dict[str, dict[str, Any]] = {
    "sbm-linear-dqn-ts, the preset: σ_rep² = 0.03, spread 3": {
        "theta_variance": 0.03,
        "feature_orthogonality": 3.0,
    },
    "… σ_rep² = 0, spread 0.1": {"theta_variance": 0.0, "feature_orthogonality": 0.1},
    "… σ_rep² = 0, spread 0": {"theta_variance": 0.0, "feature_orthogonality": 0.0},
}
"""Rows of the table, with the settings that distinguish them from the preset's."""
PRESET = {"learning_rate": 2e-3, "head_rate": 0.3}


@dataclass(frozen=True)
class Settings:
    """MinAtar, a million frames."""

    runs: Path = Path("results/minatar/tuning.json")
    """What was measured."""
    out: Path = Path("results/minatar/tuning.png")
    """Where the figure goes."""


@dataclass(frozen=True)
class Point:
    """One setting on both games."""

    agent: str
    settings: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
    """Game -> what was measured."""

    def score(self, game: str) -> tuple[float, float]:
        """Mean greedy return and its standard error."""
        row = self.rows[game]
        if "greedy" in row:
            return _mean(np.array(row["greedy"]))
        return row["greedy mean"], row["greedy standard error"]

    def normalised(self, kind: str) -> tuple[float, float]:
        """Mean and standard error over seeds of the sum of the normalised scores."""
        total = np.zeros(())
        for game, row in self.rows.items():
            one, zero = MINATAR[game]
            total = total + (np.array(row[kind]) - zero) / (one - zero)
        return _mean(total)


def agent(preset: str, settings: Mapping[str, Any]) -> str:
    """The preset that a setting belongs to today."""
    if preset == "dqn":
        return "dqn"
    if settings.get("norm") == "value" and not settings.get("hidden_norm"):
        return "sbm-linear-dqn-ts"
    sampled = settings.get("representation", "spectral") == "spectral"
    return "sbm-dqn-ts" if sampled and "q_solver" not in settings else REMOVED


def read(path: Path) -> list[Point]:
    """Every setting that was tried on both games."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
        for row in run["results"]:
            settings = json.dumps(run["fixed"] | row["setting"], sort_keys=True)
            rows = found.setdefault((run["preset"], settings, run["pass"]), {})
            rows[run["env"].split("/")[1]] = row
    return [
        Point(agent(preset, json.loads(text)), json.loads(text), rows)
        for (preset, text, _), rows in found.items()
    ]


def table(points: list[Point]) -> dict[str, Point]:
    """The rows of the table in the docs."""
    linear = [p for p in points if p.agent == "sbm-linear-dqn-ts"]
    rows = {
        name: next(p for p in linear if {**PRESET, **wanted}.items() <= p.settings.items())
        for name, wanted in ROWS.items()
    }
    # The first passes logged no training return.
    dqn = [p for p in points if p.agent == "dqn" and all("training" in r for r in p.rows.values())]
    for kind in ("greedy", "training"):
        best = max(dqn, key=lambda point: point.normalised(kind)[0])
        rows[f"best dqn, {kind}: {json.dumps(best.settings)}"] = best
    return rows


def draw(points: list[Point]) -> Figure:
    """A point for each setting, with standard errors."""
    figure = Figure(figsize=(7.5, 6), layout="constrained")
    panel = figure.subplots()
    names = sorted({point.agent for point in points})
    look = styles(names) | {REMOVED: {"color": "0.7"}}
    for name in sorted(names, key=lambda name: name != REMOVED):
        own = [point for point in points if point.agent == name]
        (x, dx), (y, dy) = (np.transpose([p.score(game) for p in own]) for game in GAMES)
        panel.errorbar(
            x,
            y,
            dy,
            dx,
            "o",
            color=look[name]["color"],
            ms=4,
            elinewidth=0.5,
            alpha=0.75,
            label=f"{name} ({len(own)} settings)",
        )
    panel.set(
        xlabel="Breakout, greedy return",
        ylabel="Asterix, greedy return",
        xlim=(0, None),
        ylim=(0, None),
        title=f"{len(points)} settings, 5 seeds of each, mean and standard error",
    )
    panel.grid(alpha=0.25, lw=0.6)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def main(settings: Settings) -> None:
    """Draw, and print the table."""
    points = read(settings.runs)
    settings.out.write_bytes(to_png(draw(points)))
    print(f"{settings.out}\ngreedy, training: sum of two normalised scores, mean ± standard error")
    for name, point in table(points).items():
        sums = (point.normalised(kind) for kind in ("greedy", "training"))
        print(", ".join(f"{mean:.2f} ± {error:.2f}" for mean, error in sums), name, sep="  ")


def _mean(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main(tyro.cli(Settings))
