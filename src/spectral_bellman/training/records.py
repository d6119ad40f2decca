"""What a run writes about itself: log lines, evaluations, and the summary at its end."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from spectral_bellman.disk.log import MetricsLog
from spectral_bellman.disk.provenance import provenance
from spectral_bellman.disk.run_folder import METRICS
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.seeds import Seeds

CLOCK = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")
"""What a line of the log says about time and cost, which no two runs share."""


def write_evaluations(
    log: MetricsLog,
    config: TrainConfig,
    runners: Seeds,
    began: float,
    now: int = -1,
    wait: bool = False,
) -> dict[int, dict[str, Any]]:
    """Write a line for each evaluation that has ended.

    Those of round ``now`` are returned by seed, for the line that is written anyway.
    """
    current = {}
    for number, i, returns in runners.evaluated(wait):
        ended = returns[~np.isnan(returns)]
        found = {
            "eval_return": float(np.mean(ended)) if len(ended) else None,
            "eval_unfinished": float(np.mean(np.isnan(returns))),
            "eval_episodes": len(ended),
        }
        if number == now:
            current[i] = found
        else:
            frames = number * config.round_frames
            place = {"seed": config.first_seed + i, "round": number, "frames": frames}
            log.write({**place, **found, "wall_s": round(time.monotonic() - began, 3)})
    return current


def record(
    config: TrainConfig,
    tally: Any,
    i: int,
    number: int,
    diagnostics: dict[str, Any],
    actors: dict[str, float],
) -> dict[str, Any]:
    """The line of seed ``i`` after ``number`` rounds."""
    recent, learned = int(tally.recent_episodes[i]), int(tally.rounds[i])
    found: dict[str, Any] = {
        "seed": config.first_seed + i,
        "round": number,
        "frames": number * config.round_frames,
        "episodes": int(tally.episodes[i]),
        "return": float(tally.recent_return[i]) / recent if recent else None,
        "length": float(tally.recent_length[i]) / recent if recent else None,
    }
    if learned:
        found |= {f"loss/{name}": float(total[i]) / learned for name, total in tally.terms.items()}
    found |= {f"actors/{name}": value for name, value in actors.items()}
    return found | {f"diagnostic/{name}": float(values[i]) for name, values in diagnostics.items()}


def summarise(config: TrainConfig, number: int, folder: Path, seconds: float) -> dict[str, Any]:
    """The last known value of everything in the log, seed by seed."""
    seeds: dict[str, dict[str, Any]] = {}
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    # An evaluation may have been written after the lines of later rounds.
    for full in sorted((json.loads(line) for line in lines), key=lambda line: int(line["frames"])):
        known = {k: v for k, v in full.items() if v is not None and k not in CLOCK}
        seeds.setdefault(str(known["seed"]), {}).update(known)
    return {
        "preset": config.preset,
        "env": config.env,
        "frames": number * config.round_frames,
        "seeds": seeds,
        "wall_s": round(seconds, 3),
        "frames_per_s": round(number * config.round_frames * config.seeds / seconds, 1),
        "provenance": provenance(),
    }
