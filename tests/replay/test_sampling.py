import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.replay import (
    Index,
    NStep,
    OneStep,
    Priorities,
    Sequences,
    admit,
    count,
    init_priorities,
    rows,
    sample,
    sampling,
    update_priorities,
)

from .history import History, prioritised_jitted, rows_jitted, sample_jitted, starts_of, take_of


def frozen_draw(valid, written, stack, key, shape):
    """How version 0.1 drew (environment, slot): never to change, or runs are not repeated."""
    (num_envs, slots), redraws = valid.shape, 3
    env_key, slot_key = jax.random.split(key)
    env = np.asarray(jax.random.randint(env_key, (redraws, *shape), 0, num_envs))
    uniform = np.asarray(jax.random.uniform(slot_key, env.shape))
    size = np.minimum(written, slots - 1 - max(stack - 1, 0))[env]
    back = (uniform * size.astype(np.float32)).astype(np.int32)
    slot = ((written % slots)[env] - 1 - np.minimum(back, size - 1)) % slots
    found = np.empty((2, *shape), int)
    for at in np.ndindex(*shape):
        pairs = [(env[i][at], slot[i][at]) for i in range(redraws)]
        good = [pair for pair in pairs if valid[pair]]
        e, s = pairs[0]
        beside = (e, (s - 1) % slots) if valid[e, (s - 1) % slots] else (e, (s + 1) % slots)
        found[(slice(None), *at)] = good[0] if good else beside
    return found


@pytest.mark.parametrize("truncation", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("stack", "rounds"), [(4, 2), (0, 20), (4, 20)])
def test_uniform_draws_are_to_the_bit_those_of_old(truncation, stack, rounds):
    history = History(0, truncation=truncation, stack=stack).play(rounds)
    ring = history.ring
    state = (np.asarray(ring.valid), np.asarray(ring.written), stack)
    eagerly = truncation == 0.2 and (stack, rounds) == (4, 20)
    for seed, shape in enumerate([(200,), (3, 40)]):
        key = jax.random.key(seed)
        want = frozen_draw(*state, key, shape)
        for draw in (sample, sample_jitted) if eagerly and not seed else (sample_jitted,):
            got = draw(ring, OneStep(), key, shape)
            np.testing.assert_array_equal(np.stack(got.index), want)
            np.testing.assert_array_equal(got.weight, np.ones(shape))
            assert_equal(got.items, take_of(OneStep(), ring, *got.index))
    want = frozen_draw(*state, jax.random.key(7), (40,))
    for draw in (rows, rows_jitted) if eagerly else (rows_jitted,):
        got = draw(ring, OneStep(), jax.random.key(7), 40)
        np.testing.assert_array_equal(got.slot, want[0] * ring.capacity + want[1])
        np.testing.assert_array_equal(got.weight, np.full(40, np.float32(count(ring)) / 40))


def test_recorded_draws_are_repeated():
    """The numbers are those of version 0.1, with the same seed and the same ring."""
    history = History(3, truncation=0.3).play(20)
    got = sample_jitted(history.ring, OneStep(), jax.random.key(11), (8,)).index
    np.testing.assert_array_equal(got.env, [2, 2, 0, 0, 2, 1, 1, 0])
    np.testing.assert_array_equal(got.slot, [6, 18, 12, 14, 6, 15, 2, 6])


def assert_equal(got, want):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)


def frequencies(index, shape):
    return np.histogram2d(
        np.ravel(index.env),
        np.ravel(index.slot),
        bins=[np.arange(n + 1) - 0.5 for n in shape],
    )[0]


def assert_drawn_like(counts, probability):
    """Pearson's χ² of the counts is below its mean by six standard deviations at most."""
    expected = probability * counts.sum()
    assert not counts[probability == 0].any()
    seen = probability > 0
    chi = np.sum((counts[seen] - expected[seen]) ** 2 / expected[seen])
    degrees = seen.sum() - 1
    assert abs(chi - degrees) < 6 * np.sqrt(2 * degrees), (chi, degrees)


@pytest.mark.parametrize("window", [OneStep(), NStep(3), Sequences(2, 4, 2)])
def test_every_window_is_as_likely_as_any_other(window):
    # Without truncation, for which one step takes each environment first.
    truncation = 0.0 if isinstance(window, OneStep) else 0.1
    history = History(1, truncation=truncation).play(20)
    starts = np.asarray(starts_of(window, history.ring), float)
    got = sample_jitted(history.ring, window, jax.random.key(0), (200, 300))
    assert_drawn_like(frequencies(got.index, starts.shape), starts / starts.sum())
    assert_equal(got.items, take_of(window, history.ring, *got.index))


