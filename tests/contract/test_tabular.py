"""`spectral_bellman.tabular`: exact backups, Algorithm 1 against NumPy's SVD, and the IBE."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import tabular

from . import reference
from .compare import REFUSED

LP = 1e-6
"""The error of a linear program: HiGHS accepts violations of 1e-7, and data go up to about ten."""


def random_mdp(seed: int, states: int = 5, actions: int = 3, discount: float = 0.9) -> tabular.MDP:
    """Generic: full-rank transitions and rewards."""
    rng = np.random.default_rng(seed)
    reward = rng.uniform(-1, 1, size=(states, actions))
    return tabular.MDP(reward, rng.dirichlet(np.ones(states), size=(states, actions)), discount)


def parts(mdp: tabular.MDP) -> tuple[np.ndarray, np.ndarray, float]:
    return mdp.reward, mdp.transition, mdp.discount


def hand_mdp() -> tabular.MDP:
    """In state 0 action 0 stays, and action 1 moves to state 1 with probability ½; γ = ½.

    State 1 is absorbing and pays 1.
    """
    reward = np.array([[0.0, 0.0], [1.0, 1.0]])
    transition = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]])
    return tabular.MDP(reward, transition, 0.5)


def two_cycle(discount: float = 0.9) -> tabular.MDP:
    """0 → 1 → 0, one action, no reward."""
    return tabular.MDP(np.zeros((2, 1)), np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), discount)


def assert_float64(*arrays: object) -> None:
    for array in arrays:
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float64


# --- MDP and backups ------------------------------------------------------------------------------


def test_mdp_keeps_its_fields() -> None:
    mdp = random_mdp(0)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(mdp.reward, rng.uniform(-1, 1, size=(5, 3)))
    np.testing.assert_array_equal(mdp.transition, rng.dirichlet(np.ones(5), size=(5, 3)))
    assert mdp.discount == 0.9


def test_jax_arrays_become_numpy_float64() -> None:
    """Probabilities that float32 holds exactly."""
    numpy = hand_mdp()
    mdp = tabular.MDP(
        jnp.asarray(numpy.reward, "float32"), jnp.asarray(numpy.transition, "float32"), 0.5
    )
    q = jnp.asarray([[1.0, 2.0], [3.0, 0.0]], "float32")
    backups = [
        tabular.bellman_backup(mdp, q),
        tabular.h_step_backup(mdp, q, 2),
        tabular.optimal_q(mdp),
    ]
    assert_float64(mdp.reward, mdp.transition, *backups)
    np.testing.assert_allclose(backups[0], [[1.0, 1.25], [2.5, 2.5]], rtol=1e-15)


def test_backups_by_hand() -> None:
    """max q = (2, 3): ½·2 = 1, ½(½·2 + ½·3) = 1.25, 1 + ½·3 = 2.5.

    The second backup, of (1.25, 2.5), gives 0.625, 0.9375, 2.25.
    """
    mdp, q = hand_mdp(), np.array([[1.0, 2.0], [3.0, 0.0]])
    np.testing.assert_allclose(
        tabular.bellman_backup(mdp, q), [[1.0, 1.25], [2.5, 2.5]], rtol=1e-15
    )
    np.testing.assert_allclose(
        tabular.h_step_backup(mdp, q, 2), [[0.625, 0.9375], [2.25, 2.25]], rtol=1e-15
    )


def test_optimal_q_by_hand() -> None:
    """V(1) = 1/(1 − ½) = 2; V(0) = ½(½·2 + ½V(0)), so V(0) = ⅔ and Q(0, stay) = ½V(0)."""
    np.testing.assert_allclose(
        tabular.optimal_q(hand_mdp()), [[1 / 3, 2 / 3], [2.0, 2.0]], atol=1e-9
    )


@pytest.mark.parametrize("seed", range(3))
def test_backup_is_the_sum(seed: int) -> None:
    mdp, q = random_mdp(seed), np.random.default_rng(seed + 10).normal(size=(5, 3))
    backup = tabular.bellman_backup(mdp, q)
    assert_float64(backup)
    np.testing.assert_allclose(backup, reference.bellman_backup(*parts(mdp), q), rtol=0, atol=1e-14)


@pytest.mark.parametrize("h", [1, 2, 5])
def test_h_step_backup_is_the_recursion(h: int) -> None:
    mdp, q = random_mdp(1), np.random.default_rng(11).normal(size=(5, 3))
    np.testing.assert_allclose(
        tabular.h_step_backup(mdp, q, h),
        reference.h_step_backup(*parts(mdp), q, h),
        rtol=0,
        atol=1e-13,
    )


def test_backup_without_discount_is_the_reward() -> None:
    mdp = random_mdp(2, discount=0.0)
    np.testing.assert_array_equal(tabular.bellman_backup(mdp, np.ones((5, 3))), mdp.reward)


def test_backup_leaves_its_input_alone() -> None:
    q = np.ones((5, 3))
    tabular.h_step_backup(random_mdp(0), q, 3)
    np.testing.assert_array_equal(q, np.ones((5, 3)))


@pytest.mark.parametrize("seed", range(3))
def test_optimal_q_is_that_of_the_best_policy(seed: int) -> None:
    """Every deterministic policy is evaluated by a linear solve.

    At γ = 0.9 a residual of 1e-10 means an error of 1e-9 in the values.
    """
    states, actions = 4, 2
    mdp = random_mdp(seed, states, actions)
    best = np.full(states, -np.inf)
    for policy in np.ndindex(*[actions] * states):
        transition = np.array([mdp.transition[s, policy[s]] for s in range(states)])
        reward = np.array([mdp.reward[s, policy[s]] for s in range(states)])
        best = np.maximum(best, np.linalg.solve(np.eye(states) - mdp.discount * transition, reward))
    expected = mdp.reward + mdp.discount * np.einsum("sat,t->sa", mdp.transition, best)
    np.testing.assert_allclose(tabular.optimal_q(mdp), expected, rtol=0, atol=1e-9)


def spoil(**changes: object) -> dict[str, object]:
    mdp = hand_mdp()
    return {
        "reward": mdp.reward.copy(),
        "transition": mdp.transition.copy(),
        "discount": 0.5,
    } | changes


def spoiled_transition(value: list[float]) -> dict[str, object]:
    arguments = spoil()
    arguments["transition"][0, 1] = value
    return arguments


BAD_MDPS = {
    "row below one": spoiled_transition([0.5, 0.4]),
    "row above one": spoiled_transition([0.5, 0.501]),
    "row of zeros": spoiled_transition([0.0, 0.0]),
    "negative probability": spoiled_transition([1.5, -0.5]),
    "NaN probability": spoiled_transition([np.nan, 0.5]),
    "NaN reward": spoil(reward=np.array([[0.0, np.nan], [1.0, 1.0]])),
    "infinite reward": spoil(reward=np.array([[0.0, np.inf], [1.0, 1.0]])),
    "discount one": spoil(discount=1.0),
    "discount above one": spoil(discount=1.5),
    "discount negative": spoil(discount=-0.1),
    "discount NaN": spoil(discount=float("nan")),
    "reward without actions": spoil(reward=np.zeros(2)),
    "reward of other actions": spoil(reward=np.zeros((2, 1))),
    "transition without actions": spoil(transition=np.eye(2)),
    "transition to other states": spoil(transition=np.full((2, 2, 4), 0.25)),
}


@pytest.mark.parametrize("case", BAD_MDPS)
def test_mdp_refuses(case: str) -> None:
    with pytest.raises(REFUSED):
        tabular.MDP(**BAD_MDPS[case])


@pytest.mark.parametrize("shape", [(2,), (2, 3), (1, 2), (4, 2)])
def test_backups_refuse_values_of_another_mdp(shape: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        tabular.bellman_backup(hand_mdp(), np.ones(shape))
    with pytest.raises(REFUSED):
        tabular.h_step_backup(hand_mdp(), np.ones(shape), 2)


# --- low-rank MDPs --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_low_rank_mdp_is_closed_under_the_backup(seed: int) -> None:
    """TQ_θ lies in the span for any θ (least squares), and in B_φ for θ in B_φ (Chebyshev fit)."""
    mdp, features = tabular.low_rank_mdp(jax.random.key(seed), 12, 3, 4, 0.9)
    assert features.shape == (12, 3, 4)
    assert_float64(features, mdp.reward, mdp.transition)
    assert mdp.reward.shape == (12, 3)
    assert mdp.transition.shape == (12, 3, 12)
    assert mdp.discount == 0.9
    assert np.linalg.matrix_rank(features.reshape(36, 4)) == 4
    bound = np.abs(mdp.reward).max() / (1 - mdp.discount)
    for theta in np.random.default_rng(seed).normal(size=(4, 4)):
        theta = reference.onto_boundary(features, theta, bound)
        backup = reference.bellman_backup(*parts(mdp), reference.q_values(features, theta)).reshape(
            -1
        )
        fit, *_ = np.linalg.lstsq(features.reshape(36, 4), backup, rcond=None)
        np.testing.assert_allclose(
            features.reshape(36, 4) @ fit, backup, rtol=0, atol=1e-10 * bound
        )
        assert reference.inner_fit(*parts(mdp), features, theta, bound) < LP * bound


def test_low_rank_mdp_is_low_rank_and_not_trivial() -> None:
    mdp, _ = tabular.low_rank_mdp(jax.random.key(3), 12, 3, 4, 0.9)
    assert np.linalg.matrix_rank(mdp.transition.reshape(36, 12), tol=1e-10) <= 4
    assert np.ptp(mdp.reward) > 1e-3
    assert np.ptp(mdp.transition, axis=(0, 1)).max() > 1e-3


def test_low_rank_mdp_is_a_function_of_its_key() -> None:
    (first, phi), (again, phi_again), (other, _) = (
        tabular.low_rank_mdp(jax.random.key(k), 6, 2, 2, 0.9) for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.transition, again.transition)
    np.testing.assert_array_equal(phi, phi_again)
    assert not np.allclose(first.transition, other.transition)


# --- inherent Bellman error -----------------------------------------------------------------------


def test_ibe_of_low_rank_features_is_zero() -> None:
    mdp, features = tabular.low_rank_mdp(jax.random.key(0), 8, 2, 3, 0.9)
    error = tabular.inherent_bellman_error(mdp, features)
    assert isinstance(error, float)
    assert 0 <= error < LP * np.abs(mdp.reward).max() / (1 - mdp.discount)


def test_ibe_of_one_hot_features_is_zero() -> None:
    """Every function is representable, and the default D = max|r|/(1 − γ) gives |r| + γD ≤ D."""
    mdp = random_mdp(0, states=3, actions=2)
    assert tabular.inherent_bellman_error(mdp, np.eye(6).reshape(3, 2, 6)) < 10 * LP


def test_ibe_of_the_zero_feature_is_the_reward() -> None:
    """Q_φ = {0} and T0 = r, so that the best fit is off by max|r|; B_φ is all of R."""
    mdp = random_mdp(0, states=3, actions=2)
    error = tabular.inherent_bellman_error(mdp, np.zeros((3, 2, 1)))
    assert error == pytest.approx(np.abs(mdp.reward).max(), abs=LP)


def test_ibe_fits_inside_the_parameter_bound() -> None:
    """One state, φ = 1, r = 1, γ = 0.9: at θ = D = 5 the backup is 5.5, nearest allowed value 5.

    At θ = −5 the backup is −3.5, which is allowed, so the supremum is 0.5. With the default
    D = 1/(1 − 0.9) = 10 the backup at θ = D is 10, and the error is zero.
    """
    mdp = tabular.MDP(np.ones((1, 1)), np.ones((1, 1, 1)), 0.9)
    features = np.ones((1, 1, 1))
    assert tabular.inherent_bellman_error(mdp, features, bound=5.0) == pytest.approx(0.5, abs=LP)
    assert tabular.inherent_bellman_error(mdp, features) < 10 * LP


@pytest.mark.parametrize("bound", [1.0, 4.0])
def test_ibe_of_the_two_cycle(bound: float) -> None:
    """φ = (1, 0): TQ_θ = (0, γθ), Q_θ̃ = (θ̃, 0), the error is γ|θ| at θ̃ = 0, the supremum γD."""
    features = np.array([[[1.0]], [[0.0]]])
    error = tabular.inherent_bellman_error(two_cycle(), features, bound=bound)
    assert error == pytest.approx(0.9 * bound, abs=LP * bound)


def test_zero_two_step_error_does_not_make_the_one_step_error_zero() -> None:
    """The same cycle: T²Q_θ = γ²Q_θ is in the space for every θ, though TQ_θ is not."""
    features, bound = np.array([[[1.0]], [[0.0]]]), 4.0
    for theta in np.linspace(-bound, bound, 9):
        q = reference.q_values(features, np.array([theta]))
        two_step = tabular.h_step_backup(two_cycle(), q, 2)
        np.testing.assert_allclose(two_step, 0.81 * q, rtol=0, atol=1e-15)
        assert reference.chebyshev_fit(features, two_step, bound)[1] < LP * bound
        _, one_step_error = reference.chebyshev_fit(
            features, tabular.bellman_backup(two_cycle(), q), bound
        )
        assert one_step_error == pytest.approx(0.9 * abs(theta), abs=LP * bound)


@pytest.mark.parametrize("seed", range(3))
def test_ibe_of_one_feature_against_a_scan(seed: int) -> None:
    """With d = 1, B_φ is an interval, and a scan finds the supremum.

    The error is 2-Lipschitz in Q, hence the slack.
    """
    mdp = random_mdp(seed, states=3, actions=2)
    features = np.random.default_rng(seed + 20).normal(size=(3, 2, 1))
    bound = np.abs(mdp.reward).max() / (1 - mdp.discount)
    edge = reference.onto_boundary(features, np.ones(1), bound)
    fractions = np.linspace(-1, 1, 81)
    scan = max(reference.inner_fit(*parts(mdp), features, edge * t, bound) for t in fractions)
    error = tabular.inherent_bellman_error(mdp, features)
    slack = mdp.discount * bound * (fractions[1] - fractions[0]) / 2 + LP * bound
    assert scan * 0.99 <= error <= scan + slack


def test_ibe_is_found_at_least_where_chance_finds_it() -> None:
    """The outer search is a lower bound; one that loses to sixteen random θ is not a search."""
    mdp = random_mdp(4, states=4, actions=2)
    features = np.random.default_rng(24).normal(size=(4, 2, 2))
    bound = np.abs(mdp.reward).max() / (1 - mdp.discount)
    thetas = [
        reference.onto_boundary(features, x, bound)
        for x in np.random.default_rng(25).normal(size=(16, 2))
    ]
    chance = max(reference.inner_fit(*parts(mdp), features, theta, bound) for theta in thetas)
    error = tabular.inherent_bellman_error(mdp, features)
    assert error >= 0.99 * chance
    assert error <= np.abs(mdp.reward).max() + mdp.discount * bound  # θ̃ = 0 is always allowed


def test_ibe_depends_on_the_function_space_alone() -> None:
    """B_φ bounds the values and not the parameters: the scale of φ cancels."""
    mdp = random_mdp(1, states=3, actions=2)
    features = np.random.default_rng(21).normal(size=(3, 2, 1))
    errors = [tabular.inherent_bellman_error(mdp, scale * features) for scale in (1.0, -7.0)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] > 0.1


def test_h_step_error_is_bounded_along_the_chain_of_best_fits() -> None:
    """‖T^h Q − Q_h‖ ≤ Σ γ^(h−1−i) e_i; Q_{i+1} is the best fit of TQ_i, and e_i its exact error."""
    mdp = random_mdp(5, states=4, actions=2)
    features = np.random.default_rng(26).normal(size=(4, 2, 2))
    bound, h = np.abs(mdp.reward).max() / (1 - mdp.discount), 4
    for theta in np.random.default_rng(27).normal(size=(5, 2)):
        theta = reference.onto_boundary(features, theta, bound)
        h_step = tabular.h_step_backup(mdp, reference.q_values(features, theta), h)
        limit, fit = 0.0, theta
        for _ in range(h):
            backup = tabular.bellman_backup(mdp, reference.q_values(features, fit))
            fit, error = reference.chebyshev_fit(features, backup, bound)
            limit = mdp.discount * limit + error
        assert reference.chebyshev_fit(features, h_step, bound)[1] <= limit + LP * bound


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 1), (6, 1), (4, 2, 1)])
def test_ibe_refuses_features_of_another_mdp(shape: tuple[int, ...]) -> None:
    with pytest.raises(REFUSED):
        tabular.inherent_bellman_error(random_mdp(0, states=3, actions=2), np.ones(shape))


# --- power method ---------------------------------------------------------------------------------

ROWS, COLUMNS = 9, 6


def gapped_matrix(
    seed: int, singular: Sequence[float] = (8.0, 4.0, 1.5, 0.6, 0.2, 0.05)
) -> np.ndarray:
    """A matrix with known singular values.

    Each default value is at most half the previous value, so sixty sweeps leave (1/4)^60.
    """
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(ROWS, len(singular))))
    right, _ = np.linalg.qr(rng.normal(size=(COLUMNS, len(singular))))
    return (left * np.asarray(singular)) @ right.T


def distributions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """ρ and ν far from uniform, no entry near zero."""
    rng = np.random.default_rng(seed + 50)
    rho, nu = rng.uniform(0.2, 3.0, size=ROWS), rng.uniform(0.2, 3.0, size=COLUMNS)
    return rho / rho.sum(), nu / nu.sum()


def weighted_case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A matrix whose *weighted* form √ρ TQ √ν has the gaps, and that form."""
    rho, nu = distributions(seed)
    weighted = gapped_matrix(seed)
    return weighted / np.sqrt(rho)[:, None] / np.sqrt(nu), rho, nu, weighted


