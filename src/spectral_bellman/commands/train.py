"""``sbm train`` and ``sbm resume``: flags for what is live on this preset and environment."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from spectral_bellman._names import flag_of
from spectral_bellman.agents import choices
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.commands.lists import settings
from spectral_bellman.commands.side_by_side import cores_for_each, environments_in, side_by_side
from spectral_bellman.disk.run_folder import CONFIG
from spectral_bellman.environments.api import EnvironmentSpec
from spectral_bellman.environments.catalogue import FAMILIES, make
from spectral_bellman.report.runs import find_runs
from spectral_bellman.training import memory, runner
from spectral_bellman.training.config import (
    RECORDS,
    TrainConfig,
    configure,
    flat,
    live,
    override,
    refuse_elsewhere,
    refuse_hidden,
)
from spectral_bellman.training.progress import say

CHOICES = {
    "backbone": "What φ is computed from: the observation, or the episode so far.",
    "operator": "The Bellman operator of the targets.",
    "representation": "What φ learns from.",
    "q_solver": "How θ̂ is fitted to φ.",
    "exploration": "How actions are chosen.",
    "sampling": "How the replay is sampled for gradient steps.",
}
"""What the flag of each kind of choice selects."""


def train(arguments: list[str]) -> None:
    """Train as the arguments say."""
    helping = bool({"-h", "--help"} & set(arguments))
    words = [
        x
        for before, x in zip(["", *arguments], arguments, strict=False)
        if not x.startswith("-") and (x in PRESETS or not before.startswith("--"))
    ]
    preset, env = next(iter(words), None), value_of(arguments, "--env")
    if env is not None and "," in env and not helping:
        _train_several(preset or "", env, arguments)
        return
    if (preset is None or env is None) and not helping:
        raise ValueError(
            "sbm train PRESET --env ENV: for example sbm train sbm-dqn-ts --env deep_sea/10 "
            "--out out/first"
        )
    spec = make(env or "minatar/breakout")
    default = configure(preset or "sbm-dqn-ts", spec, _chosen(arguments))
    if not helping:
        _refuse_unused(arguments, default, spec)
    config, out, dry_run = _parse(arguments, default, set(live(default, spec)))
    config = dataclasses.replace(config, env=spec.name)
    folder = out or Path("out") / f"{config.preset}-{config.env.replace('/', '-')}"
    console = Console()
    if dry_run:
        describe(config, spec, folder, console)
        return
    say_result(runner.start(config, spec, folder, console), console)


def resume(folder: Path, frames: int | None) -> None:
    """Go on with a run, or with all the runs in a folder, side by side."""
    several = folder.is_dir() and not (folder / CONFIG).exists() and any(folder.glob(f"*/{CONFIG}"))
    if several:
        longer = [] if frames is None else ["--frames", str(frames)]
        runs = find_runs([folder])
        side_by_side({run.name: ["resume", str(run), *longer] for run in runs}, Console())
        return
    say_result(runner.resume(folder, frames=frames), Console())


def describe(config: TrainConfig, spec: EnvironmentSpec, folder: Path, console: Console) -> None:
    """Say what would be run, with its parameters and memory."""
    settings(config, spec, console)
    runners = runner.build(config.resolved(), spec)
    need = memory.estimate(runners)
    say(
        console,
        f"{need.parameters:,} parameters a seed; {config.samples_per_step:.3g} samples per agent "
        f"step; {config.rounds:,} rounds of {config.round_frames:,} frames, "
        f"{config.agent.updates} gradient steps of {config.agent.batch} in each",
    )
    learning = max(0, config.rounds - config.first_learning_round)
    say(
        console,
        f"{learning * config.agent.updates:,} gradient steps and "
        f"{learning // config.agent.target_rounds:,} copies to the target network in all",
    )
    say(
        console,
        f"memory: {memory.show(need.total)} (replay {memory.show(need.replay)}, agents "
        f"{memory.show(need.agent)}, working {memory.show(need.working)}, process "
        f"{memory.show(need.process)}); the run would go to {folder}",
    )
    memory.check(need, config)
    runners.close()


def say_result(result: runner.Result, console: Console) -> None:
    """Say that a run has finished, and what to do with it."""
    if result.summary:
        speed = result.summary["frames_per_s"]
        say(
            console,
            f"{result.folder}: finished, {speed:,.0f} frames/s; "
            f"sbm report {result.folder} draws it",
        )


def _parse(
    arguments: list[str], default: TrainConfig, shown: Collection[str]
) -> tuple[TrainConfig, Path | None, bool]:
    """The config, the folder, and whether it is a dry run.

    Args:
      arguments: of the command line.
      default: the config without them.
      shown: the settings that have a use. The others have no flag.
    """
    values = flat(default)
    named = {kind: _help(kind) for kind in CHOICES if kind in values}
    chosen: Any = dataclasses.make_dataclass(
        "Choices",
        [(kind, Annotated[str, tyro.conf.arg(help=text)]) for kind, text in named.items()],
        frozen=True,
    )

    @dataclasses.dataclass(frozen=True)
    class Arguments:
        run: TrainConfig
        choices: chosen
        out: Path | None = None
        """Folder for the run; out/PRESET-ENV if not given."""
        dry_run: bool = False
        """Say what would be run, with its parameters and memory, and stop."""

    records = {name: getattr(default, name) for name in RECORDS}
    fields = [
        (name, type(record), dataclasses.field(default=record))
        for name, record in records.items()
        if record is not None
    ]
    kind: Any = dataclasses.make_dataclass("Arguments", fields, bases=(Arguments,), frozen=True)
    parsed: Any = tyro.cli(
        kind,
        prog="sbm train",
        description=(
            "Train an agent on an environment. Defaults, and the settings that there are, are "
            "those of this preset on this environment."
        ),
        default=kind(_without_flags(default, shown), chosen(*(values[name] for name in named))),
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
    )
    records = {name: getattr(parsed, name, None) for name in RECORDS}
    agent = {f.name: getattr(parsed.run.agent, f.name) for f in dataclasses.fields(AgentConfig)}
    run = dataclasses.replace(parsed.run, agent=AgentConfig(**agent), **records)
    return run, parsed.out, parsed.dry_run


def _help(kind: str) -> str:
    return f"{CHOICES[kind]} One of {', '.join(choices.KINDS[kind])}; each has its own settings."


def _without_flags(config: TrainConfig, shown: Collection[str]) -> TrainConfig:
    """The config with an agent that tyro gives no flags for settings without a use."""
    agent = config.agent
    hidden = [
        (field.name, Annotated[field.type, tyro.conf.Suppress], field.default)
        for field in dataclasses.fields(agent)
        if field.name in choices.flat(agent) and field.name not in shown
    ]
    if not hidden:
        return config
    kind: Any = dataclasses.make_dataclass("AgentConfig", hidden, bases=(AgentConfig,), frozen=True)
    values = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    return dataclasses.replace(config, agent=kind(**values))


def _chosen(arguments: list[str]) -> dict[str, Any]:
    """What decides which other settings there are: the choices on the command line, the torso."""
    names = (*choices.KINDS, "network")
    found = {name: value_of(arguments, flag_of(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _refuse_unused(arguments: list[str], config: TrainConfig, spec: EnvironmentSpec) -> None:
    """Answer a flag that has no use here with a word on who uses it."""
    known = flat(config)
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and name == "hidden":
            refuse_hidden(config.agent, spec)
        if argument.startswith("--") and name not in known:
            refuse_elsewhere(name, config)
            if choices.users(name):
                override(config, {name: None})


def _train_several(preset: str, names: str, arguments: list[str]) -> None:
    """``--env atari/pong,boxing``: a run of each, side by side."""
    specs = [make(name) for name in environments_in(names)]
    made = [spec.name for spec in specs]
    out = Path(value_of(arguments, "--out") or f"out/{preset}")
    rest = without(without(arguments, "--env"), "--out")
    if value_of(rest, "--cores") is None and all(
        FAMILIES[spec.family].steps_beside_python for spec in specs
    ):
        rest += ["--cores", str(cores_for_each(len(made)))]
    commands = {
        name: ["train", *rest, "--env", name, "--out", str(out / name.replace("/", "-"))]
        for name in made
    }
    side_by_side(commands, Console())


def value_of(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, if it is given."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.partition("=")[2]
    return None


def without(arguments: list[str], flag: str) -> list[str]:
    """The arguments without a flag and its value."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != flag and not argument.startswith(flag + "="):
            kept.append(argument)
        skip = not skip and argument == flag
    return kept
