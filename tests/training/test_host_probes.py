"""The host runner solves an environment with a known answer.

For that, frames must be stacked, stored and valued as they should be.
"""

import jax
import numpy as np
import pytest

from spectral_bellman.agents.presets import agent_config
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.environments.api import HostStep
from spectral_bellman.environments.catalogue import FAMILIES
from spectral_bellman.training.config import TrainConfig, flat, override
from spectral_bellman.training.host_runner import HostRunner

SYMBOLS, LENGTH, DISCOUNT = 3, 4, 0.8
VALUES = {
    "terminated": (1 - DISCOUNT**LENGTH) / (1 - DISCOUNT),
    "truncated": 1 / (1 - DISCOUNT),
}
"""The value of the first step, with a reward of 1 each step. After a cut, rewards would go on."""


class Echo:
    """Each frame shows a symbol. An action that names the symbol before it earns 1.

    At the start of an episode, the action must name the only symbol that was shown.
    """

    num_actions = SYMBOLS
    observation = jax.ShapeDtypeStruct((1, SYMBOLS), np.uint8)
    stack = 2

    def __init__(self, indices, stream: int, end: str) -> None:
        self.size, self.end = len(indices), end
        self.random = np.random.default_rng([indices[0], stream])
        self.times = np.arange(self.size) % LENGTH

    def __len__(self) -> int:
        return self.size

    def show(self) -> np.ndarray:
        return (255 * np.eye(SYMBOLS, dtype=np.uint8))[self.shown][:, None]

    def draw(self) -> np.ndarray:
        return self.random.integers(SYMBOLS, size=self.size)

    def reset(self, block: int = 0) -> np.ndarray:
        self.shown = self.before = self.draw()
        return self.show()

    def step(self, actions, running=None) -> HostStep:
        reward = (actions == self.before).astype(np.float32)
        self.before, self.shown = self.shown, self.draw()
        observation = self.show()
        self.times = (self.times + 1) % LENGTH
        first = self.times == 0
        self.shown = np.where(first, self.draw(), self.shown)
        self.before = np.where(first, self.shown, self.before)
        never = np.zeros(self.size, bool)
        over, cut = (first, never) if self.end == "terminated" else (never, first)
        return HostStep(observation, reward, over, cut, self.show(), first)

    def save(self) -> list[dict]:
        raise NotImplementedError

    def restore(self, saved, progress) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None: ...


SETTINGS = {
    "network": "mlp",
    "hidden": (32,),
    "features": 16,
    "batch": 64,
    "discount": DISCOUNT,
    "learning_rate": 3e-3,
    "updates": 16,
    "q_steps": 4,
    "q_learning_rate": 3e-2,
    "warmup_steps": 128,
    "theta_samples": 16,
    "num_envs": 16,
    "groups": 2,
    "round_steps": 8,
    "staleness": 2,
    "replay_capacity": 4_000,
    "eval_episodes": 40,
    "eval_max_steps": LENGTH,
    "epsilon_steps": 3_000,
    "eval_epsilon": 0.0,
}


@pytest.fixture(scope="module")
def programs():
    """Compiled programs by preset."""
    return {"dqn": {}, "sbm-dqn": {}}


@pytest.mark.parametrize(
    ("preset", "end"),
    [
        ("dqn", "terminated"),
        ("dqn", "truncated"),
        pytest.param("sbm-dqn", "truncated", marks=pytest.mark.slow),
    ],
)
def test_an_agent_learns_to_name_the_frame_before(programs, preset, end):
    agent = agent_config(preset, "jax", {}, FAMILIES["jax"].agent)
    config = TrainConfig(preset, "echo", agent=agent)
    used = {name: value for name, value in SETTINGS.items() if name in flat(config)}
    config = override(config, used)

    def opener(seed, indices, stream):
        return Echo(list(indices), stream, end)

    def build(observation, num_actions):
        return QAgent(config.agent, observation, num_actions)

    runner = HostRunner(config, "echo", opener, build, background=True)
    runner.programs = programs[preset]
    runner.init()
    for number in range(120):
        runner.run_round(number, ahead=number < 119)
    returns = runner.play(0, 40).returns
    largest = float(runner.diagnostics(120)["q_max"][0])
    runner.close()
    # Environments for evaluation start in the middle of an episode, but for every fourth.
    assert np.mean(returns) > 0.95 * np.mean([LENGTH - i % LENGTH for i in range(40)])
    assert abs(largest / VALUES[end] - 1) < 0.1
