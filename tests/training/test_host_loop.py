"""The loop for environments on the host: what it stores, which policy acts, and that timing does not matter."""

import dataclasses
import importlib
import json
import re
import threading
import time
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.environments.gym import HostStep
from spectral_bellman.replay import rows
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.host_loop import HostLoop
from spectral_bellman.training.pieces import Pieces

STEPS, ENVS, ROUNDS = 5, 4, 6
AGENT = AgentConfig(
    network="mlp",
    hidden=(8,),
    features=4,
    batch=8,
    theta_samples=4,
    representation_steps=4,
    q_steps=2,
    warmup_steps=2 * STEPS * ENVS,
    precision_samples=32,
    learning_rate=0.01,
    q_learning_rate=0.1,
)
IDLE = dataclasses.replace(AGENT, warmup_steps=10**6)
CONFIG = TrainConfig(
    "sbm-dqn-ts",
    "counting",
    frames=ROUNDS * STEPS * ENVS,
    num_envs=ENVS,
    round_steps=STEPS,
    groups=2,
    replay_capacity=100 * ENVS,
    log_frames=4 * STEPS * ENVS,
    eval_episodes=3,
    eval_max_steps=10,
    eval_epsilon=0.0,
    agent=AGENT,
)
PATIENCE = 30


def frame_of(env: int, episode: int, time: int, before: int | None) -> np.ndarray:
    """Never zero: an environment, its episode, how far it is, and the action that led here."""
    return np.array([[env + 1, episode + 1], [time + 1, 0 if before is None else before + 1]], np.uint8)


def reward_of(env: int, episode: int, time: int, action: int) -> float:
    return (-1) ** time * (1_000 * env + 30 * episode + time + action / 4)


class Counting:
    """Environments that count their steps, and remember what they were told to do."""

    num_actions = 3
    observation = jax.ShapeDtypeStruct((2, 2), np.uint8)

    def __init__(self, world: "World", indices: list[int], stream: int) -> None:
        self.world, self.indices, self.stream, self.stack = world, indices, stream, world.stack
        self.told: dict[tuple[int, int, int], int] = {}
        self.episodes, self.times = [0] * len(indices), [0] * len(indices)
        self.steps, self.closed, self.resets = 0, False, []

    def __len__(self) -> int:
        return len(self.indices)

    def show(self) -> np.ndarray:
        places = list(zip(self.indices, self.episodes, self.times, strict=True))
        return np.stack([frame_of(i, k, t, self.told.get((i, k, t - 1))) for i, k, t in places])

    def reset(self, stretch: int = 0) -> np.ndarray:
        self.resets.append(stretch)
        self.episodes, self.times = [stretch] * len(self), [0] * len(self)
        return self.show()

    def step(self, actions, running=None) -> HostStep:
        assert (actions.shape, actions.dtype) == ((len(self),), np.int32)
        self.world.hook(self)
        self.steps += 1
        reward, over, cut = [], [], []
        for j, (i, action) in enumerate(zip(self.indices, actions.tolist(), strict=True)):
            self.told[i, self.episodes[j], self.times[j]] = action
            reward.append(reward_of(i, self.episodes[j], self.times[j], action))
            self.times[j] += 1
            length, truncated = self.world.ends(i, self.episodes[j])
            over.append(self.times[j] == length and not truncated)
            cut.append(self.times[j] == length and truncated)
        observation, first = self.show(), np.array(over) | np.array(cut)
        self.episodes = [k + bool(f) for k, f in zip(self.episodes, first, strict=True)]
        self.times = [0 if f else t for t, f in zip(self.times, first, strict=True)]
        return HostStep(observation, np.array(reward, np.float32), np.array(over), np.array(cut), self.show(), first)

    def save(self) -> list[dict]:
        return [
            {"episode": k, "time": t, "before": self.told.get((i, k, t - 1))}
            for i, k, t in zip(self.indices, self.episodes, self.times, strict=True)
        ]

    def restore(self, saved, progress) -> np.ndarray:
        self.episodes, self.times = [x["episode"] for x in saved], [x["time"] for x in saved]
        for i, x in zip(self.indices, saved, strict=True):
            if x["before"] is not None:
                self.told[i, x["episode"], x["time"] - 1] = x["before"]
        return self.show()

    def close(self) -> None:
        self.closed = True


