"""Uncertainty about Q = φᵀθ from Σ = λI + Σ_D φφᵀ: Thompson sampling, UCB, least squares.

Σ is the precision matrix. Between calls, keep a lower factor L with LLᵀ = Σ, not Σ itself. With a
million rows, the eigenvalues of Σ span seven orders of magnitude, and float32 cannot tell the
smallest from zero. The singular values of L span three and a half. Every function here that forms
or factors Σ computes in float64 in every mode of JAX, also under ``jit`` and on GPUs. See
``Scatter`` for a replay in chunks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from spectral_bellman._arrays import (
    RandomKey,
    Scalar,
    checked,
    in_float64,
    is_broken,
    known,
    product,
)


@checked
def precision(phi: Float[Array, "N d"], ridge: Scalar) -> Float[Array, "d d"]:
    """Σ = λI + Σ_n φ_n φ_nᵀ (section 3.5), all rows at once.

    The sum is computed in float64, but the result is float32 if φ is float32. That is accurate
    enough up to condition numbers of about 1e5. For larger condition numbers, and for more rows
    than fit one array, accumulate a ``Scatter`` and take its factor.
    """
    _check_ridge("precision", ridge)
    return _precision(phi, ridge)


@checked
def factor(precision: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The lower Cholesky factor L of Σ = LLᵀ, computed in float64.

    A matrix that is not positive definite raises an error that names its smallest eigenvalue, here
    and in every function that takes Σ. A traced matrix (inside ``jit``) cannot be checked; its
    factor is NaN.
    """
    result = _cholesky(precision)
    if is_broken(result):
        _check_positive("factor", precision, _eigenvalues(precision)[0])
    return result


@checked
def exploration_scale(precision: Float[Array, "d d"], discount: Scalar) -> Float[Array, ""]:
    """σ_exp = λ_min(Σ) / (d (1 − γ)), the paper's scale; a variance, not a standard deviation."""
    _check_discount("exploration_scale", discount)
    smallest = _eigenvalues(precision)[0]
    _check_positive("exploration_scale", precision, smallest)
    return smallest / (len(precision) * (1 - discount))


@checked
def exploration_scale_from_factor(
    factor: Float[Array, "d d"], discount: Scalar
) -> Float[Array, ""]:
    """``exploration_scale`` of Σ = LLᵀ, without the loss of digits in a float32 Σ."""
    _check_discount("exploration_scale_from_factor", discount)
    return min_eigenvalue(factor) / (len(factor) * (1 - discount))


@checked
def min_eigenvalue(factor: Float[Array, "d d"]) -> Float[Array, ""]:
    """λ_min(Σ) of Σ = LLᵀ, by the power method on Σ⁻¹.

    The method costs about a dozen matrix products; all eigenvalues would cost about a hundred.
    """
    return _min_eigenvalue(factor)


@checked
def thompson_parameters(
    z: Float[Array, "... d"],
    mean: Float[Array, "... d"],
    factor: Float[Array, "d d"],
    scale: Scalar,
) -> Float[Array, "... d"]:
    """θ_TS = θ̂ + √σ L⁻ᵀ z (section 3.5): for z ~ N(0, I) a draw from N(θ̂, σ Σ⁻¹).

    Keep z for an episode, and call this function again whenever θ̂, Σ or φ have changed. The draw
    then follows the change instead of being drawn anew.

    Args:
      z: standard normal, any leading axes (for example, one row for each environment).
      mean: θ̂; one for all z, or with the leading axes of z.
      factor: L, from ``factor`` or ``factor_scatter``.
      scale: σ, a variance.
    """
    _check_scale("thompson_parameters", scale)
    shape = jnp.broadcast_shapes(mean.shape, z.shape)
    noise = jnp.sqrt(scale) * _solve(factor, z, transpose=True)
    return jnp.broadcast_to(mean, shape) + jnp.broadcast_to(noise, shape)


@checked
def thompson_sample(
    key: RandomKey,
    mean: Float[Array, " d"],
    precision: Float[Array, "d d"],
    scale: Scalar,
    shape: tuple[int, ...] = (),
) -> Float[Array, "... d"]:
    """Draws of θ_TS ~ N(θ̂, σ Σ⁻¹), ``shape`` + (d,) of them."""
    z = jax.random.normal(key, (*shape, len(mean)), mean.dtype)
    return thompson_parameters(z, mean, factor(precision), scale)


@checked
def ucb_bonus(
    phi: Float[Array, "... d"], precision: Float[Array, "d d"], scale: Scalar
) -> Float[Array, "..."]:
    """√(σ φᵀΣ⁻¹φ), the standard deviation of φᵀθ_TS, to be added to φᵀθ̂."""
    return ucb_bonus_from_factor(phi, factor(precision), scale)


