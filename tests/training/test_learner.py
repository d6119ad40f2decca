"""The learner: Algorithm 2's order, chunks of gradient steps, and pieces of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.api import Phase, Progress
from spectral_bellman.replay import Rollout, add, init_ring
from spectral_bellman.training import learner as module
from spectral_bellman.training.learner import Learner, Pieces, extras_of, in_order, keys_of

from .stubs import FINISH, PUBLISH, PUBLISH_ROWS, UPDATE, Corridor, Scribe, phase

OBSERVATION = Corridor.observation
PROGRESS = Progress(jnp.int32(100), jnp.int32(7))


def scribe(*, before=(), after=()) -> Scribe:
    return Scribe(OBSERVATION, before, after)


IN_PIECES = scribe(before=[phase(1, 4), phase(2, 2)], after=[phase(3, 4)])


def filled(agent):
    """A replay of 2 environments and 12 steps of each, whose rewards are all different."""
    shape, random = (12, 2), np.random.default_rng(0)
    extras = jax.tree.map(lambda x: np.zeros((*shape, *x.shape), x.dtype), extras_of(agent))
    rollout = Rollout(
        observation=random.random((*shape, 2), np.float32),
        action=np.zeros(shape, np.int32),
        reward=random.integers(0, 1_000, shape).astype(np.float32),
        discount=np.ones(shape, np.float32),
        first=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        last_observation=random.random((*shape, 2), np.float32),
        extras=extras,
    )
    ring = init_ring(OBSERVATION, extras_of(agent), 2, 100, 12)
    return add(ring, jax.tree.map(jnp.asarray, rollout))


def learned(agent, most: int = 0):
    """State, policy and terms of one round of the fused learner."""
    return rounds(agent, most)(PROGRESS, jax.random.key(0))


def rounds(agent, most: int = 0, first_round: int = 0):
    """(progress, key) -> state, policy and terms of one round, from the first state."""
    learner, ring = Learner(agent, most, first_round), filled(agent)
    state = agent.init(jax.random.key(1))
    return functools.partial(jax.jit(learner.learn), state, ring)


def entries(state) -> list[int]:
    return state.entries[: int(state.count)].tolist()


def test_publishing_is_between_the_two_sides():
    calls = []
    keys = list(jax.random.split(jax.random.key(0), 3))

    def run(side, state, key):
        calls.append((side, state, key is keys[0], key is keys[2]))
        return state + 1, {f"term {side}": jnp.float32(len(calls))}

    def publish(state, key):
        calls.append(("publish", state, key is keys[1]))
        return state + 10, "policy"

    state, policy, terms = in_order(0, keys, run, publish)
    assert calls == [
        ("before", 0, True, False),
        ("publish", 1, True),
        ("after", 11, False, True),
    ]
    assert (state, policy) == (12, "policy")
    assert {name: float(x) for name, x in terms.items()} == {"term before": 1, "term after": 3}


def test_a_round_of_learning_is_in_the_order_of_algorithm_2():
    agent = scribe(before=[phase(1, 2), phase(2, 1)], after=[phase(3, 3)])
    state, policy, terms = learned(agent)
    assert entries(state) == [
        *[UPDATE + 1] * 2,
        FINISH + 1,
        UPDATE + 2,
        FINISH + 2,
        PUBLISH,
        *[UPDATE + 3] * 3,
        FINISH + 3,
    ]
    assert int(policy) == 7  # the round that the progress names
    assert {name: x.shape for name, x in terms.items()} == {
        f"{name} {number}": (1,) for name in ("term", "seen") for number in (1, 2, 3)
    }
    assert set(Learner(agent).terms()) == set(terms)


def test_each_chunk_is_prepared_with_the_state_before_it():
    """Six steps in chunks of two: each chunk sees what the chunk before has written."""
    state, _, terms = learned(scribe(before=[phase(1, 6)]), most=2)
    assert entries(state) == [UPDATE + 1, UPDATE + 1, FINISH + 1] * 3 + [PUBLISH]
    assert terms["seen 1"].tolist() == [0, 3, 6]


def test_a_phase_without_steps_is_left_out():
    state, _, terms = learned(scribe(before=[phase(1, 0)], after=[phase(2, 1)]))
    assert entries(state) == [PUBLISH, UPDATE + 2, FINISH + 2]
    assert set(terms) == {"term 2", "seen 2"}


@pytest.mark.parametrize(
    ("steps", "most", "step_bytes", "chunk"),
    [
        (12, 0, 0, 12),  # as many as there are
        (12, 5, 0, 4),  # the largest divisor
        (12, 1, 0, 1),
        (7, 5, 0, 1),
        (12, 0, 100, 6),  # 600 bytes hold six
        (12, 0, 130, 4),
        (12, 3, 100, 3),
        (12, 0, 599, 1),
        (12, 0, 2_000, 1),  # large enough for a chunk of its own
    ],
)
def test_chunks_are_as_long_as_is_allowed_and_fits(monkeypatch, steps, most, step_bytes, chunk):
    monkeypatch.setattr(module, "PREPARED_BYTES", 600)
    monkeypatch.setattr(module, "LARGE_BYTES", 1_000)
    agent = scribe(after=[phase(1, steps, step_bytes=step_bytes)])
    (stage,) = Learner(agent, most).stages["after"]
    assert (stage.times, stage.steps) == (steps // chunk, chunk)


def test_a_large_step_is_a_chunk_of_its_own_even_where_more_would_fit(monkeypatch):
    monkeypatch.setattr(module, "LARGE_BYTES", 50)
    (stage,) = Learner(scribe(after=[phase(1, 6, step_bytes=50)])).stages["after"]
    assert (stage.times, stage.steps) == (6, 1)


def test_a_phase_may_learn_from_rows_that_stand_for_the_whole_replay():
    def update(state, rows, prepared):
        total = state.total + jnp.sum(rows.weight * rows.items.reward).astype(jnp.int32)
        return state._replace(total=total).write(UPDATE), {"rows": jnp.sum(rows.weight)}, None

    regress = Phase(2, lambda *_: None, update, rows=1_000)
    agent = scribe(before=[regress])
    state, _, terms = learned(agent)
    assert entries(state) == [UPDATE, UPDATE, PUBLISH]
    assert terms["rows"].tolist() == [24, 24]
    reward = filled(agent).steps.reward
    assert int(state.total) == 2 * int(jnp.sum(reward))


@pytest.mark.parametrize(
    ("every", "first", "with_rows"), [(1, 0, [0, 1, 2, 3, 4]), (3, 0, [0, 3]), (3, 1, [1, 4])]
)
def test_publishing_gets_rows_in_the_first_round_that_learns_and_then_rarely(
    every, first, with_rows
):
    agent = scribe()
    agent.publish_rows, agent.publish_every = 8, every
    learn = rounds(agent, first_round=first)
    for number in range(first, 5):
        state, policy, _ = learn(Progress(jnp.int32(1), jnp.int32(number)), jax.random.key(0))
        assert entries(state) == [PUBLISH_ROWS if number in with_rows else PUBLISH]
        assert int(policy) == number


def test_phases_draw_from_the_replay_with_keys_of_their_own(fused):
    terms, again, other = (fused(PROGRESS, jax.random.key(seed))[2] for seed in (0, 0, 1))
    values = np.concatenate([terms[f"term {number}"] for number in (1, 2, 3)])
    assert len(set(values.tolist())) == 10
    assert again["term 1"].tolist() == terms["term 1"].tolist()
    assert other["term 1"].tolist() != terms["term 1"].tolist()


@pytest.fixture(scope="module")
def fused():
    return rounds(IN_PIECES, most=1)


@pytest.mark.parametrize(
    ("dispatch", "drawn_apart", "counts"),
    [
        (0, False, {"before": [1, 1], "after": [1]}),
        (1, False, {"before": [4, 2], "after": [4]}),
        (3, False, {"before": [2, 1], "after": [2]}),
        (3, True, {"before": [2, 1], "after": [2]}),
    ],
)
def test_pieces_equal_the_fused_learner_bit_for_bit(fused, dispatch, drawn_apart, counts):
    """Chunks of one step, in pieces of ``dispatch``; the replay may lie on another device."""
    learner, ring = Learner(IN_PIECES, 1), filled(IN_PIECES)

    def run(side, state, key):
        stages, found = learner.stages[side], {}
        pieces = [Pieces(stage, dispatch) for stage in stages]
        assert [piece.count for piece in pieces] == counts[side]
        for piece, stage_key in zip(pieces, keys_of(key, len(stages)), strict=True):
            draw = jax.jit(piece.draw)
            run = jax.jit(piece.run if drawn_apart else piece.run_from)
            finish = jax.jit(piece.finish if drawn_apart else piece.finish_from)
            for index in range(piece.count):
                number = jnp.int32(index)
                source = draw(ring, stage_key, number) if drawn_apart else ring
                if index + 1 < piece.count:
                    state, following = run(state, source, stage_key, number)
                    assert int(following) == index + 1
                else:
                    state, terms = finish(state, source, stage_key, number)
                    found |= terms
        return state, found

    def publish(state, key):
        return learner.publish(state, ring, PROGRESS, key)

    keys = list(jax.random.split(jax.random.key(0), 3))
    state, policy, terms = in_order(IN_PIECES.init(jax.random.key(1)), keys, run, publish)
    wanted_state, wanted_policy, wanted_terms = fused(PROGRESS, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state, wanted_state)
    assert int(policy) == int(wanted_policy)
    assert {k: float(v) for k, v in terms.items()} == {
        k: float(v[-1]) for k, v in wanted_terms.items()
    }
