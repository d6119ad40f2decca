"""The command ``sbm``. Each command is a module beside this one, imported when it is called."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from spectral_bellman._names import did_you_mean


def train(arguments: list[str]) -> None:
    """Train an agent: sbm train PRESET --env ENV --out DIR."""
    from spectral_bellman.commands.train import train

    train(arguments)


def resume(folder: tyro.conf.Positional[Path], frames: int | None = None) -> None:
    """Go on with a run from its newest intact checkpoint, or with all runs in a folder.

    Args:
      folder: the run's folder, or one with runs in it, which go on side by side.
      frames: a new length, to go on past the old end.
    """
    from spectral_bellman.commands.train import resume

    resume(folder, frames)


def evaluate(
    folder: tyro.conf.Positional[Path],
    episodes: int = 10,
    checkpoint: str | None = None,
    video: bool = False,
) -> None:
    """Play greedy episodes from a checkpoint, seeded apart from training.

    Args:
      folder: the run's folder.
      episodes: how many, each seed.
      checkpoint: its name in the folder checkpoints/; the newest if not given.
      video: film the best and the median episode of the first seed.
    """
    from spectral_bellman.commands.evaluate import evaluate

    evaluate(folder, episodes, checkpoint, video, Console())


def report(
    folders: tyro.conf.Positional[tuple[Path, ...]], out: Path | None = None, against: str = "dqn"
) -> None:
    """Learning curves with 95% intervals over seeds, diagnostics, and tables of scores.

    Args:
      folders: runs, folders with runs below them, or archives such as results/minatar/runs.zip.
      out: folder for the figures and the tables.
      against: the agent that tables over several games compare the others with.
    """
    from spectral_bellman.agents.presets import PRESETS
    from spectral_bellman.report.report import report

    rows = {name: preset.row for name, preset in PRESETS.items()}
    report(list(folders), out, Console(), rows, against)


def suite(
    name: tyro.conf.Positional[str] = "",
    out: Path = Path("out/suites"),
    keep: Path = Path("results"),
    minutes: float = 0.0,
    at_once: int = 1,
    cluster: str = "",
    dry_run: bool = False,
) -> None:
    """Run what a suite of runs lacks: begin what is missing, resume what was cut.

    Args:
      name: the suite; without it, all are listed.
      out: folder for the runs and their checkpoints, in a folder with the suite's name.
      keep: finished runs are added to the archive runs.zip of their table in this folder: config,
        summary and a thinned log. What is there is not run again.
      minutes: stop after so many, with nothing lost; 0 for never.
      at_once: runs side by side, which share the accelerator and divide the cores.
      cluster: address of a Ray cluster whose nodes the runs go to, or auto for the one that this
        machine belongs to. --out must be a folder that all nodes share.
      dry_run: say what would be run, and stop.
    """
    from spectral_bellman.commands.lists import named
    from spectral_bellman.commands.suite import suite
    from spectral_bellman.commands.suites import SUITES

    if name:
        suite(name, out, keep, minutes, at_once, dry_run, Console(), cluster)
        return
    table = named("suite", "what it shows")
    for key, value in SUITES.items():
        table.add_row(key, value.what)
    Console().print(table)


def presets(name: tyro.conf.Positional[str] = "", env: str = "") -> None:
    """List the agents, or what one of them is on an environment.

    Args:
      name: an agent, to see all of its settings.
      env: the environment; a setting's value may depend on it.
    """
    from spectral_bellman.commands.lists import presets

    presets(name, env, Console())


def envs() -> None:
    """List the environments."""
    from spectral_bellman.commands.lists import envs

    envs(Console())


def bench(
    env: tyro.conf.Positional[str] = "deep_sea/10",
    presets: tuple[str, ...] = ("dqn", "sbm-dqn-ts"),
    seeds: int = 1,
    seconds: float = 10.0,
    out: Path | None = None,
) -> None:
    """Measure training speed against the bare environment, and presets against the first of them.

    Args:
      env: the environment.
      presets: what to measure; overheads are over the first.
      seeds: seeds trained side by side.
      seconds: to measure each for, after compilation.
      out: a JSON file for the figures.
    """
    from spectral_bellman.commands.bench import bench

    bench(env, presets, seeds, seconds, out, Console())


def tune(arguments: Any) -> None:
    """Try many numbers of settings on an environment in JAX, several seeds each, all at once."""
    from spectral_bellman.commands.tune import tune

    tune(arguments, Console())


def demo(out: Path = Path("out/demo"), episodes: int = 200, seeds: int = 3) -> None:
    """Train sbm-dqn-ts and dqn on deep_sea/10 and compare them: what ``make run`` shows.

    Args:
      out: folder for the runs and the figure; a number is added if it is taken.
      episodes: of each seed.
      seeds: of each agent.
    """
    from spectral_bellman.commands.demo import demo

    demo(out, episodes, seeds, Console())


def tabular(arguments: Any) -> None:
    """Show the method on finite MDPs, where it is exact."""
    from spectral_bellman.tabular import study

    study.run(arguments, Console())


COMMANDS: dict[str, Any] = {
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "report": report,
    "suite": suite,
    "presets": presets,
    "envs": envs,
    "bench": bench,
    "tune": tune,
    "demo": demo,
    "tabular": tabular,
}
CONFIGURED = {
    "tabular": ("spectral_bellman.tabular.study", "TabularStudy"),
    "tune": ("spectral_bellman.commands.tune", "Tuning"),
}
"""Commands whose settings are a dataclass: its module and name."""


def main() -> None:
    """Entry point: a user's mistake is one line and exit status 2, not a traceback."""
    arguments = sys.argv[1:]
    try:
        known = not arguments or arguments[0].startswith("-") or arguments[0] in COMMANDS
        if not known:
            hint = did_you_mean(arguments[0], COMMANDS, cutoff=0.6)
            hint = hint or f"there are {', '.join(COMMANDS)}"
            raise ValueError(f"there is no command {arguments[0]!r}: {hint}")
        if arguments[:1] == ["train"]:
            train(arguments[1:])
        else:
            described = {name: _described(name, command) for name, command in COMMANDS.items()}
            tyro.extras.subcommand_cli_from_dict(
                described, prog="sbm", description="The Spectral Bellman Method."
            )
    except (OSError, ValueError, ImportError, ArithmeticError) as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        # Gymnasium's errors are a user's mistakes too; importing it to name them takes a second.
        if not type(error).__module__.startswith("gymnasium"):
            raise
        _fail(error)


def _fail(error: Exception) -> None:
    text = f"[bold red]error:[/bold red] {escape(str(error))}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)
    sys.exit(2)


def _described(name: str, command: Any) -> Any:
    """What tyro is given for a command."""
    if command is train:
        # The flags of train depend on the preset and the environment: it reads them itself.
        def listed(arguments: Annotated[tuple[str, ...], tyro.conf.Positional]) -> None:
            train(list(arguments))

        listed.__doc__ = train.__doc__
        return listed
    if name in CONFIGURED:
        # Their settings are dataclasses, which are imported only when the command is called.
        def unused() -> None: ...

        function: Any = unused
        if sys.argv[1:2] == [name]:
            module, kind = CONFIGURED[name]
            settings = getattr(importlib.import_module(module), kind)

            def configured(settings: Any) -> None:
                command(settings)

            flags = tyro.conf.OmitArgPrefixes[settings]
            configured.__annotations__["settings"] = flags
            function = configured
        function.__doc__ = command.__doc__
        return function
    return command
