"""λ_min(Σ) of an ill-conditioned replay, by each way of getting it, and what each costs.

python benchmarks/posterior.py --out results/posterior-cpu

Σ = λI + ΦᵀΦ has condition number 1e7, as after a million unit-norm features. The smallest
eigenvalue of Σ sets the scale of the exploration noise. The truth comes from NumPy in float64.
Times are medians after compilation. The last column is relative to the bare product ΦᵀΦ in float32,
which every method needs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array
from rich.console import Console
from rich.table import Table

from spectral_bellman import posterior
from spectral_bellman.disk.provenance import provenance, write_json


@dataclass(frozen=True)
class Config:
    """Settings."""

    rows: int = 1_048_576
    """Features in the replay."""
    chunk: int = 16_384
    """Features a chunk."""
    d: int = 256
    """Dimension of the features."""
    ridge: float = 0.1
    """λ."""
    condition: float = 1e7
    """Condition number of Σ."""
    repeats: int = 5
    """Timed calls of each."""
    out: Path | None = None
    """Folder for summary.json."""


def make_rows(config: Config) -> np.ndarray:
    """Features with a geometric spectrum in a random basis; 1/8 of the directions are very rare."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(config.d, config.d)))[0]
    unseen = config.d // 8
    spectrum = np.append(
        np.geomspace(config.condition * config.ridge, 10, config.d - unseen), np.full(unseen, 1e-3)
    )
    mix = (np.sqrt(spectrum / config.rows)[:, None] * rotation).astype(np.float32)
    return np.concatenate(
        [
            rng.standard_normal((config.chunk, config.d), np.float32) @ mix
            for _ in range(config.rows // config.chunk)
        ]
    )


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median wall time of a call, once compiled."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _compose(outer: Callable[[Array], Array], inner: Callable[[], Array]) -> Array:
    return outer(inner())


def bare_product(chunks: Array) -> Array:
    """ΦᵀΦ in float32."""
    return jax.lax.scan(
        lambda s, x: (s + jnp.matmul(x.T, x, precision="highest"), None),
        jnp.zeros((chunks.shape[-1],) * 2),
        chunks,
    )[0]


def main(config: Config) -> None:
    """Measure and print."""
    console = Console()
    phi = make_rows(config)
    ridge = config.ridge * np.eye(config.d)
    exact = (
        sum(x.T @ x for x in np.split(phi.astype(np.float64), config.rows // config.chunk)) + ridge
    )
    spectrum = np.linalg.eigvalsh(exact)
    truth = float(spectrum[0])
    chunks = jax.device_put(phi.reshape(-1, config.chunk, config.d))

    def scatter_factor(chunks: Array) -> Array:
        def add(scatter: posterior.Scatter, x: Array) -> tuple[posterior.Scatter, None]:
            return posterior.add_scatter(scatter, x), None

        return posterior.factor_scatter(
            jax.lax.scan(add, posterior.init_scatter(config.d), chunks)[0], config.ridge
        )

    eye = config.ridge * jnp.eye(config.d)
    rounded = jnp.asarray(exact.astype(np.float32))
    product = jax.jit(bare_product)
    ways: dict[str, tuple[Callable[[], Array], Callable[[Array], Array]]] = {
        "float32 sum, float32 eigh": (
            lambda: product(chunks),
            jax.jit(lambda s: jnp.linalg.eigvalsh(s + eye)[0]),
        ),
        "float64 sum, float32 eigh": (
            lambda: rounded,
            jax.jit(lambda s: jnp.linalg.eigvalsh(s)[0]),
        ),
        "chunks, jit": (lambda: _factor(chunks), jax.jit(posterior.min_eigenvalue)),
        "chunks, vmap of a loop, jit": (
            lambda: _factors(chunks[None])[0],
            jax.jit(posterior.min_eigenvalue),
        ),
    }
    _factor, _factors = jax.jit(scatter_factor), jax.jit(jax.vmap(scatter_factor))
    base = median_seconds(lambda: product(chunks), config.repeats)
    results = {"bare product": {"seconds": base}}
    table = Table(
        title=f"λ_min(Σ) = {truth:.5f}, condition number {spectrum[-1] / truth:.2g}, "
        f"{config.rows} × {config.d}"
    )
    for column in ("way", "λ_min", "relative error", "seconds", "÷ bare product"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, (build, smallest) in ways.items():
        value = float(smallest(build()))
        seconds = median_seconds(partial(_compose, smallest, build), config.repeats)
        results[name] = {
            "min_eigenvalue": value,
            "relative_error": value / truth - 1,
            "seconds": seconds,
        }
        shown = f"{seconds / base:.2f}" if "float64 sum" not in name else "–"
        table.add_row(name, f"{value:.5f}", f"{value / truth - 1:+.1%}", f"{seconds:.4f}", shown)
    console.print(table)
    z = jax.random.normal(jax.random.key(0), (16, config.d))
    factor = _factor(chunks)
    drawn = np.asarray(
        posterior.thompson_parameters(z, jnp.zeros(config.d), factor, 1.0), np.float64
    )
    expected = np.linalg.solve(np.linalg.cholesky(exact).T, np.asarray(z, np.float64).T).T
    error = float(np.linalg.norm(drawn - expected) / np.linalg.norm(expected))
    results["thompson_parameters"] = {"relative_error": error}
    console.print(
        f"Thompson parameters through the factor: relative error {error:.1e}   "
        f"(device: {jax.devices()[0].device_kind})"
    )
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(config).items() if name != "out"}
        facts = {
            "provenance": provenance(),
            "config": settings,
            "true_min_eigenvalue": truth,
            "results": results,
        }
        write_json(config.out / "summary.json", facts)


if __name__ == "__main__":
    main(tyro.cli(Config))
