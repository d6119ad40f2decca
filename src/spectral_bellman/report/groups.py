"""Runs that belong together: all seeds of one agent in one environment, with their final scores."""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from spectral_bellman.disk.migrate import NOISE_ANNEALS
from spectral_bellman.report.families import UNKNOWN, Environment, environments
from spectral_bellman.report.runs import Run, series
from spectral_bellman.report.scoring import TRAINING, SeedScore, rule, seed_score, training_return

MOST_NAMED = 3
"""Settings in a label. If more are needed to distinguish agents, all that differ are named."""
UNSET = "unset"
"""The value of a setting in the label of a run whose config does not have it."""


CHOICES = {"backbone", "operator", "sampling", "representation", "exploration", "solver"}
"""Settings that have settings of their own."""
REMOVED = {"expected", "averaged"}
"""Representations of earlier versions."""


@dataclass(frozen=True)
class Group:
    """One agent in one environment: the seeds of all its runs."""

    env: str
    agent: str
    runs: Sequence[Run]
    environment: Environment = UNKNOWN
    """What the report knows of the environment."""

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the agent and cannot see in its settings."""
        lowered = {fact for run in self.runs if (fact := run.provenance.get(NOISE_ANNEALS))}
        return [
            f"noise annealed by its {what} (version 0.1), not by its standard deviation"
            for what in sorted(lowered)
        ]

    @property
    def frames(self) -> list[int]:
        """The last logged frame of each run."""
        return [run.frames for run in self.runs]

    @property
    def frames_per_s(self) -> float:
        """The median over log lines, so that the first one with the compilation does not count."""
        speeds = [record.get("frames_per_s") for run in self.runs for record in run.records]
        known = [speed for speed in speeds if speed is not None]
        return float(np.median(known)) if known else math.nan

    @property
    def key(self) -> str:
        """The logged key behind the score: evaluations if every run has some."""
        evaluated = all("eval_return" in run.keys for run in self.runs)
        return "eval_return" if evaluated else "return"

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Frames (T,) and values (seeds, T) of a key; seeds of runs without it are left out.

        Where runs logged at different frames, all are interpolated at those of the longest run,
        with NaN beyond the end of a run.
        """
        found = [series(run, key) for run in self.runs if key in run.keys]
        if not found:
            return np.zeros(0, int), np.zeros((0, 0))
        grid = max((frames for frames, _ in found), key=lambda frames: int(frames[-1]))
        rows = [
            np.interp(grid, frames, row, left=np.nan, right=np.nan)
            for frames, values in found
            for row in values
        ]
        return grid, np.array(rows)

    @cached_property
    def final(self) -> np.ndarray:
        """The score of each seed, (seeds,); NaN for a seed without a finished episode."""
        if self.key == "return":
            return self.training
        return np.array([score.value for score in self._evaluated])

    @cached_property
    def training(self) -> np.ndarray:
        """The training return of each seed over the last tenth of its frames, (seeds,)."""
        return np.array([training_return(run, seed) for run in self.runs for seed in run.seeds])

    @property
    def rule(self) -> str:
        """How the seeds were scored: "3 × 30 episodes", or "training" without evaluations."""
        return TRAINING if self.key == "return" else rule(self._evaluated)

    @cached_property
    def _evaluated(self) -> list[SeedScore]:
        return [seed_score(run, seed) for run in self.runs for seed in run.seeds]


