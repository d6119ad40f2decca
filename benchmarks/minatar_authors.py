"""The DQN that MinAtar's authors publish, beside `dqn-minatar` on Asterix and Freeway.

    python benchmarks/minatar_authors.py

Draws `results/dqn_check/minatar_authors.png` from the kept runs, and prints the means in the docs.
The authors' program is `examples/dqn.py` of github.com/kenjyoung/MinAtar. The JSON beside the
figure holds its curves and how they were made.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.report.figures import legend, styles, tidy
from spectral_bellman.report.runs import find_runs, load_run

OURS = "dqn-minatar"
UNIFORM = "dqn-minatar (initial_weights=uniform)"
THEIRS = "the authors' program"
LAST_TENTH = 900_000


@dataclass(frozen=True)
class Settings:
    """Curves of training returns."""

    folder: Path = Path("results/dqn_check")
    """Holds runs.zip and minatar_authors.json."""
    out: Path = Path("results/dqn_check/minatar_authors.png")
    """Where the figure goes."""


def training_returns(folder: Path, game: str) -> list[np.ndarray[Any, Any]]:
    """For each seed of the kept runs, the frames and training returns: (T, 2)."""
    runs = [load_run(path) for path in find_runs([folder])]
    played = [run for run in runs if run.config["env"] == f"minatar/{game}"]
    curves = []
    for run in played:
        for seed in run.seeds:
            lines = [r for r in run.lines(seed, "return") if r["return"] is not None]
            curves.append(np.array([(r["frames"], r["return"]) for r in lines]))
    return curves


def main(settings: Settings) -> None:
    """Draw, and print the mean of each curve over its last tenth, weighted by episodes."""
    text = (settings.folder / "minatar_authors.json").read_text(encoding="utf-8")
    published = json.loads(text)
    games = sorted(run["game"] for run in published["authors"])
    look = styles((OURS, UNIFORM, THEIRS))
    figure = Figure(figsize=(5.2 * len(games), 3.6), layout="constrained")
    panels = np.ravel(np.array(figure.subplots(1, len(games))))
    for game, panel in zip(games, panels, strict=True):
        for curve in training_returns(settings.folder, game):
            panel.plot(*curve.T, **look[OURS], lw=0.8)
        for run in published["uniform"]:
            if run["game"] == game:
                panel.plot(*np.array(run["curve"]).T, **look[UNIFORM], lw=1.8)
        for run in published["authors"]:
            if run["game"] == game:
                frames, returns, episodes = np.array(run["curve"]).T
                panel.plot(frames, returns, **look[THEIRS], lw=1.8)
                late = frames > LAST_TENTH
                mean = np.average(returns[late], weights=episodes[late])
                print(f"{game}, {THEIRS}, last tenth: {mean:.1f}")
        panel.set(title=f"minatar/{game}", ylabel="training return")
        tidy(panel, "frames (= agent steps)")
    legend(figure, (OURS, UNIFORM, THEIRS), "a line for each seed")
    settings.out.write_bytes(to_png(figure))
    print(settings.out)


if __name__ == "__main__":
    main(tyro.cli(Settings))