def best_approximation(matrix: np.ndarray, rank: int) -> np.ndarray:
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    return (left[:, :rank] * singular[:rank]) @ right[:rank]


@pytest.mark.parametrize("rank", [1, 3, COLUMNS])
def test_power_method_without_weights_is_the_truncated_svd(rank: int) -> None:
    """The best approximation and ratios of singular values do not depend on the common weight."""
    matrix = gapped_matrix(0)
    features, parameters, singular = tabular.power_method(matrix, rank, 60)
    assert features.shape == (ROWS, rank)
    assert parameters.shape == (COLUMNS, rank)
    assert singular.shape == (rank,)
    assert_float64(features, parameters, singular)
    np.testing.assert_allclose(
        features @ parameters.T, best_approximation(matrix, rank), rtol=0, atol=1e-8
    )
    expected = np.linalg.svd(matrix, compute_uv=False)[:rank]
    ordered = np.sort(singular)[::-1]
    np.testing.assert_allclose(ordered / ordered[0], expected / expected[0], rtol=1e-8)


def test_power_method_with_uniform_weights() -> None:
    """ρ = 1/n and ν = 1/m divide every singular value by √(nm)."""
    matrix = gapped_matrix(1)
    weights = np.full(ROWS, 1 / ROWS), np.full(COLUMNS, 1 / COLUMNS)
    _, _, singular = tabular.power_method(matrix, 3, 60, *weights)
    expected = np.linalg.svd(matrix, compute_uv=False)[:3] / (ROWS * COLUMNS) ** 0.5
    np.testing.assert_allclose(np.sort(singular)[::-1], expected, rtol=1e-8)


