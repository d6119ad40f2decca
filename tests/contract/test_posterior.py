"""`spectral_bellman.posterior`: the precision matrix, its factor, and samples from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import posterior

from . import reference
from .compare import REFUSED, assert_close, assert_jit_agrees, assert_vmap_agrees

N, D = 9, 4
RIDGE, SCALE, DISCOUNT = 0.5, 0.3, 0.9


def make_phi(dtype: str, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(N, D)), dtype)


def make_precision(dtype: str, seed: int = 0) -> jax.Array:
    """Correlated and well conditioned (at most 60 over the seeds used here)."""
    return jnp.asarray(reference.precision(reference.f64(make_phi(dtype, seed)), RIDGE), dtype)


def hand_precision(dtype: str) -> jax.Array:
    """I + [[2, 1], [1, 1]].

    The determinant is 5, the inverse [[0.4, −0.2], [−0.2, 0.6]], the eigenvalues (5 ± √5)/2.
    """
    return jnp.asarray([[3.0, 1.0], [1.0, 2.0]], dtype)


def ill_conditioned() -> jax.Array:
    """A dense float32 matrix of condition 1e6 with λ_min near 1; its float32 entries are exact."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    matrix = (basis * np.geomspace(1.0, 1e6, 8)) @ basis.T
    return jnp.asarray((matrix + matrix.T) / 2, "float32")


# --- by hand --------------------------------------------------------------------------------------


def test_precision_by_hand(dtype: str) -> None:
    """φᵀφ = [[1 + 1, 1], [1, 1]]."""
    assert_close(
        posterior.precision(jnp.asarray([[1.0, 0.0], [1.0, 1.0]], dtype), 1.0),
        [[3.0, 1.0], [1.0, 2.0]],
    )


def test_factor_by_hand(dtype: str) -> None:
    """L = [[√3, 0], [1/√3, √(2 − 1/3)]]."""
    expected = [[3**0.5, 0.0], [3**-0.5, (5 / 3) ** 0.5]]
    assert_close(posterior.factor(hand_precision(dtype)), expected, ulps=4)


def test_exploration_scale_by_hand(dtype: str) -> None:
    """λ_min = (5 − √5)/2, d(1 − γ) = 2 · 0.1."""
    assert_close(posterior.exploration_scale(hand_precision(dtype), 0.9), (5 - 5**0.5) / 2 / 0.2)


def test_thompson_parameters_by_hand(dtype: str) -> None:
    """Lᵀx = (0, √15) has the solution x_2 = √15/√(5/3) = 3 and x_1 = −x_2/3 = −1.

    The parameters are (10, 20) + √4 · (−1, 3) = (8, 26).
    """
    z, mean = jnp.asarray([0.0, 15**0.5], dtype), jnp.asarray([10.0, 20.0], dtype)
    factor = jnp.asarray(np.linalg.cholesky(reference.f64(hand_precision(dtype))), dtype)
    assert_close(posterior.thompson_parameters(z, mean, factor, 4.0), [8.0, 26.0])


def test_ucb_bonus_by_hand(dtype: str) -> None:
    """φᵀΣ⁻¹φ is 0.4, 0.6 and 0.4 − 0.4 + 0.6; times 10."""
    phi = jnp.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype)
    assert_close(posterior.ucb_bonus(phi, hand_precision(dtype), 10.0), [2.0, 6**0.5, 6**0.5])


def test_max_uncertainty_by_hand(dtype: str) -> None:
    """The larger of √(10 · 0.4) and √(10 · 0.6)."""
    assert_close(
        posterior.max_uncertainty(jnp.eye(2, dtype=dtype), hand_precision(dtype), 10.0), 6**0.5
    )


# --- against the definition -----------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, N])
def test_precision_is_the_sum(dtype: str, n_rows: int) -> None:
    phi = make_phi(dtype)[:n_rows]
    sigma = posterior.precision(phi, RIDGE)
    assert sigma.dtype == dtype
    assert_close(sigma, reference.precision(reference.f64(phi), RIDGE))


@pytest.mark.parametrize("seed", range(3))
def test_factor_is_lower_and_multiplies_back(dtype: str, seed: int) -> None:
    sigma = make_precision(dtype, seed)
    factor = posterior.factor(sigma)
    assert factor.dtype == dtype
    lower = reference.f64(factor)
    np.testing.assert_array_equal(np.triu(lower, k=1), np.zeros((D, D)))
    assert (np.diag(lower) > 0).all()
    product = np.array([[reference.dot(lower[i], lower[j]) for j in range(D)] for i in range(D)])
    assert_close(jnp.asarray(product, dtype), reference.f64(sigma))


