"""Suites: runs that belong in one table. What is missing is run, what was cut is resumed, and what has finished is kept."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from spectral_bellman._names import did_you_mean
from spectral_bellman.analysis.deep_sea import KEY, episodes_to_solve
from spectral_bellman.analysis.provenance import write_json
from spectral_bellman.analysis.runs import CONFIG, METRICS, load_run
from spectral_bellman.environments import make
from spectral_bellman.scores import ATARI_EXPLORE, HUMAN, MINATAR
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, read_config
from spectral_bellman.training.logs import say
from spectral_bellman.training.run import build, configure
from spectral_bellman.training.several import cores_for_each, side_by_side

GAMES = tuple(f"minatar/{game}" for game in MINATAR)
TUNED_ON = ("minatar/breakout", "minatar/asterix")
EIGHT = (
    "dqn",
    "dqn-ts",
    "mse-dqn-ts",
    "sbm-dqn-ts-no-orth",
    "pvn-dqn",
    "pvn-dqn-ts",
    "sbm-dqn",
    "sbm-dqn-ts",
)
"""Every DQN row of the paper's tables."""
KEPT_POINTS = 40
"""Log points that are kept of each seed."""


class Block(NamedTuple):
    """Every preset on every environment, with seeds 0 to ``seeds`` − 1."""

    presets: tuple[str, ...]
    envs: tuple[str, ...]
    seeds: int
    settings: Mapping[str, Any]


class Suite(NamedTuple):
    """Blocks of runs, and what they show."""

    what: str
    blocks: tuple[Block, ...]


def _atari(*games: str) -> tuple[str, ...]:
    return tuple(f"atari/{game}" for game in games)


def _deep_sea(*ways: tuple[str, Mapping[str, Any]]) -> tuple[Block, ...]:
    """Each preset with its settings on five sizes, the quick ones first; up to a thousand episodes are remembered."""
    blocks = []
    for size, episodes in ((6, 300), (10, 500), (14, 700), (20, 1_000), (30, 1_200)):
        lengths = {"frames": episodes * size, "log_frames": 10 * size, "replay_capacity": min(episodes, 1_000) * size}
        blocks += [Block((preset,), (f"deep_sea/{size}",), 10, {**lengths, **settings}) for preset, settings in ways]
    return tuple(blocks)


_MILLION = {"frames": 1_000_000}
_TEN_MILLION = {"frames": 10_000_000, "eval_frames": 1_000_000}
UNIT = {
    "norm": "unit",
    "features": 128,
    "representation_steps": 12,
    "q_steps": 4,
    "q_start": "backup",
    "learning_rate": 2.5e-3,
    "head_rate": 1.0,
    "theta_variance": 0.5,
    "feature_orthogonality": 0.03,
    "noise_anneal_steps": 0,
}
"""SBM on MinAtar with all features of unit norm and Q made of them: the best setting of that kind."""
# What is counted in rounds goes with their length, so that is here too: the preset's own is shorter where there is no GPU.
_ATARI_ROUND = {"num_envs": 256, "round_steps": 16}
ATARI_UNIT = {
    **_ATARI_ROUND,
    "target_rounds": 1,
    "norm": "unit",
    "representation": "spectral",
    "features": 256,
    "representation_steps": 96,
    "q_steps": 32,
    "theta_variance": 1e-4,
    "feature_orthogonality": 0.03,
    "noise_scale": 100.0,
}
"""SBM on Atari with all features of unit norm, θ̂ fitted, and the paper's loss over sampled θ."""
# Dopamine's own batches, where the preset has eight of them in one.
_DOPAMINE_BATCH = {
    **_ATARI_ROUND,
    "target_rounds": 2,
    "batch": 32,
    "representation_steps": 768,
    "q_steps": 256,
    "learning_rate": 6.25e-5,
    "adam_epsilon": 1.5e-4,
    "dispatch_steps": 32,
}

