"""The settings of a run, and how they are read back from its folder."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from spectral_bellman._names import did_you_mean
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.environments.atari import AtariProtocol


@dataclass(frozen=True)
class TrainConfig:
    """A run: an agent, an environment, and how much of it. A frame is the emulator's in Atari, where an agent step is four of them;
    elsewhere it is an agent step."""

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
    groups: int = 1
    """Environments on the host: groups that the environments are divided into, each choosing actions while the others step."""
    cores: int = 0
    """Atari: cores to emulate on, divided among the seeds; 0: all there are. Every group has so many threads."""
    dispatch_steps: int = 0
    """Environments on the host: gradient steps that are sent to the device at once, and that an action may wait for; 0: all."""
    replay_capacity: int = 100_000
    """Transitions that the replay of each seed holds."""
    replay_memory: Literal["device", "host"] = "device"
    """Environments on the host: where the replay lies. In host memory, what is sampled crosses to the accelerator."""
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
    checkpoint_replay: Literal["on", "off"] = "on"
    """Environments on the host: off leaves the replay out of checkpoints, which are small then; a resumed run fills it anew."""
    tensorboard: bool = False
    """Write TensorBoard files too; needs the extra tensorboard."""
    wandb: str = ""
    """Log to this Weights & Biases project too; needs the extra wandb."""
    atari: AtariProtocol | None = None
    """How Atari games are played."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The agent's settings."""

    def __post_init__(self) -> None:
        for name in (
            "frames",
            "seeds",
            "num_envs",
            "round_steps",
            "groups",
            "replay_capacity",
            "eval_episodes",
            "eval_max_steps",
            "checkpoint_keep",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("log_frames", "eval_frames", "checkpoint_minutes", "first_seed", "cores", "dispatch_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")
        if self.num_envs % self.groups:
            raise ValueError(f"--num-envs {self.num_envs} cannot be divided into --groups {self.groups} of one size")

    @property
    def round_agent_steps(self) -> int:
        """Agent steps in a round of one seed, all environments together."""
        return self.num_envs * self.round_steps

    @property
    def round_frames(self) -> int:
        """Frames in a round of one seed."""
        return self.round_agent_steps * (self.atari.frame_skip if self.atari else 1)

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
        return self.agent.updates * self.agent.batch / self.round_agent_steps

    def learns(self, number: int) -> bool:
        """Whether the warm-up is over at the end of round ``number``."""
        return (number + 1) * self.round_agent_steps >= self.agent.warmup_steps

    def resolved(self) -> "TrainConfig":
        """The same with every 0 that means "a share of the run" put in figures, so that a longer run keeps them."""
        return dataclasses.replace(
            self, log_frames=self.log_rounds * self.round_frames, eval_frames=self.eval_rounds * self.round_frames
        )


def override(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with fields changed, its own or the agent's; an unknown name is answered with the nearest."""
    own = {f.name for f in dataclasses.fields(TrainConfig)} - {"agent", "atari"}
    agents = {f.name for f in dataclasses.fields(AgentConfig)}
    games = {f.name for f in dataclasses.fields(AtariProtocol)} if config.atari else set()
    for name in changes:
        if name not in own | agents | games:
            hint = did_you_mean(name, own | agents | games)
            raise ValueError(f"there is no setting {name!r}" + (f"; {hint}" if hint else ""))
    agent = dataclasses.replace(config.agent, **{k: v for k, v in changes.items() if k in agents})
    atari = config.atari and dataclasses.replace(config.atari, **{k: v for k, v in changes.items() if k in games})
    return dataclasses.replace(config, agent=agent, atari=atari, **{k: v for k, v in changes.items() if k in own})


def read_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        agent = content["agent"] | {"hidden": tuple(content["agent"]["hidden"])}
        atari = content.get("atari") and AtariProtocol(**content["atari"])
        names = {f.name for f in dataclasses.fields(TrainConfig)} - {"agent", "atari"}
        own = {k: v for k, v in content.items() if k in names}
        return TrainConfig(**own, atari=atari, agent=AgentConfig(**agent))
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no run: there is no config.json in it") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a run of this version: {error}") from error
