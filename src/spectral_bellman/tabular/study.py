"""The exact case as one command: convergence of Algorithm 1, and inherent Bellman errors."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.tabular import figures
from spectral_bellman.tabular.features import (
    laplacian_features,
    random_features,
    spectral_features,
    spectral_q_iteration,
)
from spectral_bellman.tabular.ibe import inherent_bellman_error, value_bound
from spectral_bellman.tabular.mdp import MDP, aggregated_mdp, bellman_backup, chain_mdp, random_mdp
from spectral_bellman.tabular.power import power_method

AGGREGATED = "state aggregation"
GENERIC = "generic MDP"
RANKS = {AGGREGATED: (1, 2, 3, 4, 5, 6, 8, 10), GENERIC: (1, 4, 8, 12, 16, 20, 21, 24)}
DISCOUNT = 0.9
STEPS = (1, 2, 4, 8, 16)
"""h of T^h."""
STEPS_RANK = {AGGREGATED: 4, GENERIC: 8}
"""Dimension of the features for T^h, too small for a closed space."""


@dataclass(frozen=True)
class TabularStudy:
    """Run the exact case: singular values, convergence, and inherent Bellman errors of features."""

    out: Path = Path("out/tabular")
    """Folder for the figure and the numbers."""
    seeds: int = 3
    """MDPs drawn for each line of the table, seeds 0, 1, …"""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")


def run(study: TabularStudy, console: Console) -> Path:
    """Compute, print the tables, and write ``tabular.png``, ``table.md`` and ``summary.json``.

    Returns the path of the figure.
    """
    study.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    errors: dict[str, dict[str, np.ndarray]] = {}
    step_errors: dict[str, dict[str, np.ndarray]] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(
            "inherent Bellman errors",
            total=study.seeds * sum(len(ranks) + len(STEPS) for ranks in RANKS.values()),
        )
        for name, ranks in RANKS.items():
            rows = []
            for seed in range(study.seeds):
                mdp = _draw(name, seed)
                for rank in ranks:
                    rows.append(_errors(mdp, rank, seed))
                    progress.advance(task)
            errors[name] = _by_kind(rows, study.seeds)
            rows = []
            for seed in range(study.seeds):
                mdp = _draw(name, seed)
                for h in STEPS:
                    rows.append(_step_errors(mdp, STEPS_RANK[name], h, seed))
                    progress.advance(task)
            step_errors[name] = _by_kind(rows, study.seeds)
    backups = _backup_matrix(_draw(GENERIC, 0))
    figure = _draw_figure(backups, errors, step_errors)
    path = study.out / "tabular.png"
    path.write_bytes(to_png(figure, dpi=130))
    write_json(
        study.out / "summary.json",
        {
            "provenance": provenance(),
            "config": {**asdict(study), "out": str(study.out)},
            "seconds": round(time.perf_counter() - started, 1),
            "inherent_bellman_error_over_bound": {
                name: {
                    "ranks": RANKS[name],
                    **{kind: values.tolist() for kind, values in by_kind.items()},
                }
                for name, by_kind in errors.items()
            },
            "h_step_error_over_bound": {
                name: {
                    "rank": STEPS_RANK[name],
                    "h": STEPS,
                    **{kind: values.tolist() for kind, values in by_kind.items()},
                }
                for name, by_kind in step_errors.items()
            },
        },
    )
    tables: list[tuple[str, str, tuple[int, ...], dict[str, np.ndarray]]]
    tables = [(_title(name, errors[name]), "rank", RANKS[name], errors[name]) for name in RANKS]
    tables += [(_step_title(name, found), "h", STEPS, found) for name, found in step_errors.items()]
    text = "\n".join(_markdown(*table) for table in tables)
    (study.out / "table.md").write_text(text, encoding="utf-8")
    console.print(_power_table(backups))
    for table in tables:
        console.print(_error_table(*table))
    console.print(
        f"Figure: {path}   numbers: {study.out / 'summary.json'}", soft_wrap=True, markup=False
    )
    return path


def _draw(name: str, seed: int) -> MDP:
    if name == AGGREGATED:
        return aggregated_mdp(seed, groups=5, distractors=6, actions=3, discount=DISCOUNT)[0]
    return random_mdp(seed, states=20, actions=3, discount=DISCOUNT, branching=4)


def _backup_matrix(mdp: MDP, columns: int = 40) -> np.ndarray:
    """TQ of random Q's, a column each."""
    rng = np.random.default_rng(0)
    return np.stack(
        [bellman_backup(mdp, rng.normal(size=mdp.reward.shape)).ravel() for _ in range(columns)],
        axis=1,
    )


