"""The runner for host environments: what it stores, which policy acts, and when."""

import json
import re
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest

from spectral_bellman.replay import OneStep, rows
from spectral_bellman.training import learner
from spectral_bellman.training.host_programs import HostPrograms
from spectral_bellman.training.host_runner import FRESH_BLOCKS, HostRunner
from spectral_bellman.training.learner import Pieces
from spectral_bellman.training.programs import lowered

from .counting import (
    CONFIG,
    ENDS,
    ENVS,
    IDLE,
    PATIENCE,
    ROUNDS,
    STEPS,
    Counting,
    World,
    assert_same,
    begin,
    mixed,
    new_runner,
    numbers,
    reward_of,
    run,
    same,
    snapshot,
    within,
)


@pytest.fixture
def open_runner():
    """Runners that are closed at the end."""
    runners = []

    def make(world: World, *, init: bool = True, **changes) -> HostRunner:
        runners.append(new_runner(world, **changes))
        return begin(runners[-1], world) if init else runners[-1]

    yield make
    for runner in runners:
        within(runner.close)


def spy_on(monkeypatch, look: Callable) -> None:
    """``look(name, arguments, answer)`` at every program that is run."""
    real = HostPrograms.__call__

    def spy(self, name, *arguments):
        kept = arguments[0] if name == "act" else None  # the policy, which is not donated
        answer = real(self, name, *arguments)
        look(name, (kept, *arguments[1:]), answer)
        return answer

    monkeypatch.setattr(HostPrograms, "__call__", spy)


ALL = jax.jit(lambda ring, key: rows(ring, OneStep(), key, 10**6))