@checked
def ucb_bonus_from_factor(
    phi: Float[Array, "... d"], factor: Float[Array, "d d"], scale: Scalar
) -> Float[Array, "..."]:
    """``ucb_bonus`` through a kept factor: √σ ‖L⁻¹φ‖."""
    _check_scale("ucb_bonus", scale)
    squared = jnp.sum(jnp.square(_solve(factor, phi, transpose=False)), axis=-1)
    positive = squared > 0  # the root has no derivative at zero
    return jnp.sqrt(scale) * jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)


@checked
def max_uncertainty(
    feature_means: Float[Array, "P d"], precision: Float[Array, "d d"], scale: Scalar
) -> Float[Array, ""]:
    """U(σ) = max_π √σ ‖φ_π‖_{Σ⁻¹} (section 2.2) over P policies.

    A policy is given by its expected features φ_π = E_{d^π}[φ].
    """
    return max_uncertainty_from_factor(feature_means, factor(precision), scale)


@checked
def max_uncertainty_from_factor(
    feature_means: Float[Array, "P d"], factor: Float[Array, "d d"], scale: Scalar
) -> Float[Array, ""]:
    """``max_uncertainty`` through a kept factor."""
    return jnp.max(ucb_bonus_from_factor(feature_means, factor, scale))


@checked
def bound_noise(noise: Float[Array, "... d"], bound: Scalar) -> Float[Array, "... d"]:
    """ξ shortened to ‖ξ‖ ≤ bound where ξ is longer.

    The paper's bound on ξ = θ_TS − θ̂ is R_max / (1 − γ) (section 2.2).
    """
    squared = jnp.sum(jnp.square(noise), axis=-1, keepdims=True)
    outside = squared > jnp.square(bound)  # the root has no derivative at zero
    return noise * jnp.where(outside, bound / jnp.sqrt(jnp.where(outside, squared, 1)), 1)


@checked
def least_squares(
    phi: Float[Array, "N d"], targets: Float[Array, " N"], ridge: Scalar
) -> Float[Array, " d"]:
    """θ̂_LS = argmin_θ Σ_n (φ_nᵀθ − y_n)² + λ‖θ‖² = Σ⁻¹ Σ_n φ_n y_n (section 3.5).

    Section 3.5 prints argmax; argmin is meant. For a replay in chunks, accumulate a ``Scatter`` of
    d + 1 columns, φ and then the target, and pass its factor to ``regression_parameters``.
    """
    _check_ridge("least_squares", ridge)
    rows = jnp.concatenate([phi, targets[:, None]], axis=1)
    return regression_parameters(
        factor_scatter(add_scatter(init_scatter(rows.shape[1], rows.dtype), rows), ridge)
    )


@checked
def regression_parameters(factor: Float[Array, "d_plus_1 d_plus_1"]) -> Float[Array, " d"]:
    """θ̂_LS from the factor of a ``Scatter`` whose last column held the targets.

    With [Φ y]ᵀ[Φ y] + λI = LLᵀ, the last row of L is (L_φ⁻¹Φᵀy, ·): one triangular solve gives θ̂.
    """
    return _solve(factor[:-1, :-1], factor[-1, :-1], transpose=True)


class Scatter(NamedTuple):
    """Σ_n w φ_n φ_nᵀ as the sum of two arrays, high + low.

    Two float32 hold 48 bits, so they keep a float64 sum where JAX stores no float64. Build the
    scatter chunk by chunk, in a Python loop or as the carry of ``lax.scan``, over any number of
    rows:

        scatter = init_scatter(d)
        for phi in chunks:
            scatter = add_scatter(scatter, phi)
        L = factor_scatter(scatter, ridge)
    """

    high: Float[Array, "d d"]
    low: Float[Array, "d d"]


def init_scatter(d: int, dtype: DTypeLike | None = None) -> Scatter:
    """A scatter of no rows; the factor will have its ``dtype`` (JAX's default if not given)."""
    return Scatter(jnp.zeros((d, d), dtype), jnp.zeros((d, d), dtype))


@checked
def add_scatter(scatter: Scatter, phi: Float[Array, "N d"], weight: Scalar = 1.0) -> Scatter:
    """Add N rows, each counted ``weight`` times, for example replay size / sample size.

    Rows of zeros, as in padding, add nothing.
    """
    if scatter.high.shape != (phi.shape[1],) * 2:
        raise ValueError(
            f"add_scatter: phi has {phi.shape[1]} columns but scatter is {scatter.high.shape}; "
            f"start from init_scatter({phi.shape[1]})"
        )
    return _add_scatter(scatter, phi, weight)


