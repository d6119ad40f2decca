"""The tally: episodes that end in a round or go on, log lines, and terms of the losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.training.tally import (
    NEVER,
    count_episodes,
    count_part,
    count_terms,
    init_tally,
    reset_recent,
)

COUNT = jax.jit(count_episodes)


def counted(tally, reward, done):
    return COUNT(tally, jnp.array(reward, jnp.float32), jnp.array(done, bool))


def test_episodes_by_hand():
    """Two environments: the first episode of each goes on from one round to the next."""
    tally = init_tally(2, ())
    assert np.isnan(tally.last_return)
    tally = counted(tally, [[1, 10], [2, 20], [3, 30]], [[0, 0], [1, 0], [0, 0]])
    assert (int(tally.episodes), int(tally.recent_episodes)) == (1, 1)
    assert (float(tally.recent_return), float(tally.recent_length)) == (3, 2)
    assert tally.running_return.tolist() == [3, 60]
    assert tally.running_length.tolist() == [1, 3]
    assert float(tally.last_return) == 3
    tally = counted(tally, [[4, 40], [5, 50]], [[1, 1], [0, 0]])
    assert (int(tally.episodes), int(tally.recent_episodes)) == (3, 3)
    assert (float(tally.recent_return), float(tally.recent_length)) == (3 + 7 + 100, 2 + 2 + 4)
    assert float(tally.last_return) == (7 + 100) / 2  # both ended in the same step
    assert tally.running_return.tolist() == [5, 50]
    assert tally.running_length.tolist() == [1, 1]


def test_rounds_of_any_length_count_the_same():
    random = np.random.default_rng(0)
    reward, done = random.integers(-3, 4, (24, 3)), random.random((24, 3)) < 0.2
    found = []
    for steps in (1, 4, 24):
        tally = init_tally(3, ())
        for start in range(0, 24, steps):
            tally = counted(tally, reward[start : start + steps], done[start : start + steps])
        found.append(jax.device_get(tally))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)
    assert int(found[0].episodes) == done.sum()
    assert float(found[0].recent_length) + found[0].running_length.sum() == 24 * 3


def test_parts_of_the_environments_count_as_all_of_them_do():
    random = np.random.default_rng(1)
    reward, done = random.integers(-3, 4, (2, 8, 6)), random.random((2, 8, 6)) < 0.2
    part = jax.jit(count_part)
    whole, parts = init_tally(6, ()), init_tally(6, ())
    for r, d in zip(reward, done, strict=True):
        whole = counted(whole, r, d)
        for start in (4, 0, 2):
            mine = (
                jnp.array(r[:, start : start + 2], jnp.float32),
                jnp.array(d[:, start : start + 2]),
            )
            parts = part(parts, *mine, jnp.int32(start), jnp.array(False))
    for name in ("running_return", "running_length", "episodes", "recent_return", "recent_length"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    nothing = jnp.zeros((1, 2)), jnp.zeros((1, 2), bool)
    left = part(parts, *nothing, jnp.int32(2), jnp.array(True))
    np.testing.assert_array_equal(left.running_return[2:4], 0)
    np.testing.assert_array_equal(left.running_length[2:4], 1)
    for name in ("running_return", "running_length"):
        others = np.array([0, 1, 4, 5])
        np.testing.assert_array_equal(getattr(left, name)[others], getattr(parts, name)[others])


@pytest.mark.parametrize("due", [True, False])
def test_a_log_line_begins_new_sums_and_forgets_no_running_episode(due):
    tally = counted(init_tally(1, ("loss",)), [[1], [2], [3]], [[1], [0], [0]])
    tally = count_terms(tally, {"loss": jnp.float32(0.5)}, jnp.int32(0))
    after = reset_recent(tally, jnp.array(due))
    recent = (after.recent_episodes, after.recent_return, after.recent_length, after.rounds)
    assert [float(x) for x in (*recent, after.terms["loss"])] == (
        [0] * 5 if due else [1, 1, 1, 1, 0.5]
    )
    assert int(after.episodes) == 1
    assert (after.running_return.tolist(), after.running_length.tolist()) == ([5], [2])
    assert float(after.last_return) == 1


def test_the_first_round_with_a_term_that_is_not_finite_is_kept():
    tally = init_tally(1, ("a", "b"))
    for number, a in enumerate([1.0, 2.0, np.inf, 3.0, np.nan]):
        means = {"a": jnp.float32(a), "b": jnp.float32(number)}
        tally = count_terms(tally, means, jnp.int32(number))
    assert int(tally.broken["a"]) == 2
    assert int(tally.broken["b"]) == NEVER
    assert (float(tally.terms["b"]), int(tally.rounds)) == (10, 5)
