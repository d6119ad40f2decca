import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import objective, posterior

D, CHUNK, RIDGE = 32, 2000, 0.1


def ill_conditioned_rows(rows: int = 40_000) -> tuple[np.ndarray, float]:
    """Rows in float32 whose Σ has condition number 1e7 in a random basis, and the true λ_min."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]
    # The last directions are hardly ever seen: there Σ is all ridge.
    deviation = np.sqrt(np.append(np.geomspace(1e7 * RIDGE, 10, D - 4), np.full(4, 1e-3)) / rows)
    phi = ((rng.normal(size=(rows, D)) * deviation) @ rotation).astype(np.float32)
    true = np.linalg.eigvalsh(phi.astype(np.float64).T @ phi.astype(np.float64) + RIDGE * np.eye(D))
    assert 0.8e7 < true[-1] / true[0] < 1.2e7
    return phi, float(true[0])


@pytest.fixture(scope="module")
def chunks() -> tuple[jax.Array, float]:
    phi, smallest = ill_conditioned_rows()
    return jnp.asarray(phi.reshape(-1, CHUNK, D)), smallest


def scanned_factor(chunks: jax.Array) -> jax.Array:
    scatter, _ = jax.lax.scan(
        lambda s, phi: (posterior.add_scatter(s, phi), None), posterior.init_scatter(D), chunks
    )
    return posterior.factor_scatter(scatter, RIDGE)


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0]],
    ids=["eager", "jit", "vmap"],
)
def test_chunks_keep_the_smallest_eigenvalue(chunks: tuple[jax.Array, float], wrap: object) -> None:
    rows, true = chunks
    factor = wrap(scanned_factor)(rows)
    assert factor.dtype == jnp.float32
    # Rounding the factor to float32 once gives its smallest singular value a relative error of
    # 6e-8 · √1e7.
    np.testing.assert_allclose(posterior.min_eigenvalue(factor), true, rtol=2e-4)
    scale = posterior.exploration_scale_from_factor(factor, 0.99)
    np.testing.assert_allclose(scale, true / (D * 0.01), rtol=2e-4)


@pytest.mark.parametrize("transform", ["vmap of scan", "scan of vmap", "grad of vmap of scan"])
def test_float64_survives_transformations(chunks: tuple[jax.Array, float], transform: str) -> None:
    """float64 must survive although JAX applies vmap to a loop after the loop's code has run.

    JAX differentiates later still.
    """
    sigma = jnp.asarray(np.diag(np.geomspace(1e6, 0.1, D)), jnp.float32)
    phi = chunks[0][0, :100]

    def everything(sigma: jax.Array) -> jax.Array:
        results = (
            posterior.factor(sigma).sum(),
            posterior.exploration_scale(sigma, 0.9),
            posterior.min_eigenvalue(sigma),
            posterior.precision(phi @ sigma, RIDGE).sum() / 1e12,
            posterior.least_squares(phi, phi @ sigma[0], RIDGE).sum(),
            objective.solve_parameters(phi, phi, sigma).sum(),
        )
        return sum(results)

    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, y: (carry + everything(y), None), jnp.zeros(()), x)[0]

    twice = jnp.stack([sigma, sigma])
    if transform == "vmap of scan":
        np.testing.assert_allclose(
            jax.jit(jax.vmap(looped))(twice[None])[0], 2 * everything(sigma), rtol=1e-5
        )
    elif transform == "scan of vmap":
        step = jax.vmap(everything)
        total = jax.jit(
            lambda x: jax.lax.scan(lambda c, y: (c + step(y[None])[0], None), jnp.zeros(()), x)[0]
        )(twice)
        np.testing.assert_allclose(total, 2 * everything(sigma), rtol=1e-5)
    else:
        gradient = jax.jit(jax.grad(lambda x: jax.vmap(looped)(x).sum()))(twice[None])
        np.testing.assert_allclose(
            gradient[0, 0], jax.grad(everything)(sigma), rtol=1e-3, atol=1e-3
        )


def test_float32_alone_would_not(chunks: tuple[jax.Array, float]) -> None:
    """The test above needs the factor: a float64 sum rounded to float32 is off by more than 2%."""
    rows, true = chunks
    flat = np.asarray(rows, np.float64).reshape(-1, D)
    rounded = (flat.T @ flat + RIDGE * np.eye(D)).astype(np.float32)
    assert abs(np.linalg.eigvalsh(rounded)[0] / true - 1) > 0.02
    assert abs(np.linalg.eigvalsh(rounded.astype(np.float64))[0] / true - 1) > 0.02


def test_chunks_in_a_python_loop_and_of_any_size_give_the_same_factor(
    chunks: tuple[jax.Array, float],
) -> None:
    rows, _ = chunks
    scatter = posterior.init_scatter(D)
    for phi in rows.reshape(-1, 4 * CHUNK, D):
        scatter = posterior.add_scatter(scatter, phi)
    # Both round the same float64 factor to float32.
    np.testing.assert_allclose(
        posterior.factor_scatter(scatter, RIDGE), scanned_factor(rows), rtol=1e-5, atol=1e-5
    )


def test_precision_is_summed_in_float64_and_rounded_once(chunks: tuple[jax.Array, float]) -> None:
    phi = chunks[0].reshape(-1, D)
    wide = np.asarray(phi, np.float64)
    expected = (wide.T @ wide + np.float64(np.float32(RIDGE)) * np.eye(D)).astype(np.float32)
    np.testing.assert_array_max_ulp(np.asarray(posterior.precision(phi, RIDGE)), expected, maxulp=1)


def test_a_scatter_has_the_dtype_it_is_given() -> None:
    with jax.enable_x64(True):
        scatter = posterior.add_scatter(
            posterior.init_scatter(2, "float32"), jnp.ones((3, 2), "float64")
        )
        assert posterior.factor_scatter(scatter, 0.1).dtype == jnp.float32
        assert posterior.factor_scatter(posterior.init_scatter(2), 0.1).dtype == jnp.float64


def test_weights_and_padding() -> None:
    """A row of weight 3 counts three times; zero rows do not count."""
    phi = jax.random.normal(jax.random.key(0), (10, 4))
    padded = jnp.concatenate([phi, jnp.zeros((5, 4))])
    scatter = posterior.add_scatter(posterior.init_scatter(4), padded, weight=3.0)
    expected = posterior.factor(posterior.precision(jnp.tile(phi, (3, 1)), 0.5))
    np.testing.assert_allclose(
        posterior.factor_scatter(scatter, 0.5), expected, rtol=1e-5, atol=1e-6
    )


def test_the_same_answers_through_the_factor(dtype: str) -> None:
    phi = jax.random.normal(jax.random.key(0), (50, 4), dtype)
    sigma = posterior.precision(phi, 0.1)
    factor = posterior.factor(sigma)
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    points = phi.reshape(5, 10, 4)
    pairs = [
        (
            posterior.ucb_bonus_from_factor(points, factor, 0.3),
            posterior.ucb_bonus(points, sigma, 0.3),
        ),
        (
            posterior.max_uncertainty_from_factor(phi, factor, 0.3),
            posterior.max_uncertainty(phi, sigma, 0.3),
        ),
        (
            posterior.exploration_scale_from_factor(factor, 0.9),
            posterior.exploration_scale(sigma, 0.9),
        ),
        (posterior.min_eigenvalue(factor), np.linalg.eigvalsh(np.asarray(sigma, np.float64))[0]),
    ]
    for ours, theirs in pairs:
        assert ours.dtype == jnp.dtype(dtype)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance)


def test_bonus_is_the_deviation_of_the_sampled_value() -> None:
    """The standard deviation of φᵀθ_TS over 200,000 draws of z is the bonus.

    The tolerance is 5 standard errors (0.8%).
    """
    phi = jax.random.normal(jax.random.key(0), (20, 3))
    factor = posterior.factor(posterior.precision(phi, 0.1))
    z = jax.random.normal(jax.random.key(1), (200_000, 3))
    theta = posterior.thompson_parameters(z, jnp.array([1.0, 2.0, 3.0]), factor, 0.7)
    np.testing.assert_allclose(
        (theta @ phi[0]).std(), posterior.ucb_bonus_from_factor(phi[0], factor, 0.7), rtol=0.008
    )


def test_a_kept_z_moves_with_the_mean() -> None:
    factor, z = (
        posterior.factor(jnp.diag(jnp.array([4.0, 9.0]))),
        jnp.array([[1.0, 1.0], [2.0, -3.0]]),
    )
    theta = posterior.thompson_parameters(z, jnp.zeros(2), factor, 4.0)
    np.testing.assert_allclose(theta, [[1, 2 / 3], [2, -2]], rtol=1e-6)
    means = jnp.array([[1.0, 1.0], [2.0, 2.0]])
    np.testing.assert_allclose(
        posterior.thompson_parameters(z, means, factor, 4.0), means + theta, rtol=1e-6
    )


def test_least_squares_at_once_and_in_chunks(dtype: str) -> None:
    rng = np.random.default_rng(0)
    phi, noise = rng.normal(size=(300, 5)), 0.1 * rng.normal(size=300)
    y = phi @ np.arange(5.0) + noise
    expected = np.linalg.solve(phi.T @ phi + 0.3 * np.eye(5), phi.T @ y)
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    phi, y = jnp.asarray(phi, dtype), jnp.asarray(y, dtype)
    theta = posterior.least_squares(phi, y, 0.3)
    assert theta.dtype == jnp.dtype(dtype)
    np.testing.assert_allclose(theta, expected, rtol=tolerance, atol=tolerance)
    scatter = posterior.init_scatter(6, dtype)
    for start in range(0, 300, 100):
        rows = jnp.concatenate([phi, y[:, None]], axis=1)[start : start + 100]
        scatter = posterior.add_scatter(scatter, rows)
    factor = posterior.factor_scatter(scatter, 0.3)
    np.testing.assert_allclose(
        posterior.regression_parameters(factor), expected, rtol=tolerance, atol=tolerance
    )


def test_bound_noise() -> None:
    noise = jnp.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]])
    assert jnp.isfinite(jax.jacobian(posterior.bound_noise)(noise, 2.0)).all()
    np.testing.assert_allclose(
        posterior.bound_noise(noise, 2.0), [[1.2, 1.6], [0.6, 0.8], [0, 0]], rtol=1e-6
    )


def test_inside_jit_an_indefinite_matrix_is_nan() -> None:
    assert jnp.isnan(jax.jit(posterior.factor)(jnp.array([[1.0, 2.0], [2.0, 1.0]]))).any()


def test_inside_jit_a_known_number_is_still_refused() -> None:
    with pytest.raises(ValueError, match="discount must lie in"):
        jax.jit(lambda sigma: posterior.exploration_scale(sigma, 1.0))(jnp.eye(2))
    assert jnp.isinf(jax.jit(posterior.exploration_scale)(jnp.eye(2), 1.0)), (
        "a traced one cannot be"
    )


def test_gradients_exist_where_the_bonus_is_zero() -> None:
    bonus = jax.grad(lambda phi: posterior.ucb_bonus(phi, jnp.eye(2), 1.0))
    np.testing.assert_array_equal(bonus(jnp.zeros(2)), 0)
    np.testing.assert_allclose(bonus(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: posterior.factor(jnp.array([[1.0, 2.0], [2.0, 1.0]])),
            "smallest eigenvalue is -1.*Raise the ridge",
        ),
        (
            lambda: posterior.precision(jnp.ones((2, 2)), 0.0),
            "ridge must be positive, got 0.0; the paper uses 0.1",
        ),
        (
            lambda: posterior.factor(jnp.ones((2, 3))),
            r"factor: precision must be square, \(d, d\), got \(2, 3\)",
        ),
        (
            lambda: posterior.least_squares(jnp.ones((2, 2)), jnp.ones(2), 0.0),
            "least_squares: ridge must be positive",
        ),
        (
            lambda: posterior.ucb_bonus(jnp.ones(2), jnp.eye(2), -1.0),
            "scale must not be negative, got -1.0; it is a variance",
        ),
        (
            lambda: posterior.factor_scatter(posterior.init_scatter(2), -1.0),
            "factor_scatter: ridge must be positive, got -1.0",
        ),
        (
            lambda: posterior.exploration_scale_from_factor(jnp.eye(2), -0.1),
            r"discount must lie in \[0, 1\), got -0.1",
        ),
        (
            lambda: posterior.exploration_scale(jnp.eye(2), 1.0),
            r"discount must lie in \[0, 1\), got 1.0",
        ),
        (
            lambda: posterior.add_scatter(posterior.init_scatter(3), jnp.ones((2, 2))),
            r"start from init_scatter\(2\)",
        ),
        (
            lambda: posterior.factor_scatter(
                posterior.add_scatter(posterior.init_scatter(2), jnp.full((2, 2), jnp.nan)), 0.1
            ),
            "4 of 4 entries are not finite. Look for NaN",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
