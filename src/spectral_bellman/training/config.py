"""The settings of a run: how they are put together, and how they are read back from a folder."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import tyro

from spectral_bellman._names import did_you_mean, flag_of
from spectral_bellman.agents import choices
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.presets import agent_config, find_preset
from spectral_bellman.disk import run_folder
from spectral_bellman.environments.api import EnvironmentSpec, PlayProtocol
from spectral_bellman.environments.catalogue import FAMILIES, family_of
from spectral_bellman.networks import torso_for

RECORDS = ("protocol", "host")
"""Fields of ``TrainConfig`` whose settings some environments have, by their own flat names."""
SCORED = 3
"""Evaluations in the last tenth of a run, which its score is the mean of."""


@dataclass(frozen=True)
class HostSettings:
    """Settings of runs whose environments step on the host."""

    groups: int = 1
    """Groups that the environments form; one chooses actions while others step."""
    actors: int = 0
    """Processes that the environments are divided among, through Ray. 0: this process alone."""
    asynchronous: int = 0
    """0: actors are in lockstep with learning, and the run can be had again to the bit. Otherwise
    each acts on the newest policy that it finds, and learning waits for an actor only where its
    policy is as many rounds old: faster, and not the same twice."""
    cluster: str = ""
    """Address of the Ray cluster that they run on, or auto. By default, this machine alone."""
    dispatch_steps: int = 0
    """Gradient steps that are sent to the device at once; 0: all."""
    replay_memory: Literal["device", "host"] = "device"
    """Where the replay lies. Samples of host memory are transferred."""
    checkpoint_replay: Literal["on", "off"] = "on"
    """off leaves the replay out of checkpoints, and a resume fills it anew."""

    def __post_init__(self) -> None:
        choices.require_all(
            self, count=("groups",), not_negative=("dispatch_steps", "actors", "asynchronous")
        )
        for name in ("asynchronous", "cluster"):
            unused = not getattr(self, name)
            choices.require(self, name, bool(self.actors) or unused, "with --actors")

    @property
    def parts(self) -> int:
        """Groups of the environments: one for each actor, if there are some."""
        return self.actors or self.groups


@dataclass(frozen=True)
class EmulatorSettings(HostSettings):
    """The same for emulators with threads of their own."""

    cores: int = 0
    """Cores to emulate on, divided among the seeds; every group uses them. 0: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choices.require_all(self, not_negative=("cores",))


def host_settings(spec_family: str) -> HostSettings:
    """The settings that a family of host environments has."""
    emulated = FAMILIES[spec_family].steps_beside_python
    return EmulatorSettings() if emulated else HostSettings()


