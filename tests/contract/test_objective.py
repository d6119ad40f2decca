"""`spectral_bellman.objective`: values and gradients against sums written from the definition."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import objective

from . import reference
from .compare import REFUSED, assert_close, assert_jit_agrees, assert_vmap_agrees

# B, M and d all differ, so that no swap of axes goes unnoticed.
B, M, D = 6, 4, 3


def make_batch(dtype: str, seed: int = 0) -> list[jax.Array]:
    """φ, θ̃, targets, Λ1, Λ2; the two covariances differ and are symmetric."""
    rng = np.random.default_rng(seed)
    covariances = [root.T @ root / 5 for root in rng.normal(size=(2, 5, D))]
    arrays = [
        rng.normal(size=(B, D)),
        rng.normal(size=(M, D)),
        rng.normal(size=(B, M)),
        *covariances,
    ]
    return [jnp.asarray(x, dtype) for x in arrays]


def as_f64(batch: list[jax.Array]) -> list[np.ndarray]:
    """The same numbers for the reference, after their rounding to the dtype under test."""
    return [reference.f64(x) for x in batch]


GRADIENTS = jax.jit(jax.grad(objective.spectral_loss, argnums=(0, 1)))
"""∂/∂φ and ∂/∂θ̃, compiled once for each dtype."""


def hand_batch(dtype: str) -> list[jax.Array]:
    """Small integers, with φθ̃ᵀ = [[1, 2], [2, 0]].

    E[φᵀΛ2φ] = (2 + 20)/2 = 11 and E[θ̃ᵀΛ1θ̃] = (4 + 4)/2 = 4.
    """
    rows = [
        [[1, 0], [0, 2]],  # phi
        [[1, 1], [2, 0]],  # theta_tilde
        [[1, 2], [3, 4]],  # targets
        [[1, 0], [0, 3]],  # feature_cov, Λ1
        [[2, 1], [1, 5]],  # param_cov, Λ2
    ]
    return [jnp.asarray(x, dtype) for x in rows]


def test_spectral_loss_by_hand(dtype: str) -> None:
    """E[TQ φᵀθ̃] = (1·1 + 2·2 + 3·2 + 4·0)/4 = 11/4: L1 = 11 − 5.5 = 5.5, L2 = 4 − 5.5 = −1.5."""
    assert_close(objective.spectral_loss(*hand_batch(dtype)), 4.0)


def test_spectral_gradients_by_hand(dtype: str) -> None:
    """∂φ_b = Λ2φ_b − ½ Σ_m TQ θ̃_m and ∂θ̃_m = Λ1θ̃_m − ½ Σ_b TQ φ_b, as 2/B = 2/M = 1 and 2/(BM) = ½.

    φ_1: [2, 1] − ½([1, 1] + 2[2, 0]) = [−0.5, 0.5].
    φ_2: [2, 10] − ½(3[1, 1] + 4[2, 0]) = [−3.5, 8.5].
    θ̃_1: [1, 3] − ½([1, 0] + 3[0, 2]) = [0.5, 0].
    θ̃_2: [2, 0] − ½(2[1, 0] + 4[0, 2]) = [1, −4].
    """
    grad_phi, grad_theta = GRADIENTS(*hand_batch(dtype))
    assert_close(grad_phi, [[-0.5, 0.5], [-3.5, 8.5]])
    assert_close(grad_theta, [[0.5, 0.0], [1.0, -4.0]])


def test_bellman_mse_by_hand(dtype: str) -> None:
    """Residuals [[0, 0], [1, 4]]: 17/4."""
    assert_close(objective.bellman_mse(*hand_batch(dtype)[:3]), 4.25)


def test_update_covariance_by_hand(dtype: str) -> None:
    """φᵀφ/2 = diag(0.5, 2), mixed with the identity at weight ¼: diag(0.875, 1.25)."""
    cov = objective.update_covariance(jnp.eye(2, dtype=dtype), hand_batch(dtype)[0], 0.25)
    assert_close(cov, [[0.875, 0.0], [0.0, 1.25]])


def test_orthogonality_loss_by_hand(dtype: str) -> None:
    """x_n1 x_n2 is 1 and −1: both ordered pairs of samples give −1, for (i,j) and for (j,i)."""
    assert_close(objective.orthogonality_loss(jnp.asarray([[1, 1], [1, -1]], dtype)), -2.0)


@pytest.mark.parametrize("seed", range(3))
def test_spectral_loss_is_the_sum(dtype: str, seed: int) -> None:
    batch = make_batch(dtype, seed)
    loss = objective.spectral_loss(*batch)
    assert loss.dtype == dtype
    assert_close(loss, reference.spectral_loss(*as_f64(batch)), scale=10)


@pytest.mark.parametrize("seed", range(3))
def test_spectral_gradients_are_one_term_each(dtype: str, seed: int) -> None:
    batch = make_batch(dtype, seed)
    actual = GRADIENTS(*batch)
    for got, expected in zip(actual, reference.spectral_gradients(*as_f64(batch)), strict=True):
        assert_close(got, expected)


def test_nothing_flows_into_targets_or_covariances(dtype: str) -> None:
    for gradient in jax.grad(objective.spectral_loss, argnums=(2, 3, 4))(*make_batch(dtype)):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("seed", range(3))
def test_in_batch_covariance_gives_the_gradient_of_bellman_mse(dtype: str, seed: int) -> None:
    """With α = 1, Λ is updated inside the differentiated function; Λ must carry no gradient."""
    phi, theta, targets, old_feature_cov, old_param_cov = make_batch(dtype, seed)

    def loss(phi: jax.Array, theta: jax.Array) -> jax.Array:
        feature_cov = objective.update_covariance(old_feature_cov, phi, 1.0)
        param_cov = objective.update_covariance(old_param_cov, theta, 1.0)
        return objective.spectral_loss(phi, theta, targets, feature_cov, param_cov)

    actual = jax.grad(loss, argnums=(0, 1))(phi, theta)
    library = jax.grad(objective.bellman_mse, argnums=(0, 1))(phi, theta, targets)
    by_hand = reference.bellman_mse_gradients(*as_f64([phi, theta, targets]))
    for got, mse, expected in zip(actual, library, by_hand, strict=True):
        assert_close(got, expected)
        assert_close(mse, expected)


def test_in_batch_covariance_gives_twice_bellman_mse_less_a_constant(dtype: str) -> None:
    """E[φᵀΛ2φ] = E[(φᵀθ̃)²] = E[θ̃ᵀΛ1θ̃], so L1 + L2 = 2(MSE − E[TQ²])."""
    phi, theta, targets, cov, _ = make_batch(dtype)
    covariances = [objective.update_covariance(cov, x, 1.0) for x in (phi, theta)]
    mse = reference.bellman_mse(*as_f64([phi, theta, targets]))
    expected = 2 * (mse - np.mean(reference.f64(targets) ** 2))
    assert_close(objective.spectral_loss(phi, theta, targets, *covariances), expected, scale=10)


def test_old_covariance_is_not_the_gradient_of_bellman_mse() -> None:
    """With α < 1 the two objectives differ, or the moving average is ignored."""
    phi, theta, targets, *covariances = make_batch("float32")
    spectral = jax.grad(objective.spectral_loss)(phi, theta, targets, *covariances)
    assert np.max(np.abs(spectral - jax.grad(objective.bellman_mse)(phi, theta, targets))) > 0.1


def test_power_step_is_stationary(dtype: str) -> None:
    """Proposition 2: L1 is least at φ = Λ2⁻¹ E_θ[TQ θ̃], and L2 at θ̃ = Λ1⁻¹ E_sa[TQ φ]."""
    phi, theta, targets, feature_cov, param_cov = make_batch(dtype)
    _, theta64, targets64, _, param64 = as_f64([phi, theta, targets, feature_cov, param_cov])
    best = jnp.asarray(np.linalg.solve(param64, theta64.T @ targets64.T / M).T, dtype)
    gradient = jax.grad(objective.spectral_loss)(best, theta, targets, feature_cov, param_cov)
    # The step is rounded to dtype: each entry leaves at most 2/B Σ|Λ2| |φ| units.
    assert_close(
        gradient, np.zeros((B, D)), scale=float(np.abs(param64).sum() * np.abs(best).max())
    )


@pytest.mark.parametrize("seed", range(3))
def test_bellman_mse_is_the_sum(dtype: str, seed: int) -> None:
    batch = make_batch(dtype, seed)[:3]
    loss = objective.bellman_mse(*batch)
    assert loss.dtype == dtype
    assert_close(loss, reference.bellman_mse(*as_f64(batch)))


@pytest.mark.parametrize("n_samples", [2, 3, 9])
def test_orthogonality_is_the_double_sum(dtype: str, n_samples: int) -> None:
    x = jnp.asarray(np.random.default_rng(n_samples).normal(size=(n_samples, 4)), dtype)
    x64 = reference.f64(x)
    loss = objective.orthogonality_loss(x)
    assert loss.dtype == dtype
    # Computed by subtraction from full second moments, every part of which is at most E‖x‖⁴.
    assert_close(
        loss,
        reference.orthogonality_loss(x64),
        scale=max(1.0, float(np.mean((x64**2).sum(1) ** 2))),
    )


def test_orthogonality_gradient(dtype: str) -> None:
    """∂/∂x_ni = 4/(N(N−1)) Σ_{m≠n} Σ_{j≠i} x_nj x_mi x_mj.

    The 4 comes from two ordered pairs of samples and two ordered pairs of coordinates.
    """
    x = jnp.asarray(np.random.default_rng(5).normal(size=(5, 3)), dtype)
    x64, expected = reference.f64(x), np.zeros((5, 3))
    for n, m, i, j in itertools.product(range(5), range(5), range(3), range(3)):
        if n != m and i != j:
            expected[n, i] += 4 / 20 * x64[n, j] * x64[m, i] * x64[m, j]
    assert_close(
        jax.jit(jax.grad(objective.orthogonality_loss))(x),
        expected,
        scale=float(np.max((x64**2).sum(1)) ** 1.5),
    )


@pytest.mark.parametrize("n_samples", [2, 3])
def test_orthogonality_is_unbiased(n_samples: int) -> None:
    """The mean over all ordered draws with replacement from four points is Σ_{i≠j} (E[x_i x_j])².

    The equality is exact.
    """
    points = np.random.default_rng(3).normal(size=(4, 3))
    moment = sum(np.outer(x, x) for x in points) / 4
    truth = sum(moment[i, j] ** 2 for i in range(3) for j in range(3) if i != j)
    draws = np.array(
        [points[list(index)] for index in itertools.product(range(4), repeat=n_samples)]
    )
    with jax.enable_x64(True):
        losses = jax.jit(jax.vmap(objective.orthogonality_loss))(jnp.asarray(draws, "float64"))
    assert_close(np.mean(np.asarray(losses)), truth, scale=float(np.max((points**2).sum(1)) ** 2))


def test_orthogonality_ignores_the_diagonal() -> None:
    """Samples along the axes have no cross moments, whatever their size."""
    assert_close(
        objective.orthogonality_loss(jnp.diag(jnp.asarray([3.0, -5.0, 7.0], "float32"))), 0.0
    )


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_covariance_is_a_moving_average(dtype: str, alpha: float) -> None:
    phi, _, _, cov, _ = make_batch(dtype)
    updated = objective.update_covariance(cov, phi, alpha)
    assert updated.dtype == dtype
    assert_close(updated, reference.update_covariance(*as_f64([cov, phi]), alpha))


def test_jit_agrees(dtype: str) -> None:
    phi, theta, targets, feature_cov, param_cov = make_batch(dtype)
    assert_jit_agrees(objective.spectral_loss, phi, theta, targets, feature_cov, param_cov)
    assert_jit_agrees(
        jax.grad(objective.spectral_loss), phi, theta, targets, feature_cov, param_cov
    )
    assert_jit_agrees(objective.bellman_mse, phi, theta, targets)
    # Two forms of a difference of moments; see the double sum above for the size of its parts.
    assert_jit_agrees(objective.orthogonality_loss, phi, ulps=256)
    assert_jit_agrees(lambda cov, x: objective.update_covariance(cov, x, 0.1), feature_cov, phi)


def test_vmap_agrees(dtype: str) -> None:
    """A leading axis, as over seeds."""
    seeds = [make_batch(dtype, seed) for seed in range(3)]
    phi, theta, targets, feature_cov, param_cov = (
        np.stack(parts) for parts in zip(*seeds, strict=True)
    )
    assert_vmap_agrees(objective.spectral_loss, phi, theta, targets, feature_cov, param_cov)
    assert_vmap_agrees(objective.bellman_mse, phi, theta, targets)
    assert_vmap_agrees(objective.orthogonality_loss, phi, ulps=256)
    assert_vmap_agrees(lambda cov, x: objective.update_covariance(cov, x, 0.1), feature_cov, phi)


SHAPES = {
    "phi": (B, D),
    "theta_tilde": (M, D),
    "targets": (B, M),
    "feature_cov": (D, D),
    "param_cov": (D, D),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("phi", (B, D + 1)),
        ("phi", (D,)),
        ("phi", (1, D)),
        ("theta_tilde", (M, D + 1)),
        ("theta_tilde", (1, D)),
        ("targets", (M, B)),
        ("targets", (B,)),
        ("targets", (B, 1)),
        ("targets", (1, M)),
        ("feature_cov", (D + 1, D + 1)),
        ("feature_cov", (D,)),
        ("param_cov", (1, 1)),
        ("param_cov", (B, B)),
    ],
)
def test_spectral_loss_refuses_wrong_shapes(name: str, shape: tuple[int, ...]) -> None:
    """Also those that broadcasting would swallow."""
    arrays = [jnp.ones(size, "float32") for size in (SHAPES | {name: shape}).values()]
    with pytest.raises(REFUSED):
        objective.spectral_loss(*arrays)


@pytest.mark.parametrize("shape", [(M, B), (B, 1), (B,), (1, 1)])
def test_bellman_mse_refuses_wrong_targets(shape: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        objective.bellman_mse(
            jnp.ones((B, D), "float32"), jnp.ones((M, D), "float32"), jnp.ones(shape, "float32")
        )


@pytest.mark.parametrize("shape", [(1, D), (D,), (2, 2, D)])
def test_orthogonality_refuses_what_has_no_pairs(shape: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        objective.orthogonality_loss(jnp.ones(shape, "float32"))


@pytest.mark.parametrize(
    ("cov", "x"), [((D,), (B, D)), ((1, 1), (B, D)), ((D, D), (B, D + 1)), ((D, D), (D,))]
)
def test_update_covariance_refuses_wrong_shapes(cov: tuple[int, ...], x: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        objective.update_covariance(jnp.ones(cov, "float32"), jnp.ones(x, "float32"), 0.1)
