"""Host environments that count their steps, and runners for them that share what is compiled."""

import dataclasses
import threading
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.explorations import Thompson
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.agents.representations import Spectral
from spectral_bellman.agents.representations.api import AdamSolver
from spectral_bellman.environments.api import HostStep
from spectral_bellman.training import learner
from spectral_bellman.training.config import HostSettings, TrainConfig, override
from spectral_bellman.training.host_runner import HostRunner

STEPS, ENVS, ROUNDS = 5, 4, 6
AGENT = AgentConfig(
    representation=Spectral(
        features=4, theta_samples=4, solver=AdamSolver(q_steps=2, q_learning_rate=0.1)
    ),
    exploration=Thompson(precision_samples=32),
    network="mlp",
    hidden=(8,),
    batch=8,
    updates=6,
    warmup_steps=2 * STEPS * ENVS,
    learning_rate=0.01,
    eval_epsilon=0.0,
)
IDLE = dataclasses.replace(AGENT, warmup_steps=10**6)
CONFIG = TrainConfig(
    "sbm-dqn-ts",
    "counting",
    frames=ROUNDS * STEPS * ENVS,
    num_envs=ENVS,
    round_steps=STEPS,
    staleness=2,
    host=HostSettings(groups=2),
    replay_capacity=100 * ENVS,
    log_frames=4 * STEPS * ENVS,
    eval_episodes=3,
    score_episodes=5,
    eval_max_steps=10,
    agent=AGENT,
)
PATIENCE = 60
"""Seconds after which something hangs."""


def frame_of(env: int, episode: int, time: int, before: int | None) -> np.ndarray:
    """Never zero: the environment, its episode, the step, and the action that led here."""
    action = 0 if before is None else before + 1
    return np.array([[env + 1, episode % 251 + 1], [time + 1, action]], np.uint8)


def reward_of(env: int, episode: int, time: int, action: int) -> float:
    return (-1) ** time * (1_000 * env + 30 * episode + time + action / 4)


class Counting:
    """Environments that count their steps, and remember the actions they were given."""

    num_actions = 3
    observation = jax.ShapeDtypeStruct((2, 2), np.uint8)

    def __init__(self, world: "World", indices: list[int], stream: int) -> None:
        self.world, self.indices, self.stream, self.stack = world, indices, stream, world.stack
        self.actions: dict[tuple[int, int, int], int] = {}
        self.episodes, self.times = [0] * len(indices), [0] * len(indices)
        self.steps, self.closed, self.resets = 0, False, []

    def __len__(self) -> int:
        return len(self.indices)

    def show(self) -> np.ndarray:
        places = zip(self.indices, self.episodes, self.times, strict=True)
        return np.stack([frame_of(i, k, t, self.actions.get((i, k, t - 1))) for i, k, t in places])

    def reset(self, block: int = 0) -> np.ndarray:
        self.resets.append(block)
        self.episodes, self.times = [block] * len(self), [0] * len(self)
        return self.show()

    def step(self, actions, running=None) -> HostStep:
        assert (actions.shape, actions.dtype) == ((len(self),), np.int32)
        self.world.hook(self)
        self.steps += 1
        reward, over, cut = [], [], []
        for j, (i, action) in enumerate(zip(self.indices, actions.tolist(), strict=True)):
            self.actions[i, self.episodes[j], self.times[j]] = action
            reward.append(reward_of(i, self.episodes[j], self.times[j], action))
            self.times[j] += 1
            length, truncated = self.world.ends(i, self.episodes[j])
            over.append(self.times[j] == length and not truncated)
            cut.append(self.times[j] == length and truncated)
        observation, first = self.show(), np.array(over) | np.array(cut)
        self.episodes = [k + bool(f) for k, f in zip(self.episodes, first, strict=True)]
        self.times = [0 if f else t for t, f in zip(self.times, first, strict=True)]
        return HostStep(
            observation,
            np.array(reward, np.float32),
            np.array(over),
            np.array(cut),
            self.show(),
            first,
        )

    def save(self) -> list[dict]:
        return [
            {"episode": k, "time": t, "before": self.actions.get((i, k, t - 1))}
            for i, k, t in zip(self.indices, self.episodes, self.times, strict=True)
        ]

    def restore(self, saved, progress) -> np.ndarray:
        self.episodes, self.times = [x["episode"] for x in saved], [x["time"] for x in saved]
        for i, x in zip(self.indices, saved, strict=True):
            if x["before"] is not None:
                self.actions[i, x["episode"], x["time"] - 1] = x["before"]
        return self.show()

    def close(self) -> None:
        self.closed = True


