import itertools

import numpy as np
import pytest

from spectral_bellman import tabular
from spectral_bellman.tabular.features import _sample_functions


@pytest.mark.parametrize("seed", range(10))
def test_low_rank_mdps_are_closed_at_the_true_rank(seed: int) -> None:
    rank = 3 + seed % 4
    mdp, _ = tabular.low_rank_mdp(seed, 20 + 30 * seed // 9, 3, rank, 0.9)
    features, errors = tabular.spectral_features(mdp, rank)
    assert tabular.inherent_bellman_error(mdp, features, starts=4) < 1e-6
    assert errors[-1] < 1e-10


def test_aggregation_with_a_distractor_is_closed_although_the_dynamics_have_full_rank() -> None:
    """Closure needs the reward and one direction for each group, 1 + 5; P has 30 directions."""
    mdp, _ = tabular.aggregated_mdp(0, groups=5, distractors=6, actions=3, discount=0.9)
    bound = tabular.value_bound(mdp)
    errors = {
        rank: tabular.inherent_bellman_error(mdp, tabular.spectral_features(mdp, rank)[0], starts=4)
        for rank in (4, 5, 6, 9)
    }
    assert errors[6] < 1e-10
    assert errors[9] < 1e-10
    assert min(errors[4], errors[5]) > 0.05 * bound, "too small a rank leaves an error"
    for rank in (6, 9):
        for other in (tabular.random_features(0, mdp, rank), tabular.laplacian_features(mdp, rank)):
            assert tabular.inherent_bellman_error(mdp, other, starts=2) > 0.1 * bound


def test_generic_mdps_are_closed_at_one_more_than_their_states_and_not_before() -> None:
    mdp = tabular.random_mdp(0, 12, 3, 0.9, branching=4)
    bound = tabular.value_bound(mdp)
    kept, errors = tabular.spectral_features(mdp, 12)
    assert tabular.inherent_bellman_error(mdp, kept, starts=4) > 0.02 * bound
    assert errors[-1] == errors.min() > 1e-3 * bound, (
        "the error it could not remove is the one reported"
    )
    assert 1 < len(errors) < 30
    np.testing.assert_array_equal(
        kept, tabular.spectral_features(mdp, 12, iterations=len(errors))[0]
    )
    assert (
        tabular.inherent_bellman_error(mdp, tabular.spectral_features(mdp, 13)[0], starts=4) < 1e-10
    )


def test_the_spectral_error_is_below_that_of_other_features_at_every_rank_of_a_generic_mdp() -> (
    None
):
    mdp = tabular.random_mdp(1, 12, 3, 0.9, branching=4)
    for rank in (1, 4, 8, 12):
        spectral = tabular.inherent_bellman_error(
            mdp, tabular.spectral_features(mdp, rank)[0], starts=4
        )
        assert spectral < tabular.inherent_bellman_error(
            mdp, tabular.laplacian_features(mdp, rank), starts=2
        )
        assert spectral < tabular.inherent_bellman_error(
            mdp, tabular.random_features(0, mdp, rank), starts=2
        )


def test_without_reward_the_only_closed_space_is_zero() -> None:
    mdp = tabular.MDP(np.zeros((3, 2)), np.full((3, 2, 3), 1 / 3), 0.9)
    features, errors = tabular.spectral_features(mdp, 2)
    np.testing.assert_array_equal(features, 0)
    assert errors.tolist() == [0]


def test_features_have_norm_at_most_one_and_follow_the_seed() -> None:
    mdp = tabular.random_mdp(0, 8, 2, 0.9)
    first, again = (tabular.spectral_features(mdp, 4, seed=5)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    for features in (first, tabular.random_features(0, mdp, 4), tabular.laplacian_features(mdp, 4)):
        assert features.shape == (8, 2, 4)
        np.testing.assert_allclose(np.linalg.norm(features, axis=-1).max(), 1)


def test_laplacian_features_of_a_ring_are_its_waves() -> None:
    """On a ring with steps both ways the smoothest functions are a constant, a sine, a cosine."""
    ring = np.stack([np.roll(np.eye(8), shift, axis=1) for shift in (1, -1)], axis=1)
    features = tabular.laplacian_features(tabular.MDP(np.zeros((8, 2)), ring, 0.9), 3).mean(axis=1)
    angle = 2 * np.pi * np.arange(8) / 8
    waves = np.linalg.qr(np.stack([np.ones(8), np.cos(angle), np.sin(angle)], axis=1))[0]
    basis = np.linalg.qr(features)[0]
    np.testing.assert_allclose(waves @ (waves.T @ basis), basis, atol=1e-10)


def test_the_smoothest_laplacian_feature_is_the_root_of_the_degree() -> None:
    mdp = tabular.random_mdp(0, 8, 2, 0.9, branching=2)
    step = np.repeat(mdp.transition.reshape(16, 8), 2, axis=1) / 2
    root = np.sqrt((step + step.T).sum(axis=1))
    first = tabular.laplacian_features(mdp, 1).ravel()
    np.testing.assert_allclose(
        np.abs(first) / np.linalg.norm(first), root / np.linalg.norm(root), atol=1e-8
    )


def test_the_bound_sets_the_scale_of_the_error() -> None:
    """Doubling D doubles the functions, and the error less the part that comes from the reward."""
    mdp = tabular.random_mdp(0, 8, 2, 0.9)
    narrow, wide = (
        tabular.spectral_features(mdp, 4, bound=bound, iterations=3)[1][0]
        for bound in (10.0, 1000.0)
    )
    assert 50 < wide / narrow < 150


def test_algorithm_2_reaches_the_optimal_values_at_the_rate_of_the_discount() -> None:
    mdp, _ = tabular.low_rank_mdp(0, 20, 3, 3, 0.9)
    history = tabular.spectral_q_iteration(mdp, 4, 200)
    errors = np.array([r.value_error for r in history])
    assert errors[-1] < 1e-6
    assert errors[100] <= 1.5 * errors[50] * 0.9**50
    samples = history[10].samples - history[10].parameters
    assert 0.05 < samples.std() < 0.15, "σ_rep² = 1e-2"


def test_the_axes_of_algorithm_2_follow_those_of_the_round_before() -> None:
    """Singular vectors have no fixed sign.

    Without the rotation, the features of this chain jump by 1.85 times their size.
    """
    history = tabular.spectral_q_iteration(tabular.chain_mdp(8, 0.9), 2, 60, variance=0.1)
    pairs = itertools.pairwise(r.features for r in history[1:])
    assert max(np.linalg.norm(late - early) / np.linalg.norm(early) for early, late in pairs) < 1


def test_sampled_functions_fill_the_bound_and_hold_zero() -> None:
    """The samples include zero, so the reward T0 is among the backups and the spans only grow."""
    features = np.random.default_rng(0).normal(size=(10, 3))
    functions = _sample_functions(np.random.default_rng(1), features, 200, bound=7.0)
    np.testing.assert_array_equal(functions[:, 0], 0)
    heights = np.abs(functions).max(axis=0)
    assert heights.max() <= 7
    assert heights.max() > 6.5
    assert heights[1:].min() < 0.5
    np.testing.assert_allclose(
        features @ np.linalg.lstsq(features, functions, rcond=None)[0], functions, atol=1e-12
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mdp: tabular.spectral_features(mdp, 17), r"rank must lie in \[1, 16\]"),
        (
            lambda mdp: tabular.spectral_features(mdp, 4, samples=3),
            "samples must be at least the rank 4",
        ),
        (
            lambda mdp: tabular.spectral_features(mdp, 4, iterations=0),
            "iterations must be at least 1",
        ),
        (
            lambda mdp: tabular.spectral_q_iteration(mdp, 9, 1, samples=8),
            r"rank must lie in \[1, 8\], the smaller of samples",
        ),
        (
            lambda mdp: tabular.spectral_q_iteration(mdp, 2, 1, variance=0.0),
            "variance must be positive, got 0.0",
        ),
        (
            lambda mdp: tabular.inherent_bellman_error(mdp, np.ones((8, 2, 1)), steps=0),
            "steps must be at least 1, got 0; it is h",
        ),
        (lambda mdp: tabular.spectral_features(mdp, 2, steps=0), "steps must be at least 1"),
        (
            lambda mdp: tabular.inherent_bellman_error(mdp, np.ones((8, 2, 1)), iterations=0),
            "iterations at least 1, got 16 and 0",
        ),
        (lambda mdp: tabular.laplacian_features(mdp, 0), r"rank must lie in \[1, 16\]"),
    ],
)
def test_wrong_arguments_are_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(tabular.random_mdp(0, 8, 2, 0.9))