@pytest.mark.parametrize("rank", [1, 3, COLUMNS])
@pytest.mark.parametrize("seed", range(2))
def test_power_method_with_weights_is_the_svd_of_the_weighted_matrix(seed: int, rank: int) -> None:
    matrix, rho, nu, weighted = weighted_case(seed)
    features, parameters, singular = tabular.power_method(
        matrix, rank, 60, row_weights=rho, column_weights=nu
    )
    expected = np.linalg.svd(weighted, compute_uv=False)[:rank]
    np.testing.assert_allclose(np.sort(singular)[::-1], expected, rtol=1e-8)
    product = np.sqrt(rho)[:, None] * (features @ parameters.T) * np.sqrt(nu)
    np.testing.assert_allclose(product, best_approximation(weighted, rank), rtol=0, atol=1e-8)


def test_power_method_returns_unweighted_factors() -> None:
    """At full rank the product is the matrix itself, whatever the weights."""
    matrix, rho, nu, _ = weighted_case(2)
    features, parameters, _ = tabular.power_method(matrix, COLUMNS, 60, rho, nu)
    np.testing.assert_allclose(
        features @ parameters.T, matrix, rtol=0, atol=1e-8 * np.abs(matrix).max()
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_power_method_diagonalises_both_covariances(weighted: bool) -> None:
    """Λ1 and Λ2 are diagonal and √(λ_i μ_i) is the i-th singular value, in the order returned."""
    matrix, rho, nu, _ = weighted_case(3)
    if not weighted:
        rho, nu = np.full(ROWS, 1 / ROWS), np.full(COLUMNS, 1 / COLUMNS)
        matrix = gapped_matrix(3)
    features, parameters, singular = tabular.power_method(matrix, 3, 60, rho, nu)
    feature_cov = sum(rho[i] * np.outer(features[i], features[i]) for i in range(ROWS))
    param_cov = sum(nu[j] * np.outer(parameters[j], parameters[j]) for j in range(COLUMNS))
    for cov in (feature_cov, param_cov):
        np.testing.assert_allclose(
            cov - np.diag(np.diag(cov)), np.zeros((3, 3)), atol=1e-10 * np.diag(cov).max()
        )
    np.testing.assert_allclose(
        np.sqrt(np.diag(feature_cov) * np.diag(param_cov)), singular, rtol=1e-8
    )


def test_power_method_satisfies_the_two_identities() -> None:
    """Proposition 1: Σ_sa ρ TQ_θ φ = Λ1 θ̃(θ) for every θ, Σ_θ ν TQ_θ θ̃ = Λ2 φ for every (s, a)."""
    matrix, rho, nu, _ = weighted_case(4)
    features, parameters, _ = tabular.power_method(matrix, 3, 60, rho, nu)
    feature_cov = sum(rho[i] * np.outer(features[i], features[i]) for i in range(ROWS))
    param_cov = sum(nu[j] * np.outer(parameters[j], parameters[j]) for j in range(COLUMNS))
    for j in range(COLUMNS):
        inner = sum(rho[i] * matrix[i, j] * features[i] for i in range(ROWS))
        np.testing.assert_allclose(
            inner, feature_cov @ parameters[j], rtol=0, atol=1e-10 * np.abs(inner).max()
        )
    for i in range(ROWS):
        inner = sum(nu[j] * matrix[i, j] * parameters[j] for j in range(COLUMNS))
        np.testing.assert_allclose(
            inner, param_cov @ features[i], rtol=0, atol=1e-10 * np.abs(inner).max()
        )


def test_power_method_converges_at_the_rate_of_the_gap() -> None:
    """Singular values 8, 2, 1: the tangent of the angle shrinks by (σ_3/σ_2)² = ¼ a sweep.

    The first sweeps are left out.
    """
    matrix = gapped_matrix(5, [8.0, 2.0, 1.0])
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)

    def tangent(iterations: int) -> float:
        features, _, _ = tabular.power_method(matrix, 2, iterations)
        coordinates = left[:, :3].T @ features
        return float(np.linalg.norm(coordinates[2:] @ np.linalg.inv(coordinates[:2]), 2))

    assert tangent(10) / tangent(6) == pytest.approx(0.25**4, rel=0.02)


