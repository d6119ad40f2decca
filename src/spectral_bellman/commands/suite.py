"""``sbm suite``: what is missing is run, what was cut is resumed, what has finished is kept."""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from spectral_bellman._names import did_you_mean
from spectral_bellman.agents import choices
from spectral_bellman.commands.side_by_side import cores_for_each, side_by_side
from spectral_bellman.commands.suites import SUITES, Suite
from spectral_bellman.disk.archive import ARCHIVE, Unreadable, add_runs, read_file
from spectral_bellman.disk.provenance import to_json
from spectral_bellman.disk.run_folder import CONFIG, METRICS, SUMMARY
from spectral_bellman.environments.catalogue import make
from spectral_bellman.report.deep_sea import KEY, episodes_to_solve
from spectral_bellman.report.runs import Run, find_runs, load_run
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, configure, flat, read_config
from spectral_bellman.training.progress import say
from spectral_bellman.training.runner import build

KEPT_POINTS = 40
"""Log points that are kept of each seed."""
NOT_COMPARED = (
    *("frames", "seeds", "first_seed", "cores", "dispatch_steps", "replay_memory"),
    *("log_frames", "eval_frames", "eval_episodes", "score_episodes", "eval_max_steps"),
    *("checkpoint_minutes", "checkpoint_keep", "checkpoint_replay", "tensorboard", "wandb"),
    *("eval_epsilon", "precision_samples", "precision_rounds"),
)
"""Settings that do not keep two runs from standing in one line of a table: their seeds, lengths,
evaluations, how Σ is estimated, and the machine's part."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Seeds of one agent on one environment that are trained as one run."""

    config: TrainConfig
    folder: Path
    """Where it runs: a folder with a config is a run that was cut."""

    @property
    def name(self) -> str:
        """As it is called on the screen."""
        return self.folder.name


def suite(
    name: str, out: Path, keep: Path, minutes: float, at_once: int, dry_run: bool, console: Console
) -> None:
    """Run what a suite lacks; see ``sbm suite --help``."""
    if name not in SUITES:
        raise ValueError(
            f"there is no suite {name!r}; "
            f"{did_you_mean(name, SUITES, cutoff=0.4) or 'sbm suite lists them'}"
        )
    out, keep = out / name, keep / SUITES[name].table
    keep_finished(out, keep)
    _open_accelerator()
    jobs, finished = plan(SUITES[name], out, keep, at_once)
    frames = sum(job.config.frames * job.config.seeds for job in jobs)
    say(
        console,
        f"{name}: {SUITES[name].what}; {finished} runs are finished, {len(jobs)} are not "
        f"({frames:,} frames with all seeds)",
    )
    if dry_run:
        table = Table("run", "seeds", "frames", "")
        for job in jobs:
            first, cut = job.config.first_seed, (job.folder / CONFIG).exists()
            seeds = (
                f"{first}–{first + job.config.seeds - 1}" if job.config.seeds > 1 else str(first)
            )
            table.add_row(job.name, seeds, f"{job.config.frames:,}", "resume" if cut else "begin")
        console.print(table)
        return
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

    side_by_side(
        {job.name: _arguments(job, at_once) for job in jobs}, console, at_once, minutes, ended
    )
    if len(done) < len(jobs):
        say(
            console,
            f"{name}: {len(jobs) - len(done)} runs are not finished, nothing is lost: "
            f"sbm suite {name} goes on",
        )
    say(console, f"{name}: sbm report {keep} lays it out")


def plan(wanted: Suite, out: Path, keep: Path, at_once: int = 1) -> tuple[list[Job], int]:
    """The runs to begin or to resume, and how many are finished. ``at_once`` share the machine.

    A seed is finished if a run that is kept has it, with the same settings and no fewer frames. A
    kept run that was stopped early does not count: it is replaced when its successor finishes.
    """
    kept = {run.folder.name: (config, run) for config, run in _readable(keep)}
    counted: set[str] = set()
    begun = [path.parent for path in sorted(out.glob(f"*/{CONFIG}"))]
    cut = [Job(read_config(folder), folder) for folder in begun if not (folder / SUMMARY).exists()]
    jobs: dict[str, Job] = {}
    fits: dict[Any, int] = {}
    for config in _configs(wanted):
        have: set[int] = set()
        for kept_name, (other, run) in kept.items():
            if _alike(config, other) and other.frames >= config.frames and _is_finished(other, run):
                have |= set(run.seeds)
                counted.add(kept_name)
        for job in cut:
            if _alike(config, job.config) and job.config.frames >= config.frames:
                jobs.setdefault(job.name, job)
                have |= set(range(job.config.first_seed, job.config.first_seed + job.config.seeds))
        missing = sorted(set(range(config.seeds)) - have)
        # All Atari screens have one size: one game is enough, and few emulators are opened.
        kind = (config.agent, bool(config.protocol) or config.env)
        if missing and kind not in fits:
            fits[kind] = _fits(config, at_once)
        for seeds in _runs_of(missing, fits.get(kind, 1)):
            part = dataclasses.replace(config, first_seed=seeds[0], seeds=len(seeds))
            name = _name(part)
            if (out / name / CONFIG).exists():
                _refuse_other(out / name, read_config(out / name), part)
            if name in kept and not _is_stopped(*kept[name], part):
                _refuse_other(kept[name][1].folder, kept[name][0], part)
            jobs.setdefault(name, Job(part, out / name))
    return list(jobs.values()), len(counted)


