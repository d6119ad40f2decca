import numpy as np
import pytest

from spectral_bellman import tabular
from spectral_bellman.tabular.ibe import _Space


def test_best_fit_by_hand() -> None:
    """φ = 1 everywhere: the best constant for values 0 and 4 is 2, with error 2.

    With |θ| ≤ 1 the best constant is 1, with error 3.
    """
    features, target = np.ones((2, 1, 1)), np.array([[0.0], [4.0]])
    theta, error = tabular.best_fit(features, target, bound=10.0)
    assert (theta[0], error) == pytest.approx((2, 2))
    theta, error = tabular.best_fit(features, target, bound=1.0)
    assert (theta[0], error) == pytest.approx((1, 3))


def test_badly_scaled_features_change_nothing() -> None:
    mdp = tabular.random_mdp(0, 6, 2, 0.8)
    features = tabular.random_features(0, mdp, 3)
    error = tabular.inherent_bellman_error(mdp, features)
    assert tabular.inherent_bellman_error(mdp, features * [1e-5, 1, 1e4]) == pytest.approx(
        error, rel=1e-6
    )


def test_the_search_reaches_what_a_scan_finds() -> None:
    """With one feature B_φ is an interval.

    The search must reach the maximum of a scan over 101 points, at the ends or inside.
    """
    for seed in range(6):
        mdp = tabular.random_mdp(seed, 3, 2, 0.9, branching=1)
        features = tabular.random_features(seed + 100, mdp, 1)
        bound = tabular.value_bound(mdp)
        edge = bound / np.abs(features).max()
        scan = max(
            tabular.best_fit(
                features, tabular.bellman_backup(mdp, features[..., 0] * theta), bound
            )[1]
            for theta in np.linspace(-edge, edge, 101)
        )
        assert tabular.inherent_bellman_error(mdp, features) >= scan - 1e-9


def test_the_search_starts_at_zero_where_the_backup_is_the_reward() -> None:
    mdp = tabular.random_mdp(0, 6, 2, 0.8)
    features = tabular.random_features(0, mdp, 3)
    at_zero = tabular.best_fit(features, mdp.reward, tabular.value_bound(mdp))[1]
    assert tabular.inherent_bellman_error(mdp, features, starts=0) >= at_zero


def test_the_dual_of_a_fit_is_the_derivative_of_its_error() -> None:
    rng = np.random.default_rng(0)
    space = _Space(rng.normal(size=(6, 2, 3)), bound=5.0)
    target = rng.normal(size=12)
    _, error, dual = space.fit(target)
    for i in range(12):
        moved = target + 1e-5 * np.eye(12)[i]
        assert (space.fit(moved)[1] - error) / 1e-5 == pytest.approx(dual[i], abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_a_step_of_the_search_never_goes_down(sign: int, steps: int) -> None:
    """The weighted sum of V_{h−1} grows for weights of any sign.

    With negative weights one step is optimal.
    """
    rng = np.random.default_rng(0)
    mdp = tabular.random_mdp(1, 6, 2, 0.9)
    space = _Space(rng.normal(size=(6, 2, 1)), bound=5.0)

    def backups(point: np.ndarray) -> list[np.ndarray]:
        found = [(space.basis @ point).reshape(6, 2)]
        for _ in range(steps - 1):
            found.append(tabular.bellman_backup(mdp, found[-1]))
        return found

    def height(weight: np.ndarray, point: np.ndarray) -> float:
        return float(weight @ backups(point)[-1].max(axis=1))

    edge = 5.0 / np.abs(space.basis).max()
    for _ in range(20):
        weight = rng.normal(size=6) if sign == 0 else sign * rng.uniform(size=6)
        start = rng.uniform(-edge, edge, size=1)
        end = space.ascend(mdp, weight, backups(start))
        assert np.abs(space.basis @ end).max() <= 5.0 + 1e-9
        assert height(weight, end) >= height(weight, start) - 1e-9
        if sign == -1:
            best = max(height(weight, np.array([x])) for x in np.linspace(-edge, edge, 501))
            assert height(weight, end) >= best - 1e-9


@pytest.mark.parametrize("horizon", [2, 3, 5])
def test_h_step_error_is_at_most_the_discounted_sum_of_one_step_errors(horizon: int) -> None:
    """Appendix D.1, for each θ: ‖T^hQ − best fit‖ ≤ Σ_i γ^{h−1−i} e_i.

    e_i is the exact error of the i-th best fit along the chain.
    """
    rng = np.random.default_rng(0)
    mdp = tabular.random_mdp(0, 8, 3, 0.8, branching=3)
    features = tabular.laplacian_features(mdp, 5)
    bound = tabular.value_bound(mdp)
    for _ in range(10):
        theta = rng.normal(size=5)
        q = features @ (theta * bound * rng.uniform() / np.abs(features @ theta).max())
        fitted, total = q, 0.0
        for _ in range(horizon):
            parameters, error = tabular.best_fit(
                features, tabular.bellman_backup(mdp, fitted), bound
            )
            fitted, total = features @ parameters, mdp.discount * total + error
        h_step_error = tabular.best_fit(features, tabular.h_step_backup(mdp, q, horizon), bound)[1]
        assert 0 < h_step_error <= total + 1e-9


@pytest.mark.parametrize(
    ("features", "bound", "words"),
    [
        (
            np.ones((2, 1, 1)),
            None,
            r"features have shape \(2, 1, 1\), but the MDP has \(S, A\) = \(3, 2\)",
        ),
        (np.ones((3, 2, 1)), -1.0, "bound must be finite and not negative, got -1.0"),
        (np.full((3, 2, 1), np.inf), None, r"features\[0, 0, 0\] is inf"),
    ],
)
def test_wrong_arguments_are_refused(features: np.ndarray, bound: float | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tabular.inherent_bellman_error(tabular.chain_mdp(3, 0.9), features, bound)