def test_power_method_needs_a_gap_after_its_rank_alone() -> None:
    """15 sweeps cannot separate three values within 3%, (7.9/8)^30 = 0.7; the alignment does so.

    The space of the three values is found long before, (0.5/7.8)^30.
    """
    matrix = gapped_matrix(7, [8.0, 7.9, 7.8, 0.5, 0.2])
    weights = np.full(ROWS, 1 / ROWS), np.full(COLUMNS, 1 / COLUMNS)
    features, parameters, singular = tabular.power_method(matrix, 3, 15, *weights)
    np.testing.assert_allclose(
        np.sort(singular)[::-1], np.array([8.0, 7.9, 7.8]) / (ROWS * COLUMNS) ** 0.5, rtol=1e-8
    )
    for factor in (features, parameters):
        cov = factor.T @ factor
        np.testing.assert_allclose(
            cov - np.diag(np.diag(cov)), np.zeros((3, 3)), atol=1e-10 * np.diag(cov).max()
        )


def test_power_method_converts_jax_arrays() -> None:
    matrix = jnp.asarray(gapped_matrix(6), "float32")
    results = tabular.power_method(matrix, 3, 60)
    assert_float64(*results)
    expected = best_approximation(reference.f64(matrix), 3)
    np.testing.assert_allclose(results[0] @ results[1].T, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(9, 6), (4, 7)])
