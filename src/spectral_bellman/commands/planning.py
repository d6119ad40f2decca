"""What a suite still has to run, and why: its lines compared with the runs that are kept."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spectral_bellman.agents import choices
from spectral_bellman.agents.presets import find_preset
from spectral_bellman.commands.keeping import Kept, finished_runs, kept_runs
from spectral_bellman.commands.suites import Suite
from spectral_bellman.disk.migrate import NOISE_ANNEALS
from spectral_bellman.disk.run_folder import CONFIG, SUMMARY
from spectral_bellman.environments.catalogue import make
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, configure, flat, read_config
from spectral_bellman.training.runner import build

NOT_COMPARED = (
    *("frames", "seeds", "first_seed", "cores", "dispatch_steps", "replay_memory"),
    *("log_frames", "eval_frames", "eval_episodes", "score_episodes", "eval_max_steps"),
    *("checkpoint_minutes", "checkpoint_keep", "checkpoint_replay", "tensorboard", "wandb"),
    *("eval_epsilon", "precision_samples", "precision_distinct", "precision_rounds"),
)
"""Settings that do not keep two runs from standing in one line of a table: their seeds, lengths,
evaluations, how Σ is estimated, and the machine's part."""
BACKENDS = ("cpu", "gpu")
"""JAX's backends. A run may have the settings of any of them, see ``Family.machine``."""
MOST_NAMED = 4
"""Differing settings that a reason names."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Seeds of one agent on one environment that are trained as one run."""

    config: TrainConfig
    folder: Path
    """Where it runs: a folder with a config is a run that was cut."""
    why: str
    """Why it is not finished."""
    taken: str = ""
    """An error if another run has its name."""

    @property
    def name(self) -> str:
        """As it is called on the screen."""
        return self.folder.name


class Plan(NamedTuple):
    """What a suite still has to do."""

    jobs: list[Job]
    """Runs to begin or to resume."""
    finished: list[Kept]
    """Runs that are kept and count."""
    notes: list[str]
    """What distinguishes kept runs from those that would be made today."""


class Line(NamedTuple):
    """One agent on one environment, a line of a table."""

    config: TrainConfig
    """As it is run on this machine."""
    anywhere: Mapping[str, TrainConfig]
    """As it is run on a machine with each of ``BACKENDS``."""

    def holds(self, config: TrainConfig | None) -> bool:
        """Whether a run may stand in this line, wherever it was made and however long it is."""
        if config is None:
            return False
        return any(not differences(config, one) for one in self.anywhere.values())

    def is_finished_by(self, kept: Kept) -> bool:
        """Whether the seeds of a kept run are finished."""
        config = kept.config
        if config is None or config.frames < self.config.frames or not _is_whole(kept):
            return False
        return self.holds(config)

    def differs(self, config: TrainConfig, devices: Collection[str] = ()) -> list[str]:
        """What keeps a run from standing in this line, if it was made on these devices."""
        if devices:
            backend = "cpu" if set(devices) == {"cpu"} else "gpu"
            return differences(config, self.anywhere[backend])
        return min((differences(config, one) for one in self.anywhere.values()), key=len)


def plan(wanted: Suite, out: Path, keep: Path, at_once: int = 1) -> Plan:
    """The runs to begin or to resume, and those that are finished. ``at_once`` share the machine.

    A seed is finished if a run that is kept has it, with the same settings and no fewer frames. A
    kept run that was stopped early does not count: it is replaced when its successor finishes.
    """
    kept = {**finished_runs(out), **kept_runs(keep)}
    counted: dict[str, Kept] = {}
    begun = [path.parent for path in sorted(out.glob(f"*/{CONFIG}"))]
    cut = [
        Job(read_config(folder), folder, "it was stopped")
        for folder in begun
        if not (folder / SUMMARY).exists()
    ]
    jobs: dict[str, Job] = {}
    fits: dict[Any, int] = {}
    changed: dict[str, None] = {}
    for line in lines_of(wanted):
        config = line.config
        have: set[int] = set()
        for name, each in kept.items():
            if line.is_finished_by(each):
                have |= set(each.run.seeds)
                counted[name] = each
        for job in cut:
            if line.holds(job.config) and job.config.frames >= config.frames:
                jobs.setdefault(job.name, job)
                have |= set(_seeds(job.config))
        if not (missing := sorted(set(range(config.seeds)) - have)):
            continue
        here = [each for each in kept.values() if _place(each.run.config) == _place(vars(config))]
        if any(not line.holds(each.config) for each in here):
            changed |= dict.fromkeys(meaning_changed(config))
        # All Atari screens have one size: one game is enough, and few emulators are opened.
        kind = (config.agent, config.emulated or config.env)
        if kind not in fits:
            fits[kind] = seeds_that_fit(config, at_once)
        for seeds in _runs_of(missing, fits[kind]):
            part = dataclasses.replace(config, first_seed=seeds[0], seeds=len(seeds))
            name = run_name(part)
            taken = _taken(line, out / name, kept.get(name))
            jobs.setdefault(name, Job(part, out / name, _why(line, here), taken))
    return Plan(list(jobs.values()), list(counted.values()), [*_older(counted), *changed])


def lines_of(wanted: Suite) -> Iterator[Line]:
    """The lines of the table of a suite."""
    for presets, envs, seeds, settings in wanted.blocks:
        for env in envs:
            for preset in presets:
                own, spec = {**settings, "seeds": seeds}, make(env)
                anywhere = {name: configure(preset, spec, own, name) for name in BACKENDS}
                yield Line(configure(preset, spec, own), anywhere)


