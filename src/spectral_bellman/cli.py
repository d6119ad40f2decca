"""The command ``sbm``."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spectral_bellman._names import did_you_mean
from spectral_bellman.tabular import study


def tabular(config: tyro.conf.OmitArgPrefixes[study.TabularStudy]) -> None:
    """Show the method on finite MDPs, where it is exact."""
    study.run(config, Console())


def train(arguments: list[str]) -> None:
    """Train an agent: sbm train PRESET --env ENV --out DIR."""
    from spectral_bellman.agents.presets import PRESETS
    from spectral_bellman.environments import make
    from spectral_bellman.training.config import TrainConfig
    from spectral_bellman.training.run import build, configure, start

    words = [
        x
        for before, x in zip(["", *arguments], arguments, strict=False)
        if not x.startswith("-") and (x in PRESETS or not before.startswith("--"))
    ]
    preset = next(iter(words), None)
    env = _value(arguments, "--env")
    if env is not None and "," in env and not {"-h", "--help"} & set(arguments):
        _train_several(preset or "", env, arguments)
        return
    made = None
    if preset is None or env is None:
        if not {"-h", "--help"} & set(arguments):
            raise ValueError("sbm train PRESET --env ENV: for example sbm train sbm-dqn-ts --env deep_sea/10 --out out/first")
        default = TrainConfig("sbm-dqn-ts", "minatar/breakout")
    else:
        made = make(env)
        default = configure(preset, made, {})

    @dataclasses.dataclass(frozen=True)
    class Arguments:
        run: tyro.conf.OmitArgPrefixes[TrainConfig]
        out: Path | None = None
        """Folder for the run; out/PRESET-ENV if not given."""
        dry_run: bool = False
        """Say what would be run, with its parameters and memory, and stop."""

    parsed = tyro.cli(
        Arguments,
        prog="sbm train",
        description="Train an agent on an environment. Defaults are those of the preset on this environment.",
        default=Arguments(default),
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
    )
    assert made is not None
    config = dataclasses.replace(parsed.run, env=made.name)
    folder = parsed.out or Path("out") / f"{config.preset}-{config.env.replace('/', '-')}"
    console = Console()
    if parsed.dry_run:
        _describe(config, build(config.resolved(), made), folder, console)
        return
    result = start(config, made, folder, console)
    _say_result(result, console)


def _train_several(preset: str, names: str, arguments: list[str]) -> None:
    """``--env atari/pong,boxing``: a run of each, side by side."""
    from spectral_bellman.environments import make
    from spectral_bellman.training.several import cores_for_each, environments_in, side_by_side

    made = [make(name).name for name in environments_in(names)]
    out = Path(_value(arguments, "--out") or f"out/{preset}")
    rest = _without(_without(arguments, "--env"), "--out")
    if _value(rest, "--cores") is None:
        rest += ["--cores", str(cores_for_each(len(made)))]
    side_by_side({name: ["train", *rest, "--env", name, "--out", str(out / name.replace("/", "-"))] for name in made}, Console())


def resume(folder: tyro.conf.Positional[Path], frames: int | None = None) -> None:
    """Go on with a run from its newest whole checkpoint, or with all the runs in a folder, side by side.

    Args:
      folder: the run's folder, or one with runs in it.
      frames: a new length, to go on past the old end.
    """
    from spectral_bellman.analysis.runs import find_runs
    from spectral_bellman.training.run import resume
    from spectral_bellman.training.several import side_by_side

    if folder.is_dir() and not (folder / "config.json").exists() and any(folder.glob("*/config.json")):
        longer = [] if frames is None else ["--frames", str(frames)]
        side_by_side({run.name: ["resume", str(run), *longer] for run in find_runs([folder])}, Console())
        return
    _say_result(resume(folder, frames=frames), Console())


def evaluate(folder: tyro.conf.Positional[Path], episodes: int = 10, checkpoint: str | None = None, video: bool = False) -> None:
    """Play greedy episodes from a checkpoint, seeded apart from training.

    Args:
      folder: the run's folder.
      episodes: how many, each seed.
      checkpoint: its name in the folder checkpoints/; the newest if not given.
      video: film the first seed: of Atari the best and the median episode as MP4, elsewhere an episode as a GIF.
    """
    from spectral_bellman.training.evaluate import evaluate

    evaluate(folder, episodes, checkpoint, video, Console())


def report(folders: tyro.conf.Positional[tuple[Path, ...]], out: Path | None = None) -> None:
    """Learning curves with 95% intervals over seeds, diagnostics, and a table of mean, median and IQM.

    Args:
      folders: runs, or folders with runs below them.
      out: folder for the figures and the table.
    """
    from spectral_bellman.analysis.report import report

    report(list(folders), out, Console())


def suite(
    name: tyro.conf.Positional[str] = "",
    out: Path = Path("out/suites"),
    keep: Path = Path("results"),
    minutes: float = 0.0,
    at_once: int = 1,
    dry_run: bool = False,
) -> None:
    """Run what a suite of runs lacks: begin what is missing, resume what was cut, keep what has finished.

    Args:
      name: the suite; without it, all are listed.
      out: folder for the runs and their checkpoints, in a folder with the suite's name.
      keep: folder for finished runs, likewise: config, summary and a thinned log. What is there is not run again.
      minutes: stop after so many, with nothing lost; 0 for never.
      at_once: runs side by side, which share the accelerator and divide the cores.
      dry_run: say what would be run, and stop.
    """
    from spectral_bellman.training.suite import SUITES, suite

    if name:
        suite(name, out, keep, minutes, at_once, dry_run, Console())
        return
    table = Table("suite", "what it shows")
    for key, value in SUITES.items():
        table.add_row(key, value.what)
    Console().print(table)


def presets() -> None:
    """List the agents."""
    from spectral_bellman.agents.presets import PRESETS

    table = Table("preset", "the paper's row", "representation", "exploration")
    for name, preset in PRESETS.items():
        table.add_row(name, preset.row, preset.agent["representation"], preset.agent["exploration"])
    Console().print(table)


def envs() -> None:
    """List the environments."""
    from spectral_bellman.environments import available

    table = Table("environment", "what it is")
    for name, line in available().items():
        table.add_row(name, line)
    Console().print(table)


def bench(
    env: tyro.conf.Positional[str] = "deep_sea/10",
    presets: tuple[str, ...] = ("dqn", "sbm-dqn-ts"),
    seeds: int = 1,
    seconds: float = 10.0,
    out: Path | None = None,
) -> None:
    """Measure training speed against the bare environment, and presets against the first of them, in one run.

    Args:
      env: the environment.
      presets: what to measure; overheads are over the first.
      seeds: seeds trained side by side.
      seconds: to measure each for, after compilation.
      out: a JSON file for the figures.
    """
    from spectral_bellman.training.bench import bench

    bench(env, presets, seeds, seconds, out, Console())


def demo(out: Path = Path("out/demo"), episodes: int = 200, seeds: int = 3) -> None:
    """Train sbm-dqn-ts and dqn on deep_sea/10 and compare them: what ``make run`` shows.

    Args:
      out: folder for the runs and the figure; a number is added if it is taken.
      episodes: of each seed.
      seeds: of each agent.
    """
    from spectral_bellman.analysis.demo import demo

    demo(out, episodes, seeds, Console())


COMMANDS: dict[str, Any] = {
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "report": report,
    "suite": suite,
    "presets": presets,
    "envs": envs,
    "bench": bench,
    "demo": demo,
    "tabular": tabular,
}


def main() -> None:
    """Entry point: a user's mistake is one line and exit status 2, not a traceback."""
    arguments = sys.argv[1:]
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            hint = did_you_mean(arguments[0], COMMANDS, cutoff=0.6) or f"there are {', '.join(COMMANDS)}"
            raise ValueError(f"there is no command {arguments[0]!r}: {hint}")
        if arguments[:1] == ["train"]:
            train(arguments[1:])
        else:
            described = {name: _listed(command) if command is train else command for name, command in COMMANDS.items()}
            tyro.extras.subcommand_cli_from_dict(described, prog="sbm", description="The Spectral Bellman Method.")
    except (OSError, ValueError, ImportError, ArithmeticError, gymnasium.error.Error) as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _listed(command: Any) -> Any:
    """A stand-in for ``train`` in the list of commands: its own flags depend on the preset and the environment."""

    def listed(arguments: Annotated[tuple[str, ...], tyro.conf.Positional]) -> None:
        command(list(arguments))

    listed.__doc__ = command.__doc__
    return listed