SUITES = {
    "minatar-dqn": Suite(
        "the five games of MinAtar, four agents and SBM of unit norm; all eight on Breakout and Asterix",
        (
            Block(("dqn", "dqn-ts", "mse-dqn-ts", "sbm-dqn-ts"), GAMES, 10, _MILLION),
            Block(EIGHT, TUNED_ON, 10, _MILLION),
            Block(("sbm-dqn-ts",), GAMES, 10, {**_MILLION, **UNIT, "representation": "expected"}),
            Block(("sbm-dqn",), TUNED_ON, 10, {**_MILLION, **UNIT, "representation": "expected"}),
            Block(("sbm-dqn-ts",), TUNED_ON, 10, {**_MILLION, **UNIT, "representation": "spectral"}),
        ),
    ),
    "dqn-minatar": Suite("DQN as the MinAtar authors have it", (Block(("dqn-minatar",), GAMES, 5, _MILLION),)),
    "dqn-dopamine": Suite(
        "DQN as Dopamine has it, on the games where its curves are steadiest",
        (
            Block(("dqn-dopamine",), _atari("boxing", "breakout", "space_invaders"), 1, _TEN_MILLION),
            Block(("dqn-dopamine",), _atari("breakout"), 1, {**_TEN_MILLION, **_DOPAMINE_BATCH}),
        ),
    ),
    "atari-dqn": Suite(
        "sbm-dqn-ts beside dqn: four games, three of them with SBM of unit norm too, then the rest of Atari Explore",
        (
            Block(("dqn", "sbm-dqn-ts"), _atari("boxing", "breakout", "pong", "freeway"), 1, _TEN_MILLION),
            Block(("sbm-dqn-ts",), _atari("boxing", "breakout", "pong"), 1, {**_TEN_MILLION, **ATARI_UNIT}),
            Block(("dqn", "sbm-dqn-ts"), _atari(*ATARI_EXPLORE), 1, _TEN_MILLION),
        ),
    ),
    "atari-55": Suite(
        "the paper's benchmark: 55 games, every DQN row, ten seeds, 100 million agent steps",
        (Block(EIGHT, _atari(*HUMAN), 10, {"frames": 400_000_000, "eval_frames": 4_000_000}),),
    ),
    "deep-sea": Suite(
        "episodes to solve DeepSea of five sizes, by each way to explore",
        _deep_sea(("dqn", {}), *(("sbm-dqn-ts", {"exploration": way}) for way in ("epsilon", "thompson", "ucb", "propagated"))),
    ),
}


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


def suite(name: str, out: Path, keep: Path, minutes: float, at_once: int, dry_run: bool, console: Console) -> None:
    """Run what a suite lacks; see ``sbm suite --help``."""
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}; {did_you_mean(name, SUITES, cutoff=0.4) or 'sbm suite lists them'}")
    out, keep = out / name, keep / name
    keep_finished(out, keep)
    _open_accelerator()
    jobs, finished = plan(SUITES[name], out, keep, at_once)
    frames = sum(job.config.frames * job.config.seeds for job in jobs)
    say(
        console,
        f"{name}: {SUITES[name].what}; {finished} runs are finished, {len(jobs)} are not ({frames:,} frames with all seeds)",
    )
    if dry_run:
        table = Table("run", "seeds", "frames", "")
        for job in jobs:
            first, cut = job.config.first_seed, (job.folder / CONFIG).exists()
            seeds = f"{first}–{first + job.config.seeds - 1}" if job.config.seeds > 1 else str(first)
            table.add_row(job.name, seeds, f"{job.config.frames:,}", "resume" if cut else "begin")
        console.print(table)
        return
    began, done = time.monotonic(), list[str]()

    def ended(run: str) -> None:
        keep_finished(out, keep)
        if not (keep / run / CONFIG).exists():  # stopped, not finished
            return
        done.append(run)
        left = (time.monotonic() - began) / len(done) * (len(jobs) - len(done)) / 60
        say(
            console,
            f"{name}: {finished + len(done)} of {finished + len(jobs)} runs finished, about {math.ceil(left)} minutes to go",
        )

    side_by_side({job.name: _arguments(job, at_once) for job in jobs}, console, at_once, minutes, ended)
    if len(done) < len(jobs):
        say(console, f"{name}: {len(jobs) - len(done)} runs are not finished, nothing is lost: sbm suite {name} goes on")
    say(console, f"{name}: sbm report {keep} lays it out")


