import jax
import numpy as np
import pytest

from spectral_bellman import tabular
from spectral_bellman.tabular.mdp import generator

FAMILIES = {
    "chain": lambda discount: tabular.chain_mdp(6, discount, slip=0.1),
    "deep sea": lambda discount: tabular.deep_sea_mdp(4, discount),
    "random": lambda discount: tabular.random_mdp(0, 12, 3, discount, branching=3),
    "low rank": lambda discount: tabular.low_rank_mdp(0, 12, 3, 4, discount)[0],
    "aggregated": lambda discount: tabular.aggregated_mdp(0, 3, 4, 2, discount)[0],
}


@pytest.mark.parametrize("discount", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("family", FAMILIES)
def test_optimal_q_is_the_fixed_point_to_1e_10(family: str, discount: float) -> None:
    mdp = FAMILIES[family](discount)
    q = tabular.optimal_q(mdp)
    size = max(1.0, float(np.abs(q).max()))
    assert (
        np.abs(tabular.bellman_backup(mdp, q) - q).max()
        <= 1e-10 * (1 - discount) * size + 4e-16 * size
    )


def test_deep_sea_is_solved_by_going_right_alone() -> None:
    """Four rows: three moves cost 0.01/4 and pay nothing; the last costs the same and pays 1."""
    mdp = tabular.deep_sea_mdp(4, 0.5)
    q = tabular.optimal_q(mdp)
    cost = 0.01 / 4
    assert q[0, 1] == pytest.approx(-cost * (1 + 0.5 + 0.25 + 0.125) + 0.125)
    assert q[0, 0] == 0, "after one step to the left the treasure is out of reach"
    assert q[-1].tolist() == [0, 0]


def test_chain_by_hand() -> None:
    """At the right end action 1 pays 1 for ever: 1/(1 − γ). One cell before it, γ times that."""
    q = tabular.optimal_q(tabular.chain_mdp(3, 0.5))
    np.testing.assert_allclose(q[:, 1], [0.5, 1, 2], atol=1e-12)
    np.testing.assert_allclose(q[0, 0], 0.001 + 0.5 * 0.5, atol=1e-12)


def test_a_slip_exchanges_rewards_as_well_as_moves() -> None:
    mdp = tabular.chain_mdp(3, 0.5, slip=0.1, small_reward=0.2)
    np.testing.assert_allclose(mdp.reward, [[0.18, 0.02], [0, 0], [0.1, 0.9]])
    np.testing.assert_allclose(mdp.transition[1], [[0.9, 0, 0.1], [0.1, 0, 0.9]])


def test_random_mdps_have_rewards_in_the_unit_interval_and_few_successors() -> None:
    mdp = tabular.random_mdp(0, 12, 3, 0.9, branching=4)
    assert ((mdp.reward >= 0) & (mdp.reward <= 1)).all()
    np.testing.assert_array_equal((mdp.transition > 0).sum(axis=-1), 4)


def test_aggregation_needs_no_low_rank_dynamics() -> None:
    mdp, features = tabular.aggregated_mdp(0, groups=4, distractors=5, actions=3, discount=0.9)
    assert np.linalg.matrix_rank(mdp.transition.reshape(-1, 20)) == 20
    assert features.shape == (20, 3, 12)
    assert tabular.inherent_bellman_error(mdp, features) < 1e-10


def test_a_jax_key_a_seed_and_a_generator_make_mdps() -> None:
    draws = [
        generator(key).uniform()
        for key in (jax.random.key(3), jax.random.PRNGKey(3), 3, np.random.default_rng(3))
    ]
    assert draws[0] == draws[1], "old and new keys of one seed are the same key"
    assert draws[2] == draws[3]
    assert generator(jax.random.key(4)).uniform() != draws[0]


def test_float32_probabilities_are_taken_and_made_exact() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(7), size=(7, 2)).astype(np.float32)
    mdp = tabular.MDP(np.zeros((7, 2)), rows, 0.9)
    np.testing.assert_allclose(mdp.transition.sum(axis=-1), 1, atol=1e-15)


def test_an_mdp_cannot_be_changed_behind_its_back() -> None:
    reward = np.zeros((1, 1))
    mdp = tabular.MDP(reward, np.ones((1, 1, 1)), 0.9)
    reward[0, 0] = 5
    assert mdp.reward[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        mdp.reward[0, 0] = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"transition": [[[0.5, 0.4]], [[0, 1]]]},
            r"transition\[0, 0\] sums to 0.9, not 1 \(1 of 2 rows do not\); divide each row",
        ),
        ({"transition": [[[0.5, 0.5001]], [[0, 1]]]}, r"transition\[0, 0\] sums to 1.0001, not 1"),
        (
            {"transition": [[[1.5, -0.5]], [[0, 1]]]},
            r"transition\[0, 0, 1\] is -0.5; a probability cannot be negative",
        ),
        ({"reward": [[np.nan], [0]]}, r"reward\[0, 0\] is nan"),
        ({"reward": [0, 0]}, r"reward must have shape \(S, A\), got \(2,\)"),
        (
            {"transition": np.ones((2, 2, 2)) / 2},
            r"transition must have shape \(2, 1, 2\) beside a reward of shape \(2, 1\)",
        ),
        (
            {"discount": 1.0},
            r"discount must lie in \[0, 1\), got 1.0; "
            r"make termination a zero-reward absorbing state",
        ),
    ],
)
def test_what_is_no_mdp_is_refused_with_the_cure(change: dict, words: str) -> None:
    good = {"reward": [[0], [0]], "transition": [[[0.5, 0.5]], [[0, 1]]], "discount": 0.9}
    tabular.MDP(**good)
    with pytest.raises(ValueError, match=words):
        tabular.MDP(**(good | change))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tabular.low_rank_mdp(0, 5, 2, 6, 0.9), r"rank must lie in \[1, 5\]"),
        (
            lambda: tabular.random_mdp(0, 5, 2, 0.9, branching=6),
            r"branching must lie in \[1, 5\], got 6",
        ),
        (lambda: tabular.chain_mdp(1, 0.9), "at least 2 states"),
        (lambda: tabular.chain_mdp(3, 0.9, slip=2.0), "slip is a probability, got 2.0"),
        (lambda: tabular.deep_sea_mdp(1, 0.9), "size of at least 2"),
        (
            lambda: tabular.h_step_backup(tabular.chain_mdp(3, 0.9), np.zeros((3, 2)), -1),
            "h must be at least 0",
        ),
    ],
)
def test_impossible_families_are_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
