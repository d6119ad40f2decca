import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import operators
from spectral_bellman.replay import NStep, OneStep, Rollout, Sequences, Window, init_ring

from .history import History, Step, starts_of, store, take_of

MIXES = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.1, 0.1), (0.0, 1.0)]
SIZES = [(4, 1), (0, 16), (4, 16)]
"""(stack, rounds): the rings, of 21 or 24 slots, go round several times in 16 rounds of 4 steps."""


class Oracle:
    """What windows are, by the list of steps."""

    def __init__(self, history: History) -> None:
        self.history, self.held = history, history.held()
        self.of_env = [[s for s in history.steps if s.env == env] for env in range(3)]
        self.place = {id(step): i for steps in self.of_env for i, step in enumerate(steps)}

    def after(self, step: Step, length: int) -> list[Step]:
        """``step`` and those that follow it in its episode, ``length`` at most."""
        place = self.place[id(step)]
        steps = self.of_env[step.env][place : place + length]
        return [s for s in steps if s.episode == step.episode]

    def before(self, step: Step, length: int) -> list[Step]:
        """The steps before ``step`` in its episode, ``length`` at most."""
        place = self.place[id(step)]
        steps = self.of_env[step.env][max(place - length, 0) : place]
        return [s for s in steps if s.episode == step.episode]

    def complete(self, step: Step, length: int) -> bool:
        steps = self.after(step, length)
        return len(steps) == length or steps[-1].ends

    def starts(self, window: Window) -> list[tuple[int, int, Step]]:
        def is_start(step: Step) -> bool:
            if isinstance(window, Sequences):
                known = {id(kept) for *_, kept in self.held}
                burnt = all(id(s) in known for s in self.before(step, window.burn_in + 1))
                on_time = step.time % window.period == 0
                return on_time and burnt and self.complete(step, window.trained)
            return self.complete(step, window.length)

        return [entry for entry in self.held if is_start(entry[2])]


def check_starts(oracle: Oracle, window: Window) -> list[tuple[int, int, Step]]:
    starts = oracle.starts(window)
    got = np.argwhere(starts_of(window, oracle.history.ring))
    assert {tuple(pair) for pair in got.tolist()} == {entry[:2] for entry in starts}
    return starts


def taken(oracle: Oracle, window: Window, starts: list[tuple[int, int, Step]]) -> list:
    """The items of the starts, one by one; taken with two leading axes, under jit."""
    ring = oracle.history.ring
    env, slot = jnp.indices(ring.valid.shape, dtype=jnp.int32)
    items = jax.device_get(take_of(window, ring, env, slot))
    return [jax.tree.map(lambda leaf, at=s[:2]: leaf[at], items) for s in starts]


def same_extras(got, want: Step) -> bool:
    carry = np.array_equal(got["carry"][0], want.extras["carry"][0])
    return carry and got["prob"] == want.extras["prob"]


def played(seed: int, ending: float, truncation: float, stack: int, rounds: int) -> History:
    """In long histories some environments leave their episodes unfinished, one just begun."""
    history = History(seed, ending=ending, truncation=truncation, stack=stack)
    if rounds < 14:
        return history.play(rounds)
    return history.play(rounds - 8).leave(0).play(3).leave(1, 2).leave(2).play(5)


@pytest.mark.parametrize(("ending", "truncation"), MIXES)
@pytest.mark.parametrize(("stack", "rounds"), SIZES)
def test_one_step(ending, truncation, stack, rounds):
    history = played(0, ending, truncation, stack, rounds)
    oracle = Oracle(history)
    starts = check_starts(oracle, OneStep())
    assert len(starts) == len(history.held())
    for (*_, step), item in zip(starts, taken(oracle, OneStep(), starts), strict=True):
        np.testing.assert_array_equal(item.observation, step.observation)
        if step.discount:  # what follows a terminal step is multiplied by 0
            np.testing.assert_array_equal(item.next_observation, step.next_observation)
        assert (item.action, item.reward, item.discount) == (
            step.action,
            step.reward,
            step.discount,
        )
        assert same_extras(item.extras, step)
        assert item.taken is None


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("ending", "truncation"), MIXES)
@pytest.mark.parametrize(("stack", "rounds"), SIZES)
def test_n_steps(ending, truncation, stack, rounds, n):
    history = played(1, ending, truncation, stack, rounds)
    oracle, window = Oracle(history), NStep(n)
    starts = check_starts(oracle, window)
    for (*_, step), item in zip(starts, taken(oracle, window, starts), strict=True):
        steps = oracle.after(step, n)
        rest = n - len(steps)
        np.testing.assert_array_equal(item.observation, step.observation)
        np.testing.assert_array_equal(item.reward, [s.reward for s in steps] + [0] * rest)
        discounts = [s.discount for s in steps]
        np.testing.assert_array_equal(item.discount, discounts + discounts[-1:] * rest)
        np.testing.assert_array_equal(item.taken, [True] * len(steps) + [False] * rest)
        if steps[-1].discount:
            np.testing.assert_array_equal(item.next_observation, steps[-1].next_observation)
        assert item.action == step.action
        assert same_extras(item.extras, step)


