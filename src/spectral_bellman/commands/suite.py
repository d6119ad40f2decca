"""``sbm suite``: what is missing is run, what was cut is resumed, what has finished is kept."""

import math
import os
import time
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectral_bellman._names import did_you_mean, flag_of
from spectral_bellman.commands.keeping import keep_finished
from spectral_bellman.commands.on_cluster import on_cluster
from spectral_bellman.commands.planning import Job, changes, plan
from spectral_bellman.commands.side_by_side import cores_for_each, side_by_side
from spectral_bellman.commands.suites import SUITES
from spectral_bellman.disk.run_folder import CONFIG, SUMMARY
from spectral_bellman.training.progress import say


def suite(
    name: str,
    out: Path,
    keep: Path,
    minutes: float,
    at_once: int,
    dry_run: bool,
    console: Console,
    cluster: str = "",
) -> None:
    """Run what a suite lacks; see ``sbm suite --help``."""
    if name not in SUITES:
        raise ValueError(
            f"there is no suite {name!r}; "
            f"{did_you_mean(name, SUITES, cutoff=0.4) or 'sbm suite lists them'}"
        )
    out, keep = out / name, keep / SUITES[name].table
    if not dry_run:
        keep_finished(out, keep)
    _open_accelerator()
    jobs, counted, notes = plan(SUITES[name], out, keep, at_once)
    finished = len(counted)
    frames = sum(job.config.frames * job.config.seeds for job in jobs)
    say(
        console,
        f"{name}: {SUITES[name].what}; {finished} runs are finished, {len(jobs)} are not "
        f"({frames:,} frames with all seeds)",
    )
    if dry_run and jobs:
        console.print(_table(jobs))
    for note in notes:
        say(console, note)
    if dry_run:
        return
    if taken := next((job.taken for job in jobs if job.taken), ""):
        raise ValueError(taken)
    began, done = time.monotonic(), list[str]()

    def ended(run: str) -> None:
        keep_finished(out, keep)
        if not (out / run / SUMMARY).exists():  # stopped, not finished
            return
        done.append(run)
        left = (time.monotonic() - began) / len(done) * (len(jobs) - len(done)) / 60
        say(
            console,
            f"{name}: {finished + len(done)} of {finished + len(jobs)} runs finished, "
            f"about {math.ceil(left)} minutes to go",
        )

    commands = {job.name: _arguments(job, at_once) for job in jobs}
    if cluster:
        placed = {job.name: (job.folder, commands[job.name]) for job in jobs}
        on_cluster(placed, console, cluster, at_once, minutes, ended)
    else:
        side_by_side(commands, console, at_once, minutes, ended)
    if len(done) < len(jobs):
        say(
            console,
            f"{name}: {len(jobs) - len(done)} runs are not finished, nothing is lost: "
            f"sbm suite {name} goes on",
        )
    say(console, f"{name}: sbm report {keep} lays it out")


def _table(jobs: list[Job]) -> Table:
    """The runs that are not finished, and why. Long names are folded, not cut."""
    table = Table()
    for name in ("run", "seeds", "frames", "", "why"):
        table.add_column(name, overflow="fold", no_wrap=name in ("seeds", "frames", ""))
    for job in jobs:
        first, last = job.config.first_seed, job.config.first_seed + job.config.seeds - 1
        seeds = str(first) if first == last else f"{first}–{last}"
        what = "resume" if (job.folder / CONFIG).exists() else "begin"
        why = Text(f"{job.why}; {job.taken}" if job.taken else job.why)
        frames = f"{job.config.frames:,}"
        table.add_row(Text(job.name), seeds, frames, "refuse" if job.taken else what, why)
    return table


def _open_accelerator() -> None:
    """Look at the accelerator without taking its memory, as JAX would: the runs are to have it."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    before = os.environ.get(name)
    os.environ[name] = "false"
    jax.local_devices()
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _arguments(job: Job, at_once: int) -> list[str]:
    """What ``sbm`` is called with."""
    if (job.folder / CONFIG).exists():
        return ["resume", str(job.folder)]
    config = job.config
    flags: list[str] = []
    for name, value in changes(config).items():
        if isinstance(value, bool):
            flags.append(flag_of(name if value else f"no_{name}"))
        else:
            flags += [
                flag_of(name),
                *(map(str, value) if isinstance(value, tuple) else [str(value)]),
            ]
    if config.emulated and at_once > 1:
        flags += ["--cores", str(cores_for_each(at_once))]
    return ["train", config.preset, "--env", config.env, *flags, "--out", str(job.folder)]