@pytest.mark.parametrize("window", [OneStep(), NStep(3), Sequences(2, 4, 2)])
def test_rows_are_all_windows_or_weighted_draws(window):
    history = History(2, truncation=0.2).play(20)
    starts = np.asarray(starts_of(window, history.ring))
    everything = rows_jitted(history.ring, window, jax.random.key(0), 63)
    np.testing.assert_array_equal(everything.weight, starts.ravel().astype(float))
    np.testing.assert_array_equal(everything.slot, np.arange(63))
    drawn = rows_jitted(history.ring, window, jax.random.key(0), 62)
    np.testing.assert_allclose(drawn.weight, starts.sum() / 62, rtol=1e-6)
    assert set(np.asarray(drawn.slot)) <= set(np.flatnonzero(starts))
    assert_equal(drawn.items, jax.tree.map(lambda leaf: leaf[drawn.slot], everything.items))


@pytest.mark.parametrize("window", [OneStep(), NStep(3), Sequences(2, 4, 2)])
def test_priorities_after_many_updates_are_those_of_a_list(window):
    """Rounds of new steps and updates; a dict remembers the priority of each step."""
    history, rng = History(3, ending=0.05, truncation=0.1), np.random.default_rng(0)
    priorities, known, highest = init_priorities(history.ring), {}, np.float32(1)
    update, admitted = jax.jit(update_priorities), jax.jit(admit)
    draw = prioritised_jitted

    def priorities_known():
        """Where windows start, and their priorities by the dict, which are those on the device."""
        starts = np.asarray(starts_of(window, history.ring))
        want = np.zeros(starts.shape)
        for env, slot, step in history.held():
            want[env, slot] = known[id(step)] if starts[env, slot] else 0
        np.testing.assert_array_equal(np.where(starts, priorities.value, 0), want)
        assert priorities.maximum == highest
        return starts, want

    for i in range(60):
        head, before = history.ring.head, len(history.steps)
        history.play(1)
        priorities = admitted(priorities, history.ring, head)
        known |= {id(step): highest for step in history.steps[before:]}
        starts, _ = priorities_known()
        if not starts.any():
            continue
        got = draw(history.ring, window, priorities, jax.random.key(i), (16,), 0.6)
        assert starts[got.index].all()
        errors = rng.gamma(0.3, 5.0, 16).astype(np.float32)
        new: dict[int, np.float32] = {}
        for env, slot, error in zip(*map(np.asarray, got.index), errors, strict=True):
            step = id(history.step(int(env), int(slot)))
            new[step] = max(error, new.get(step, error))
        known |= new
        highest = max(highest, errors.max())
        priorities = update(priorities, got.index, jnp.asarray(errors))
    starts, want = priorities_known()
    probability = want / want.sum()
    drawn = draw(history.ring, window, priorities, jax.random.key(99), (300, 200), 0.6)
    assert_drawn_like(frequencies(drawn.index, starts.shape), probability)
    weight = (starts.sum() * probability[np.asarray(drawn.index.env), drawn.index.slot]) ** -0.6
    weight /= weight.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(drawn.weight, weight, rtol=1e-4)


def test_importance_of_one_gives_the_means_of_uniform_draws():
    history = History(4).play(20)
    rng = np.random.default_rng(0)
    value = jnp.asarray(rng.uniform(0.2, 2, history.ring.valid.shape), jnp.float32)
    value = jnp.where(history.ring.steps.reward > 0, 2 * value, value)
    priorities, key = Priorities(value, jnp.ones(())), jax.random.key(0)
    drawn = prioritised_jitted(history.ring, OneStep(), priorities, key, (200_000,), 1.0)
    mean = np.mean([step.reward for *_, step in history.held()])
    np.testing.assert_allclose(np.mean(drawn.weight), 1, rtol=1e-5)
    np.testing.assert_allclose(np.mean(drawn.weight * drawn.items.reward), mean, atol=0.02)
    assert abs(np.mean(drawn.items.reward) - mean) > 0.05, "the test can tell nothing"
    alone = prioritised_jitted(history.ring, OneStep(), priorities, key, (), 0.6)
    assert alone.weight.shape == ()
    np.testing.assert_allclose(alone.weight, 1, rtol=1e-6)