def assert_replay_is_true(runner: HostRunner, world: World) -> set[tuple[int, int, int]]:
    """Every transition in the replay is one that the environments showed; which they are."""
    found = jax.device_get(ALL(runner.replay, jax.random.key(0)))
    seen, places, actions = found.items, set(), world.actions
    for n in np.flatnonzero(found.weight):
        newest = seen.observation[n][-1] if world.stack else seen.observation[n]
        (env, episode), (when, _) = newest
        place = env, episode, when = int(env) - 1, int(episode) - 1, int(when) - 1
        np.testing.assert_array_equal(seen.observation[n], world.observation(actions, *place))
        assert seen.action[n] == actions[place]
        assert seen.reward[n] == np.float32(reward_of(*place, actions[place]))
        length, truncated = world.ends(env, episode)
        assert seen.discount[n] == (truncated or when + 1 < length)
        if seen.discount[n]:
            after = world.observation(actions, env, episode, when + 1)
            np.testing.assert_array_equal(seen.next_observation[n], after)
        assert 0 < seen.extras["behaviour_prob"][n] <= 1
        assert found.slot[n] // runner.replay.valid.shape[1] == env
        places.add(place)
    assert len(places) == np.count_nonzero(found.weight)
    return places


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_replay_holds_what_the_environments_showed(open_runner, ends, groups):
    world = World(ENDS[ends])
    runner = run(open_runner(world, groups=groups), ahead=True)
    actions = world.actions
    assert assert_replay_is_true(runner, world) == set(actions)
    assert len(actions) == ROUNDS * STEPS * ENVS
    tally = runner.tally()
    finished = [(i, k) for i, k, t in actions if t + 1 == world.ends(i, k)[0]]
    assert tally.episodes.item() == len(finished)
    recent = 4 * STEPS  # a line of the log is due after four rounds
    ages = {
        place: age
        for env in range(ENVS)
        for age, place in enumerate(p for p in actions if p[0] == env)
    }
    counted = [(i, k) for i, k in finished if ages[i, k, world.ends(i, k)[0] - 1] >= recent]
    assert tally.recent_episodes.item() == len(counted)
    assert tally.recent_length.item() == sum(world.ends(*place)[0] for place in counted)
    total = sum(
        reward_of(i, k, t, actions[i, k, t]) for i, k in counted for t in range(world.ends(i, k)[0])
    )
    np.testing.assert_allclose(tally.recent_return.item(), total, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("ends", ["mixed", "cut at every step"])
def test_actions_are_chosen_by_the_frames_of_the_episode(open_runner, monkeypatch, ends):
    world, seen = World(ENDS[ends]), []
    runner = open_runner(world)

    def look(name, arguments, answer):
        if name == "act":
            _, stack, _, action = answer
            seen.extend(zip(np.array(stack), np.array(action), strict=True))

    spy_on(monkeypatch, look)
    run(runner, 3, ahead=True)
    actions, places = world.actions, set()
    for stack, action in seen:
        (env, episode), (when, _) = stack[-1]
        place = int(env) - 1, int(episode) - 1, int(when) - 1
        np.testing.assert_array_equal(stack, world.observation(actions, *place))
        assert action == actions[place]
        places.add(place)
    assert places == set(actions)


@pytest.mark.parametrize("ends", ["none", "mixed", "cut at every step"])
def test_a_full_replay_holds_the_newest(open_runner, ends):
    world = World(ENDS[ends])
    small = {"replay_capacity": ENVS * (2 * STEPS + 1), "agent": IDLE}
    runner = run(open_runner(world, **small), ahead=True)
    places = assert_replay_is_true(runner, world)
    for env in range(ENVS):
        newest = [place for place in world.actions if place[0] == env]
        held = [place for place in newest if place in places]
        assert STEPS <= len(held) < len(newest)
        assert held == newest[-len(held) :]


def test_what_is_shown_may_be_the_observation_itself(open_runner):
    world = World(mixed, stack=0)
    runner = run(open_runner(world, agent=IDLE), ahead=True)
    assert assert_replay_is_true(runner, world) == set(world.actions)


def delays(which: str, seed: int = 0) -> Callable[[Counting], None]:
    rng = np.random.default_rng(seed)

    def hook(part: Counting) -> None:
        first = 0 in part.indices
        if which == "random" or which == ("first" if first else "last"):
            time.sleep(0.004 * rng.random())

    return hook


@pytest.fixture(scope="module")
def plain():
    """A run without delays, one thing after the other: its state, and its actions."""
    world = World(mixed)
    runner = run(begin(new_runner(world), world))
    yield snapshot(runner), world.actions
    within(runner.close)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slow", ["nothing", "first", "last", "random", "learning"])
def test_timing_does_not_matter(open_runner, plain, monkeypatch, ahead, slow):
    world = World(mixed, hook=delays(slow))
    runner = open_runner(world)
    if slow == "learning":
        learn = runner._learn

        def slowly(*arguments):
            time.sleep(0.1)
            learn(*arguments)

        monkeypatch.setattr(runner, "_learn", slowly)
    run(runner, ahead=ahead)
    assert world.actions == plain[1]
    assert_same(snapshot(runner), plain[0])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_a_round_acts_on_the_policy_of_that_many_rounds_before(
    open_runner, monkeypatch, ahead, staleness
):
    runner, acting, published = open_runner(World(mixed), staleness=staleness), {}, {}
    initial = runner.newest_policy()
    assert len(runner.state.policies) == staleness
    assert all(same(policy, initial) for policy in runner.state.policies)
    published = {version: numbers(initial) for version in range(-staleness, 0)}

    def look(name, arguments, answer):
        if name == "act":
            acting.setdefault(int(arguments[-1][0]), []).append(numbers(arguments[0]))

    spy_on(monkeypatch, look)
    rounds = ROUNDS + 2
    for number in range(rounds):
        runner.run_round(number, ahead=ahead and number + 1 < rounds)
        published[number] = numbers(runner.newest_policy())
        if not ahead:
            kept = range(number + 1 - staleness, number + 1)
            assert same(runner.state.policies, [published[version] for version in kept])
    for number in range(rounds):
        assert len(acting[number]) == 2 * STEPS
        for policy in acting[number]:
            assert same(policy, published[number - staleness]), number
    learned = [n for n in range(rounds) if CONFIG.learns(n)]
    assert learned == list(range(1, rounds))
    assert not any(same(published[n], published[n - 1]) for n in learned)


def test_a_replay_in_the_memory_of_the_host_gives_the_same_bits(open_runner, plain):
    world = World(mixed)
    runner = run(open_runner(world, replay_memory="host"), ahead=True)
    assert runner.replay_device == jax.devices("cpu")[0]
    assert world.actions == plain[1]
    assert_same(snapshot(runner), plain[0])


@pytest.fixture
def chunks_of_one(monkeypatch):
    """Chunks as large networks have them."""
    monkeypatch.setattr(learner, "LARGE_BYTES", 0)


@pytest.mark.parametrize("dispatch", [0, 1, 2, 3, 100])
def test_pieces_are_as_long_as_allowed(open_runner, chunks_of_one, dispatch):
    runner = open_runner(World(mixed), init=False, dispatch_steps=dispatch)
    for name, steps in (("before 0", 2), ("after 0", 4)):
        allowed = {0: steps, 1: 1, 2: 2, 3: 2, 100: steps}[dispatch]
        assert steps // runner._compiler.pieces[name].count == allowed


IN_PIECES: dict[str, list[np.ndarray]] = {}


@pytest.mark.parametrize("dispatch", [1, 3])
def test_learning_in_pieces_makes_the_same_gradient_steps(
    open_runner, chunks_of_one, monkeypatch, dispatch
):
    runner, sent = open_runner(World(mixed), dispatch_steps=dispatch), []
    spy_on(monkeypatch, lambda name, *_: sent.append(name))
    run(runner, 4, ahead=True)
    for name in ("before 0", "after 0"):
        assert sent.count(name) == 3 * (runner._compiler.pieces[name].count - 1)
        assert sent.count(f"finish {name}") == 3
    agent = runner.state.learner.agent
    assert int(optax.tree_utils.tree_get(agent.optimiser, "count")) == 3 * 4
    assert int(optax.tree_utils.tree_get(agent.theta_optimiser, "count")) == 3 * 2
    # The same draws, too: what was learned differs by rounding at most.
    found = numbers((agent.network, agent.theta, runner.state.policies))
    for x, y in zip(found, IN_PIECES.setdefault("learned", found), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_pieces_of_small_steps_are_as_short_as_asked_for(open_runner):
    runner = open_runner(World(mixed), init=False, dispatch_steps=1)
    stages = [stage for side in runner._compiler._learner.stages.values() for stage in side]
    assert [stage.steps for stage in stages] == [1, 1]
    assert [Pieces(stage, 1).count for stage in stages] == [2, 4]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("broken", [0, ENVS - 1])
def test_what_goes_wrong_in_an_environment_reaches_the_caller(open_runner, ahead, broken):
    def hook(part: Counting) -> None:
        if broken not in part.indices:
            time.sleep(0.01)
        elif part.steps >= STEPS + 2 and part.stream == 0:
            raise OSError("the emulator is on fire")

    world = World(mixed, hook=hook)
    runner = open_runner(world)

    def some_rounds() -> None:
        for number in range(3):
            runner.run_round(number, ahead=ahead)

    with pytest.raises(OSError, match="the emulator is on fire"):
        within(some_rounds)
    within(runner.close)
    assert all(part.closed for part in world.opened)


def test_a_runner_that_is_under_way_can_be_closed(open_runner):
    world = World(mixed, hook=lambda _: time.sleep(0.01))
    runner = open_runner(world)
    runner.run_round(0, ahead=True)
    runner.start_evaluation(1, 3)
    within(runner.close)
    assert len(world.opened) >= 3
    assert all(part.closed for part in world.opened)


def evaluation_ends(env: int, episode: int) -> tuple[int, bool]:
    odd = episode % 2
    return ([(4, False), (12, False), (10, True)] if odd else [(3, True), (1, False), (11, False)])[
        env % 3
    ]


def expected_returns(part: Counting, block: int) -> list[float]:
    lengths = [part.world.ends(i, block)[0] for i in part.indices]
    return [
        sum(reward_of(i, block, t, part.actions[i, block, t]) for t in range(length))
        if length <= CONFIG.eval_max_steps
        else np.nan
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("number", [2, 3])
def test_an_evaluation_is_one_episode_of_each(open_runner, number):
    """Episodes that have ended are stepped on and not counted; NaN for those of over ten steps."""
    world = World(evaluation_ends)
    runner = run(open_runner(world), 2)
    found, played = runner.play(number, 3), world.evaluated
    assert (played.resets, played.indices, found.number) == ([number], [0, 1, 2], number)
    np.testing.assert_allclose(found.returns, expected_returns(played, number), rtol=1e-6)
    assert np.isnan(found.returns).tolist() == [
        evaluation_ends(i, number)[0] > 10 for i in range(3)
    ]
    for i, actions in enumerate(found.actions):
        length = min(evaluation_ends(i, number)[0], 10)
        assert actions.tolist() == [played.actions[i, number, t] for t in range(length)]


def test_an_evaluation_goes_on_beside_training(open_runner, plain):
    gate = threading.Event()

    def hook(part: Counting) -> None:
        if part.stream == 1:
            assert gate.wait(PATIENCE)

    world = World(mixed, hook=hook)
    runner = open_runner(world)
    run(runner, 3)
    within(lambda: runner.start_evaluation(3, 3))
    assert (runner.extra()["evaluation"], runner.extra()["episodes"]) == (3, 3)
    assert runner.evaluated() == []
    assert same(runner.state.evaluating, runner.newest_policy())
    run(runner, start=3, ahead=True)  # training goes on, to the end
    assert runner.evaluated() == []
    gate.set()
    ((number, returns),) = runner.evaluated(wait=True)
    assert (number, returns.shape) == (3, (1, 3))
    np.testing.assert_allclose(returns[0], expected_returns(world.evaluated, 3), rtol=1e-6)
    assert runner.evaluated(wait=True) == []
    assert runner.extra()["evaluation"] is None
    runner.start_evaluation(6, 3)  # two may end before anybody asks
    runner.start_evaluation(7, 3)
    assert [number for number, _ in runner.evaluated(wait=True)] == [6, 7]
    assert world.actions == plain[1]  # it has changed nothing in training


def test_an_evaluation_for_the_score_has_environments_of_its_own(open_runner):
    world = World(mixed)
    runner = run(open_runner(world), 2)
    for number, episodes in ((2, 3), (3, 5), (4, 3), (5, 5)):
        runner.start_evaluation(number, episodes)
        ((_, returns),) = runner.evaluated(wait=True)
        assert returns.shape == (1, episodes)
    evaluated = [part for part in world.opened if part.stream == 1 and part.resets]
    assert [(len(part), part.resets) for part in evaluated] == [(3, [2, 4]), (5, [3, 5])]
    np.testing.assert_allclose(returns[0], expected_returns(evaluated[1], 5), rtol=1e-6)
    within(runner.close)
    assert all(part.closed for part in world.opened)


def test_an_evaluation_of_environments_in_python_is_waited_for(open_runner):
    world = World(evaluation_ends, hook=lambda part: time.sleep(0.01 * part.stream))
    runner = run(open_runner(world, background=False), 2)
    runner.start_evaluation(2, 3)
    ((number, returns),) = runner.evaluated()
    assert number == 2
    np.testing.assert_allclose(returns[0], expected_returns(world.evaluated, 2), rtol=1e-6)


@pytest.mark.parametrize("done", [0, 1, 4])
def test_a_runner_comes_back_from_what_it_saved(open_runner, plain, done):
    world, again = World(mixed), World(mixed)
    before = run(open_runner(world), done, ahead=True)
    extra = json.loads(json.dumps(before.extra()))
    assert extra["round"] == done
    after = open_runner(again, init=False)
    assert after.restore(before.state, extra, before.replay, lambda _: None) is None
    run(after, start=done, ahead=True)
    assert world.actions | again.actions == plain[1]
    assert_same(snapshot(after), plain[0])


def test_an_evaluation_under_way_is_begun_again_by_a_restore(open_runner):
    gate = threading.Event()
    world = World(mixed, hook=lambda part: part.stream == 0 or gate.wait(PATIENCE))
    before = run(open_runner(world), 3)
    before.start_evaluation(3, 3)
    state, extra = before.state, json.loads(json.dumps(before.extra()))
    again = World(mixed)
    after = open_runner(again, init=False)
    assert after.restore(state, extra, before.replay, lambda _: None) is None
    run(after, start=3)
    gate.set()
    ((number, returns),) = before.evaluated(wait=True)
    ((number_again, returns_again),) = after.evaluated(wait=True)
    assert number == number_again == 3
    np.testing.assert_array_equal(returns, returns_again)


def test_without_its_replay_a_runner_fills_it_anew_before_it_learns(open_runner):
    world, again = World(mixed), World(mixed)
    before = run(open_runner(world, checkpoint_replay="off"), 4)
    extra, state = before.extra(), before.state
    assert extra["environments"] == []
    after = open_runner(again, init=False, checkpoint_replay="off")
    assert after.restore(state, extra, None, lambda _: None) is None
    assert all(part.resets == [FRESH_BLOCKS + 4] for part in again.opened if part.stream == 0)
    # The lost episodes had rewards, which do not belong to the new ones.
    assert np.any(before.tally().running_return)
    assert not np.any(after.tally().running_return)
    assert not np.any(after.tally().running_length)
    policy = numbers(after.newest_policy())
    run(after, 6, start=4)  # the warm-up is two rounds
    assert same(after.newest_policy(), policy)
    run(after, 7, start=6)
    assert not same(after.newest_policy(), policy)


def test_environments_that_do_not_come_back_the_same_are_counted(open_runner):
    before = run(open_runner(World(mixed)), 2)
    extra = before.extra()
    extra["environments"][1][0]["time"] += 1
    after = open_runner(World(mixed), init=False)
    problem = after.restore(before.state, extra, before.replay, lambda _: None)
    assert problem.startswith("1 of 4 environments did not come back the same")


def test_each_result_takes_the_place_of_its_own_argument(open_runner):
    """XLA on a GPU has mixed up what it moved to make room for the result of another argument."""
    runner, donated_leaves = open_runner(World(mixed), init=False), 0
    for name, (function, donated, shapes) in runner._compiler._definitions().items():
        if not donated:
            continue
        text = lowered(function, donated, shapes).as_text()
        given = [n in donated for n, tree in enumerate(shapes) for _ in jax.tree.leaves(tree)]
        signature = re.search(r"@main[(](.*?)[)] -> ", text, re.DOTALL)[1]
        arguments = re.findall("%arg[0-9]+: [^%]*", signature)
        assert len(arguments) == len(given)
        pairs = [re.search("tf.aliasing_output = ([0-9]+)", argument) for argument in arguments]
        assert [int(pair[1]) for pair in pairs if pair] == list(range(sum(given))), name
        assert [pair is not None for pair in pairs] == given, name
        results = re.search(r"\n    return (.*?) :", text[text.index("@main") :])[1].split(", ")
        assert len(set(results)) == len(results), name  # a GPU may write one of two equal results
        donated_leaves += sum(given)
    assert donated_leaves > 20