def plan(wanted: Suite, out: Path, keep: Path, at_once: int = 1) -> tuple[list[Job], int]:
    """The runs to begin or to resume, of which ``at_once`` share the machine, and the number of those that are finished.

    A seed is finished if a run that is kept has it, with the same settings and no fewer frames.
    """
    kept = [(read_config(path.parent), load_run(path.parent).seeds) for path in sorted(keep.glob(f"*/{CONFIG}"))]
    begun = [path.parent for path in sorted(out.glob(f"*/{CONFIG}"))]
    cut = [Job(read_config(folder), folder) for folder in begun if not (folder / "summary.json").exists()]
    jobs: dict[str, Job] = {}
    fits: dict[Any, int] = {}
    for config in _configs(wanted):
        have = {seed for other, seeds in kept if _alike(config, other) and other.frames >= config.frames for seed in seeds}
        for job in cut:
            if _alike(config, job.config) and job.config.frames >= config.frames:
                jobs.setdefault(job.name, job)
                have |= set(range(job.config.first_seed, job.config.first_seed + job.config.seeds))
        missing = sorted(set(range(config.seeds)) - have)
        # The screens of all Atari games are of one size: one of them tells for all, and emulators need not be opened for each.
        kind = (config.agent, bool(config.atari) or config.env)
        if missing and kind not in fits:
            fits[kind] = _fits(config, at_once)
        for seeds in _runs_of(missing, fits.get(kind, 1)):
            part = dataclasses.replace(config, first_seed=seeds[0], seeds=len(seeds))
            name = _name(part)
            for taken in (out / name, keep / name):
                if (taken / CONFIG).exists():
                    old = read_config(taken)
                    other = ", ".join(_differences(old, part)) or f"frames {old.frames}, not {part.frames}"
                    raise ValueError(
                        f"{taken} holds a run with other settings than the suite has on this machine ({other}): "
                        "move it away, or take other folders (--out, --keep)"
                    )
            jobs.setdefault(name, Job(part, out / name))
    return list(jobs.values()), len(kept)


def keep_finished(out: Path, keep: Path) -> None:
    """Keep what has finished: config, summary, and some points of the log; small enough for a repository."""
    for path in sorted(out.glob("*/summary.json")):
        run, target = load_run(path.parent), keep / path.parent.name
        summary = json.loads(path.read_bytes())
        if run.config["env"].startswith("deep_sea/"):
            summary[KEY] = {str(seed): episodes for seed, episodes in episodes_to_solve(run).items()}
        if (target / CONFIG).exists() and json.loads((target / "summary.json").read_bytes()) == summary:
            continue
        target.mkdir(parents=True, exist_ok=True)
        (target / CONFIG).unlink(missing_ok=True)
        text = "".join(json.dumps(record) + "\n" for record in _thinned(run.records))
        (target / METRICS).write_text(text, encoding="utf-8")
        write_json(target / "summary.json", summary)
        write_json(target / CONFIG, run.config)  # last: what has it is whole


def _thinned(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every evaluation, and of the other lines so many of each seed that are as far apart as can be, the last among them.

    As many again are chosen of those in which an episode ended: long episodes that began together end together, and seldom.
    """
    chosen = set[int]()
    for lines in ([r for r in records if "return" in r], [r for r in records if r.get("return") is not None]):
        frames = sorted({record["frames"] for record in lines})
        chosen |= set(frames[::-1][:: max(1, math.ceil(len(frames) / KEPT_POINTS))])
    for record in records:
        if "eval_return" in record or record["frames"] in chosen:
            yield {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in record.items()}


def _configs(wanted: Suite) -> Iterator[TrainConfig]:
    for presets, envs, seeds, settings in wanted.blocks:
        for env in envs:
            for preset in presets:
                yield configure(preset, make(env), {**settings, "seeds": seeds})


def _alike(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether two runs may stand in one line of a table: all but their seeds, lengths and the machine's part is the same."""
    return not _differences(config, other)


def _differences(config: TrainConfig, other: TrainConfig) -> list[str]:
    """What keeps two runs from standing in one line, as text."""
    fields = ("preset", "env", "num_envs", "round_steps", "groups", "replay_capacity", "atari")
    here, there = ({name: vars(c)[name] for name in fields} | vars(c.agent) for c in (config.resolved(), other.resolved()))
    return [f"{name} {here[name]}, not {there[name]}" for name in here if here[name] != there[name]]


def _changed(config: TrainConfig) -> dict[str, Any]:
    """The settings of the run and of the agent that are not the preset's on this environment."""
    usual = configure(config.preset, make(config.env), {})
    before, after = ({**vars(c), **vars(c.agent)} for c in (usual, config))
    return {name: value for name, value in after.items() if name not in ("agent", "atari") and value != before[name]}


def _name(config: TrainConfig) -> str:
    """The folder of a run: its preset, what is set apart from it, its environment and its seeds."""
    changed = "".join(f"-{name}={value}" for name, value in _changed(config).items() if name in vars(config.agent))
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
    """Seeds that a share of the machine holds, by the size of what they keep and half as much again to work with."""
    bound = memory.limit()
    loop = build(dataclasses.replace(config, seeds=1).resolved(), make(config.env))
    one = sum(memory.held(loop, loop.shapes()))
    loop.close()
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
    if config.atari and at_once > 1:
        flags += ["--cores", str(cores_for_each(at_once))]
    return ["train", config.preset, "--env", config.env, *flags, "--out", str(job.folder)]
