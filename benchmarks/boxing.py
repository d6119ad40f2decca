"""Draws `results/atari-h200/boxing.json`: greedy returns, and how far noise and actions move Q.

python benchmarks/boxing.py
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import tyro

EVALUATIONS = "evaluations (frames, mean return of 10 episodes)"
VARIANTS = "sbm-dqn-ts, variants"
GAP = "best action above the mean of all (frames, value)"
NOISE = "how far the noise moves actions apart (frames, value)"


@dataclass(frozen=True)
class Figure:
    """Boxing, five million frames."""

    runs: Path = Path("results/atari-h200/boxing.json")
    """What was measured."""
    out: Path = Path("results/atari-h200/boxing.png")
    """Where the picture goes."""


def group(run: dict[str, Any]) -> tuple[str, str] | None:
    """Name and colour of a run's curve; None for settings that are no longer in use."""
    if run["learning_rate"] != 2.5e-4 or run["network"] != "centred":
        return None
    if run["preset"] == "dqn":
        return "dqn", "tab:blue"
    if "--q-start" in run["command"] or "--fade-steps" in run["command"]:
        return VARIANTS, "tab:green"
    if "--noise-scale" in run["command"]:
        return "sbm-dqn-ts, the preset: noise ×100, annealed", "tab:orange"
    return "sbm-dqn-ts and sbm-dqn, noise of the paper or ε-greedy", "tab:grey"


def main(config: Figure) -> None:
    """Draw."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    seen = set()
    for run in json.loads(config.runs.read_text())["runs"]:
        if (found := group(run)) is None:
            continue
        name, colour = found
        frames, returns = zip(*run[EVALUATIONS], strict=True)
        label = None if name in seen else name
        left.plot([f / 1e6 for f in frames], returns, color=colour, marker="o", ms=3, label=label)
        seen.add(name)
        if NOISE in run and name != VARIANTS:
            for key, style in ((GAP, "-"), (NOISE, "--")):
                frames, values = zip(*run[key], strict=True)
                right.plot([f / 1e6 for f in frames], values, style, color=colour)
    left.axhline(0.1, color="black", lw=0.8, ls=":")
    left.set_title("Boxing, one run each (dotted: random)")
    left.set(xlabel="million frames", ylabel="greedy return, 10 episodes")
    left.legend(fontsize=8)
    right.plot([], [], "k-", label="best action above the mean of all")
    right.plot([], [], "k--", label="how far Thompson's noise moves actions apart")
    right.set_title("Noise against the differences between actions")
    right.set(xlabel="million frames", ylabel="Q", yscale="log", ylim=(0.01, 10))
    right.legend(fontsize=8)
    figure.savefig(config.out, dpi=130)


if __name__ == "__main__":
    main(tyro.cli(Figure))