def _errors(mdp: MDP, rank: int, seed: int) -> dict[str, float]:
    features = {
        "spectral": spectral_features(mdp, rank, seed=seed)[0],
        "Laplacian": laplacian_features(mdp, rank),
        "random": random_features(seed, mdp, rank),
    }
    return {
        kind: inherent_bellman_error(mdp, phi, starts=4) / value_bound(mdp)
        for kind, phi in features.items()
    }


def _step_errors(mdp: MDP, rank: int, h: int, seed: int) -> dict[str, float]:
    """I_φ^h of features that are learned for T^h, and of features that are learned for T."""
    features = {
        "for T^h": spectral_features(mdp, rank, steps=h, seed=seed)[0],
        "for T": spectral_features(mdp, rank, seed=seed)[0],
    }
    return {
        kind: inherent_bellman_error(mdp, phi, steps=h, starts=4) / value_bound(mdp)
        for kind, phi in features.items()
    }


def _by_kind(rows: list[dict[str, float]], seeds: int) -> dict[str, np.ndarray]:
    """kind of features -> (seeds, columns)."""
    return {kind: np.array([row[kind] for row in rows]).reshape(seeds, -1) for kind in rows[0]}


def _power_table(matrix: np.ndarray) -> Table:
    table = Table(
        title="Algorithm 1: singular values √(λᵢ μᵢ) of TQ, 60 × 40", title_justify="left"
    )
    rank = 3
    true = np.linalg.svd(matrix, compute_uv=False)[:rank]
    table.add_column("sweeps", justify="right")
    for i in range(rank):
        table.add_column(f"σ{i + 1}", justify="right")
    table.add_column("largest relative error", justify="right")
    for sweeps in (1, 4, 16, 64):
        values = power_method(matrix, rank, sweeps)[2]
        worst = float(np.abs(values / true - 1).max())
        table.add_row(str(sweeps), *(f"{v:.4f}" for v in values), f"{worst:.1e}")
    table.add_row("SVD", *(f"{v:.4f}" for v in true), "", style="bold")
    return table


def _error_table(
    title: str, unit: str, columns: tuple[int, ...], errors: dict[str, np.ndarray]
) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in (unit, *errors):
        table.add_column(heading, justify="right")
    for row in _error_rows(columns, errors):
        table.add_row(*row)
    return table


def _markdown(
    title: str, unit: str, columns: tuple[int, ...], errors: dict[str, np.ndarray]
) -> str:
    heads = [unit, *errors]
    rows = [heads, ["---:"] * len(heads), *_error_rows(columns, errors)]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"## {title}\n\n{lines}"


def _title(name: str, errors: dict[str, np.ndarray]) -> str:
    seeds = len(next(iter(errors.values())))
    return f"Inherent Bellman error / D, {name}: median of {seeds} (largest)"


def _step_title(name: str, errors: dict[str, np.ndarray]) -> str:
    seeds = len(next(iter(errors.values())))
    rank = STEPS_RANK[name]
    return (
        f"Inherent Bellman error of T^h / D, {name}, spectral features with d = {rank}: median of "
        f"{seeds} (largest)"
    )


def _error_rows(columns: tuple[int, ...], errors: dict[str, np.ndarray]) -> list[list[str]]:
    return [
        [str(c), *(f"{np.median(v[:, i]):.2g} ({v[:, i].max():.2g})" for v in errors.values())]
        for i, c in enumerate(columns)
    ]


def _draw_figure(
    backups: np.ndarray,
    errors: dict[str, dict[str, np.ndarray]],
    step_errors: dict[str, dict[str, np.ndarray]],
) -> Figure:
    figure = Figure(figsize=(17, 7.5), layout="constrained")
    axes: Any = figure.subplots(2, 4)
    figures.plot_singular_values(axes[0, 0], backups, rank=3, iterations=40)
    figures.plot_subspace_error(axes[0, 1], backups, rank=3, iterations=40)
    variance = 0.1
    rounds = spectral_q_iteration(chain_mdp(8, DISCOUNT), rank=2, rounds=25, variance=variance)
    figures.plot_parameter_distribution(axes[0, 2], rounds, variance)
    mdp = _draw(AGGREGATED, 0)
    by_round = {
        rank: [
            inherent_bellman_error(mdp, spectral_features(mdp, rank, iterations=k)[0], starts=4)
            for k in range(1, 6)
        ]
        for rank in (2, 4, 6)
    }
    figures.plot_error_over_rounds(axes[1, 0], by_round, value_bound(mdp))
    for panel, (name, by_kind) in zip(axes[1, 1:3], errors.items(), strict=True):
        figures.plot_error_by_rank(panel, RANKS[name], by_kind, f"IBE by rank: {name}")
    for panel, (name, by_kind) in zip(axes[:, 3], step_errors.items(), strict=True):
        title = f"IBE of $T^h$: {name}, d = {STEPS_RANK[name]}"
        figures.plot_error_by_steps(panel, STEPS, by_kind, title)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    return figure
