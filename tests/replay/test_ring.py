import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.replay import (
    OneStep,
    Rollout,
    add,
    count,
    init_ring,
    push_frame,
    ring,
)

from . import history as playing
from .history import FRAME, VECTOR, History, sample_jitted, store

MIXES = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.2), (0.0, 1.0)]


@pytest.mark.parametrize(("ending", "truncation"), MIXES)
@pytest.mark.parametrize(("stack", "rounds"), [(0, 1), (0, 3), (0, 14), (4, 1), (4, 14)])
def test_a_slot_holds_the_step_that_the_list_has_there(ending, truncation, stack, rounds):
    history = History(0, ending=ending, truncation=truncation, stack=stack).play(rounds)
    held, age, first = (np.asarray(getattr(history.ring, x)) for x in ("held", "age", "first"))
    steps = jax.device_get(history.ring.steps)
    for (env, slot), is_held in np.ndenumerate(held):
        step = history.step(env, slot)
        assert is_held == (step is not None)
        if step is not None:
            assert (age[env, slot], first[env, slot]) == (step.time, step.time == 0)
            got = (steps.action, steps.reward, steps.discount, steps.extras["prob"])
            want = (step.action, step.reward, step.discount, step.extras["prob"])
            assert tuple(leaf[env, slot] for leaf in got) == want
            np.testing.assert_array_equal(
                steps.extras["carry"][0][env, slot], step.extras["carry"][0]
            )
    assert int(count(history.ring)) == len(history.held()) == held.sum()
    newest = history.steps[-history.num_envs :]
    assert all(any(step is kept for *_, kept in history.held()) for step in newest)


def test_half_of_the_slots_hold_steps_at_worst():
    history = History(1, truncation=1.0).play(20)
    assert 10 <= int(count(history.ring)) / history.num_envs <= 20


def test_each_observation_is_stored_once():
    frame = jax.ShapeDtypeStruct((84, 84), jnp.uint8)
    empty = jax.eval_shape(lambda: init_ring(frame, {}, 4, 1_000, 8))
    assert empty.observation.size <= 1_004 * 84 * 84


def test_a_ring_too_small_for_a_round_names_the_cure():
    with pytest.raises(ValueError, match="raise --replay-capacity to 68 or more"):
        init_ring(VECTOR, {}, 4, 20, 8)
    init_ring(VECTOR, {}, 4, 68, 8)


def test_extras_may_be_empty_or_have_any_dtype_and_shape():
    spec = {"a": (), "b": (jax.ShapeDtypeStruct((2, 3), jnp.int8),)}
    extras = init_ring(VECTOR, spec, 3, 60, 4).steps.extras
    assert extras["a"] == ()
    assert (extras["b"][0].shape, extras["b"][0].dtype) == ((3, 21, 2, 3), jnp.int8)


@pytest.mark.parametrize("stack", [0, 4])
def test_the_count_of_written_slots_never_overflows(monkeypatch, stack):
    history = History(2, stack=stack)
    slots = history.ring.capacity
    monkeypatch.setattr(ring, "WRAP", 6 * slots + 5)
    fresh = jax.jit(lambda *given, start: add(*given, start), static_argnames="start")
    monkeypatch.setattr(playing, "store", fresh)
    wrapped = False
    for _ in range(40):
        history.play(1)
        written = np.asarray(history.ring.written)
        true = np.array([len(slots_) for slots_ in history.slots])
        np.testing.assert_array_equal(written % slots, true % slots)
        assert (written >= np.minimum(true, slots)).all()
        assert (written < 6 * slots + 5).all()
        wrapped |= bool((written < true).any())
        held = np.asarray(history.ring.held)
        assert held.sum() == len(history.held())
    assert wrapped
    assert ring.WRAP + 2**20 < 2**31


def test_add_over_seeds_is_that_of_each():
    histories = [History(seed, truncation=0.3, stack=4).play(3) for seed in range(3)]
    rings = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[h.ring for h in histories])
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, 3, 4, 3, *FRAME.shape), np.uint8)
    small = rng.random((3, 4, 3)).astype(np.float32)
    extras = {"prob": small, "carry": (rng.random((3, 4, 3, 2)).astype(np.float32),)}
    flags = rng.random((2, 3, 4, 3)) < 0.3
    rollout = Rollout(
        pictures[0], small.astype(np.int32), small, small, flags[0], flags[1], pictures[1], extras
    )
    batched = jax.jit(jax.vmap(add))(rings, rollout)
    for i, history in enumerate(histories):
        one = store(history.ring, jax.tree.map(lambda leaf, i=i: leaf[i], rollout))
        for got, want in zip(jax.tree.leaves(batched), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(got[i], want)


def test_a_pushed_frame_joins_its_stack_and_a_new_episode_begins_with_zeros():
    stack = jnp.arange(2 * 3 * 1, dtype=jnp.uint8).reshape(2, 3, 1)
    pushed = push_frame(stack, jnp.array([[9], [8]], jnp.uint8), jnp.array([False, True]))
    np.testing.assert_array_equal(pushed[..., 0], [[1, 2, 9], [0, 0, 8]])


def test_a_pushed_stack_is_the_stack_that_is_sampled():
    history = History(3, stack=4).play(2)
    stack = jnp.zeros((history.num_envs, 4, *FRAME.shape), jnp.uint8)
    seen = []
    for time in range(8):
        steps = history.steps[time * 3 : time * 3 + 3]
        frame = jnp.asarray(np.stack([step.observation[-1] for step in steps]))
        stack = jax.jit(push_frame)(stack, frame, jnp.asarray([step.time == 0 for step in steps]))
        seen += [np.asarray(leaf).tobytes() for leaf in stack]
    drawn = sample_jitted(history.ring, OneStep(), jax.random.key(0), (64,)).items.observation
    assert {np.asarray(leaf).tobytes() for leaf in drawn} <= set(seen)
