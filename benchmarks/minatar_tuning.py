"""Draws `results/minatar-tuning/tuning.json`: Breakout score against Asterix score of each setting.

python benchmarks/minatar_tuning.py
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tyro

from spectral_bellman.report.figures import COLORS

GAMES = ("breakout", "asterix")


@dataclass(frozen=True)
class Figure:
    """MinAtar, a million frames."""

    runs: Path = Path("results/minatar-tuning/tuning.json")
    """What was measured."""
    out: Path = Path("results/minatar-tuning/tuning.png")
    """Where the picture goes."""


def group(preset: str, settings: dict[str, Any]) -> str:
    """The group of variants that a setting belongs to."""
    if preset == "dqn":
        return "dqn"
    if settings.get("norm") == "value":
        return "sbm-linear-dqn-ts" + ", hidden layer of one norm" * bool(
            settings.get("hidden_norm")
        )
    if settings.get("q_solver") == "least_squares":
        return "sbm-dqn-ts, θ̂ by least squares"
    if settings.get("noise_scale", 1) > 1:
        return "sbm-dqn-ts, noise ×30"
    if settings.get("representation", "spectral") == "spectral":
        return "sbm-dqn-ts, sampled θ"
    if settings["representation"] == "averaged":
        return "sbm-dqn-ts, averaged form, relative σ_rep²"
    start = "θ̃(θ⁻)" if settings.get("q_start") == "backup" else "the last θ̂"
    relative = ", relative σ_rep²" if settings.get("relative_variance") else ""
    return f"sbm-dqn-ts, expected form, θ̂ from {start}{relative}"


def main(config: Figure) -> None:
    """Draw, and print what ε does."""
    runs = json.loads(config.runs.read_text())["runs"]
    points: dict[tuple[str, str, int], dict[str, tuple[float, float]]] = {}
    for run in runs:
        for row in run["results"]:
            settings = run["fixed"] | row["setting"]
            name = group(run["preset"], settings)
            point = points.setdefault((name, json.dumps(settings, sort_keys=True), run["pass"]), {})
            point[run["env"].split("/")[1]] = score(row)
    figure, panel = plt.subplots(figsize=(7.5, 6), layout="constrained")
    names = sorted({name for name, *_ in points})
    for name, colour in zip(names, (*COLORS, "#E41A1C", "#999999", "#8A2BE2"), strict=True):
        both = np.asarray(
            [[p[game] for game in GAMES] for (n, *_), p in points.items() if n == name]
        )
        (x, dx), (y, dy) = both[:, 0].T, both[:, 1].T
        panel.errorbar(
            x,
            y,
            dy,
            dx,
            "o",
            color=colour,
            ms=4,
            elinewidth=0.5,
            alpha=0.75,
            label=f"{name} ({len(both)})",
        )
    panel.set(
        xlabel="Breakout, greedy return",
        ylabel="Asterix, greedy return",
        xlim=(0, None),
        ylim=(0, None),
    )
    panel.set_title(f"{len(points)} settings, 5 seeds of each, mean and standard error")
    panel.grid(alpha=0.25, lw=0.6)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(config.out, dpi=130)
    smaller_epsilon(runs)


def smaller_epsilon(runs: list[dict[str, Any]]) -> None:
    """Print what dqn gains in training if ε ends at 0.003 instead of 0.01, all else equal."""
    for game in GAMES:
        returns: dict[str, dict[float, float]] = {}
        for run in runs:
            if (run["preset"], run["env"]) != ("dqn", f"minatar/{game}"):
                continue
            for row in run["results"]:
                settings = run["fixed"] | row["setting"] | {"pass": run["pass"]}
                epsilon = settings.pop("epsilon_end", None)
                if "training" in row:
                    by_epsilon = returns.setdefault(json.dumps(settings, sort_keys=True), {})
                    by_epsilon[epsilon] = float(np.mean(row["training"]))
        ratios = [
            both[0.003] / both[0.01] for both in returns.values() if {0.003, 0.01} <= set(both)
        ]
        print(
            f"{game}: with ε 0.003 instead of 0.01 the training return of dqn is "
            f"{np.mean(ratios):.2f} times as high, {len(ratios)} settings"
        )


def score(row: dict[str, Any]) -> tuple[float, float]:
    """Mean and standard error."""
    if "greedy" in row:
        return float(np.mean(row["greedy"])), float(
            np.std(row["greedy"], ddof=1) / np.sqrt(len(row["greedy"]))
        )
    return row["greedy mean"], row["greedy standard error"]


if __name__ == "__main__":
    main(tyro.cli(Figure))