@dataclasses.dataclass
class World:
    """Opens environments; ``ends`` says how long an episode of an environment is and whether it is cut then."""

    ends: Callable[[int, int], tuple[int, bool]]
    stack: int = 4
    hook: Callable[[Counting], None] = lambda _: None
    opened: list[Counting] = dataclasses.field(default_factory=list)

    def __call__(self, seed, indices, stream) -> Counting:
        self.opened.append(Counting(self, list(indices), stream))
        return self.opened[-1]

    @property
    def told(self) -> dict[tuple[int, int, int], int]:
        return {k: v for part in self.opened if part.stream == 0 for k, v in part.told.items()}

    def observation(self, told: dict, env: int, episode: int, time: int) -> np.ndarray:
        """What the agent must see: the newest frames of the episode, zeros before its first."""
        frames = [frame_of(env, episode, t, told.get((env, episode, t - 1))) for t in range(time + 1)]
        if not self.stack:
            return frames[-1]
        return np.stack(([np.zeros((2, 2), np.uint8)] * self.stack + frames)[-self.stack :])


def mixed(env: int, episode: int) -> tuple[int, bool]:
    draw = np.random.default_rng([env, episode])
    return int(draw.integers(1, 8)), bool(draw.random() < 0.5)


ENDS = {
    "none": lambda env, episode: (200, True),
    "cut at every step": lambda env, episode: (1, True),
    "cut at the last step of a round": lambda env, episode: (STEPS, True),
    "cut at the first step of a round": lambda env, episode: (STEPS if episode else 1, True),
    "cut twice in a round, at every position": lambda env, episode: (2, True),
    "cut in one environment": lambda env, episode: (3, True) if env == 1 else (200, True),
    "over": lambda env, episode: (3, False),
    "over at the last step of a round": lambda env, episode: (STEPS, False),
    "mixed": mixed,
}
AGENTS = importlib.import_module("spectral_bellman.agents.agent")


class Programs:
    """What is compiled, for all loops together: by its name and the settings that it depends on."""

    compiled: ClassVar[dict] = {}
    begun: ClassVar[dict] = {}

    def __init__(self, loop: HostLoop, stack: int) -> None:
        self.config, self.stack = loop.config, stack

    def key(self, name: str) -> tuple:
        config, key = self.config, (name, self.stack)
        if name in ("page", "act", "count", "store"):
            key += (config.groups,)
        if name.removeprefix("finish ") in ("store", "before", "after", "publish") or name.startswith("draw"):
            key += (config.replay_capacity, config.replay_memory)
        if "before" in name or "after" in name:
            key += (config.dispatch_steps, AGENTS.LARGE_BYTES)
        return key

    def get(self, name: str):
        return self.compiled.get(self.key(name))

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.compiled

    def setdefault(self, name: str, future):
        return self.compiled.setdefault(self.key(name), future)


def begin(loop: HostLoop, world: World) -> None:
    """``init``, which is compiled anew for every loop: done once, and brought back for others of the same shapes."""
    key = loop.config.groups, world.stack
    if key not in Programs.begun:
        loop.init()
        Programs.begun[key] = jax.tree.map(jnp.copy, loop.state)
        return
    size = ENVS // loop.config.groups
    parts = [[{"episode": 0, "time": 0, "before": None}] * size] * loop.config.groups
    state = jax.tree.map(jnp.copy, Programs.begun[key])
    assert loop.restore(state, {"round": 0, "environments": parts, "evaluation": None}, loop._empty(), lambda _: None) is None