@dataclasses.dataclass
class World:
    """Opens environments. ``ends`` says how long an episode is, and whether it is cut then."""

    ends: Callable[[int, int], tuple[int, bool]]
    stack: int = 4
    hook: Callable[[Counting], None] = lambda _: None
    opened: list[Counting] = dataclasses.field(default_factory=list)

    def __call__(self, seed, indices, stream) -> Counting:
        self.opened.append(Counting(self, list(indices), stream))
        return self.opened[-1]

    @property
    def actions(self) -> dict[tuple[int, int, int], int]:
        """(environment, episode, time) -> the action, in training."""
        return {k: v for part in self.opened if part.stream == 0 for k, v in part.actions.items()}

    @property
    def evaluated(self) -> Counting:
        """The environments of the only evaluation that was played."""
        (found,) = [part for part in self.opened if part.stream == 1 and part.resets]
        return found

    def observation(self, actions: dict, env: int, episode: int, time: int) -> np.ndarray:
        """What the agent must see: the newest frames of the episode, zeros before its first."""
        frames = [
            frame_of(env, episode, t, actions.get((env, episode, t - 1))) for t in range(time + 1)
        ]
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


class Programs(dict):
    """Compiled programs for all runners, by name and by the settings that they depend on."""

    compiled: ClassVar[dict] = {}
    begun: ClassVar[dict] = {}

    def __init__(self, runner: HostRunner, stack: int) -> None:
        super().__init__()
        self.config, self.stack = runner.config, stack

    def key(self, name: str) -> tuple:
        config, key = self.config, (name, self.stack)
        learns = "before" in name or "after" in name
        if name in ("init", "buffer", "act", "count", "store"):
            key += (config.on_host.groups,)
        if name == "init":
            key += (config.staleness,)
        if learns or name in ("store", "publish", "diagnose") or name.startswith("draw"):
            key += (config.replay_capacity, config.on_host.replay_memory)
        if learns:
            key += (config.on_host.dispatch_steps, learner.LARGE_BYTES)
        return key

    def get(self, name: str, default=None):
        return self.compiled.get(self.key(name))

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.compiled

    def setdefault(self, name: str, future):
        return self.compiled.setdefault(self.key(name), future)


def new_runner(world: World, *, background: bool = True, **changes) -> HostRunner:
    """A runner that shares its programs with the others; ``begin`` starts it."""
    agent = changes.pop("agent", CONFIG.agent)
    config = dataclasses.replace(override(CONFIG, changes), agent=agent)

    def build(observation: jax.ShapeDtypeStruct, num_actions: int) -> QAgent:
        return QAgent(config.agent, observation, num_actions)

    runner = HostRunner(config, "counting", world, build, background=background)
    runner.programs = Programs(runner, world.stack)
    return runner


def begin(runner: HostRunner, world: World) -> HostRunner:
    """``init``, once for each number of groups; other runners of the same shapes are restored."""
    config = runner.config
    key = config.on_host.groups, world.stack
    if key not in Programs.begun and config.staleness == CONFIG.staleness:
        runner.init()
        Programs.begun[key] = jax.tree.map(jnp.copy, runner.state)
        return runner
    if key not in Programs.begun:
        within(begin(new_runner(world, groups=config.on_host.groups), world).close)
        world.opened.clear()
    size = ENVS // config.on_host.groups
    parts = [[{"episode": 0, "time": 0, "before": None}] * size] * config.on_host.groups
    extra = {"round": 0, "environments": parts, "evaluation": None}
    state = jax.tree.map(jnp.copy, Programs.begun[key])
    state = state._replace(policies=state.policies[:1] * config.staleness)
    empty = runner._compiler.empty_replay()
    assert runner.restore(state, extra, empty, lambda _: None) is None
    return runner


def run(runner, rounds: int = ROUNDS, *, start: int = 0, ahead: bool = False):
    for number in range(start, rounds):
        runner.run_round(number, ahead=ahead and number + 1 < rounds)
    return runner


def within(function: Callable[[], None]) -> None:
    """Run it in a thread of its own, and do not wait for ever."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


def numbers(tree) -> list[np.ndarray]:
    def number(x) -> np.ndarray:
        key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.array(jax.random.key_data(x) if key else x)

    return [number(x) for x in jax.tree.leaves(tree)]


def snapshot(runner: HostRunner) -> list[np.ndarray]:
    return numbers((runner.state, runner.replay, runner.tally()))


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def same(one, other) -> bool:
    pairs = zip(numbers(one), numbers(other), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)