@checked
def factor_scatter(scatter: Scatter, ridge: Scalar) -> Float[Array, "d d"]:
    """The lower factor L of λI + scatter; λ_min(LLᵀ) is within 1% at condition numbers of 1e7."""
    _check_ridge("factor_scatter", ridge)
    result = _factor_scatter(scatter, ridge)
    if is_broken(result):
        bad = int(jnp.sum(~jnp.isfinite(scatter.high)))
        raise ValueError(
            f"factor_scatter: ridge {float(ridge):.3g} plus the scatter of the rows has no factor; "
            f"{bad} of {scatter.high.size} entries are not finite. "
            "Look for NaN or infinity in the features, or raise the ridge"
        )
    return result


@in_float64
def _precision(phi: Array, ridge: Scalar) -> Array:
    return ridge * jnp.eye(phi.shape[1], dtype=phi.dtype) + product(phi.T, phi)


@in_float64
def _cholesky(matrix: Array) -> Array:
    return jnp.linalg.cholesky(matrix, symmetrize_input=True)


@in_float64
def _eigenvalues(matrix: Array) -> Array:
    return jnp.linalg.eigvalsh(matrix, symmetrize_input=True)


@in_float64
def _min_eigenvalue(factor: Array) -> Array:
    inverse = jax.scipy.linalg.solve_triangular(
        factor, jnp.eye(len(factor), dtype=factor.dtype), lower=True
    )
    covariance = product(inverse.T, inverse)
    power = covariance / jnp.trace(covariance)
    # Σ⁻¹ to the power 2¹⁵ projects on the leading eigenvector of Σ⁻¹. Eigenvalues too close to
    # separate cost a relative error of at most d/90,000.
    for _ in range(15):
        power = product(power, power)
        power = power / jnp.trace(power)
    return 1 / jnp.sum(covariance * power)


@in_float64
def _factor_scatter(scatter: Scatter, ridge: Scalar) -> Array:
    matrix = scatter.high + scatter.low
    return jnp.linalg.cholesky(
        matrix + ridge * jnp.eye(len(matrix), dtype=matrix.dtype), symmetrize_input=True
    )


def _add_scatter(scatter: Scatter, phi: Array, weight: Scalar) -> Scatter:
    with jax.enable_x64(True):
        high, low, phi, weight = (
            jax.lax.convert_element_type(x, jnp.float64) for x in (*scatter, phi, weight)
        )
        total = high + low + weight * product(phi.T, phi)
        # The compiler may remove a cast to float32 and back, but not reduce_precision.
        info = jnp.finfo(scatter.high.dtype)
        high = jax.lax.reduce_precision(total, exponent_bits=info.nexp, mantissa_bits=info.nmant)
        return Scatter(
            *(jax.lax.convert_element_type(x, scatter.high.dtype) for x in (high, total - high))
        )


def _solve(factor: Array, x: Array, *, transpose: bool) -> Array:
    """L⁻¹x, or L⁻ᵀx, along the last axis of x."""
    columns = x.reshape(-1, x.shape[-1]).T
    return jax.scipy.linalg.solve_triangular(
        factor, columns, lower=True, trans=int(transpose)
    ).T.reshape(x.shape)


def _check_ridge(function: str, ridge: Scalar) -> None:
    if (number := known(ridge)) is not None and not number > 0:
        raise ValueError(f"{function}: ridge must be positive, got {number}; the paper uses 0.1")


def _check_scale(function: str, scale: Scalar) -> None:
    if (number := known(scale)) is not None and not number >= 0:
        raise ValueError(
            f"{function}: scale must not be negative, got {number}; "
            "it is a variance, see exploration_scale"
        )


def _check_discount(function: str, discount: Scalar) -> None:
    if (number := known(discount)) is not None and not 0 <= number < 1:
        raise ValueError(
            f"{function}: discount must lie in [0, 1), got {number}; "
            "the scale divides by 1 − discount"
        )


def _check_positive(function: str, precision: Array, smallest: Array) -> None:
    if (number := known(smallest)) is not None and not number > 0:
        raise ValueError(
            f"{function}: precision {precision.shape}, {precision.dtype}, is not positive "
            f"definite: its smallest eigenvalue is {number:.3g}. Raise the ridge, look for NaN in "
            "the features, or build the factor from chunks (Scatter), "
            "which loses no small eigenvalue to float32"
        )