@pytest.mark.parametrize("seed", range(3))
def test_exploration_scale_is_the_smallest_eigenvalue(dtype: str, seed: int) -> None:
    sigma = make_precision(dtype, seed)
    scale = posterior.exploration_scale(sigma, DISCOUNT)
    assert scale.dtype == dtype
    # An eigenvalue moves by at most a unit of the largest entry times d; d(1 − γ) = 0.4 divides it.
    size = D * float(np.abs(sigma).max()) / (D * (1 - DISCOUNT))
    assert_close(
        scale, reference.exploration_scale(reference.f64(sigma), DISCOUNT), ulps=4, scale=size
    )


@pytest.mark.parametrize("seed", range(3))
def test_thompson_parameters_are_the_dense_inverse(dtype: str, seed: int) -> None:
    factor = jnp.asarray(np.linalg.cholesky(reference.f64(make_precision(dtype, seed))), dtype)
    rng = np.random.default_rng(seed + 10)
    z, mean = (jnp.asarray(x, dtype) for x in rng.normal(size=(2, D)))
    theta = posterior.thompson_parameters(z, mean, factor, SCALE)
    assert theta.dtype == dtype
    assert_close(
        theta, reference.thompson_parameters(*map(reference.f64, (z, mean, factor)), SCALE)
    )


@pytest.mark.parametrize("shape", [(D,), (5, D), (2, 3, D)])
def test_ucb_bonus_is_the_dense_inverse(dtype: str, shape: tuple[int, ...]) -> None:
    phi = jnp.asarray(np.random.default_rng(3).normal(size=shape), dtype)
    sigma = make_precision(dtype)
    bonus = posterior.ucb_bonus(phi, sigma, SCALE)
    assert bonus.dtype == dtype
    flat = [
        reference.ucb_bonus(x, reference.f64(sigma), SCALE)
        for x in reference.f64(phi).reshape(-1, D)
    ]
    # A solve in this precision may lose the condition number of Σ, 60, and no more.
    assert_close(bonus, np.reshape(flat, shape[:-1]), ulps=4 * 60)


def test_max_uncertainty_is_the_largest_bonus(dtype: str) -> None:
    means, sigma = make_phi(dtype, seed=4), make_precision(dtype)
    uncertainty = posterior.max_uncertainty(means, sigma, SCALE)
    assert uncertainty.dtype == dtype
    expected = reference.max_uncertainty(reference.f64(means), reference.f64(sigma), SCALE)
    assert_close(uncertainty, expected, ulps=4 * 60)


def test_max_uncertainty_is_the_support_of_the_ellipsoid() -> None:
    """The dual definition: the most that any ξ with ‖ξ‖_Σ = √scale adds to the value of a policy.

    ξ runs over a fine circle.
    """
    with jax.enable_x64(True):
        sigma, means = hand_precision("float64"), np.array([[1.0, -0.5], [0.2, 1.0], [-1.0, 0.1]])
        uncertainty = float(posterior.max_uncertainty(jnp.asarray(means), sigma, SCALE))
    best = 0.0
    for angle in np.linspace(0, 2 * np.pi, 20_001):
        direction = np.array([np.cos(angle), np.sin(angle)])
        xi = direction * (SCALE / reference.quadratic(direction, reference.f64(sigma))) ** 0.5
        best = max(best, *(reference.dot(mean, xi) for mean in means))
    # The nearest angle is within 1.6e-4. A maximum is flat, so the error is of second order, times
    # the condition number 2.6.
    assert uncertainty == pytest.approx(best, rel=1e-7)
    assert uncertainty >= best - 1e-12


