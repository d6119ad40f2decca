import numpy as np
import pytest

from spectral_bellman.tabular import power_method, power_step
from spectral_bellman.tabular.figures import sweep_history
from spectral_bellman.tabular.power import align


def matrix_with_gap(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(size, 8)))[0] for size in (30, 20))
    return left * np.array([12, 9, 7, 4, 2, 1, 0.5, 0.1]) @ right.T


def test_the_literal_simultaneous_form_cycles_with_period_two() -> None:
    """Both updates use the old pair: the scale of φθ̃ᵀ alternates between two wrong values."""
    matrix = matrix_with_gap()
    rng = np.random.default_rng(1)
    phi, theta = rng.normal(size=(30, 1)), rng.normal(size=(20, 1))
    products = []
    for _ in range(60):
        phi, theta = power_step(matrix, phi, theta, simultaneous=True)
        products.append(float(np.linalg.norm(phi) * np.linalg.norm(theta)))
    np.testing.assert_allclose(products[-1], products[-3], rtol=1e-10)
    np.testing.assert_allclose(products[-2], products[-4], rtol=1e-10)
    assert abs(products[-1] / products[-2] - 1) > 0.1
    assert all(abs(product / 12 - 1) > 0.1 for product in products[-2:])
    (
        np.testing.assert_allclose(np.sqrt(products[-1] * products[-2]), 12, rtol=1e-10),
        "their geometric mean is σ₁",
    )


def test_the_span_converges_at_the_squared_ratio_of_the_gap() -> None:
    """σ_4/σ_3 = 4/7: a sweep multiplies the sine of the largest angle by (4/7)² = 0.327."""
    _, errors = sweep_history(matrix_with_gap(), rank=3, iterations=25)
    ratios = errors[1:] / errors[:-1]
    settled = errors[1:] > 1e-10
    np.testing.assert_allclose(ratios[settled][3:], (4 / 7) ** 2, rtol=0.02)
    assert settled[3:].sum() > 8


def test_alignment_keeps_the_product_and_makes_both_covariances_equal_and_diagonal() -> None:
    rng = np.random.default_rng(0)
    phi, theta = rng.normal(size=(9, 3)), rng.normal(size=(7, 3))
    new_phi, new_theta = align(phi, theta)
    np.testing.assert_allclose(new_phi @ new_theta.T, phi @ theta.T, atol=1e-12)
    for x in (new_phi, new_theta):
        np.testing.assert_allclose(x.T @ x, np.diag(np.diag(new_phi.T @ new_phi)), atol=1e-12)


def test_rows_and_columns_without_weight_are_fitted_but_have_no_say() -> None:
    """Any part of rank 2 determines a matrix of rank 2, so rows of weight zero are also correct."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 10))
    rows, columns = np.ones(12), np.ones(10)
    rows[8:], columns[:3] = 0, 0
    features, parameters, values = power_method(matrix, 2, 50, rows, columns)
    np.testing.assert_allclose(features @ parameters.T, matrix, atol=1e-10)
    np.testing.assert_allclose(
        values, np.linalg.svd(matrix[:8, 3:], compute_uv=False)[:2], rtol=1e-10
    )


def test_a_rank_above_that_of_the_matrix_leaves_zero_directions() -> None:
    matrix = np.outer(np.arange(1.0, 6), np.arange(1.0, 5))
    features, parameters, values = power_method(matrix, 3, 30)
    np.testing.assert_allclose(features @ parameters.T, matrix, atol=1e-10)
    np.testing.assert_allclose(values, [np.linalg.norm(matrix), 0, 0], atol=1e-10)


def test_small_singular_values_and_small_weights_are_not_lost() -> None:
    np.testing.assert_allclose(
        power_method(np.diag([1, 1e-3, 1e-8, 1e-10]), 4, 50)[2], [1, 1e-3, 1e-8, 1e-10], rtol=1e-6
    )
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    features, parameters, _ = power_method(matrix, 4, 50, row_weights=[1, 1, 1, 1e-14])
    np.testing.assert_allclose(features @ parameters.T, matrix, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 21}, r"rank must lie in \[1, 20\], since matrix has shape \(30, 20\); got 21"),
        ({"rank": 2, "iterations": 0}, "iterations must be at least 1"),
        (
            {"rank": 2, "row_weights": np.ones(3)},
            r"row_weights must have shape \(30,\), got \(3,\)",
        ),
        (
            {"rank": 2, "column_weights": -np.ones(20)},
            "column_weights must be non-negative and not all zero",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        power_method(matrix_with_gap(), **({"iterations": 5} | arguments))
