import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_bellman import objective
from spectral_bellman.networks import ResidualParameters

B, M, D = 6, 5, 4


def grid(
    seed: int, dtype: str = "float32", shape: tuple[int, int, int] = (B, M, D)
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    batch, samples, d = shape
    return tuple(
        jnp.asarray(rng.normal(size=s), dtype) for s in ((batch, d), (samples, d), (batch, samples))
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.sampled_from([1, 2, 9]),  # few shapes: each is compiled
    samples=st.sampled_from([1, 7]),
    d=st.sampled_from([1, 5]),
)
def test_in_batch_covariances_give_the_gradient_of_bellman_mse(
    seed: int, batch: int, samples: int, d: int
) -> None:
    with jax.enable_x64(True):
        phi, theta_tilde, targets = grid(seed, "float64", (batch, samples, d))
        covariances = objective.init_covariances(d)

        def loss(phi: jax.Array, theta_tilde: jax.Array, mse: bool) -> jax.Array:
            return objective.representation_loss(phi, theta_tilde, targets, covariances, mse=mse)[0]

        spectral, mse = (jax.grad(loss, (0, 1))(phi, theta_tilde, mse) for mse in (False, True))
        for ours, theirs in zip(spectral, mse, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=1e-13 * max(1.0, float(jnp.abs(theirs).max()))
            )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), alpha=st.floats(0, 1))
def test_no_gradient_through_targets_and_covariances(seed: int, alpha: float) -> None:
    phi, theta_tilde, targets = grid(seed)

    def loss(targets: jax.Array, feature: jax.Array, parameter: jax.Array, mse: bool) -> jax.Array:
        state = objective.Covariances(feature, parameter, jnp.ones((), bool))
        return objective.representation_loss(
            phi, theta_tilde, targets, state, alpha=alpha, mse=mse
        )[0]

    for mse in (False, True):
        for gradient in jax.grad(loss, (0, 1, 2))(targets, jnp.eye(D), jnp.eye(D), mse):
            np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("mse", [False, True])
def test_covariances_start_from_the_first_batch_and_then_average(mse: bool) -> None:
    phi, theta_tilde, targets = grid(0)
    state = objective.init_covariances(D)
    _, (state, _) = objective.representation_loss(
        phi, theta_tilde, targets, state, alpha=0.1, mse=mse
    )
    np.testing.assert_allclose(state.feature, phi.T @ phi / B, rtol=1e-5)
    np.testing.assert_allclose(state.parameter, theta_tilde.T @ theta_tilde / M, rtol=1e-5)
    _, (later, _) = objective.representation_loss(
        2 * phi, theta_tilde, targets, state, alpha=0.1, mse=mse
    )
    np.testing.assert_allclose(later.feature, (0.9 + 0.1 * 4) * phi.T @ phi / B, rtol=1e-5)
    np.testing.assert_allclose(later.parameter, state.parameter, rtol=1e-5)


def test_covariances_are_updated_before_use() -> None:
    """With α = 0.5 after one batch, the loss uses the average of both batches."""
    phi, theta_tilde, targets = grid(0)
    old = objective.Covariances(jnp.eye(D), jnp.eye(D), jnp.ones((), bool))
    loss, (new, terms) = objective.representation_loss(phi, theta_tilde, targets, old, alpha=0.5)
    np.testing.assert_allclose(
        new.feature, (jnp.eye(D) + phi.T @ phi / B) / 2, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        loss,
        objective.spectral_loss(phi, theta_tilde, targets, new.feature, new.parameter),
        rtol=1e-6,
    )
    assert loss == terms["spectral"]


def test_covariances_keep_their_dtype() -> None:
    with jax.enable_x64(True):
        for data, state in (("float32", "float64"), ("float64", "float32")):
            covariances = objective.init_covariances(D, state)
            loss, (covariances, _) = objective.representation_loss(*grid(0, data), covariances)
            assert loss.dtype == jnp.dtype(data)
            assert covariances.feature.dtype == covariances.parameter.dtype == jnp.dtype(state)