# --- conditioning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_smallest_eigenvalue_survives_float32(compiled: bool) -> None:
    """The relative error of float32 `eigh` is about 1e-3 here, and can reach 1e6 · 1e-7.

    The true value rounds at 1e-7.
    """
    sigma = ill_conditioned()

    def scale(sigma: jax.Array) -> jax.Array:
        return posterior.exploration_scale(sigma, DISCOUNT)

    actual = (jax.jit(scale) if compiled else scale)(sigma)
    expected = reference.exploration_scale(reference.f64(sigma), DISCOUNT)
    np.testing.assert_allclose(float(actual), expected, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_factor_survives_float32(compiled: bool) -> None:
    """The exact factor, rounded once: every entry is within a few units of its own last place."""
    sigma = ill_conditioned()
    factor = (jax.jit(posterior.factor) if compiled else posterior.factor)(sigma)
    expected = np.linalg.cholesky(reference.f64(sigma))
    np.testing.assert_allclose(reference.f64(factor), expected, rtol=5e-7, atol=1e-8)


def test_uncertainty_survives_float32() -> None:
    """With an exact factor the error is at most 1e3 · 1.2e-7, for the root of the condition number.

    The error of float32 is 3e-3.
    """
    sigma = ill_conditioned()
    phi = jnp.eye(8, dtype="float32")
    expected = [reference.ucb_bonus(x, reference.f64(sigma), SCALE) for x in np.eye(8)]
    np.testing.assert_allclose(posterior.ucb_bonus(phi, sigma, SCALE), expected, rtol=1.2e-4)
    np.testing.assert_allclose(
        posterior.max_uncertainty(phi, sigma, SCALE), max(expected), rtol=1.2e-4
    )


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_thompson_moments(seed: int) -> None:
    """Whitened by the dense root of scale · Σ⁻¹, the samples are standard normal.

    Over n draws a mean has standard deviation 1/√n, an off-diagonal second moment 1/√n, and a
    diagonal second moment √(2/n). Five deviations on 14 numbers fail by chance once in 100,000
    seeds. L⁻¹ in place of L⁻ᵀ, or the scale in place of its root, is far outside.
    """
    n = 40_000
    sigma = make_precision("float32", seed)
    mean = jnp.arange(1.0, D + 1, dtype="float32")
    samples = posterior.thompson_sample(jax.random.key(seed), mean, sigma, SCALE, shape=(n,))
    assert samples.dtype == "float32"
    covariance = SCALE * np.linalg.inv(reference.f64(sigma))
    white = (reference.f64(samples) - reference.f64(mean)) @ np.linalg.inv(
        np.linalg.cholesky(covariance)
    ).T
    np.testing.assert_allclose(white.mean(axis=0), np.zeros(D), atol=5 / n**0.5)
    second = white.T @ white / n
    np.testing.assert_allclose(second - np.eye(D), np.zeros((D, D)), atol=5 * (2 / n) ** 0.5)


def test_kept_noise_has_the_same_moments() -> None:
    """Standard normal z through the factor, one z an environment: the same law as sampling."""
    n = 40_000
    sigma = make_precision("float32")
    z = jax.random.normal(jax.random.key(5), (n, D), "float32")
    factor, mean = posterior.factor(sigma), jnp.zeros(D, "float32")
    samples = reference.f64(
        jax.jit(jax.vmap(lambda z: posterior.thompson_parameters(z, mean, factor, SCALE)))(z)
    )
    covariance = SCALE * np.linalg.inv(reference.f64(sigma))
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    second = root @ (samples.T @ samples / n) @ root.T
    np.testing.assert_allclose(second - np.eye(D), np.zeros((D, D)), atol=5 * (2 / n) ** 0.5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_thompson_sample_shape(dtype: str, shape: tuple[int, ...]) -> None:
    mean = jnp.zeros(D, dtype)
    sample = posterior.thompson_sample(
        jax.random.key(0), mean, make_precision(dtype), SCALE, shape=shape
    )
    assert sample.shape == (*shape, D)
    assert sample.dtype == dtype
    assert len(np.unique(np.asarray(sample))) == sample.size


def test_thompson_sample_is_a_function_of_its_key() -> None:
    mean, sigma = jnp.zeros(D, "float32"), make_precision("float32")
    first, again, other = (
        posterior.thompson_sample(jax.random.key(k), mean, sigma, SCALE) for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).all()


def test_sample_without_variance_is_the_mean() -> None:
    mean = jnp.arange(1.0, D + 1, dtype="float32")
    sample = posterior.thompson_sample(jax.random.key(0), mean, make_precision("float32"), 0.0)
    np.testing.assert_array_equal(sample, mean)


def test_sample_at_the_exploration_scale(dtype: str) -> None:
    """The scale is an array from `exploration_scale`: the whole rule compiles as one function."""
    sigma, mean = make_precision(dtype), jnp.zeros(D, dtype)

    def sample(sigma: jax.Array) -> jax.Array:
        scale = posterior.exploration_scale(sigma, DISCOUNT)
        return posterior.thompson_sample(jax.random.key(0), mean, sigma, scale)

    def noise(sigma: jax.Array) -> jax.Array:
        return posterior.thompson_sample(jax.random.key(0), mean, sigma, 1.0)

    expected = reference.exploration_scale(reference.f64(sigma), DISCOUNT) ** 0.5 * reference.f64(
        noise(sigma)
    )
    assert_close(sample(sigma), expected, ulps=4 * 60)
    assert_close(jax.jit(sample)(sigma), expected, ulps=4 * 60)


# --- transformations and bad input ----------------------------------------------------------------


def test_jit_agrees(dtype: str) -> None:
    phi, sigma = make_phi(dtype), make_precision(dtype)
    mean, key = jnp.ones(D, dtype), jax.random.key(0)
    factor = posterior.factor(sigma)
    assert_jit_agrees(lambda phi: posterior.precision(phi, RIDGE), phi)
    assert_jit_agrees(posterior.factor, sigma)
    assert_jit_agrees(
        lambda sigma: posterior.exploration_scale(sigma, DISCOUNT), sigma, ulps=4 * 60
    )
    assert_jit_agrees(
        lambda z, factor: posterior.thompson_parameters(z, mean, factor, SCALE), phi[0], factor
    )
    assert_jit_agrees(
        lambda sigma: posterior.thompson_sample(key, mean, sigma, SCALE), sigma, ulps=4 * 60
    )
    assert_jit_agrees(
        lambda phi, sigma: posterior.ucb_bonus(phi, sigma, SCALE), phi, sigma, ulps=4 * 60
    )
    assert_jit_agrees(
        lambda phi, sigma: posterior.max_uncertainty(phi, sigma, SCALE), phi, sigma, ulps=4 * 60
    )


def test_vmap_agrees(dtype: str) -> None:
    """A leading axis, as over seeds."""
    phi = np.stack([make_phi(dtype, seed) for seed in range(3)])
    sigma = np.stack([make_precision(dtype, seed) for seed in range(3)])
    factor, mean = np.linalg.cholesky(sigma), jnp.ones(D, dtype)
    assert_vmap_agrees(lambda phi: posterior.precision(phi, RIDGE), phi)
    assert_vmap_agrees(posterior.factor, sigma)
    assert_vmap_agrees(
        lambda sigma: posterior.exploration_scale(sigma, DISCOUNT), sigma, ulps=4 * 60
    )
    assert_vmap_agrees(
        lambda z, factor: posterior.thompson_parameters(z, mean, factor, SCALE), phi[:, 0], factor
    )
    assert_vmap_agrees(
        lambda phi, sigma: posterior.ucb_bonus(phi, sigma, SCALE), phi, sigma, ulps=4 * 60
    )
    assert_vmap_agrees(
        lambda phi, sigma: posterior.max_uncertainty(phi, sigma, SCALE), phi, sigma, ulps=4 * 60
    )


def test_bonus_gradient(dtype: str) -> None:
    """∂/∂φ √(scale φᵀΣ⁻¹φ) = scale Σ⁻¹φ / bonus."""
    phi, sigma = make_phi(dtype)[0], make_precision(dtype)
    phi64, sigma64 = reference.f64(phi), reference.f64(sigma)
    expected = SCALE * np.linalg.solve(sigma64, phi64) / reference.ucb_bonus(phi64, sigma64, SCALE)
    assert_close(
        jax.grad(lambda phi: posterior.ucb_bonus(phi, sigma, SCALE))(phi), expected, ulps=4 * 60
    )


NOT_POSITIVE_DEFINITE = {
    "indefinite": [[1.0, 2.0], [2.0, 1.0]],
    "negative": [[-1.0, 0.0], [0.0, -2.0]],
    "nan": [[np.nan, 0.0], [0.0, 1.0]],
}
READERS = {
    "factor": posterior.factor,
    "exploration_scale": lambda sigma: posterior.exploration_scale(sigma, DISCOUNT),
    "thompson_sample": lambda sigma: posterior.thompson_sample(
        jax.random.key(0), jnp.zeros(2, "float32"), sigma, SCALE
    ),
    "ucb_bonus": lambda sigma: posterior.ucb_bonus(jnp.ones(2, "float32"), sigma, SCALE),
    "max_uncertainty": lambda sigma: posterior.max_uncertainty(
        jnp.ones((1, 2), "float32"), sigma, SCALE
    ),
}


@pytest.mark.parametrize("matrix", NOT_POSITIVE_DEFINITE)
@pytest.mark.parametrize("reader", READERS)
def test_refuses_a_matrix_that_is_not_positive_definite(reader: str, matrix: str) -> None:
    sigma = jnp.asarray(NOT_POSITIVE_DEFINITE[matrix], "float32")
    with pytest.raises(REFUSED):
        READERS[reader](sigma)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("reader", READERS)
def test_refuses_a_matrix_that_is_not_square(reader: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        READERS[reader](jnp.ones(shape, "float32"))


def test_exploration_scale_refuses_a_discount_of_one() -> None:
    with pytest.raises(REFUSED):
        posterior.exploration_scale(hand_precision("float32"), 1.0)


def test_refuses_mismatched_dimensions() -> None:
    sigma, wrong = hand_precision("float32"), jnp.ones(3, "float32")
    right, key = jnp.ones(2, "float32"), jax.random.key(0)
    with pytest.raises(REFUSED):
        posterior.thompson_sample(key, wrong, sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.thompson_parameters(wrong, right, sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.thompson_parameters(right, jnp.ones(1, "float32"), sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.ucb_bonus(wrong, sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.max_uncertainty(jnp.ones((4, 3), "float32"), sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.max_uncertainty(right, sigma, SCALE)
    with pytest.raises(REFUSED):
        posterior.precision(right, RIDGE)
