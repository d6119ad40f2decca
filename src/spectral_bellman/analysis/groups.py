"""Runs that belong together: all seeds of one agent in one environment, and the score that each ends with."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.analysis.runs import Run, series

SCORES = {
    "eval_return": ("greedy", "greedy: the last evaluation of each seed"),
    "return": (
        "training",
        "training: the return of the training policy, mean over the episodes that ended in the last tenth of the frames",
    ),
}


MOST_NAMED = 3
"""Settings in a label; where it takes more to tell agents apart, all that differ are named."""


class Final(NamedTuple):
    """The score that each seed of a group ends with."""

    key: str
    """What it is made of, a key of ``SCORES``."""
    values: np.ndarray
    """NaN for a seed that never finished an episode."""


@dataclass(frozen=True)
class Group:
    """One agent in one environment: the seeds of all its runs."""

    env: str
    agent: str
    runs: Sequence[Run]

    @property
    def frames(self) -> list[int]:
        """How far each run has come."""
        return [max(record["frames"] for record in run.records) for run in self.runs]

    @property
    def frames_per_s(self) -> float:
        """The median over log lines, which the first one, with the compilation in it, does not move."""
        speeds = [record.get("frames_per_s") for run in self.runs for record in run.records]
        known = [speed for speed in speeds if speed is not None]
        return float(np.median(known)) if known else math.nan

    @property
    def key(self) -> str:
        """What its score is made of: evaluations if every run has some."""
        return "eval_return" if all("eval_return" in run.keys for run in self.runs) else "return"

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Frames (T,) and values (seeds, T) of a key; seeds of runs without that key are left out.

        Where runs logged at different frames, all are read off at those of the longest: NaN beyond the end of a run.
        """
        parts = [series(run, key) for run in self.runs if key in run.keys]
        if not parts:
            return np.zeros(0, int), np.zeros((0, 0))
        grid = max((frames for frames, _ in parts), key=lambda frames: int(frames[-1]))
        rows = [np.interp(grid, frames, row, left=np.nan, right=np.nan) for frames, values in parts for row in values]
        return grid, np.array(rows)

    def final(self) -> Final:
        """The last evaluation of each seed; if a run has none, the training return of all seeds."""
        if self.key == "return":
            return Final("return", self.training())
        rows = (row[np.isfinite(row)] for run in self.runs for row in series(run, "eval_return")[1])
        return Final("eval_return", np.array([row[-1] if len(row) else np.nan for row in rows]))

    def training(self) -> np.ndarray:
        """The mean return of the episodes that ended in the last tenth of each seed's frames; NaN where none ever ended."""
        return np.array([_training(run, seed) for run in self.runs for seed in run.seeds])


def _training(run: Run, seed: int) -> float:
    """If no episode ended in the last tenth, it is what the last that did came to.

    A line of the log counts for as many episodes as ended since the line before it. Environments that began together end together,
    the quickest of them first, so that lines with one episode stand beside lines with hundreds.
    """
    lines = sorted((r for r in run.records if r["seed"] == seed and r.get("return") is not None), key=lambda r: int(r["frames"]))
    if not lines:
        return math.nan
    counts = np.maximum(np.diff([0, *(line.get("episodes") or i for i, line in enumerate(lines, 1))]), 1)
    end = max(record["frames"] for record in run.records)
    late = [i for i, line in enumerate(lines) if line["frames"] > 0.9 * end] or [len(lines) - 1]
    return float(np.average([lines[i]["return"] for i in late], weights=counts[late]))


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of one preset in one environment pooled, except where settings of the agent differ.

    The label then names as few of them as tell the agents apart.
    """
    # A run is older than some settings: what it did is what they are when nobody sets them.
    settings = [_flat({**vars(AgentConfig()), **(run.config.get("agent") or {})}) for run in runs]
    # A setting is named if it differs within an environment: one that only goes with the environment tells no agents apart.
    differing: dict[str, set[str]] = {}
    for i, run in enumerate(runs):
        for j, other in enumerate(runs[:i]):
            if (run.config["env"], run.config["preset"]) == (other.config["env"], other.config["preset"]):
                keys = {key for key in settings[i] | settings[j] if settings[i].get(key) != settings[j].get(key)}
                differing.setdefault(run.config["preset"], set()).update(keys)
    telling = {
        preset: _fewest(keys, [s for run, s in zip(runs, settings, strict=True) if run.config["preset"] == preset])
        for preset, keys in differing.items()
    }
    pooled: dict[tuple[str, str], list[Run]] = {}
    for run, setting in zip(runs, settings, strict=True):
        preset = run.config["preset"]
        named = ", ".join(f"{key}={setting.get(key, 'unset')}" for key in telling.get(preset, ()))
        pooled.setdefault((run.config["env"], f"{preset} ({named})" if named else preset), []).append(run)
    for (env, agent), members in pooled.items():
        owner: dict[int, Path] = {}
        for run in members:
            for seed in run.seeds:
                if seed in owner:
                    place = f"{owner[seed]} and {run.folder}"
                    raise ValueError(
                        f"seed {seed} of {agent} in {env} is in both {place}; give one of them, or train with other seeds"
                    )
                owner[seed] = run.folder
    return [Group(env, agent, members) for (env, agent), members in sorted(pooled.items(), key=lambda item: item[0])]


def _fewest(keys: Set[str], settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """As few of the keys as tell the settings apart that all of them tell apart, choices rather than numbers."""

    def told(chosen: Sequence[str]) -> int:
        return len({tuple(setting.get(key) for key in chosen) for setting in settings})

    first = sorted(keys, key=lambda key: (settings[0].get(key, "")[:1] in "-0123456789", key))
    choices = (chosen for count in range(min(len(first), MOST_NAMED) + 1) for chosen in itertools.combinations(first, count))
    return tuple(sorted(next((chosen for chosen in choices if told(chosen) == told(first)), first)))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as text under dotted names."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat
