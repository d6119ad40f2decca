"""Figures of the exact case. Each function draws one panel on the given axes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from spectral_bellman._arrays import as_float64
from spectral_bellman.tabular.features import Round
from spectral_bellman.tabular.power import power_sweeps, singular_values

COLORS = {
    "spectral": "#D55E00",
    "Laplacian": "#009E73",
    "random": "#7a7a7a",
    "for T^h": "#D55E00",
    "for T": "#0072B2",
}
"""Colour of each kind of features; spectral features have the colour of `sbm-dqn-ts`."""
FLOOR = 1e-16


def plot_parameter_distribution(axes: Axes, rounds: Sequence[Round], variance: float) -> None:
    """ν_t(θ) = N(θ̂_t, σ_rep² I) for d = 2 as Q-learning moves it (the paper's figure 2)."""
    means = np.array([r.parameters for r in rounds])
    if means.shape[1] != 2:
        raise ValueError(
            f"the picture of ν(θ) is for features of dimension 2, got {means.shape[1]}"
        )
    shades = np.linspace(0.25, 1.0, len(rounds))
    deviation = float(np.sqrt(variance))
    for mean, shade in zip(means, shades, strict=True):
        for radius in (2, 1.5, 1, 0.5):
            axes.add_patch(
                Circle(
                    (mean[0], mean[1]),
                    radius * deviation,
                    color=COLORS["spectral"],
                    alpha=0.16 * shade,
                    lw=0,
                )
            )
    axes.plot(*means.T, color="black", lw=0.8, marker="o", ms=3)
    for index in sorted({0, len(rounds) // 2, len(rounds) - 1}):
        offset = (0, -8 - 60 * deviation)
        label = f"round {index + 1}"
        axes.annotate(
            label, means[index], xytext=offset, textcoords="offset points", fontsize=8, ha="center"
        )
    axes.set(xlabel="θ₁", ylabel="θ₂", title="ν(θ) follows Q-learning (d = 2)")
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()


def plot_singular_values(
    axes: Axes, matrix: ArrayLike, rank: int, iterations: int, *, seed: int = 0
) -> None:
    """The singular values that Algorithm 1 has after each sweep, against the true ones (dashed)."""
    target = as_float64(matrix, "matrix", "n m")
    history, _ = sweep_history(target, rank, iterations, seed=seed)
    for value in np.linalg.svd(target, compute_uv=False)[:rank]:
        axes.axhline(value, color="black", ls="--", lw=0.7)
    axes.plot(
        np.arange(1, iterations + 1), history, color=COLORS["spectral"], marker="o", ms=2.5, lw=1.2
    )
    axes.set(
        xlabel="sweep",
        ylabel="√(λᵢ μᵢ)",
        title="Singular values found (dashed: true)",
        yscale="log",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_subspace_error(
    axes: Axes, matrix: ArrayLike, rank: int, iterations: int, *, seed: int = 0
) -> None:
    """The distance of the span of φ from the leading singular vectors, and (σ_{d+1}/σ_d)²."""
    target = as_float64(matrix, "matrix", "n m")
    _, errors = sweep_history(target, rank, iterations, seed=seed)
    values = np.linalg.svd(target, compute_uv=False)
    sweeps = np.arange(1, iterations + 1)
    rate = (values[rank] / values[rank - 1]) ** 2
    axes.semilogy(
        sweeps,
        np.maximum(errors, FLOOR),
        color=COLORS["spectral"],
        marker="o",
        ms=2.5,
        label="Algorithm 1",
    )
    # The rate is asymptotic: the line goes through the last point above rounding.
    above = np.flatnonzero(errors > 1e-12)
    anchor = above[-1] if len(above) else 0
    expected = errors[anchor] * rate ** (sweeps - sweeps[anchor])
    within = (expected > FLOOR) & (expected < 1)
    axes.semilogy(
        sweeps[within],
        expected[within],
        "k--",
        lw=0.8,
        label=f"rate (σ$_{{d+1}}$/σ$_d$)² = {rate:.2f} a sweep",
    )
    axes.set(xlabel="sweep", ylabel="sine of the largest angle", title="Span of φ converges")
    axes.legend(fontsize=8, frameon=False)


def plot_error_over_rounds(axes: Axes, errors: Mapping[int, Sequence[float]], unit: float) -> None:
    """The inherent Bellman error after each round, one line for each rank; ``unit`` is D."""
    for (rank, values), shade in zip(
        errors.items(), np.linspace(0.35, 1, len(errors)), strict=True
    ):
        heights = np.asarray(values) / unit
        rounds = np.arange(1, len(heights) + 1)
        axes.plot(
            rounds,
            heights,
            color=COLORS["spectral"],
            alpha=shade,
            marker="o",
            ms=3,
            label=f"d = {rank}",
        )
    axes.set(xlabel="round", ylabel="IBE / D", title="IBE, round by round", ylim=(-0.03, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, frameon=False)


def plot_error_by_rank(
    axes: Axes, ranks: Sequence[int], errors: Mapping[str, np.ndarray], title: str
) -> None:
    """IBE / D against the rank, one line for each kind of features.

    The line is the median over seeds (rows); the shade spans the smallest and the largest value.
    """
    _plot_seeds(axes, ranks, errors)
    axes.set(xlabel="rank d", ylabel="IBE / D", title=title, ylim=(-0.03, 1.05))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_error_by_steps(
    axes: Axes, steps: Sequence[int], errors: Mapping[str, np.ndarray], title: str
) -> None:
    """The error of T^h, divided by D, against h; lines and shades as in ``plot_error_by_rank``."""
    _plot_seeds(axes, steps, errors)
    axes.set(xlabel="h", ylabel="IBE of $T^h$ / D", title=title, xscale="log", yscale="log")
    axes.set_xticks(list(steps), [str(h) for h in steps])
    axes.minorticks_off()


def _plot_seeds(axes: Axes, places: Sequence[int], errors: Mapping[str, np.ndarray]) -> None:
    for name, values in errors.items():
        axes.fill_between(
            places, values.min(axis=0), values.max(axis=0), color=COLORS[name], alpha=0.2, lw=0
        )
        axes.plot(
            places, np.median(values, axis=0), color=COLORS[name], marker="o", ms=3, label=name
        )
    axes.legend(fontsize=8, frameon=False)


def sweep_history(
    matrix: np.ndarray, rank: int, iterations: int, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The convergence of Algorithm 1, after each sweep.

    Returns the singular values found, (iterations, rank), and the sine of the largest angle
    between the span of φ and the true span.
    """
    if not 1 <= rank < min(matrix.shape):
        raise ValueError(
            f"rank must lie in [1, {min(matrix.shape) - 1}], "
            f"so that something is left out; got {rank}"
        )
    true = np.linalg.svd(matrix)[0][:, :rank]
    values, errors = [], []
    for phi, theta in power_sweeps(matrix, rank, iterations, seed=seed):
        basis = np.linalg.qr(phi)[0]
        values.append(singular_values(phi, theta))
        errors.append(np.linalg.norm(basis - true @ (true.T @ basis), 2))
    return np.array(values), np.array(errors)