def _value(arguments: list[str], flag: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.partition("=")[2]
    return None


def _without(arguments: list[str], flag: str) -> list[str]:
    """The arguments without a flag and its value."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != flag and not argument.startswith(flag + "="):
            kept.append(argument)
        skip = not skip and argument == flag
    return kept


def _describe(config: Any, loop: Any, folder: Path, console: Console) -> None:
    from spectral_bellman.training import memory

    table = Table("setting", "value", title=f"{config.preset} on {config.env}")
    resolved = dataclasses.asdict(config.resolved())
    for name, value in {**resolved, **resolved["agent"]}.items():
        if name != "agent":
            table.add_row(name, str(value))
    console.print(table)
    need = memory.estimate(loop)
    console.print(
        f"{need.parameters:,} parameters a seed; {config.samples_per_step:.3g} samples per agent step; {config.rounds:,} rounds of "
        f"{config.round_frames:,} frames, {config.agent.updates} gradient steps of {config.agent.batch} in each",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"memory: {memory.show(need.total)} (replay {memory.show(need.replay)}, agents {memory.show(need.agent)}, working "
        f"{memory.show(need.working)}, process {memory.show(need.process)}); the run would go to {folder}",
        highlight=False,
        soft_wrap=True,
    )
    memory.check(need, config)
    loop.close()


def _say_result(result: Any, console: Console) -> None:
    if result.summary:
        speed = result.summary["frames_per_s"]
        console.print(
            f"{result.folder}: finished, {speed:,.0f} frames/s; sbm report {result.folder} draws it",
            highlight=False,
            soft_wrap=True,
        )


if __name__ == "__main__":
    main()