def merged_notes(notes: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Each note once, after the agents that it is about; from agents with their notes."""
    agents: dict[str, dict[str, None]] = {}
    for agent, texts in notes:
        for text in texts:
            agents.setdefault(text, {})[agent] = None
    return [f"{', '.join(names)}: {text}" for text, names in agents.items()]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of one preset in one environment, pooled if all their agent settings are the same.

    Where they differ, the label names the smallest set of settings that distinguishes the runs, or
    the choices alone where those differ. A representation of an earlier version is always named. A
    setting that only one of two configs has counts as a difference: what the other run did is not
    known. Its label says "unset".
    """
    known = environments(runs)
    settings = [_settings(run) for run in runs]
    # A setting is named if it differs within an environment. One that differs only between
    # environments distinguishes no agents.
    differing: dict[str, set[str]] = {}
    for i, run in enumerate(runs):
        for j, other in enumerate(runs[:i]):
            if _place(run) == _place(other):
                ours, theirs = settings[i], settings[j]
                keys = {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
                # Another choice has other settings: its name says enough.
                differing.setdefault(run.config["preset"], set()).update(keys & CHOICES or keys)
    named = {
        preset: _smallest(
            keys,
            [s for run, s in zip(runs, settings, strict=True) if run.config["preset"] == preset],
        )
        for preset, keys in differing.items()
    }
    for run, setting in zip(runs, settings, strict=True):
        if setting.get("representation") in REMOVED:
            preset = run.config["preset"]
            named[preset] = tuple(sorted({*named.get(preset, ()), "representation"}))
    pooled: dict[tuple[str, str], list[Run]] = {}
    for run, setting in zip(runs, settings, strict=True):
        env, preset = _place(run)
        values = ", ".join(f"{key}={setting.get(key, UNSET)}" for key in named.get(preset, ()))
        pooled.setdefault((env, f"{preset} ({values})" if values else preset), []).append(run)
    for (env, agent), members in pooled.items():
        _refuse_seeds_twice(env, agent, members)
    return [
        Group(env, agent, members, known[env])
        for (env, agent), members in sorted(pooled.items(), key=_key)
    ]


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The settings of an agent as text by name, from a flat or a nested config.

    A nested record with a "name" is a choice: `{"exploration": {"name": "ucb", "noise_scale": 1}}`
    gives `exploration=ucb, noise_scale=1`. The names of other nested settings are dotted. So is a
    number whose plain name is taken.
    """
    flat: dict[str, str] = {}
    nested: dict[str, Mapping[str, Any]] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            nested[key] = value
            if "name" in value:
                flat[prefix + key] = _text(value["name"])
        else:
            flat[prefix + key] = _text(value)
    for key, record in nested.items():
        if "name" not in record:
            flat |= flat_settings(record, f"{prefix}{key}.")
            continue
        own = {name: value for name, value in record.items() if name != "name"}
        for name, text in flat_settings(own).items():
            flat[f"{prefix}{key}.{name}" if prefix + name in flat else prefix + name] = text
    return flat


def _settings(run: Run) -> dict[str, str]:
    """The settings of a run's agent, and what annealing lowered if its noise was annealed."""
    settings = flat_settings(run.config.get("agent") or {})
    if settings.get("noise_anneal_steps", "0") != "0":
        settings[NOISE_ANNEALS] = run.provenance.get(NOISE_ANNEALS, "deviation")
    return settings


def _place(run: Run) -> tuple[str, str]:
    return run.config["env"], run.config["preset"]


def _key(item: tuple[tuple[str, str], list[Run]]) -> tuple[str, str]:
    return item[0]


def _refuse_seeds_twice(env: str, agent: str, runs: Sequence[Run]) -> None:
    owner: dict[int, Path] = {}
    for run in runs:
        for seed in run.seeds:
            if seed in owner:
                raise ValueError(
                    f"seed {seed} of {agent} in {env} is in both {owner[seed]} and {run.folder}; "
                    "give one of them, or train with other seeds"
                )
            owner[seed] = run.folder


def _smallest(keys: Set[str], settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The smallest set of keys that distinguishes all settings that `keys` distinguish.

    Choices come before numbers.
    """

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(setting.get(key) for key in chosen) for setting in settings})

    def order(key: str) -> tuple[bool, str]:
        values = [setting[key] for setting in settings if key in setting]
        return values[0][:1] in tuple("-0123456789"), key

    first = sorted(keys, key=order)
    most = min(len(first), MOST_NAMED)
    choices = (c for count in range(most + 1) for c in itertools.combinations(first, count))
    found = next((chosen for chosen in choices if kinds(chosen) == kinds(first)), tuple(first))
    return tuple(sorted(found))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