def test_draws_from_a_million_slots_are_proportional():
    """Over three levels of sums, with priorities over five orders of magnitude and holes."""
    rng = np.random.default_rng(5)
    weight = (rng.gamma(0.2, 1, (50, 20_000)) * (rng.random((50, 20_000)) < 0.5)).astype(np.float32)
    weight[:, 7] = 0
    weight[11] = 0
    weight[3, 17:1017] = 1e-12
    weight[3, 500] = 100_000
    draw = jax.jit(sampling._draw_proportionally, static_argnums=2)
    index = draw(jnp.asarray(weight), jax.random.key(0), (200_000,))
    env, slot = map(np.asarray, index)
    assert (weight[env, slot] > 0).all()
    exact = weight.astype(np.float64)
    counts, share = frequencies(index, weight.shape), exact / exact.sum()
    assert_drawn_like(counts.sum(axis=1), share.sum(axis=1))
    assert_drawn_like(
        counts.sum(axis=0).reshape(-1, 50).sum(1), share.sum(0).reshape(-1, 50).sum(1)
    )
    # Within the heaviest leaf's neighbourhood nothing else is drawn, elsewhere by sorted weight.
    assert counts[3, 17:1017].sum() == counts[3, 500] > 0
    order = np.argsort(weight.ravel())
    groups = np.array_split(order, 400)
    got = np.array([counts.ravel()[g].sum() for g in groups])
    want = np.array([share.ravel()[g].sum() for g in groups])
    enough = want * 200_000 > 5
    np.testing.assert_array_less(
        np.abs(got - want * 200_000)[enough], 5 * np.sqrt(want * 200_000)[enough] + 1
    )


def test_no_probability_is_lost_at_the_ends_of_the_unit_interval():
    weight = jnp.asarray([0.0, 0.3, 0.0, 0.7, 0.1, 0.0])
    uniform = jnp.asarray([0.0, 0.27, 0.28, 0.9, 0.92, 1 - 2**-24, 1.0])
    got = sampling._child(jnp.broadcast_to(weight, (7, 6)), uniform)
    np.testing.assert_array_equal(got, [1, 1, 3, 3, 4, 4, 3])


def test_small_changes_of_a_large_sum_are_kept():
    """A sum tree of float32 that adds differences would lose or invent them."""
    history = History(6).play(20)
    priorities = init_priorities(history.ring)
    env, slot = (jnp.asarray([entry[i] for entry in history.held()], jnp.int32) for i in (0, 1))
    index = Index(env, slot)
    for huge in (1e12, 3e-9):
        value = jnp.full(len(env), 1e-9).at[0].set(huge)
        priorities = update_priorities(priorities, index, value)
    drawn = prioritised_jitted(
        history.ring, OneStep(), priorities, jax.random.key(0), (60_000,), 0.6
    )
    want = np.zeros(history.ring.valid.shape)
    want[np.asarray(env), np.asarray(slot)] = 1e-9
    want[env[0], slot[0]] = 3e-9
    assert_drawn_like(frequencies(drawn.index, want.shape), want / want.sum())


def test_an_index_that_occurs_twice_gets_its_highest_priority():
    priorities = Priorities(jnp.full((2, 3), 9.0), jnp.asarray(9.0))
    index = Index(jnp.asarray([[1, 0], [1, 1]]), jnp.asarray([[2, 0], [2, 1]]))
    after = update_priorities(priorities, index, jnp.asarray([[3.0, 1.0], [4.0, 12.0]]))
    np.testing.assert_array_equal(after.value, [[1, 9, 9], [9, 12, 4]])
    assert after.maximum == 12


@pytest.mark.parametrize("window", [OneStep(), NStep(3), Sequences(2, 4, 2)])
def test_draws_over_seeds_are_those_of_each(window):
    histories = [History(seed, truncation=0.2).play(10) for seed in range(2)]
    rng = np.random.default_rng(7)
    rings = [history.ring for history in histories]
    values = [jnp.asarray(rng.random((3, 21)), jnp.float32) for _ in rings]
    priorities = [Priorities(value, jnp.ones(())) for value in values]
    keys = jax.random.split(jax.random.key(0), 2)

    def draw(ring, priorities, key):
        uniform = sample_jitted(ring, window, key, (4, 8))
        return uniform, prioritised_jitted(ring, window, priorities, key, (4, 8), 0.6)

    def stacked(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    batched = jax.jit(jax.vmap(draw))(stacked(rings), stacked(priorities), keys)
    for i in range(2):
        alone = draw(rings[i], priorities[i], keys[i])
        for got, want in zip(jax.tree.leaves(batched), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(got[i], want, rtol=1e-5)
