"""The losses of the Spectral Bellman Method, and their inputs.

The inputs are covariances, norms of features, samples of θ and solutions for θ̃. Shapes: ``B``
state-action pairs, ``M`` parameters θ, features of dimension ``d``. Targets are the B×M grid
TQ_θ(s, a) from ``operators``. Networks and optimisers live elsewhere.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

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
def spectral_loss(
    phi: Float[Array, "B d"],
    theta_tilde: Float[Array, "M d"],
    targets: Float[Array, "B M"],
    feature_cov: Float[Array, "d d"],
    param_cov: Float[Array, "d d"],
) -> Float[Array, ""]:
    """The SBM loss (section 3.3), whose minimisation is a step of the power method.

        L = L1 + L2
        L1 = E[φᵀ Λ2 φ] − 2 E[TQ_θ φᵀ sg(θ̃)]
        L2 = E[θ̃ᵀ Λ1 θ̃] − 2 E[TQ_θ θ̃ᵀ sg(φ)]

    The gradient in φ comes from L1 alone and the gradient in θ̃ from L2 alone. No gradient flows
    through the targets or the covariances. With Λ1 and Λ2 computed from the same batch, the
    gradient equals the gradient of ``bellman_mse``.

    Args:
      phi: φ(s, a).
      theta_tilde: θ̃(θ).
      targets: TQ_θ(s, a).
      feature_cov: Λ1 = E[φ φᵀ].
      param_cov: Λ2 = E[θ̃ θ̃ᵀ].
    """
    targets, feature_cov, param_cov = jax.lax.stop_gradient((targets, feature_cov, param_cov))
    batch, samples = targets.shape
    backup_phi = product(targets, jax.lax.stop_gradient(theta_tilde)) / samples
    backup_theta = product(targets.T, jax.lax.stop_gradient(phi)) / batch
    loss_phi = _mean_quadratic(phi, param_cov) - 2 * jnp.sum(phi * backup_phi) / batch
    loss_theta = (
        _mean_quadratic(theta_tilde, feature_cov)
        - 2 * jnp.sum(theta_tilde * backup_theta) / samples
    )
    return loss_phi + loss_theta


@checked
def bellman_mse(
    phi: Float[Array, "B d"], theta_tilde: Float[Array, "M d"], targets: Float[Array, "B M"]
) -> Float[Array, ""]:
    """The naive objective (section 3.1): E[(φᵀθ̃(θ) − TQ_θ)²] over the whole grid.

    No gradient flows through the targets.
    """
    residual = product(phi, theta_tilde.T) - jax.lax.stop_gradient(targets)
    return jnp.mean(jnp.square(residual))


@checked
def orthogonality_loss(
    x: Float[Array, "N d"],
    weights: Float[Array, "d d"] | None = None,
    sample_weight: Float[Array, " N"] | None = None,
    group: int = 1,
) -> Float[Array, ""]:
    """The orthogonality regulariser (appendix E.1): Σ_{i≠j} w_ij (E[x_i x_j])², unbiased.

    The square of an expectation is estimated over pairs of distinct samples n ≠ m:
    Σ_{i≠j} w_ij x_ni x_nj x_mi x_mj. The estimate can therefore be negative, although the estimated
    quantity is not.

    Args:
      x: N ≥ 2 samples of φ or θ̃.
      weights: the paper's λ_ij or μ_ij, one for each pair (default: all one). The diagonal is not
        used.
      sample_weight: how much each sample counts, 0 or more (default: all the same).
      group: consecutive samples that come from one sequence. They are not independent: pairs within
        a group are left out.
    """
    samples, d = x.shape
    if samples % group:
        raise ValueError(
            f"orthogonality_loss: {samples} samples cannot be divided into groups of {group}"
        )
    if samples < 2 * group:
        raise ValueError(
            f"orthogonality_loss: x has {samples // group} sample(s); an unbiased estimate needs "
            "at least 2" + (" groups" if group > 1 else "")
        )
    off_diagonal = 1 - jnp.eye(d, dtype=x.dtype)
    weights = off_diagonal if weights is None else weights * off_diagonal
    if sample_weight is None and group == 1:
        squared = jnp.square(x)
        same_sample = product(squared.T, squared)
        moment = product(x.T, x)
        return jnp.sum(weights * (jnp.square(moment) - same_sample)) / (samples * (samples - 1))
    counts = jnp.ones(samples, x.dtype) if sample_weight is None else sample_weight
    counts = jax.lax.stop_gradient(counts)
    parts = (x * jnp.sqrt(counts)[:, None]).reshape(-1, group, d)
    moments = jax.vmap(lambda part: product(part.T, part))(parts)
    totals = jnp.sum(counts.reshape(-1, group), axis=1)
    different = jnp.square(jnp.sum(moments, axis=0)) - jnp.sum(jnp.square(moments), axis=0)
    pairs = jnp.square(jnp.sum(totals)) - jnp.sum(jnp.square(totals))
    return jnp.sum(weights * different) / jnp.maximum(pairs, jnp.finfo(x.dtype).tiny)


@checked
def update_covariance(
    cov: Float[Array, "d d"],
    x: Float[Array, "N d"],
    alpha: Scalar,
    sample_weight: Float[Array, " N"] | None = None,
) -> Float[Array, "d d"]:
    """The moving average of appendix E.2: Λ ← (1 − α) Λ + α xᵀx/N; α weighs the new batch.

    With a ``sample_weight`` w for each row, xᵀx/N is the weighted mean Σ w x xᵀ / Σ w.
    """
    _check_alpha("update_covariance", alpha)
    return (1 - alpha) * cov + alpha * _second_moment(_scaled(sample_weight, x)[0])


class Covariances(NamedTuple):
    """Λ1 and Λ2, carried from one representation step to the next."""

    feature: Float[Array, "d d"]
    """Λ1 = E[φ φᵀ]."""
    parameter: Float[Array, "d d"]
    """Λ2 = E[θ̃ θ̃ᵀ]."""
    started: Bool[Array, ""]
    """Whether a batch has been seen; the first batch replaces the initial zeros."""


def init_covariances(d: int, dtype: DTypeLike | None = None) -> Covariances:
    """The state before the first batch; updates keep its ``dtype`` (JAX's default if not given)."""
    return Covariances(jnp.zeros((d, d), dtype), jnp.zeros((d, d), dtype), jnp.zeros((), bool))


@checked
def representation_loss(
    phi: Float[Array, "B d"],
    theta_tilde: Float[Array, "M d"],
    targets: Float[Array, "B M"],
    covariances: Covariances,
    *,
    alpha: Scalar = 1.0,
    feature_orthogonality: float | Float[Array, "..."] = 0.0,
    param_orthogonality: float | Float[Array, "..."] = 0.0,
    mse: bool = False,
    sample_weight: Float[Array, " B"] | None = None,
    group: int = 1,
) -> tuple[Float[Array, ""], tuple[Covariances, dict[str, Float[Array, ""]]]]:
    """The unconstrained objective of appendix E.1: L1 + L2 + L_orth.

    This is the only loss to add to an agent. Differentiate it with respect to the parameters of φ
    and θ̃ with ``jax.value_and_grad(..., has_aux=True)``:

        phi = unit_norm(network(states))[jnp.arange(B), actions]
        theta = sample_parameters(key, theta_hat, 1e-2, M)
        phi_next = target_network(next_states)
        targets = operators.one_step_targets(rewards, discounts, phi_next, theta)
        loss, (covariances, metrics) = representation_loss(
            phi, jax.vmap(theta_tilde)(theta), targets, covariances
        )

    Args:
      phi: φ(s, a), after ``clip_norm`` or ``unit_norm`` if wanted.
      theta_tilde: θ̃(θ), from a network or explicit.
      targets: TQ_θ(s, a).
      covariances: Λ1 and Λ2 before this batch. This batch updates them before use, so α = 1 is the
        Bellman MSE.
      alpha: the weight of this batch in the moving averages.
      feature_orthogonality: weight of the regulariser on φ, one number or one for each pair (μ_ij).
      param_orthogonality: weight of the regulariser on θ̃, likewise (λ_ij). The moment of θ̃ is not
        centred and grows like ‖θ̂‖⁴, so keep the weight small.
      mse: use ``bellman_mse`` in place of ``spectral_loss``.
      sample_weight: how much each state-action pair counts, for prioritised sampling and masks. It
        enters every expectation over pairs: both terms of the loss, Λ1 and the orthogonality.
      group: consecutive pairs that come from one sequence; the orthogonality leaves out pairs of
        rows within a group.

    Returns:
      The loss, then the new covariances and the terms of the loss by name.
    """
    if (
        covariances.feature.shape != (phi.shape[1],) * 2
        or covariances.parameter.shape != (phi.shape[1],) * 2
    ):
        raise ValueError(
            f"representation_loss: covariances are {covariances.feature.shape} and "
            f"{covariances.parameter.shape}, but phi has {phi.shape[1]} features; "
            f"start from init_covariances({phi.shape[1]})"
        )
    _check_alpha("representation_loss", alpha)
    # Every term is a mean over pairs of products of two of φ and TQ: √w on both is w on the pair.
    scaled, targets = _scaled(sample_weight, phi, targets)
    rate = jnp.where(covariances.started, alpha, jnp.ones_like(alpha))
    feature_cov = update_covariance(covariances.feature.astype(phi.dtype), scaled, rate)
    param_cov = update_covariance(covariances.parameter.astype(phi.dtype), theta_tilde, rate)
    terms = {"bellman_mse": bellman_mse(scaled, theta_tilde, targets)}
    if not mse:
        terms["spectral"] = spectral_loss(scaled, theta_tilde, targets, feature_cov, param_cov)
    terms["feature_orthogonality"] = _weighted_orthogonality(
        "feature_orthogonality", phi, feature_orthogonality, sample_weight, group
    )
    terms["param_orthogonality"] = _weighted_orthogonality(
        "param_orthogonality", theta_tilde, param_orthogonality
    )
    loss = (
        terms["bellman_mse" if mse else "spectral"]
        + terms["feature_orthogonality"]
        + terms["param_orthogonality"]
    )
    dtype = covariances.feature.dtype
    return loss, (
        Covariances(feature_cov.astype(dtype), param_cov.astype(dtype), jnp.ones((), bool)),
        terms,
    )


@checked
def clip_norm(phi: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """The paper's clip, φ · min(1, 1/‖φ‖): features inside the unit ball do not change."""
    outside = jnp.sum(jnp.square(phi), axis=-1, keepdims=True) > 1
    return jnp.where(outside, unit_norm(phi), phi)


@checked
def unit_norm(phi: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """φ/‖φ‖, which keeps features from shrinking while no reward is seen; zero stays zero."""
    # The squares of unscaled entries can leave the range of float32. Scaling by the largest entry
    # does not change the result.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(phi), axis=-1, keepdims=True))
    positive = largest > 0
    scaled = phi / jnp.where(positive, largest, 1)
    squared = jnp.sum(jnp.square(scaled), axis=-1, keepdims=True)
    return scaled * jax.lax.rsqrt(jnp.where(positive, squared, 1))


@checked
def sample_parameters(
    key: RandomKey, theta_hat: Float[Array, " d"], variance: Scalar, samples: int
) -> Float[Array, "M d"]:
    """``samples`` draws from ν(θ) = N(θ̂, σ_rep² I); the paper's σ_rep² = 10⁻² is a variance."""
    if (number := known(variance)) is not None and not number >= 0:
        raise ValueError(
            f"sample_parameters: variance must not be negative, got {number}; the paper uses 1e-2"
        )
    noise = jax.random.normal(key, (samples, len(theta_hat)), theta_hat.dtype)
    return theta_hat[None, :] + jnp.sqrt(variance) * noise


@checked
def solve_parameters(
    phi: Float[Array, "B d"],
    targets: Float[Array, "B M"],
    feature_cov: Float[Array, "d d"] | None = None,
    ridge: Scalar = 1e-4,
) -> Float[Array, "M d"]:
    """Explicit θ̃, solved: the minimiser of L2, Λ1 θ̃(θ) = E[TQ_θ φ] (a step of Algorithm 1).

    Pass the result to ``representation_loss``. No gradient flows through θ̃: θ̃ is already at its
    minimum, and φ must learn from L1 alone.

    Args:
      phi: φ(s, a).
      targets: TQ_θ(s, a).
      feature_cov: Λ1; computed from this batch if not given. A moving average must have seen a
        batch (``update_covariance``).
      ridge: added to the diagonal of Λ1, relative to the mean of the diagonal.
    """
    phi, targets = jax.lax.stop_gradient((phi, targets))
    cov = _second_moment(phi) if feature_cov is None else jax.lax.stop_gradient(feature_cov)
    result = _solve_parameters(phi, targets, cov, ridge)
    if is_broken(result):
        raise ValueError(
            f"solve_parameters: Λ1 has no inverse at a ridge of {float(ridge):.3g} of its mean "
            f"diagonal {float(jnp.trace(cov)) / len(cov):.3g}; raise the ridge, "
            "or look for NaN in phi and targets"
        )
    return result


@in_float64
def _solve_parameters(phi: Array, targets: Array, feature_cov: Array, ridge: Scalar) -> Array:
    mean = jnp.trace(feature_cov) / len(feature_cov)
    system = feature_cov + ridge * mean * jnp.eye(len(feature_cov), dtype=phi.dtype)
    factor = jnp.linalg.cholesky(system)
    return jax.scipy.linalg.cho_solve((factor, True), product(phi.T, targets) / len(phi)).T


@checked
def descend_parameters(
    theta: Float[Array, "M d"],
    phi: Float[Array, "B d"],
    targets: Float[Array, "B M"],
    steps: int,
    feature_cov: Float[Array, "d d"] | None = None,
) -> Float[Array, "M d"]:
    """Explicit θ̃, reset: ``steps`` gradient steps on L2 from the sampled θ (appendix E.2).

    A step is θ̃ ← θ̃ − (Λ1 θ̃ − E[TQ_θ φ]) / λ_max(Λ1). As in ``solve_parameters``, no gradient flows
    through the result, and Λ1 is computed from the batch if not given.
    """
    theta, phi, targets = jax.lax.stop_gradient((theta, phi, targets))
    cov = _second_moment(phi) if feature_cov is None else jax.lax.stop_gradient(feature_cov)
    moment = product(targets.T, phi) / len(phi)
    largest = jnp.linalg.eigvalsh(cov)[-1]
    step_size = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)

    def step(_: Array, theta_tilde: Array) -> Array:
        return theta_tilde - step_size * (product(theta_tilde, cov) - moment)

    return jax.lax.fori_loop(0, steps, step, theta)


def _second_moment(x: Array) -> Array:
    return product(x.T, x) / len(x)


def _mean_quadratic(x: Array, cov: Array) -> Array:
    return jnp.sum(x * product(x, cov)) / len(x)


def _scaled(weight: Array | None, *arrays: Array) -> tuple[Array, ...]:
    """Rows times the root of their weight, the weights having mean 1."""
    if weight is None:
        return arrays
    weight = jax.lax.stop_gradient(weight)
    mean = jnp.maximum(jnp.mean(weight), jnp.finfo(weight.dtype).tiny)
    root = jnp.sqrt(weight / mean)
    return tuple(root[:, None] * array for array in arrays)


def _weighted_orthogonality(
    name: str, x: Array, factor: Array | float, sample_weight: Array | None = None, group: int = 1
) -> Array:
    factor = jnp.asarray(factor)
    if factor.ndim == 0:
        if known(factor) == 0:
            return jnp.zeros((), x.dtype)
        return factor * orthogonality_loss(x, sample_weight=sample_weight, group=group)
    if factor.ndim == 2:
        return orthogonality_loss(x, factor, sample_weight, group)
    raise ValueError(
        f"representation_loss: {name} must be one number or one for each pair, (d, d), "
        f"got shape {factor.shape}"
    )


def _check_alpha(function: str, alpha: Scalar) -> None:
    if (number := known(alpha)) is not None and not 0 <= number <= 1:
        raise ValueError(
            f"{function}: alpha must lie in [0, 1], got {number}; it weighs the new batch"
        )
