"""The learner: Algorithm 2's order, chunks of gradient steps, and pieces of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.api import Phase, Progress
from spectral_bellman.replay import UNIFORM, Rollout, by_priority, init_ring
from spectral_bellman.training import learner as module
from spectral_bellman.training.learner import (
    Learner,
    Learning,
    Pieces,
    extras_of,
    in_order,
    keys_of,
)

from .stubs import FINISH, PUBLISH, PUBLISH_ROWS, UPDATE, Corridor, Scribe, phase

OBSERVATION = Corridor.observation
PROGRESS = Progress(jnp.int32(100), jnp.int32(7))


def scribe(*, before=(), after=(), sampler=UNIFORM) -> Scribe:
    return Scribe(OBSERVATION, before, after, sampler)


def by_reward(sample):
    """Priorities that depend on what was drawn; some are 0."""
    return sample.items.reward // 300


IN_PIECES = {
    name: scribe(
        before=[phase(1, 4, by_reward), phase(2, 2, by_reward)],
        after=[phase(3, 4, by_reward)],
        sampler=sampler,
    )
    for name, sampler in {"uniform": UNIFORM, "prioritised": by_priority(0.5)}.items()
}


def rollout_of(agent) -> Rollout:
    """12 steps of 2 environments, whose rewards are all different."""
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
    return jax.tree.map(jnp.asarray, rollout)


@functools.cache
def begun(agent):
    """The first state, and a replay that holds a rollout."""
    learner = Learner(agent)
    empty = init_ring(OBSERVATION, extras_of(agent), 2, 100, 12)
    store = jax.jit(learner.store)
    ring, priorities = store(empty, learner.init_priorities(empty), rollout_of(agent))
    return Learning(agent.init(jax.random.key(1)), priorities), ring


def learned(agent, most: int = 0):
    """State, policy and terms of one round of the fused learner."""
    return rounds(agent, most)(PROGRESS, jax.random.key(0))


def rounds(agent, most: int = 0, first_round: int = 0):
    """(progress, key) -> state, policy and terms of one round, from the first state."""
    learner = Learner(agent, most, first_round)
    return functools.partial(jax.jit(learner.learn), *begun(agent))


def entries(state: Learning) -> list[int]:
    return state.agent.entries[: int(state.agent.count)].tolist()


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
    reward = begun(agent)[1].steps.reward
    assert int(state.agent.total) == 2 * int(jnp.sum(reward))


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
    learn = fused["uniform"]
    terms, again, other = (learn(PROGRESS, jax.random.key(seed))[2] for seed in (0, 0, 1))
    values = np.concatenate([terms[f"term {number}"] for number in (1, 2, 3)])
    assert len(set(values.tolist())) == 10
    assert again["term 1"].tolist() == terms["term 1"].tolist()
    assert other["term 1"].tolist() != terms["term 1"].tolist()


@pytest.fixture(scope="module")
def fused():
    return {name: rounds(agent, most=1) for name, agent in IN_PIECES.items()}


@pytest.mark.parametrize(
    ("sampling", "dispatch", "drawn_apart", "counts"),
    [
        ("uniform", 0, False, {"before": [1, 1], "after": [1]}),
        ("uniform", 1, False, {"before": [4, 2], "after": [4]}),
        ("uniform", 3, False, {"before": [2, 1], "after": [2]}),
        ("uniform", 3, True, {"before": [2, 1], "after": [2]}),
        # What a step draws by priority depends on the step before: it cannot be drawn apart.
        ("prioritised", 0, False, {"before": [1, 1], "after": [1]}),
        ("prioritised", 1, False, {"before": [4, 2], "after": [4]}),
        ("prioritised", 3, False, {"before": [2, 1], "after": [2]}),
    ],
)
def test_pieces_equal_the_fused_learner_bit_for_bit(fused, sampling, dispatch, drawn_apart, counts):
    """Chunks of one step, in pieces of ``dispatch``; the replay may lie on another device."""
    agent = IN_PIECES[sampling]
    learner, (start, ring) = Learner(agent, 1), begun(agent)

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
        after, policy = learner.publish(state.agent, ring, PROGRESS, key)
        return state._replace(agent=after), policy

    keys = list(jax.random.split(jax.random.key(0), 3))
    state, policy, terms = in_order(start, keys, run, publish)
    wanted_state, wanted_policy, wanted_terms = fused[sampling](PROGRESS, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state, wanted_state)
    assert int(policy) == int(wanted_policy)
    assert {k: float(v) for k, v in terms.items()} == {
        k: float(v[-1]) for k, v in wanted_terms.items()
    }
    if sampling == "prioritised":
        assert float(state.priorities.maximum) > 1
    else:
        assert state.priorities == ()


class Drawing(Scribe):
    """Writes down where it was drawn from: environment · 1,000 + slot, for each item."""

    def __init__(self, steps: int, priority, sampler=None) -> None:
        def update(state, sample, prepared):
            for place in range(4):
                state = state.write(1_000 * sample.index.env[place] + sample.index.slot[place])
            return state, {"weight": jnp.mean(sample.weight)}, priority(sample)

        drawn = Phase(steps, lambda state, sample, key: sample.weight, update, batch=4)
        super().__init__(OBSERVATION, [], [drawn], sampler or by_priority(0.5))


def places(state: Learning) -> list[list[tuple[int, int]]]:
    """(environment, slot) of the items of each step, after the publication."""
    drawn = entries(state)
    assert drawn[0] == PUBLISH
    pairs = [divmod(number, 1_000) for number in drawn[1:]]
    return [pairs[k : k + 4] for k in range(0, len(pairs), 4)]


def test_a_prioritised_step_sees_the_priorities_of_the_step_before():
    """What has been drawn gets a priority of 0 and is never drawn again."""
    agent = Drawing(5, lambda sample: jnp.zeros(4))
    (stage,) = Learner(agent).stages["after"]
    assert (stage.times, stage.steps) == (5, 1), "a step that draws is a chunk of its own"
    learn, (_, ring) = rounds(agent), begun(agent)
    for seed in range(4):
        state, _, terms = learn(PROGRESS, jax.random.key(seed))
        drawn = [set(pairs) for pairs in places(state)]
        assert len(drawn) == 5
        assert len(set.union(*drawn)) == sum(map(len, drawn))
        np.testing.assert_allclose(terms["weight"], np.ones(5), rtol=1e-5)  # a batch has mean 1
        expected = np.where(ring.held, 1.0, np.asarray(state.priorities.value))
        for pair in set.union(*drawn):
            expected[pair] = 0
        np.testing.assert_array_equal(state.priorities.value, expected)


def test_uniform_draws_come_again_whatever_the_priorities():
    agent, found = Drawing(5, lambda sample: jnp.zeros(4), UNIFORM), []
    learn = rounds(agent)
    for seed in range(4):
        state, *_ = learn(PROGRESS, jax.random.key(seed))
        assert state.priorities == ()
        found.append([set(pairs) for pairs in places(state)])
    assert any(len(set.union(*drawn)) < sum(map(len, drawn)) for drawn in found)


def test_priorities_are_written_back_where_the_items_were_drawn():
    agent = Drawing(6, lambda sample: 1 + sample.items.reward)
    state, *_ = rounds(agent)(PROGRESS, jax.random.key(3))
    start, ring = begun(agent)
    expected, highest = np.array(start.priorities.value), 1.0
    for pairs in places(state):
        for pair in pairs:
            assert ring.held[pair]
            expected[pair] = 1 + ring.steps.reward[pair]
            highest = max(highest, expected[pair])
    np.testing.assert_array_equal(state.priorities.value, expected)
    assert float(state.priorities.maximum) == highest > 100
    # Without new priorities nothing is written.
    same, *_ = rounds(Drawing(6, lambda sample: None))(PROGRESS, jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, same.priorities, start.priorities)


def test_new_steps_are_admitted_at_the_highest_priority_so_far():
    agent = Drawing(1, lambda sample: None)
    learner, ((_, priorities), ring) = Learner(agent), begun(agent)
    held = np.asarray(ring.held)
    assert held.sum() == 24
    np.testing.assert_array_equal(priorities.value[held], np.ones(24))
    raised = priorities._replace(value=0.5 * priorities.value, maximum=jnp.float32(7))
    # Five steps of the second environment alone: nothing of the first is touched.
    part = jax.tree.map(lambda x: x[:5, 1:], rollout_of(agent))
    after, found = jax.jit(learner.store, static_argnums=3)(ring, raised, part, 1)
    new = np.asarray(after.held) & ~held
    assert new.sum(axis=1).tolist() == [0, 5]
    np.testing.assert_array_equal(found.value[new], np.full(5, 7.0))
    np.testing.assert_array_equal(found.value[held], np.full(24, 0.5))
    assert float(found.maximum) == 7


@pytest.mark.parametrize(("one_by_one", "chunk"), [(False, 6), (True, 1)])
def test_a_phase_that_must_see_the_state_is_prepared_before_each_step(one_by_one, chunk):
    agent = scribe(after=[phase(1, 6, one_by_one=one_by_one)])
    (stage,) = Learner(agent).stages["after"]
    assert (stage.times, stage.steps) == (6 // chunk, chunk)
    _, _, terms = learned(agent)
    seen = {6: [1], 1: [1, 3, 5, 7, 9, 11]}[chunk]  # an update and a finish for each chunk
    assert terms["seen 1"].tolist() == seen
