"""The small default that ``make run`` shows: deep exploration on a CPU, sbm-dqn-ts beside dqn."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.deep_sea import DeepSea
from spectral_bellman.report.figures import styles
from spectral_bellman.report.runs import load_run, series
from spectral_bellman.training import train

SIZE = 10
AGENTS = {"sbm-dqn-ts": {"exploration": "propagated"}, "dqn": {}}
LABELS = {"sbm-dqn-ts": "sbm-dqn-ts (exploration=propagated)", "dqn": "dqn"}
"""The agents' names in figures."""
WINDOW = 20
"""Solved: the treasure was found in at least half of this many episodes in a row."""


def demo(out: Path, episodes: int, seeds: int, console: Console) -> dict[str, list[int | None]]:
    """Train both agents, print what they did and draw it.

    Returns:
      For each agent the episodes that each seed took to solve it; None if it did not.
    """
    if episodes < WINDOW:
        raise ValueError(
            f"--episodes must be at least {WINDOW}, the window of the rule; got {episodes}"
        )
    out = _free(out)
    optimal = DeepSea(SIZE).optimal_return
    console.print(
        f"DeepSea {SIZE}×{SIZE}: one of {2**SIZE:,} sequences of actions finds the treasure, and "
        "every step towards it costs.\n"
        "sbm-dqn-ts, its noise carried through the backups, and ε-greedy dqn: "
        f"{episodes} episodes and {seeds} seeds each.",
        highlight=False,
        soft_wrap=True,
    )
    solved, returns = {}, {}
    for preset, settings in AGENTS.items():
        frames = episodes * SIZE
        run = train(
            preset,
            f"deep_sea/{SIZE}",
            out=out / preset,
            console=console,
            frames=frames,
            seeds=seeds,
            log_frames=SIZE,
            eval_frames=frames,
            **settings,
        )
        _, values = series(load_run(run.folder), "return")
        returns[preset] = values
        solved[preset] = [episodes_to_solve(row > 0.5 * optimal) for row in values]
    table = Table(
        "agent",
        "seeds that solved it",
        "episodes it took",
        "treasures found",
        title=f"DeepSea {SIZE}, {episodes} episodes",
    )
    for preset, numbers in solved.items():
        took = ", ".join("–" if n is None else str(n) for n in numbers)
        found = float(np.mean(returns[preset] > 0.5 * optimal))
        table.add_row(
            preset, f"{sum(n is not None for n in numbers)} of {seeds}", took, f"{found:.0%}"
        )
    console.print(table)
    console.print(
        f"Solved: the treasure in at least {WINDOW // 2} of {WINDOW} episodes in a row, counted "
        "to the last of them.",
        highlight=False,
        soft_wrap=True,
    )
    better = sum(n is not None for n in solved["sbm-dqn-ts"]) > sum(
        n is not None for n in solved["dqn"]
    )
    console.print(
        "sbm-dqn-ts learned what dqn did not."
        if better
        else "No difference this time: sbm-dqn-ts did not do better than dqn."
    )
    (out / "demo.png").write_bytes(to_png(_figure(returns, optimal)))
    write_json(
        out / "demo.json",
        {"episodes to solve": solved, "optimal return": optimal, "provenance": provenance()},
    )
    console.print(
        f"{out / 'demo.png'} shows it; sbm report {out} draws the diagnostics",
        highlight=False,
        soft_wrap=True,
    )
    return solved


def episodes_to_solve(found: np.ndarray) -> int | None:
    """Episodes until the treasure had been found in half of the last ``WINDOW``."""
    hits = np.convolve(found, np.ones(WINDOW), "valid") >= WINDOW / 2
    return int(np.argmax(hits)) + WINDOW if hits.any() else None


def _figure(returns: dict[str, np.ndarray], optimal: float) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel, look = figure.subplots(), styles(LABELS.values())
    for preset, values in returns.items():
        colour = look[LABELS[preset]]["color"]
        smooth = np.array(
            [np.convolve(row > 0.5 * optimal, np.ones(WINDOW) / WINDOW, "valid") for row in values]
        )
        x = np.arange(WINDOW, values.shape[1] + 1)
        panel.plot(x, smooth.T, color=colour, alpha=0.35, linewidth=1)
        panel.plot(
            x,
            smooth.mean(0),
            color=colour,
            linewidth=2.5,
            label=LABELS[preset],
        )
    panel.set(
        xlabel="episodes",
        ylabel=f"share of the last {WINDOW} episodes with treasure",
        ylim=(-0.03, 1.03),
    )
    seeds = len(next(iter(returns.values())))
    panel.set_title(f"DeepSea {SIZE}, each of {seeds} seeds and their mean")
    figure.legend(loc="outside lower center", ncols=len(returns), frameon=False)
    panel.grid(alpha=0.3)
    return figure


def _free(folder: Path) -> Path:
    """The folder, or the same with a number, that nothing is in yet."""
    number, candidate = 2, folder
    while candidate.exists():
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return candidate
