"""The oracle: its gradients against finite differences, its sums against rlax and closed forms."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import reference


def numerical_gradient(function, x: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Central differences.

    They are exact up to rounding (about 1e-16 / step) if `function` is quadratic in each entry.
    """
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


@pytest.fixture
def batch() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    covariances = [root.T @ root for root in rng.normal(size=(2, 6, 3))]
    return [rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), rng.normal(size=(5, 4)), *covariances]


def test_mse_gradients_are_those_of_the_mse(batch: list[np.ndarray]) -> None:
    phi, theta, targets = batch[:3]
    expected = (
        numerical_gradient(lambda x: reference.bellman_mse(x, theta, targets), phi),
        numerical_gradient(lambda x: reference.bellman_mse(phi, x, targets), theta),
    )
    for actual, desired in zip(
        reference.bellman_mse_gradients(phi, theta, targets), expected, strict=True
    ):
        np.testing.assert_allclose(actual, desired, atol=1e-10)


def test_spectral_gradients_are_those_of_one_term_each(batch: list[np.ndarray]) -> None:
    """The cross term is in L1 and L2: d(L1 + L2) holds it twice, the specified gradient once."""
    phi, theta, targets, feature_cov, param_cov = batch
    cross_phi, cross_theta = (
        -2 * targets @ theta / targets.size,
        -2 * targets.T @ phi / targets.size,
    )
    full_phi = numerical_gradient(lambda x: reference.spectral_loss(x, *batch[1:]), phi)
    full_theta = numerical_gradient(lambda x: reference.spectral_loss(phi, x, *batch[2:]), theta)
    grad_phi, grad_theta = reference.spectral_gradients(phi, theta, targets, feature_cov, param_cov)
    np.testing.assert_allclose(grad_phi, full_phi - cross_phi, atol=1e-10)
    np.testing.assert_allclose(grad_theta, full_theta - cross_theta, atol=1e-10)


@pytest.mark.parametrize("transformed", [False, True])
def test_retrace_sum_equals_the_recursion_of_rlax(rlax: ModuleType, transformed: bool) -> None:
    rng = np.random.default_rng(1)
    steps, n_actions = 7, 3
    q, policy = (
        rng.normal(size=(steps + 1, n_actions)),
        rng.dirichlet(np.ones(n_actions), size=steps + 1),
    )
    actions = rng.integers(n_actions, size=steps + 1).astype(np.int32)
    rewards, discounts = rng.normal(size=steps), rng.uniform(0.5, 1.0, size=steps)
    discounts[3] = 0.0
    behaviour = rng.uniform(0.2, 1.0, size=steps + 1)
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        arrays = [
            q[:-1],
            q[1:],
            actions[:-1],
            actions[1:],
            rewards,
            discounts,
            policy[1:],
            behaviour[1:],
        ]
        function = rlax.transformed_retrace if transformed else rlax.retrace
        pair = {"tx_pair": rlax.SIGNED_HYPERBOLIC_PAIR} if transformed else {}
        errors = function(*map(jnp.asarray, arrays), lambda_=0.9, eps=0.0, **pair)
    expected = np.asarray(errors) + q[np.arange(steps), actions[:-1]]
    ours = reference.transformed_retrace if transformed else reference.retrace
    # rlax's f⁻¹ subtracts two numbers of size 1/(2ε) = 500: it is good to 1e-13 and no better.
    np.testing.assert_allclose(
        ours(q, actions, rewards, discounts, policy, behaviour, 0.9), expected, atol=1e-11
    )


@pytest.mark.parametrize("x", [0.0, 1e-6, -0.3, 5.0, -1e5])
def test_bisection_inverts_the_rescaling(x: float) -> None:
    assert reference.signed_parabolic(reference.signed_hyperbolic(x)) == pytest.approx(
        x, rel=1e-12, abs=1e-15
    )


@pytest.mark.parametrize("bound", [0.5, 10.0])
def test_chebyshev_fit_against_a_scan(bound: float) -> None:
    """One parameter: the convex error is scanned over the interval that B_φ allows."""
    rng = np.random.default_rng(2)
    features, values = rng.normal(size=(3, 2, 1)), rng.normal(size=(3, 2))
    limit = bound / np.abs(features).max()
    grid = np.linspace(-limit, limit, 200_001)
    errors = np.abs(values.reshape(-1, 1) - features.reshape(-1, 1) * grid).max(axis=0)
    spacing = grid[1] - grid[0]
    _, error = reference.chebyshev_fit(features, values, bound)
    assert error == pytest.approx(errors.min(), abs=spacing * np.abs(features).max())