@pytest.fixture
def open_loop():
    """Loops that are closed at the end."""
    loops = []

    def make(world: World, *, init: bool = True, **changes) -> HostLoop:
        loop = HostLoop(dataclasses.replace(CONFIG, **changes), "counting", world)
        loop.programs = Programs(loop, world.stack)
        loops.append(loop)
        if init:
            begin(loop, world)
        return loop

    yield make
    for loop in loops:
        within(loop.close)


def within(function: Callable[[], None]) -> None:
    """Run it in a thread of its own, and do not wait for ever."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


def run(loop: HostLoop, rounds: int = ROUNDS, *, start: int = 0, ahead: bool = False) -> HostLoop:
    for number in range(start, rounds):
        loop.run_round(number, ahead=ahead and number + 1 < rounds)
    return loop


def numbers(tree) -> list[np.ndarray]:
    def number(x) -> np.ndarray:
        return np.array(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return [number(x) for x in jax.tree.leaves(tree)]


def snapshot(loop: HostLoop) -> list[np.ndarray]:
    return numbers((loop.state, loop.replay, loop.tally()))


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def same(one, other) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(numbers(one), numbers(other), strict=True))


WHOLE = jax.jit(rows, static_argnums=2)


def assert_replay_is_true(loop: HostLoop, world: World) -> set[tuple[int, int, int]]:
    """Every transition in the replay is one that the environments showed; which they are."""
    found = jax.device_get(WHOLE(loop.replay, jax.random.key(0), 10**6))
    seen, places, told = found.transitions, set(), world.told
    for n in np.flatnonzero(found.weight):
        (env, episode), (when, _) = seen.observation[n][-1] if world.stack else seen.observation[n]
        place = env, episode, when = int(env) - 1, int(episode) - 1, int(when) - 1
        np.testing.assert_array_equal(seen.observation[n], world.observation(told, *place))
        assert seen.action[n] == told[place]
        assert seen.reward[n] == np.float32(reward_of(*place, told[place]))
        length, truncated = world.ends(env, episode)
        assert seen.discount[n] == (truncated or when + 1 < length)
        if seen.discount[n]:
            np.testing.assert_array_equal(seen.next_observation[n], world.observation(told, env, episode, when + 1))
        assert 0 < seen.behaviour_prob[n] <= 1
        assert found.slot[n] // loop.replay.whole.shape[1] == env
        places.add(place)
    assert len(places) == np.count_nonzero(found.weight)
    return places


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_replay_holds_what_the_environments_showed(open_loop, ends, groups):
    world = World(ENDS[ends])
    loop = run(open_loop(world, groups=groups), ahead=True)
    told = world.told
    assert assert_replay_is_true(loop, world) == set(told)
    assert len(told) == ROUNDS * STEPS * ENVS
    tally = loop.tally()
    finished = [(i, k) for i, k, t in told if t + 1 == world.ends(i, k)[0]]
    assert tally.episodes.item() == len(finished)
    recent = 4 * STEPS  # a line of the log is due after four rounds
    ages = {place: age for env in range(ENVS) for age, place in enumerate(p for p in told if p[0] == env)}
    counted = [(i, k) for i, k in finished if ages[i, k, world.ends(i, k)[0] - 1] >= recent]
    assert tally.recent_episodes.item() == len(counted)
    assert tally.recent_length.item() == sum(world.ends(*place)[0] for place in counted)
    total = sum(reward_of(i, k, t, told[i, k, t]) for i, k in counted for t in range(world.ends(i, k)[0]))
    np.testing.assert_allclose(tally.recent_return.item(), total, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("ends", ["mixed", "cut at every step"])
def test_actions_are_chosen_by_the_frames_of_the_episode(open_loop, monkeypatch, ends):
    world, seen = World(ENDS[ends]), []
    loop = open_loop(world)
    program = loop._program

    def spy(name, *arguments):
        answer = program(name, *arguments)
        if name == "act":
            seen.extend(zip(np.array(answer[1]), np.array(answer[3]), strict=True))
        return answer

    monkeypatch.setattr(loop, "_program", spy)
    run(loop, 3, ahead=True)
    told, places = world.told, set()
    for stack, action in seen:
        (env, episode), (when, _) = stack[-1]
        place = int(env) - 1, int(episode) - 1, int(when) - 1
        np.testing.assert_array_equal(stack, world.observation(told, *place))
        assert action == told[place]
        places.add(place)
    assert places == set(told)


@pytest.mark.parametrize("ends", ["none", "mixed", "cut at every step"])
def test_a_full_replay_holds_the_newest(open_loop, ends):
    world = World(ENDS[ends])
    loop = run(open_loop(world, replay_capacity=ENVS * (2 * STEPS + 1), agent=IDLE), ahead=True)
    places = assert_replay_is_true(loop, world)
    for env in range(ENVS):
        newest = [place for place in world.told if place[0] == env]
        held = [place for place in newest if place in places]
        assert STEPS <= len(held) < len(newest)
        assert held == newest[-len(held) :]


def test_what_is_shown_may_be_the_observation_itself(open_loop):
    world = World(mixed, stack=0)
    loop = run(open_loop(world, agent=IDLE), ahead=True)
    assert assert_replay_is_true(loop, world) == set(world.told)


def delays(which: str, seed: int = 0) -> Callable[[Counting], None]:
    rng = np.random.default_rng(seed)

    def hook(part: Counting) -> None:
        if which == "random" or (which == "first" and 0 in part.indices) or (which == "last" and 0 not in part.indices):
            time.sleep(0.004 * rng.random())

    return hook


@pytest.fixture(scope="module")
def plain():
    """A run without delays, one thing after the other."""
    world = World(mixed)
    loop = HostLoop(CONFIG, "counting", world)
    loop.programs = Programs(loop, 4)
    loop.init()
    run(loop)
    yield snapshot(loop), world.told
    within(loop.close)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slow", ["nothing", "first", "last", "random", "learning"])
def test_timing_does_not_matter(open_loop, plain, monkeypatch, ahead, slow):
    world = World(mixed, hook=delays(slow))
    loop = open_loop(world)
    if slow == "learning":
        learn = loop._learn

        def slowly(*arguments):
            time.sleep(0.1)
            learn(*arguments)

        monkeypatch.setattr(loop, "_learn", slowly)
    run(loop, ahead=ahead)
    assert world.told == plain[1]
    assert_same(snapshot(loop), plain[0])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_round_acts_with_the_policy_that_the_round_before_the_last_published(open_loop, monkeypatch, ahead):
    loop, acting, published = open_loop(World(mixed), groups=2), {}, {}
    initial = loop.state.published
    assert same(initial, loop.state.acting)
    program = loop._program

    def spy(name, *arguments):
        if name == "act":
            acting.setdefault(int(arguments[-1][0]), []).append(numbers(arguments[0]))
        return program(name, *arguments)

    monkeypatch.setattr(loop, "_program", spy)
    rounds = ROUNDS + 2
    for number in range(rounds):
        loop.run_round(number, ahead=ahead and number + 1 < rounds)
        published[number] = numbers(loop._policies[number].result())
        if not ahead:
            assert same(loop.state.published, published[number])
            assert number < 1 or same(loop.state.acting, published[number - 1])
    published |= {-2: numbers(initial), -1: numbers(initial)}
    for number in range(rounds):
        assert len(acting[number]) == 2 * STEPS
        for policy in acting[number]:
            assert same(policy, published[number - 2]), number
    learned = [n for n in range(rounds) if CONFIG.learns(n)]
    assert learned == list(range(1, rounds))
    assert not any(same(published[n], published[n - 1]) for n in learned)


def test_a_replay_in_the_memory_of_the_host_gives_the_same_bits(open_loop, plain):
    world = World(mixed)
    loop = run(open_loop(world, replay_memory="host"), ahead=True)
    assert loop.replay_device == jax.devices("cpu")[0]
    assert world.told == plain[1]
    assert_same(snapshot(loop), plain[0])


@pytest.fixture
def chunks_of_one(monkeypatch):
    """As those of large networks are."""
    monkeypatch.setattr(AGENTS, "LARGE_BYTES", 0)


@pytest.mark.parametrize("dispatch", [0, 1, 2, 3, 100])
def test_pieces_are_as_long_as_allowed(open_loop, chunks_of_one, dispatch):
    loop = open_loop(World(mixed), init=False, dispatch_steps=dispatch)
    for name, steps in (("before", AGENT.q_steps), ("after", AGENT.representation_steps)):
        assert steps // loop.pieces[name].count == {0: steps, 1: 1, 2: 2, 3: 2, 100: steps}[dispatch]


@pytest.mark.parametrize("dispatch", [1, 3])
def test_learning_in_pieces_makes_the_same_gradient_steps(open_loop, chunks_of_one, monkeypatch, dispatch):
    loop = open_loop(World(mixed), dispatch_steps=dispatch)
    sent = []
    program = loop._program
    monkeypatch.setattr(loop, "_program", lambda name, *arguments: (sent.append(name), program(name, *arguments))[1])
    run(loop, 4, ahead=True)
    for name in ("before", "after"):
        assert sent.count(name) == 3 * (loop.pieces[name].count - 1)
        assert sent.count(f"finish {name}") == 3
    agent = loop.state.learner.agent
    assert int(optax.tree_utils.tree_get(agent.optimiser, "count")) == 3 * AGENT.representation_steps
    assert int(optax.tree_utils.tree_get(agent.theta_optimiser, "count")) == 3 * AGENT.q_steps
    # The same draws, too: what was learned differs by rounding at most.
    found = numbers((agent.network, agent.theta, loop.state.published))
    for x, y in zip(found, IN_PIECES.setdefault("learned", found), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


IN_PIECES: dict[str, list[np.ndarray]] = {}


def test_pieces_of_small_steps_are_as_short_as_asked_for(open_loop):
    loop = open_loop(World(mixed), init=False)
    for stage in loop.agent.stages(1):
        assert stage.times * stage.steps // Pieces(stage, 1).count == 1


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("broken", [0, ENVS - 1])
def test_what_goes_wrong_in_an_environment_reaches_the_caller(open_loop, ahead, broken):
    def hook(part: Counting) -> None:
        if broken not in part.indices:
            time.sleep(0.01)
        elif part.steps >= STEPS + 2 and part.stream == 0:
            raise OSError("the emulator is on fire")

    world = World(mixed, hook=hook)
    loop = open_loop(world)

    def some_rounds() -> None:
        for number in range(3):
            loop.run_round(number, ahead=ahead)

    with pytest.raises(OSError, match="the emulator is on fire"):
        within(some_rounds)
    within(loop.close)
    assert all(part.closed for part in world.opened)


def test_a_loop_that_is_under_way_can_be_closed(open_loop):
    world = World(mixed, hook=lambda _: time.sleep(0.01))
    loop = open_loop(world)
    loop.run_round(0, ahead=True)
    loop.start_evaluation(1)
    within(loop.close)
    assert len(world.opened) >= 3
    assert all(part.closed for part in world.opened)


def evaluation_ends(env: int, episode: int) -> tuple[int, bool]:
    return [(4, False), (12, False), (10, True)][env % 3] if episode % 2 else [(3, True), (1, False), (11, False)][env % 3]


def expected_returns(part: Counting, number: int) -> list[float]:
    lengths = [evaluation_ends(i, number)[0] for i in range(3)]
    return [
        sum(reward_of(i, number, t, part.told[i, number, t]) for t in range(length)) if length <= CONFIG.eval_max_steps else np.nan
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("number", [2, 3])
def test_an_evaluation_is_one_episode_of_each(open_loop, number):
    """Those that have ended are stepped on, and count no more; those that do not end in ten steps are NaN."""
    world = World(evaluation_ends)
    loop = run(open_loop(world), 2)
    found = loop.evaluate(number)
    (judged,) = [part for part in world.opened if part.stream == 1 and part.resets]
    assert (judged.resets, judged.indices, found.number) == ([number], [0, 1, 2], number)
    np.testing.assert_allclose(found.returns, expected_returns(judged, number), rtol=1e-6)
    assert np.isnan(found.returns).tolist() == [evaluation_ends(i, number)[0] > 10 for i in range(3)]
    for i, actions in enumerate(found.actions):
        length = min(evaluation_ends(i, number)[0], 10)
        assert actions.tolist() == [judged.told[i, number, t] for t in range(length)]


def test_an_evaluation_goes_on_beside_training(open_loop, plain):
    gate = threading.Event()

    def hook(part: Counting) -> None:
        if part.stream == 1:
            assert gate.wait(PATIENCE)

    world = World(mixed, hook=hook)
    loop = open_loop(world)
    run(loop, 3)
    within(lambda: loop.start_evaluation(3))
    assert loop.extra()["evaluation"] == 3
    assert loop.evaluated() == []
    assert same(loop.state.evaluating, loop.state.published)
    run(loop, start=3, ahead=True)  # training goes on, to the end
    assert loop.evaluated() == []
    gate.set()
    ((number, returns),) = loop.evaluated(wait=True)
    (judged,) = [part for part in world.opened if part.resets and part.stream == 1]
    assert (number, returns.shape) == (3, (1, 3))
    wanted = [sum(reward_of(i, 3, t, judged.told[i, 3, t]) for t in range(mixed(i, 3)[0])) for i in range(3)]
    np.testing.assert_allclose(returns[0], wanted, rtol=1e-6)
    assert loop.evaluated(wait=True) == []
    assert loop.extra()["evaluation"] is None
    loop.start_evaluation(6)  # two may be told at once
    loop.start_evaluation(7)
    assert [number for number, _ in loop.evaluated(wait=True)] == [6, 7]
    assert world.told == plain[1]  # it has changed nothing in training


def test_an_evaluation_of_environments_in_python_is_waited_for(open_loop):
    world = World(evaluation_ends, stack=0, hook=lambda part: time.sleep(0.01 * part.stream))
    loop = run(open_loop(world, agent=IDLE), 2)
    loop.start_evaluation(2)
    ((number, returns),) = loop.evaluated()
    (judged,) = [part for part in world.opened if part.resets and part.stream == 1]
    assert number == 2
    np.testing.assert_allclose(returns[0], expected_returns(judged, 2), rtol=1e-6)


@pytest.mark.parametrize("done", [0, 1, 4])
def test_a_loop_comes_back_from_what_it_saved(open_loop, plain, done):
    world, again = World(mixed), World(mixed)
    before = run(open_loop(world), done, ahead=True)
    told = json.loads(json.dumps(before.extra()))
    assert told["round"] == done
    after = open_loop(again, init=False)
    assert after.restore(before.state, told, before.replay, lambda _: None) is None
    run(after, start=done, ahead=True)
    assert world.told | again.told == plain[1]
    assert_same(snapshot(after), plain[0])


def test_each_result_takes_the_place_of_its_own_argument(open_loop):
    """XLA on a GPU has mixed up what is moved out of the way of another's result."""
    loop, given_away = open_loop(World(mixed), init=False), 0
    for name, (_, donated, shapes) in loop._definitions().items():
        lowered = loop._lowered(name)
        given = [number in donated for number, tree in enumerate(shapes) for _ in jax.tree.leaves(tree)]
        arguments = re.findall("%arg[0-9]+: [^%]*", re.search(r"@main[(](.*?)[)] -> ", lowered.as_text(), re.DOTALL)[1])
        assert len(arguments) == len(given)
        pairs = [re.search("tf.aliasing_output = ([0-9]+)", argument) for argument in arguments]
        assert [int(pair[1]) for pair in pairs if pair] == list(range(sum(given))), name
        assert [pair is not None for pair in pairs] == given, name
        given_away += sum(given)
    assert given_away > 20