def test_power_method_refuses_a_rank_above_the_matrix(shape: tuple[int, int]) -> None:
    with pytest.raises(REFUSED):
        tabular.power_method(np.random.default_rng(0).normal(size=shape), min(shape) + 1, 10)


def test_power_method_refuses_wrong_shapes() -> None:
    matrix = gapped_matrix(0)
    with pytest.raises(REFUSED):
        tabular.power_method(matrix[0], 1, 10)
    with pytest.raises(REFUSED):
        tabular.power_method(matrix, 2, 10, row_weights=np.full(COLUMNS, 1 / COLUMNS))
    with pytest.raises(REFUSED):
        tabular.power_method(matrix, 2, 10, column_weights=np.full(ROWS, 1 / ROWS))


# --- spectral features ----------------------------------------------------------------------------


def worst_fit(mdp: tabular.MDP, features: np.ndarray, seed: int) -> float:
    """A lower bound of the IBE, by the reference.

    It is the largest inner fit over θ = 0 and random θ on the edge of B_φ.
    """
    bound = np.abs(mdp.reward).max() / (1 - mdp.discount)
    directions = np.random.default_rng(seed).normal(size=(5, features.shape[2]))
    thetas = [
        np.zeros(features.shape[2]),
        *(reference.onto_boundary(features, x, bound) for x in directions),
    ]
    return max(reference.inner_fit(*parts(mdp), features, theta, bound) for theta in thetas)


