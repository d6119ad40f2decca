"""Algorithm 1, the Spectral Bellman Power Method, on a fixed matrix TQ."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from spectral_bellman._arrays import as_float64
from spectral_bellman.tabular.mdp import FloatArray


def power_method(
    matrix: ArrayLike,
    rank: int,
    iterations: int,
    row_weights: ArrayLike | None = None,
    column_weights: ArrayLike | None = None,
    *,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Algorithm 1 on a fixed TQ: features φ and parameters θ̃ with φᵀθ̃ ≈ TQ.

    φ and θ̃ are aligned with the singular vectors of TQ. A sweep solves Λ2 φ̄ = ⟨TQ̄, θ̄⟩ for φ̄, then
    solves Λ1 θ̄ = ⟨TQ̄, φ̄⟩ for θ̄ with the new φ̄, then multiplies both by the d×d alignment that makes
    Λ1 and Λ2 diagonal. Bars mark the weighted quantities, φ̄ = √ρ φ and θ̄ = √ν θ̃. The values
    √(λ_i μ_i) converge to the largest singular values of the weighted matrix √ρ TQ √ν. The span of
    φ̄ converges at the rate (σ_{d+1}/σ_d)² a sweep.

    Args:
      matrix: TQ, shape (n, m): a row for each state-action pair, a column for each θ.
      rank: d, at most min(n, m).
      iterations: sweeps.
      row_weights: ρ, shape (n,), not negative; all one if not given. If ρ is a distribution, Λ is
        an expectation.
      column_weights: ν, shape (m,), likewise.
      seed: the seed of the random start.

    Returns:
      Features (n, d) and parameters (m, d), unweighted, and the d singular values, largest first.
      Rows and columns of weight zero get the φ and θ̃ that fit them, but do not affect the rest.
    """
    target = as_float64(matrix, "matrix", "n m")
    n, m = target.shape
    if not 1 <= rank <= min(n, m):
        raise ValueError(
            f"rank must lie in [1, {min(n, m)}], since matrix has shape {target.shape}; got {rank}"
        )
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    rho = _weights(row_weights, "row_weights", n)
    nu = _weights(column_weights, "column_weights", m)
    weighted = np.sqrt(rho)[:, None] * target * np.sqrt(nu)
    *_, (phi, theta) = power_sweeps(weighted, rank, iterations, seed=seed)
    # Divide by no weight: the equations of the sweep also hold for rows and columns of weight zero.
    features = target @ (np.sqrt(nu)[:, None] * _over_cov(theta))
    parameters = target.T @ (np.sqrt(rho)[:, None] * _over_cov(phi))
    return features, parameters, singular_values(phi, theta)


def power_sweeps(
    weighted: FloatArray, rank: int, iterations: int, *, seed: int = 0
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """φ̄ and θ̄, aligned, after each sweep on the weighted matrix, from a random start."""
    rng = np.random.default_rng(seed)
    phi, theta = (rng.normal(size=(size, rank)) for size in weighted.shape)
    for _ in range(iterations):
        phi, theta = align(*power_step(weighted, phi, theta))
        yield phi, theta


def singular_values(phi: FloatArray, theta: FloatArray) -> FloatArray:
    """√(λ_i μ_i) of aligned φ̄ and θ̄."""
    return np.sqrt((phi**2).sum(axis=0) * (theta**2).sum(axis=0))


def power_step(
    weighted: FloatArray, phi: FloatArray, theta: FloatArray, *, simultaneous: bool = False
) -> tuple[FloatArray, FloatArray]:
    """One sweep on the weighted matrix: φ̄ = TQ̄ θ̄ Λ2⁻¹, then θ̄ = TQ̄ᵀ φ̄ Λ1⁻¹.

    ``simultaneous`` follows Algorithm 1 literally and computes θ̄ from the φ̄ before the sweep. That
    does not converge: φ̄ and θ̄ each invert the scale of the other and end in a cycle of period two.
    """
    new_phi = weighted @ _over_cov(theta)
    return new_phi, weighted.T @ _over_cov(phi if simultaneous else new_phi)


def align(phi: FloatArray, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Align φ̄ and θ̄: Λ1 = Λ2 becomes diagonal, largest first, and φ̄θ̄ᵀ does not change.

    φ̄ is multiplied by a d×d matrix and θ̄ by its inverse transpose.
    """
    phi_basis, phi_rest = np.linalg.qr(phi)
    theta_basis, theta_rest = np.linalg.qr(theta)
    left, values, right = np.linalg.svd(phi_rest @ theta_rest.T)
    return phi_basis @ left * np.sqrt(values), theta_basis @ right.T * np.sqrt(values)


def _over_cov(x: FloatArray) -> FloatArray:
    """x Λ⁻¹ with Λ = xᵀx, without forming Λ, which squares the condition number of x.

    The result is zero in the null directions of x.
    """
    return np.asarray(np.linalg.pinv(x).T)


def _weights(weights: ArrayLike | None, name: str, size: int) -> FloatArray:
    if weights is None:
        return np.ones(size)
    array = as_float64(weights, name, "n")
    if array.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {array.shape}")
    if (array < 0).any() or not array.any():
        raise ValueError(
            f"{name} must be non-negative and not all zero, got a minimum of {array.min()}"
        )
    return array