def _readable(keep: Path) -> Iterator[tuple[TrainConfig, Run]]:
    """Kept runs with settings of today; runs with settings that were removed count for nothing."""
    try:
        paths = find_runs([keep])
    except FileNotFoundError:  # nothing is kept yet
        return
    for path in paths:
        try:
            config = read_config(path)
        except Unreadable:
            raise
        except ValueError:
            continue
        yield config, load_run(path)


def _is_finished(config: TrainConfig, run: Run) -> bool:
    return bool(run.records) and run.frames >= config.frames


def _is_stopped(config: TrainConfig, run: Run, wanted: TrainConfig) -> bool:
    """Whether a kept run is the beginning of the wanted one."""
    same = _alike(config, wanted) and config.frames == wanted.frames
    return same and not _is_finished(config, run)


def _refuse_other(taken: Path, old: TrainConfig, wanted: TrainConfig) -> None:
    other = ", ".join(_differences(old, wanted)) or f"frames {old.frames}, not {wanted.frames}"
    raise ValueError(
        f"{taken} holds a run with other settings than the suite has on this machine ({other}): "
        "move it away, or take other folders (--out, --keep)"
    )


def keep_finished(out: Path, keep: Path) -> None:
    """Add what has finished to the archive: config, summary, and some points of the log."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(out.glob(f"*/{SUMMARY}")):
        run, name = load_run(path.parent), path.parent.name
        summary = json.loads(path.read_bytes())
        if run.config["env"].startswith("deep_sea/"):
            summary[KEY] = {
                str(seed): episodes for seed, episodes in episodes_to_solve(run).items()
            }
        with contextlib.suppress(FileNotFoundError):
            if json.loads(read_file(keep / ARCHIVE / name / SUMMARY)) == summary:
                continue
        log = "".join(json.dumps(record) + "\n" for record in _thinned(run.records))
        files = {CONFIG: to_json(run.config), METRICS: log, SUMMARY: to_json(summary)}
        found[name] = {file: text.encode() for file, text in files.items()}
    if found:
        add_runs(keep / ARCHIVE, found)


def _thinned(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every evaluation, and ``KEPT_POINTS`` evenly spaced other lines of each seed.

    As many lines again in which an episode ended: long episodes that began together end together,
    and seldom.
    """
    chosen = set[int]()
    for lines in (
        [r for r in records if "return" in r],
        [r for r in records if r.get("return") is not None],
    ):
        frames = sorted({record["frames"] for record in lines})
        chosen |= set(frames[::-1][:: max(1, math.ceil(len(frames) / KEPT_POINTS))])
    for record in records:
        if "eval_return" in record or record["frames"] in chosen:
            yield {
                key: float(f"{value:.5g}") if isinstance(value, float) else value
                for key, value in record.items()
            }


def _configs(wanted: Suite) -> Iterator[TrainConfig]:
    for presets, envs, seeds, settings in wanted.blocks:
        for env in envs:
            for preset in presets:
                yield configure(preset, make(env), {**settings, "seeds": seeds})


def _alike(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether two runs may stand in one line of a table."""
    return not _differences(config, other)


def _differences(config: TrainConfig, other: TrainConfig) -> list[str]:
    """What keeps two runs from standing in one line, as text."""
    here, there = (flat(c.resolved()) for c in (config, other))
    names = [name for name in here.keys() | there.keys() if name not in NOT_COMPARED]
    return [
        f"{name} {here.get(name)}, not {there.get(name)}"
        for name in sorted(names)
        if here.get(name) != there.get(name)
    ]


def _changed(config: TrainConfig) -> dict[str, Any]:
    """The settings that are not the preset's on this environment."""
    spec = make(config.env)
    after = flat(config)
    before = flat(configure(config.preset, spec))
    chosen = {k: after[k] for k in ("representation", "exploration") if after[k] != before[k]}
    before = flat(configure(config.preset, spec, chosen))
    changed = {name: value for name, value in after.items() if value != before.get(name)}
    return {**chosen, **changed}


def _name(config: TrainConfig) -> str:
    """The folder of a run: its preset, what is set apart from it, its environment and its seeds."""
    changed = "".join(
        f"-{name}={value}"
        for name, value in _changed(config).items()
        if name in choices.flat(config.agent)
    )
    last = config.first_seed + config.seeds - 1
    seeds = f"{config.first_seed}" if config.seeds == 1 else f"{config.first_seed}-{last}"
    return f"{config.preset}{changed}-{config.env.replace('/', '-')}-seed-{seeds}"


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


def _fits(config: TrainConfig, at_once: int) -> int:
    """Seeds that fit a share of the machine: what they keep, and half as much to work with."""
    bound = memory.limit()
    runners = build(dataclasses.replace(config, seeds=1).resolved(), make(config.env))
    one = sum(memory.held(runners, runners.shapes()))
    runners.close()
    return config.seeds if bound is None else max(1, int(0.9 * bound / at_once / (1.5 * one)))


def _runs_of(seeds: list[int], most: int) -> list[list[int]]:
    """The seeds in runs that follow one another, at most so many in each."""
    found: list[list[int]] = []
    for seed in seeds:
        if found and seed == found[-1][-1] + 1 and len(found[-1]) < most:
            found[-1].append(seed)
        else:
            found.append([seed])
    return found


def _arguments(job: Job, at_once: int) -> list[str]:
    """What ``sbm`` is called with."""
    if (job.folder / CONFIG).exists():
        return ["resume", str(job.folder)]
    config = job.config
    flags: list[str] = []
    for name, value in _changed(config).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    if config.protocol and at_once > 1:
        flags += ["--cores", str(cores_for_each(at_once))]
    return ["train", config.preset, "--env", config.env, *flags, "--out", str(job.folder)]