@dataclass(frozen=True)
class TrainConfig:
    """A run: an agent, an environment, and how much of it.

    A frame of Atari is the emulator's, and an agent step is four of them. Elsewhere a frame is an
    agent step.
    """

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
    staleness: int = 1
    """Round t acts on the policy that round t − staleness published."""
    replay_capacity: int = 100_000
    """Transitions that the replay of each seed holds."""
    log_frames: int = 0
    """Frames between log lines; 0: a hundred lines in the run."""
    eval_frames: int = 0
    """Frames between evaluations; 0: ten in the run."""
    eval_episodes: int = 10
    """Greedy episodes in an evaluation."""
    score_episodes: int = 30
    """Greedy episodes in each of three evaluations in the last tenth of the run; their mean is a
    seed's score."""
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
    protocol: tyro.conf.Suppress[PlayProtocol | None] = None
    """How the games are played, for families with a choice."""
    host: tyro.conf.Suppress[HostSettings | None] = None
    """Settings of environments on the host; None for environments on the device."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The agent's settings."""

    def __post_init__(self) -> None:
        choices.require_all(
            self,
            count=(
                "frames",
                "seeds",
                "num_envs",
                "round_steps",
                "staleness",
                "replay_capacity",
                "eval_episodes",
                "score_episodes",
                "eval_max_steps",
                "checkpoint_keep",
            ),
            not_negative=(
                "log_frames",
                "eval_frames",
                "checkpoint_minutes",
                "first_seed",
            ),
        )
        groups = self.on_host.parts
        if self.num_envs % groups:
            name = "--actors" if self.on_host.actors else "--groups"
            raise ValueError(
                f"--num-envs {self.num_envs} cannot be divided into {name} {groups} of one size"
            )

    @property
    def on_host(self) -> HostSettings:
        """The settings of environments on the host; the defaults for the device."""
        return self.host or HostSettings()

    @property
    def emulated(self) -> bool:
        """Whether emulators with threads of their own step the environments."""
        return isinstance(self.host, EmulatorSettings)

    @property
    def frame_skip(self) -> int:
        """Frames in an agent step."""
        return self.protocol.frame_skip if self.protocol else 1

    @property
    def round_agent_steps(self) -> int:
        """Agent steps in a round of one seed, all environments together."""
        return self.num_envs * self.round_steps

    @property
    def round_frames(self) -> int:
        """Frames in a round of one seed."""
        return self.round_agent_steps * self.frame_skip

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
    def score_rounds(self) -> frozenset[int]:
        """The rounds after which the policy is evaluated for its score: log lines, and the end."""
        early = [self.rounds * (30 - k) // 30 // self.log_rounds for k in range(1, SCORED)]
        late = [n * self.log_rounds for n in early if self._scored(n * self.log_rounds)]
        return frozenset({self.rounds, *late})

    def _scored(self, number: int) -> bool:
        """Whether a round is in the last tenth of the run."""
        return 10 * number > 9 * self.rounds

    def episodes_at(self, number: int) -> int:
        """Greedy episodes to play after ``number`` rounds; 0: no evaluation is due.

        In the last tenth only the evaluations of the score are due.
        """
        if number in self.score_rounds:
            return self.score_episodes
        due = number % self.eval_rounds == 0 and not self._scored(number)
        return self.eval_episodes if due else 0

    @property
    def samples_per_step(self) -> float:
        """Steps sampled for gradient steps, for each agent step."""
        return self.agent.updates * self.agent.rows / self.round_agent_steps

    def learns(self, number: int) -> bool:
        """Whether the warm-up is over at the end of round ``number``."""
        return number >= self.first_learning_round

    @property
    def first_learning_round(self) -> int:
        """The first round that learns: after the warm-up, with a whole window in the replay."""
        warm_up = -(-self.agent.warmup_steps // self.round_agent_steps)
        window = -(-self.agent.window_steps // self.round_steps)
        return max(0, warm_up - 1, window - 1)

    def resolved(self) -> "TrainConfig":
        """The same with shares of the run in frames, so that a longer run keeps them."""
        return dataclasses.replace(
            self,
            log_frames=self.log_rounds * self.round_frames,
            eval_frames=self.eval_rounds * self.round_frames,
        )


def configure(
    preset: str,
    spec: EnvironmentSpec,
    settings: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> TrainConfig:
    """The preset's settings on this environment, changed by flat ``settings``.

    Args:
      preset: its name.
      spec: the environment.
      settings: flat name -> value.
      backend: "cpu" or "gpu", for the settings on such a machine; by default JAX's backend here.

    Raises:
      ValueError: a setting is unknown, out of range, or not used by this agent and environment.
    """
    settings = dict(settings or {})
    found, family = find_preset(preset), FAMILIES[spec.family]
    chosen = {name: value for name, value in settings.items() if name in choices.KINDS}
    run = {**family.run, **found.run}
    agent = agent_config(preset, family.name, chosen, family.agent)
    run_changes, agent_changes = family.suited(spec, run, choices.flat(agent), set(found.agent))
    agent = choices.suited(agent, agent_changes)
    run |= run_changes
    run_changes, agent_changes = family.machine(
        backend or jax.default_backend(), run, choices.flat(agent)
    )
    agent = choices.suited(agent, agent_changes)
    run |= run_changes
    host = None if spec.device is not None else host_settings(spec.family)
    config = TrainConfig(preset, spec.name, agent=agent, protocol=spec.protocol, host=host)
    names = choices.flat(config)
    config = override(config, {**{k: v for k, v in run.items() if k in names}, **settings})
    if "hidden" in settings:
        refuse_hidden(config.agent, spec)
    return config


def live(config: TrainConfig, spec: EnvironmentSpec) -> dict[str, Any]:
    """Every setting that has a use on an environment, by its own name."""
    unused = {name for name in RECORDS if getattr(config, name) is None}
    unused |= set() if _torso(config.agent, spec) in ("auto", "mlp") else {"hidden"}
    return {name: value for name, value in flat(config).items() if name not in unused}


def _torso(agent: AgentConfig, spec: EnvironmentSpec) -> str:
    """The torso; auto where it is not known before the environment is opened."""
    seen = getattr(spec.device, "observation", None)
    if agent.network != "auto" or (seen is None and spec.protocol is None):
        return agent.network
    recurrent = agent.backbone.name == "recurrent"
    if seen is None:  # screens, by the protocol
        return "impala" if recurrent else "centred"
    return torso_for(seen, recurrent=recurrent)


def refuse_hidden(agent: AgentConfig, spec: EnvironmentSpec) -> None:
    """Refuse --hidden where the network has no hidden layers of a chosen size."""
    torso = _torso(agent, spec)
    if torso not in ("auto", "mlp"):
        raise ValueError(
            f"--hidden has no use on {spec.name}: the torso is {torso}, and only --network mlp "
            "has layers of a chosen size"
        )


def override(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config with settings of the run, agent or protocol changed by their flat names."""
    own = {f.name for f in dataclasses.fields(TrainConfig)} - {"agent", *RECORDS}
    records: dict[str, Any] = {
        name: record for name in RECORDS if (record := getattr(config, name)) is not None
    }
    inside = {
        field.name: name for name, record in records.items() for field in dataclasses.fields(record)
    }
    known = {*own, *choices.flat(config.agent), *inside, *choices.KINDS}
    known |= {name for name in changes if choices.users(name)}
    for name in changes:
        if name not in known:
            refuse_elsewhere(name, config)
            hint = did_you_mean(name, known)
            raise ValueError(f"there is no setting {name!r}" + (f"; {hint}" if hint else ""))
    agent = choices.override(
        config.agent, {k: v for k, v in changes.items() if k not in own and k not in inside}
    )
    for name, record in records.items():
        new = {
            k: choices.checked(record, k, v) for k, v in changes.items() if inside.get(k) == name
        }
        records[name] = dataclasses.replace(record, **new)
    mine = {k: choices.checked(config, k, v) for k, v in changes.items() if k in own}
    return dataclasses.replace(config, agent=agent, **records, **mine)


def refuse_elsewhere(name: str, config: TrainConfig) -> None:
    """Refuse a setting that only other environments have, and say which."""
    owners: list[tuple[Any, str]] = [
        (HostSettings, "environments that step on the host, such as gym/ and atari/"),
        (EmulatorSettings, "emulators (atari/)"),
    ]
    for family in FAMILIES.values():
        if family.protocol:
            # The names that ``patterns`` spells out have no play settings.
            first = next(iter((*family.names(), *family.patterns)))
            owners.append((family.protocol, first.partition("/")[0] + "/"))
    for record, who in owners:
        if name in {field.name for field in dataclasses.fields(record)}:
            raise ValueError(
                f"{flag_of(name)} has no use on {config.env}: it is a setting of {who}"
            )


def flat(config: TrainConfig) -> dict[str, Any]:
    """Every setting of a run by its own name."""
    return choices.flat(config)


def to_json(config: TrainConfig) -> dict[str, Any]:
    """The config as ``config.json`` has it."""
    return choices.to_json(config)


def read_config(folder: Path, *, migrate: bool = False) -> TrainConfig:
    """The config of the run in a folder.

    Args:
      folder: of the run.
      migrate: translate the config of an older version. Such a run cannot be resumed.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is not one of this version.
    """
    content = run_folder.read_config(folder, migrate=migrate)
    family = family_of(content["env"]) or FAMILIES["jax"]
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    own = {name: value for name, value in content.items() if name in known}
    # An object of the user's has no family by its name, and the protocol of none.
    host = own.get("host")
    emulated = isinstance(host, Mapping) and "cores" in host
    default = TrainConfig(
        "",
        "",
        protocol=family.protocol if own.get("protocol") else None,
        host=(EmulatorSettings() if emulated else HostSettings()) if host else None,
    )
    try:
        return choices.from_json(default, own)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / run_folder.CONFIG}: {error}") from error