def test_the_documented_recursion_gives_the_n_step_target():
    history = History(2, ending=0.15, truncation=0.15).play(4)
    oracle, window, gamma = Oracle(history), NStep(4), 0.9
    starts = oracle.starts(window)
    short = 0
    for (*_, step), item in zip(starts, taken(oracle, window, starts), strict=True):
        q_next = item.next_observation  # any function of the observation
        discounts = item.discount * np.where(item.taken, gamma, 1).astype(np.float32)
        got = operators.n_step(item.reward, discounts, q_next)
        steps = oracle.after(step, 4)
        want = sum(gamma**k * s.reward for k, s in enumerate(steps))
        if steps[-1].discount:
            want += gamma ** len(steps) * float(np.max(steps[-1].next_observation))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        short += len(steps) < 4
    assert short > 5


@pytest.mark.parametrize(
    "window",
    [Sequences(4, 4, 2, ("carry",)), Sequences(0, 5, 5, ("carry",)), Sequences(3, 2, 7)],
)
@pytest.mark.parametrize(("ending", "truncation"), MIXES)
@pytest.mark.parametrize(("stack", "rounds"), SIZES)
def test_sequences(ending, truncation, stack, rounds, window):
    history = played(3, ending, truncation, stack, rounds)
    oracle = Oracle(history)
    starts = check_starts(oracle, window)
    for (*_, step), item in zip(starts, taken(oracle, window, starts), strict=True):
        burnt, trained = oracle.before(step, window.burn_in), oracle.after(step, window.trained)
        missing = window.burn_in - len(burnt)
        steps = [None] * missing + burnt + trained
        steps += [None] * (window.burn_in + window.trained - len(steps))
        np.testing.assert_array_equal(item.mask, [s is not None for s in steps])
        for name in ("action", "reward", "discount"):
            want = [0 if s is None else getattr(s, name) for s in steps]
            np.testing.assert_array_equal(getattr(item, name), want)
        probs = [0 if s is None else s.extras["prob"] for s in steps]
        np.testing.assert_array_equal(item.extras["prob"], probs)
        carries = [np.zeros(2) if s is None else s.extras["carry"][0] for s in steps]
        if window.at_start:
            assert set(item.extras) == {"prob"}
            np.testing.assert_array_equal(item.start["carry"][0], carries[0])
        else:
            assert item.start == {}
            np.testing.assert_array_equal(item.extras["carry"][0], carries)
        seen = [np.zeros_like(step.observation)] * window.length
        for i, s in enumerate(steps):
            if s is not None:
                seen[i] = s.observation
                seen[i + 1] = s.next_observation if s.discount else seen[i + 1]
        np.testing.assert_array_equal(item.observation, seen)
        first = [s is not None and s.time == 0 for s in steps] + [False]
        np.testing.assert_array_equal(item.first, first)
        for name in ("action", "reward"):
            # What led to each observation; before the first one, the step before the window.
            before = oracle.before(step, window.burn_in + 1)
            led = before[0] if len(before) > window.burn_in else None
            want = [0 if s is None else getattr(s, name) for s in (led, *steps)]
            ended = [s is not None and s.discount == 0 for s in (led, *steps)]
            want = [0 if over else value for value, over in zip(want, ended, strict=True)]
            np.testing.assert_array_equal(getattr(item, f"previous_{name}"), want)


def test_every_step_is_trained_in_as_many_sequences():
    history = History(4, capacity=600, ending=0.03, truncation=0.03).play(40)
    oracle, window = Oracle(history), Sequences(3, 6, 3)
    finished = {(s.env, s.episode) for s in history.steps if s.ends}
    trained = collections.Counter()
    starts = check_starts(oracle, window)
    for (*_, step), item in zip(starts, taken(oracle, window, starts), strict=True):
        assert item.mask[window.burn_in]
        count = int(item.mask[window.burn_in :].sum())
        trained.update((step.env, step.episode, step.time + k) for k in range(count))
    for step in history.steps:
        if (step.env, step.episode) in finished:
            times = trained[step.env, step.episode, step.time]
            assert times == (1 if step.time < window.period else 2)