def differences(config: TrainConfig, other: TrainConfig) -> list[str]:
    """What keeps two runs from standing in one line, as text."""
    here, there = (flat(c.resolved()) for c in (config, other))
    names = [name for name in here.keys() | there.keys() if name not in NOT_COMPARED]
    return [
        f"{name} {here.get(name)}, not {there.get(name)}"
        for name in sorted(names)
        if here.get(name) != there.get(name)
    ]


def meaning_changed(config: TrainConfig) -> list[str]:
    """A sentence for a preset whose name meant another agent before."""
    text = find_preset(config.preset).changed.get(make(config.env).family)
    return [text] if text else []


def changes(config: TrainConfig) -> dict[str, Any]:
    """The settings that are not the preset's on this environment."""
    spec = make(config.env)
    after = flat(config)
    before = flat(configure(config.preset, spec))
    kinds = [kind for kind in choices.KINDS if kind in after and after[kind] != before.get(kind)]
    chosen = {kind: after[kind] for kind in kinds}
    before = flat(configure(config.preset, spec, chosen))
    changed = {name: value for name, value in after.items() if value != before.get(name)}
    return {**chosen, **changed}


def run_name(config: TrainConfig) -> str:
    """The folder of a run: its preset, what is set apart from it, its environment and its seeds."""
    changed = "".join(
        f"-{name}={value}"
        for name, value in changes(config).items()
        if name in choices.flat(config.agent)
    )
    last = config.first_seed + config.seeds - 1
    seeds = f"{config.first_seed}" if config.seeds == 1 else f"{config.first_seed}-{last}"
    return f"{config.preset}{changed}-{config.env.replace('/', '-')}-seed-{seeds}"


def seeds_that_fit(config: TrainConfig, at_once: int) -> int:
    """Seeds that fit a share of the machine: what they keep, and half as much to work with."""
    bound = memory.limit()
    runners = build(dataclasses.replace(config, seeds=1).resolved(), make(config.env))
    one = sum(memory.held(runners, runners.shapes()))
    runners.close()
    return config.seeds if bound is None else max(1, int(0.9 * bound / at_once / (1.5 * one)))


def _seeds(config: TrainConfig) -> range:
    return range(config.first_seed, config.first_seed + config.seeds)


def _place(config: Mapping[str, Any]) -> tuple[str, str]:
    return config["preset"], config["env"]


def _is_whole(kept: Kept) -> bool:
    """Whether a kept run has all of its frames."""
    run, config = kept.run, kept.config
    return config is not None and bool(run.records) and run.frames >= config.frames


def _taken(line: Line, folder: Path, kept: Kept | None) -> str:
    """The error if another run has the name of a new one."""
    if (folder / CONFIG).exists():
        place, old = folder, read_config(folder, migrate=True)
    elif kept is None:
        return ""
    else:
        place, frames = kept.run.folder, line.config.frames
        if kept.config is None:
            return _in_the_way(place, "settings that have no meaning today")
        old = kept.config
        if old.frames == frames and line.holds(old) and not _is_whole(kept):
            return ""  # it is the beginning of the new one, which will replace it
    frames = line.config.frames
    return _in_the_way(place, ", ".join(line.differs(old)) or f"frames {old.frames}, not {frames}")


def _in_the_way(place: Path, other: str) -> str:
    return (
        f"{place} holds a run with other settings than the suite has ({other}): "
        "move it away, or take other folders (--out, --keep)"
    )


def _why(line: Line, kept: Collection[Kept]) -> str:
    """Why seeds are missing, from the kept runs of this preset and environment."""
    if not kept:
        return "none is kept"
    if any(line.is_finished_by(each) for each in kept):
        return "other seeds are kept"
    alike = [each for each in kept if line.holds(each.config)]
    if alike:
        longest = max(each.run.frames if each.run.records else 0 for each in alike)
        return f"the kept run ended at {longest:,} of {line.config.frames:,} frames"
    found = [
        line.differs(each.config, each.run.provenance.get("device") or ())
        for each in kept
        if each.config
    ]
    if not found:
        return f"the kept run has no meaning today: {next(iter(kept)).problem}"
    nearest = min(found, key=len)
    more = f" and {len(nearest) - MOST_NAMED} more" if len(nearest) > MOST_NAMED else ""
    return f"the kept run has {', '.join(nearest[:MOST_NAMED])}{more}"


def _older(counted: Mapping[str, Kept]) -> list[str]:
    """What distinguishes finished runs from those that would be made today."""
    found: dict[tuple[str, str], int] = {}
    for each in counted.values():
        if what := each.run.provenance.get(NOISE_ANNEALS):
            place = each.run.config["preset"], what
            found[place] = found.get(place, 0) + 1
    return [
        f"{preset}: {count} finished runs annealed the {what} of their noise (version 0.1), and "
        "new runs anneal its standard deviation. The finished runs count; another --keep makes "
        "them again"
        for (preset, what), count in sorted(found.items())
    ]


def _runs_of(seeds: list[int], most: int) -> list[list[int]]:
    """The seeds in runs that follow one another, at most so many in each."""
    found: list[list[int]] = []
    for seed in seeds:
        if found and seed == found[-1][-1] + 1 and len(found[-1]) < most:
            found[-1].append(seed)
        else:
            found.append([seed])
    return found
