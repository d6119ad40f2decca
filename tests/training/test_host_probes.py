"""The loop for environments on the host solves one with a known answer: frames are stacked, stored and valued as they should be."""

import jax
import numpy as np
import pytest

from spectral_bellman.agents.presets import preset_settings
from spectral_bellman.environments.gym import HostStep
from spectral_bellman.training.config import TrainConfig, override
from spectral_bellman.training.host_loop import HostLoop

SYMBOLS, LENGTH, DISCOUNT = 3, 4, 0.8
VALUES = {"terminated": (1 - DISCOUNT**LENGTH) / (1 - DISCOUNT), "truncated": 1 / (1 - DISCOUNT)}
"""Of the first step, with a reward of 1 each step: a cut episode is worth what it would go on to earn."""


class Echo:
    """Each frame shows a symbol. An action that names the one before it, or the first one at the start, earns 1."""

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

    def reset(self, stretch: int = 0) -> np.ndarray:
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

    def close(self) -> None: ...


@pytest.mark.parametrize(("preset", "end"), [("dqn", "terminated"), ("dqn", "truncated"), ("sbm-dqn", "truncated")])
def test_an_agent_learns_to_name_the_frame_before(preset, end):
    settings = {"network": "mlp", "hidden": (32,), "features": 16, "batch": 64, "discount": DISCOUNT, "learning_rate": 3e-3}
    steps = {"representation_steps": 12, "q_steps": 4, "q_learning_rate": 3e-2, "warmup_steps": 128, "theta_samples": 16}
    run = {"num_envs": 16, "groups": 2, "round_steps": 8, "replay_capacity": 4_000, "eval_episodes": 40, "eval_max_steps": LENGTH}
    agent = preset_settings(preset, "jax")[1]
    config = override(
        TrainConfig(preset, "echo", agent=agent), {**settings, **steps, **run, "epsilon_steps": 3_000, "eval_epsilon": 0.0}
    )
    loop = HostLoop(config, "echo", lambda seed, indices, stream: Echo(list(indices), stream, end))
    loop.init()
    for number in range(120):
        loop.run_round(number, ahead=number < 119)
    returns = loop.evaluate(0).returns
    largest = float(loop.diagnostics(120)["q_max"][0])
    loop.close()
    # The environments for evaluation start in the middle of an episode, but for every fourth.
    assert np.mean(returns) > 0.95 * np.mean([LENGTH - i % LENGTH for i in range(40)])
    assert abs(largest / VALUES[end] - 1) < 0.1
