"""The settings of a run, and how they are read back from its folder."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from spectral_bellman._names import did_you_mean
from spectral_bellman.agents.config import AgentConfig


@dataclass(frozen=True)
class TrainConfig:
    """A run: an agent, an environment, and how much of it. A frame is an agent step in every environment here."""

    preset: tyro.conf.Positional[str]
    """The agent; sbm presets lists them."""
    env: str
    """The environment; sbm envs lists them."""
    frames: int = 500_000
    """Frames to train for, each seed."""
    seeds: int = 1
    """Independent runs trained side by side."""
    first_seed: int = 0
    """The first of them; the others follow."""
    num_envs: int = 128
    """Environments that each seed steps together."""
    round_steps: int = 8
    """Agent steps of each environment in a round."""
    replay_capacity: int = 100_000
    """Transitions that the replay of each seed holds."""
    log_frames: int = 0
    """Frames between log lines; 0: a hundred lines in the run."""
    eval_frames: int = 0
    """Frames between evaluations; 0: ten in the run."""
    eval_episodes: int = 10
    """Greedy episodes in an evaluation."""
    eval_epsilon: float = 0.001
    """ε of the evaluation."""
    eval_max_steps: int = 10_000
    """Agent steps after which an evaluation stops waiting for an episode."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; 0: one with every log line."""
    checkpoint_keep: int = 2
    """Checkpoints kept."""
    tensorboard: bool = False
    """Write TensorBoard files too; needs the extra tensorboard."""
    wandb: str = ""
    """Log to this Weights & Biases project too; needs the extra wandb."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The agent's settings."""

    def __post_init__(self) -> None:
        for name in (
            "frames",
            "seeds",
            "num_envs",
            "round_steps",
            "replay_capacity",
            "eval_episodes",
            "eval_max_steps",
            "checkpoint_keep",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("log_frames", "eval_frames", "checkpoint_minutes", "first_seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")

    @property
    def round_frames(self) -> int:
        """Frames in a round of one seed."""
        return self.num_envs * self.round_steps

    @property
    def rounds(self) -> int:
        """Rounds in the run."""
        return -(-self.frames // self.round_frames)

    @property
    def log_rounds(self) -> int:
        """Rounds between log lines."""
        return max(1, (self.log_frames or self.frames // 100) // self.round_frames)

    @property
    def eval_rounds(self) -> int:
        """Rounds between evaluations: a whole number of log lines."""
        wanted = max(1, (self.eval_frames or self.frames // 10) // self.round_frames)
        return max(1, round(wanted / self.log_rounds)) * self.log_rounds

    @property
    def samples_per_step(self) -> float:
        """Transitions sampled for gradient steps, for each agent step."""
        return self.agent.updates * self.agent.batch / self.round_frames

    def learns(self, number: int) -> bool:
        """Whether the warm-up is over at the end of round ``number``."""
        return (number + 1) * self.round_frames >= self.agent.warmup_steps

    def resolved(self) -> "TrainConfig":
        """The same with every 0 that means "a share of the run" put in figures, so that a longer run keeps them."""
        return dataclasses.replace(
            self, log_frames=self.log_rounds * self.round_frames, eval_frames=self.eval_rounds * self.round_frames
        )


def override(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with fields changed, its own or the agent's; an unknown name is answered with the nearest."""
    own = {f.name for f in dataclasses.fields(TrainConfig)} - {"agent"}
    agents = {f.name for f in dataclasses.fields(AgentConfig)}
    for name in changes:
        if name not in own | agents:
            hint = did_you_mean(name, own | agents)
            raise ValueError(f"there is no setting {name!r}" + (f"; {hint}" if hint else ""))
    agent = dataclasses.replace(config.agent, **{k: v for k, v in changes.items() if k in agents})
    return dataclasses.replace(config, agent=agent, **{k: v for k, v in changes.items() if k in own})


def read_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        agent = content["agent"] | {"hidden": tuple(content["agent"]["hidden"])}
        names = {f.name for f in dataclasses.fields(TrainConfig)}
        return TrainConfig(**{k: v for k, v in content.items() if k in names and k != "agent"}, agent=AgentConfig(**agent))
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no run: there is no config.json in it") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a run of this version: {error}") from error
