"""Suites: runs that belong in one table. What is missing is run, what was cut is resumed, and what has finished is kept."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from spectral_bellman._names import did_you_mean
from spectral_bellman.analysis.deep_sea import KEY, episodes_to_solve
from spectral_bellman.analysis.provenance import write_json
from spectral_bellman.analysis.runs import CONFIG, METRICS, load_run
from spectral_bellman.environments import make
from spectral_bellman.scores import ATARI_EXPLORE, HUMAN
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, read_config
from spectral_bellman.training.logs import say
from spectral_bellman.training.run import build, configure
from spectral_bellman.training.several import cores_for_each, side_by_side

MINATAR = tuple(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders"))
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


def _deep_sea(**settings: Any) -> tuple[Block, ...]:
    return tuple(
        Block((preset,), (f"deep_sea/{size}",), 10, {"frames": episodes * size, "log_frames": 10 * size, **settings})
        for preset in ("sbm-dqn-ts", "dqn")
        for size, episodes in ((6, 300), (10, 500), (14, 1_000), (20, 1_500), (30, 2_000))
        if preset == "sbm-dqn-ts" or not settings
    )


_MILLION = {"frames": 1_000_000}
_TEN_MILLION = {"frames": 10_000_000, "eval_frames": 1_000_000}

SUITES = {
    "minatar-dqn": Suite(
        "the five games of MinAtar, four agents; all eight on Breakout and Asterix",
        (
            Block(("dqn", "dqn-ts", "mse-dqn-ts", "sbm-dqn-ts"), MINATAR, 10, _MILLION),
            Block(EIGHT, ("minatar/breakout", "minatar/asterix"), 10, _MILLION),
        ),
    ),
    "dqn-minatar": Suite("DQN as the MinAtar authors have it", (Block(("dqn-minatar",), MINATAR, 5, _MILLION),)),
    "dqn-dopamine": Suite(
        "DQN as Dopamine has it, on the games where its curves are steadiest",
        (Block(("dqn-dopamine",), tuple(f"atari/{game}" for game in ("boxing", "breakout", "space_invaders")), 1, _TEN_MILLION),),
    ),
    "atari-dqn": Suite(
        "sbm-dqn-ts beside dqn: four games, then the rest of Atari Explore",
        (
            Block(
                ("dqn", "sbm-dqn-ts"), tuple(f"atari/{game}" for game in ("boxing", "breakout", "pong", "freeway")), 1, _TEN_MILLION
            ),
            Block(("dqn", "sbm-dqn-ts"), tuple(f"atari/{game}" for game in ATARI_EXPLORE), 1, _TEN_MILLION),
        ),
    ),
    "atari-55": Suite(
        "the paper's benchmark: 55 games, every DQN row, ten seeds, 100 million agent steps",
        (Block(EIGHT, tuple(f"atari/{game}" for game in HUMAN), 10, {"frames": 400_000_000, "eval_frames": 4_000_000}),),
    ),
    "deep-sea": Suite(
        "episodes to solve DeepSea of five sizes, by each way to explore",
        (*_deep_sea(), *_deep_sea(exploration="ucb"), *_deep_sea(exploration="propagated"), *_deep_sea(exploration="epsilon")),
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
    jobs, finished = plan(SUITES[name], out, keep)
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
            table.add_row(job.name, seeds, f"{job.config.frames:,}", "resumed" if cut else "begun")
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


def plan(wanted: Suite, out: Path, keep: Path) -> tuple[list[Job], int]:
    """The runs to begin or to resume, and the number of those that are finished.

    A seed is finished if a run that is kept has it, with the same settings and no fewer frames.
    """
    kept = [(read_config(path.parent), load_run(path.parent).seeds) for path in sorted(keep.glob(f"*/{CONFIG}"))]
    begun = [path.parent for path in sorted(out.glob(f"*/{CONFIG}"))]
    cut = [read_config(folder) for folder in begun if not (folder / "summary.json").exists()]
    jobs: dict[str, Job] = {}
    for config in _configs(wanted):
        have = {seed for other, seeds in kept if _alike(config, other) and other.frames >= config.frames for seed in seeds}
        under_way = [other for other in cut if _alike(config, other) and other.frames >= config.frames]
        for other in under_way:
            job = Job(other, out / _name(other))
            jobs.setdefault(job.name, job)
            have |= set(range(other.first_seed, other.first_seed + other.seeds))
        missing = sorted(set(range(config.seeds)) - have)
        for seeds in _runs_of(missing, _fits(config) if missing else 1):
            part = dataclasses.replace(config, first_seed=seeds[0], seeds=len(seeds))
            name = _name(part)
            for taken in (out / name, keep / name):
                if (taken / CONFIG).exists():
                    raise ValueError(
                        f"{taken} holds a run with other settings than the suite's: move it away, or take another folder"
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
        text = "".join(json.dumps(record) + "\n" for record in _thinned(run.records))
        (target / METRICS).write_text(text, encoding="utf-8")
        write_json(target / "summary.json", summary)
        write_json(target / CONFIG, run.config)  # last: what has it is whole


def _thinned(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every evaluation, and of the other lines so many of each seed that are as far apart as can be, the last among them."""
    frames = sorted({record["frames"] for record in records if "return" in record})
    stride = max(1, math.ceil(len(frames) / KEPT_POINTS))
    chosen = set(frames[::-1][::stride])
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
    fields = ("preset", "env", "num_envs", "round_steps", "groups", "replay_capacity", "atari")
    here, there = config.resolved(), other.resolved()
    return here.agent == there.agent and all(getattr(here, field) == getattr(there, field) for field in fields)


def _name(config: TrainConfig) -> str:
    """The folder of a run: its preset, what is set apart from it, its environment and its seeds."""
    usual = configure(config.preset, make(config.env), {}).agent
    fields = (field.name for field in dataclasses.fields(usual))
    changed = "".join(
        f"-{name}={getattr(config.agent, name)}" for name in fields if getattr(config.agent, name) != getattr(usual, name)
    )
    last = config.first_seed + config.seeds - 1
    seeds = f"{config.first_seed}" if config.seeds == 1 else f"{config.first_seed}-{last}"
    return f"{config.preset}{changed}-{config.env.replace('/', '-')}-seed-{seeds}"


def _fits(config: TrainConfig) -> int:
    """Seeds that the machine holds at once, by the size of what they keep and half as much again to work with."""
    made, bound = make(config.env), memory.limit()
    loop = build(dataclasses.replace(config, seeds=1).resolved(), made)
    states = loop.shapes()
    replay = sum(memory.size(part.replay_shapes()) for part in loop.loops) if loop.host else 0
    loop.close()
    return config.seeds if bound is None else max(1, int(0.9 * bound / (1.5 * (memory.size(states) + replay))))


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
    config, made = job.config, make(job.config.env)
    usual = configure(config.preset, made, {})
    before, after = ({**vars(c), **vars(c.agent)} for c in (usual, config))
    flags: list[str] = []
    for name, value in after.items():
        flag = name.replace("_", "-")
        if name in ("preset", "env", "agent", "atari") or value == before[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    if made.game and at_once > 1:
        flags += ["--cores", str(cores_for_each(at_once))]
    return ["train", config.preset, "--env", config.env, *flags, "--out", str(job.folder)]