def test_orthogonality_weights_are_separate_and_may_be_one_for_each_pair() -> None:
    phi, theta_tilde, targets = grid(0)
    state = objective.init_covariances(D)

    def loss(**weights: object) -> float:
        return float(objective.representation_loss(phi, theta_tilde, targets, state, **weights)[0])

    plain = loss()
    on_phi, on_theta = objective.orthogonality_loss(phi), objective.orthogonality_loss(theta_tilde)
    np.testing.assert_allclose(loss(feature_orthogonality=2.0) - plain, 2 * on_phi, rtol=1e-4)
    np.testing.assert_allclose(loss(param_orthogonality=0.5) - plain, 0.5 * on_theta, rtol=1e-4)
    np.testing.assert_allclose(
        loss(feature_orthogonality=jnp.full((D, D), 2.0)) - plain, 2 * on_phi, rtol=1e-4
    )
    one_pair = jnp.zeros((D, D)).at[0, 1].set(1.0)
    both = (
        objective.orthogonality_loss(phi, one_pair),
        objective.orthogonality_loss(phi, jnp.zeros((D, D)).at[1, 0].set(1.0)),
    )
    assert both[0] == both[1] != 0
    with_mse = loss(mse=True, feature_orthogonality=2.0, param_orthogonality=0.5) - loss(mse=True)
    np.testing.assert_allclose(with_mse, 2 * on_phi + 0.5 * on_theta, rtol=1e-4)
    np.testing.assert_array_equal(objective.orthogonality_loss(phi, jnp.diag(jnp.arange(4.0))), 0)


def test_orthogonality_is_zero_in_expectation_for_independent_features() -> None:
    """The mean over many batches of 8 has a standard error of about 0.006.

    The biased estimate would be d(d−1)/8 = 1.5.
    """
    x = jax.random.normal(jax.random.key(0), (20_000, 8, D))
    assert abs(jnp.mean(jax.vmap(objective.orthogonality_loss)(x))) < 0.03


def test_proposition_2_the_minimiser_of_l1_is_the_power_step(dtype: str) -> None:
    """With φ free, the gradient in φ is zero exactly at Λ2 φ = E_ν[TQ θ̃].

    The loss is larger elsewhere. The same holds for θ̃ in L2.
    """
    phi, theta_tilde, targets = grid(3, dtype)
    feature_cov, param_cov = phi.T @ phi / B, theta_tilde.T @ theta_tilde / M
    best_phi = jnp.linalg.solve(param_cov, (targets @ theta_tilde / M).T).T
    best_theta = objective.solve_parameters(phi, targets, feature_cov, ridge=0.0)

    def l1(x: jax.Array) -> jax.Array:
        return objective.spectral_loss(x, theta_tilde, targets, feature_cov, param_cov)

    def l2(x: jax.Array) -> jax.Array:
        return objective.spectral_loss(phi, x, targets, feature_cov, param_cov)

    for loss, best in ((l1, best_phi), (l2, best_theta)):
        # Cancellation at the minimum: the gradient is a difference of terms of order 10.
        np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e3 * float(jnp.finfo(dtype).eps))
        noise = jax.random.normal(jax.random.key(1), best.shape, dtype)
        assert loss(best + 0.1 * noise) > loss(best)