def test_one_of_n_steps_is_one_step():
    history = History(5, ending=0.2, truncation=0.2, stack=4).play(10)
    ring = history.ring
    starts = starts_of(OneStep(), ring)
    np.testing.assert_array_equal(starts_of(NStep(1), ring), starts)
    at = tuple(jnp.asarray(index, jnp.int32) for index in np.nonzero(starts))
    one, n = take_of(OneStep(), ring, *at), take_of(NStep(1), ring, *at)
    n = n._replace(reward=n.reward[:, 0], discount=n.discount[:, 0], taken=None)
    for got, want in zip(jax.tree.leaves(n), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(got, want)


def test_n_steps_with_the_observation_after_the_first():
    history = History(7, ending=0.2, truncation=0.2, stack=4).play(10)
    oracle, window = Oracle(history), NStep(3, following=True)
    starts = check_starts(oracle, window)
    for (*_, step), item in zip(starts, taken(oracle, window, starts), strict=True):
        if step.discount:
            np.testing.assert_array_equal(item.following, step.next_observation)


@pytest.mark.parametrize("window", [OneStep(), NStep(3), Sequences(2, 4, 2, ("carry",))])
def test_windows_over_seeds_are_those_of_each(window):
    rings = [History(seed, truncation=0.2, stack=4).play(8).ring for seed in range(2)]
    batched = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rings)
    env, slot = jnp.indices((3, 5), dtype=jnp.int32)
    starts = jax.jit(jax.vmap(window.starts))(batched)
    items = jax.jit(jax.vmap(lambda ring: window.take(ring, env, slot)))(batched)
    for i, one in enumerate(rings):
        np.testing.assert_array_equal(starts[i], starts_of(window, one))
        alone = take_of(window, one, env, slot)
        for got, want in zip(jax.tree.leaves(items), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(got[i], want)


def test_what_cannot_be_a_window_is_refused():
    with pytest.raises(ValueError, match="n is 0"):
        NStep(0)
    for given in ((-1, 2, 1), (0, 0, 1), (0, 2, 0)):
        with pytest.raises(ValueError, match="burn_in must be at least 0"):
            Sequences(*given)
    history = History(6, stack=4)
    assert not NStep(20).starts(history.ring).any()
    assert not Sequences(9, 10, 1).starts(history.ring).any()
    for window in (NStep(21), Sequences(10, 10, 1)):
        with pytest.raises(ValueError, match=r"a ring of 20 steps .* --replay-capacity to 63"):
            window.starts(history.ring)
    assert [w.length for w in (OneStep(), NStep(5), Sequences(40, 80, 40))] == [1, 5, 121]
    assert all(isinstance(w, Window) for w in (OneStep(), NStep(5), Sequences(40, 80, 40)))


@pytest.mark.parametrize("stack", [0, 3])
def test_pytrees_are_stored_and_read_leaf_by_leaf(stack):
    def doubled(x):
        return {"one": x, "two": (2 * x,)}

    def twice(action):
        return action, jnp.stack([action, -action], axis=-1).astype(jnp.float32)

    rng, extras = np.random.default_rng(0), {}
    integer = jax.ShapeDtypeStruct((), jnp.int32)
    spec = vector = jax.ShapeDtypeStruct((2,), jnp.float32)
    plain = init_ring(spec, extras, 2, 40, 4, stack)
    spec_of_two = {"one": spec, "two": (spec,)}
    trees = init_ring(spec_of_two, extras, 2, 40, 4, stack, action=(integer, vector))
    ended = np.ones(2, bool)
    for _ in range(7):
        truncated, terminal = rng.random((2, 4, 2)) < 0.15
        terminal &= ~truncated
        first = np.concatenate([ended[None], (truncated | terminal)[:-1]])
        ended = (truncated | terminal)[-1]
        observation, last = rng.normal(size=(2, 4, 2, 2)).astype(np.float32)
        rollout = Rollout(
            observation=observation,
            action=jnp.asarray(rng.integers(1, 9, (4, 2)), jnp.int32),
            reward=rng.normal(size=(4, 2)).astype(np.float32),
            discount=1 - terminal.astype(np.float32),
            first=first,
            truncated=truncated,
            last_observation=last,
            extras=extras,
        )
        plain = store(plain, rollout)
        both = rollout._replace(
            observation=doubled(observation),
            last_observation=doubled(last),
            action=twice(rollout.action),
        )
        trees = store(trees, both)
    env, slot = jnp.indices(plain.valid.shape, dtype=jnp.int32)
    for window in (OneStep(), NStep(3, following=True), Sequences(2, 4, 2)):
        want, got = (take_of(window, ring, env, slot) for ring in (plain, trees))
        for name in want._fields:
            value = getattr(want, name)
            if name.endswith("observation") or (name == "following" and value is not None):
                value = doubled(value)
            elif name.endswith("action"):
                value = twice(value)
            jax.tree.map(np.testing.assert_array_equal, getattr(got, name), value)
        assert np.any(np.asarray(starts_of(window, trees)))


@pytest.mark.parametrize("window", [Sequences(2, 4, 2), Sequences(3, 5, 5), NStep(4)])
def test_a_ring_with_room_always_holds_a_window(window):
    """Also in the middle of an episode that is longer than the ring."""
    for extra in (0, -1):
        history = History(0, num_envs=1, capacity=window.room + extra, round_steps=1)
        history.ending = history.truncation = 0.0
        if extra:
            with pytest.raises(ValueError, match=f"raise --replay-capacity to {window.room} or"):
                window.starts(history.ring)
            continue
        history.play(window.room, steps=1)
        for _ in range(2 * window.room):
            assert np.any(starts_of(window, history.play(1, steps=1).ring))