@pytest.mark.parametrize("seed", range(2))
def test_spectral_features_of_a_low_rank_mdp_are_closed(seed: int) -> None:
    mdp, _ = tabular.low_rank_mdp(jax.random.key(seed), 20, 2, 3, 0.9)
    features, errors = tabular.spectral_features(mdp, 3)
    assert features.shape == (20, 2, 3)
    assert_float64(features)
    assert worst_fit(mdp, features, seed) < LP * np.abs(mdp.reward).max() / (1 - mdp.discount)
    assert np.asarray(errors).reshape(-1)[-1] < 1e-6


def test_spectral_features_report_the_error_too_small_a_rank_leaves() -> None:
    """No line holds both r = T0 and Tr of a generic MDP, so features of rank one cannot be closed.

    The reported error must therefore be positive.
    """
    mdp = random_mdp(6, states=6, actions=2)
    features, errors = tabular.spectral_features(mdp, 1)
    errors = np.asarray(errors).reshape(-1)
    assert worst_fit(mdp, features, 0) > 1e-2
    assert np.isfinite(errors).all()
    assert errors[-1] > 1e-6


def test_spectral_features_refuse_a_rank_above_the_table() -> None:
    with pytest.raises(REFUSED):
        tabular.spectral_features(random_mdp(0, states=3, actions=2), 7)