def test_explicit_parameters_reset_and_descend_to_the_solution() -> None:
    phi, theta, targets = grid(2, shape=(64, M, D))
    cov = phi.T @ phi / 64
    solution = objective.solve_parameters(phi, targets, cov, 0.0)
    np.testing.assert_array_equal(objective.descend_parameters(theta, phi, targets, steps=0), theta)
    step = theta - (theta @ cov - targets.T @ phi / 64) / np.linalg.eigvalsh(cov)[-1]
    np.testing.assert_allclose(
        objective.descend_parameters(theta, phi, targets, steps=1), step, rtol=1e-5, atol=1e-5
    )
    average = 2 * jnp.eye(D)
    step = theta - (2 * theta - targets.T @ phi / 64) / 2
    np.testing.assert_allclose(
        objective.descend_parameters(theta, phi, targets, 1, average), step, rtol=1e-5, atol=1e-5
    )
    distances = [
        float(
            jnp.linalg.norm(objective.descend_parameters(theta, phi, targets, steps=k) - solution)
        )
        for k in (0, 10, 30, 300)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-3 * distances[0]


def test_solved_parameters_are_ridge_regression_also_when_badly_conditioned() -> None:
    """Λ1 with condition number 1e6: float32 throughout would be off by some percent."""
    rng = np.random.default_rng(0)
    phi = (
        rng.normal(size=(50, D)) * [1, 0.1, 0.01, 0.001] @ np.linalg.qr(rng.normal(size=(D, D)))[0]
    ).astype(np.float32)
    targets = rng.normal(size=(50, M)).astype(np.float32)
    cov = (phi.astype(np.float64).T @ phi.astype(np.float64) / 50).astype(np.float32)
    for ridge in (1e-6, 0.5):
        system = cov.astype(np.float64) + np.float64(np.float32(ridge)) * np.trace(
            cov.astype(np.float64)
        ) / D * np.eye(D)
        expected = np.linalg.solve(system, phi.astype(np.float64).T @ targets / 50).T
        np.testing.assert_allclose(
            objective.solve_parameters(phi, targets, cov, ridge), expected, rtol=1e-4, atol=1e-4
        )


def test_explicit_parameters_default_to_the_batch_and_a_ridge_that_float32_can_bear() -> None:
    """With fewer rows than features of any scale, Λ1 is singular, but the rows are still fitted."""
    for scale in (1e-3, 3.0, 1e3):
        phi = scale * jax.random.normal(jax.random.key(0), (32, 64))
        targets = jax.random.normal(jax.random.key(1), (32, 5))
        theta_tilde = objective.solve_parameters(phi, targets)
        np.testing.assert_allclose(phi @ theta_tilde.T, targets, atol=0.02)
    message = "Λ1 has no inverse at a ridge of -1 of its mean diagonal"
    with pytest.raises(ValueError, match=message):
        objective.solve_parameters(phi, targets, ridge=-1.0)


@pytest.mark.parametrize("how", ["solved", "reset"])
def test_features_learn_from_l1_alone_with_explicit_parameters(how: str) -> None:
    """The gradient in φ is the same as with θ̃ given from outside."""
    phi, theta, targets = grid(0)

    def explicit(phi: jax.Array) -> jax.Array:
        if how == "solved":
            return objective.solve_parameters(phi, targets)
        return objective.descend_parameters(theta, phi, targets, steps=3)

    def loss(phi: jax.Array, theta_tilde: jax.Array | None) -> jax.Array:
        theta_tilde = explicit(phi) if theta_tilde is None else theta_tilde
        return objective.representation_loss(
            phi, theta_tilde, targets, objective.init_covariances(D), param_orthogonality=1.0
        )[0]

    np.testing.assert_allclose(
        jax.grad(loss)(phi, None), jax.grad(loss)(phi, explicit(phi)), rtol=1e-6, atol=1e-6
    )


def test_norms() -> None:
    phi = jnp.array([[0.3, 0.4], [3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(
        objective.clip_norm(phi), [[0.3, 0.4], [0.6, 0.8], [0, 0]], rtol=1e-6
    )
    np.testing.assert_allclose(
        objective.unit_norm(phi), [[0.6, 0.8], [0.6, 0.8], [0, 0]], rtol=1e-6
    )
    extreme = jnp.array([[3e30, 4e30], [3e-30, 4e-30]])
    np.testing.assert_allclose(objective.unit_norm(extreme), [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(
        objective.clip_norm(extreme), [[0.6, 0.8], [3e-30, 4e-30]], rtol=1e-6
    )
    slope = jax.jacobian(objective.unit_norm)(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(slope, [[0.128, -0.096], [-0.096, 0.072]], rtol=1e-5)
    for norm in (objective.clip_norm, objective.unit_norm):
        assert jnp.all(jnp.isfinite(jax.jacobian(norm)(phi))), "the derivative at zero is finite"
        assert norm(jnp.ones((2, 3, 4))).shape == (2, 3, 4)


def test_sample_parameters_takes_a_variance() -> None:
    """The mean of 100,000 draws is within 5 standard errors, 0.0016.

    Their variance is within 5 of its standard errors, 0.0022 · σ².
    """
    mean = jnp.array([1.0, -2.0])
    theta = objective.sample_parameters(jax.random.key(0), mean, 1e-2, 100_000)
    np.testing.assert_allclose(theta.mean(axis=0), mean, atol=0.0016)
    np.testing.assert_allclose(theta.var(axis=0), 1e-2, rtol=0.023)


@pytest.mark.parametrize("mse", [False, True])
def test_the_whole_objective_trains_features_and_network(mse: bool) -> None:
    """Gradient descent on one call fits a closed target: TQ = φ*ᵀ(θ/2 + c)."""
    rng = np.random.default_rng(0)
    true_phi = jnp.asarray(rng.normal(size=(32, D)), jnp.float32)
    params = (
        true_phi + 0.3 * jnp.asarray(rng.normal(size=(32, D)), jnp.float32),
        ResidualParameters(D, jax.random.key(0)),
    )
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(carry: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
        params, opt_state, covariances = carry
        theta = objective.sample_parameters(key, jnp.ones(D), 0.5, 64)
        targets = true_phi @ (theta / 2 + 1).T

        def loss(params: tuple) -> tuple[jax.Array, tuple]:
            return objective.representation_loss(
                params[0], jax.vmap(params[1])(theta), targets, covariances, mse=mse
            )

        grads, (covariances, terms) = jax.grad(loss, has_aux=True)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, covariances), terms["bellman_mse"]

    start = (params, optimizer.init(params), objective.init_covariances(D))
    _, errors = jax.lax.scan(step, start, jax.random.split(jax.random.key(1), 400))
    assert errors[-1] < 0.02 * errors[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda p, t, q: objective.spectral_loss(p, t, q.T, jnp.eye(D), jnp.eye(D)),
            "targets has shape",
        ),
        (lambda p, t, q: objective.orthogonality_loss(p[:1]), "x has 1 sample"),
        (
            lambda p, t, q: objective.update_covariance(jnp.eye(D), p, 1.5),
            r"alpha must lie in \[0, 1\], got 1.5",
        ),
        (
            lambda p, t, q: objective.representation_loss(p, t, q, objective.init_covariances(3)),
            r"start from init_covariances\(4\)",
        ),
        (
            lambda p, t, q: objective.representation_loss(
                p, t, q, objective.init_covariances(D), alpha=1.5
            ),
            "representation_loss: alpha",
        ),
        (
            lambda p, t, q: objective.representation_loss(
                p, t, q, objective.init_covariances(D), feature_orthogonality=jnp.ones(D)
            ),
            r"feature_orthogonality must be one number or one for each pair, \(d, d\), "
            r"got shape \(4,\)",
        ),
        (
            lambda p, t, q: objective.sample_parameters(jax.random.key(0), p[0], -1.0, 3),
            "variance must not be negative, got -1.0",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(*grid(0))


def weighted_batch(dtype):
    rng = np.random.default_rng(11)
    phi, theta_tilde, targets = (
        rng.normal(size=(6, 4)),
        rng.normal(size=(5, 4)),
        rng.normal(size=(6, 5)),
    )
    weight = np.array([0.5, 0.0, 2.0, 1.0, 3.0, 0.25])
    return *(jnp.asarray(x, dtype) for x in (phi, theta_tilde, targets)), weight


@pytest.mark.parametrize("mse", [False, True])
def test_with_alpha_one_the_weighted_gradient_is_the_gradient_of_weighted_mse(mse):
    """Prioritised sampling changes ρ: the weights enter both expectations and Λ1."""
    with jax.enable_x64(True):
        phi, theta_tilde, targets, weight = weighted_batch(jnp.float64)
        start = objective.init_covariances(4)

        def ours(phi, theta_tilde):
            return objective.representation_loss(
                phi, theta_tilde, targets, start, mse=mse, sample_weight=jnp.asarray(weight)
            )[0]

        def weighted(phi, theta_tilde):
            error = jnp.square(phi @ theta_tilde.T - targets)
            return jnp.sum(jnp.asarray(weight) @ error) / weight.sum() / error.shape[1]

        got, want = (jax.grad(loss, (0, 1))(phi, theta_tilde) for loss in (ours, weighted))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        assert np.abs(want[0]).max() > 0.1


def test_weighted_covariances_and_pairs_by_hand():
    phi, *_, weight = weighted_batch(jnp.float32)
    x = np.asarray(phi, np.float64)
    found = objective.update_covariance(jnp.zeros((4, 4)), phi, 1.0, weight)
    np.testing.assert_allclose(found, (weight[:, None] * x).T @ x / weight.sum(), rtol=1e-5)

    def brute_force(group):
        total, pairs = 0.0, 0.0
        for n in range(6):
            for m in range(6):
                if n // group != m // group:
                    both = np.outer(x[n], x[n]) * np.outer(x[m], x[m])
                    total += weight[n] * weight[m] * (both.sum() - np.trace(both))
                    pairs += weight[n] * weight[m]
        return total / pairs

    for group in (1, 2, 3):
        found = objective.orthogonality_loss(phi, sample_weight=weight, group=group)
        assert float(found) == pytest.approx(brute_force(group), rel=1e-4)
    same = objective.orthogonality_loss(phi, sample_weight=np.ones(6))
    assert float(same) == pytest.approx(float(objective.orthogonality_loss(phi)), rel=1e-5)


def test_groups_that_do_not_fit_are_refused():
    x = jnp.ones((6, 2))
    with pytest.raises(ValueError, match="6 samples cannot be divided into groups of 4"):
        objective.orthogonality_loss(x, group=4)
    with pytest.raises(ValueError, match="at least 2 groups"):
        objective.orthogonality_loss(x, group=6)
