"""Equal transitions as one row, against a dictionary of them."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.replay import NStep, OneStep, Rollout, Sequences, add, init_ring
from spectral_bellman.replay import rows as rows_eagerly

STATES, ACTIONS, STEPS = 4, 2, 24
ADD = jax.jit(add)
rows = jax.jit(rows_eagerly, static_argnums=(1, 3, 4))


def ring_of(seed: int, rounds: int = 8, stack: int = 0):
    """Random walks among few states; rewards are noisy, episodes of 6 steps end in some way."""
    rng, pictures = np.random.default_rng(seed), np.random.default_rng(9).normal(size=(STATES, 3))
    frame = jax.ShapeDtypeStruct((3,), jnp.float32)
    ring = init_ring(frame, {}, 2, 120, STEPS, stack)
    for _ in range(rounds):
        state = rng.integers(0, STATES, (STEPS + 1, 2))
        last = np.arange(STEPS) % 6 == 5
        terminal = last[:, None] & (state[1:] > 0)
        rollout = Rollout(
            observation=pictures[state[:-1]].astype(np.float32),
            action=rng.integers(0, ACTIONS, (STEPS, 2)).astype(np.int32),
            reward=rng.normal(size=(STEPS, 2)).astype(np.float32),
            discount=np.where(terminal, 0, 1).astype(np.float32),
            first=np.broadcast_to((np.arange(STEPS) % 6 == 0)[:, None], (STEPS, 2)),
            truncated=last[:, None] & ~terminal,
            last_observation=pictures[state[1:]].astype(np.float32),
            extras={},
        )
        ring = ADD(ring, jax.tree.map(jnp.asarray, rollout))
    return ring


def grouped(found):
    """(s, a, d, s' while alive) -> rewards with weights, and the numbers of the slots."""
    groups = collections.defaultdict(list)
    items = jax.tree.map(np.asarray, found.items)
    for i, weight in enumerate(np.asarray(found.weight)):
        if weight <= 0:
            continue
        alive = items.discount[i].ravel()[-1] != 0
        after = items.next_observation[i].tobytes() if alive else b""
        parts = (items.observation[i], items.action[i], items.discount[i], items.taken)
        taken = b"" if items.taken is None else items.taken[i].tobytes()
        key = (*(part.tobytes() for part in parts[:3]), taken, after)
        groups[key].append((items.reward[i], weight, int(found.slot[i])))
    return groups


@pytest.mark.parametrize(
    ("window", "stack", "limit"),
    [(OneStep(), 0, 1_000), (OneStep(), 2, 40), (NStep(2), 0, 40), (NStep(2), 2, 1_000)],
)
def test_equal_transitions_are_one_row_that_counts_as_many_times(window, stack, limit):
    ring, key = ring_of(0, stack=stack), jax.random.key(3)
    every = grouped(rows(ring, window, key, limit))
    merged = rows(ring, window, key, limit, 300)
    assert len(merged.weight) == len(merged.slot) == 300
    found = grouped(merged)
    assert set(found) == set(every)
    assert len(every) < sum(map(len, every.values()))  # some are equal
    for group, members in every.items():
        ((reward, weight, slot),) = found[group]
        assert weight == pytest.approx(sum(w for _, w, _ in members), rel=1e-5)
        assert slot in {s for _, _, s in members}
        mean = sum(r * w for r, w, _ in members) / weight
        np.testing.assert_allclose(reward, mean, rtol=1e-4, atol=1e-5)
    assert float(merged.steps) == pytest.approx(float(rows(ring, window, key, limit).steps))


def test_what_stands_for_a_group_stays():
    """Its number names the noise of the group."""
    ring, key = ring_of(0, rounds=2), jax.random.key(0)
    first = {group: rest[0][2] for group, rest in grouped(rows(ring, OneStep(), key, 999)).items()}
    for group, rest in grouped(rows(ring, OneStep(), key, 999, 300)).items():
        assert rest[0][2] == first[group]


def test_a_choice_of_them_counts_for_all_if_more_differ_than_are_asked_for():
    ring, key = ring_of(1), jax.random.key(0)
    every, some = rows(ring, OneStep(), key, 999), rows(ring, OneStep(), key, 999, 7)
    assert len(grouped(every)) > 7
    assert (some.weight > 0).all()
    assert float(some.weight.sum()) == pytest.approx(float(every.weight.sum()), rel=1e-5)


def test_sequences_are_refused():
    with pytest.raises(TypeError, match="sequences cannot"):
        rows(ring_of(0), Sequences(0, 3, 1), jax.random.key(0), 999, 10)
