"""The final score of a seed, by one rule for all tables, and the words that say which rule it was.

The score is the mean over the evaluations in the last tenth of the frames, at most the last three
of them. A run without evaluations is scored by its training return over the last tenth.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spectral_bellman.report.runs import Run

LAST_PART = 0.1
"""Share of the frames, at the end of a run, whose evaluations and episodes count."""
MOST_EVALUATIONS = 3
"""Evaluations that count at most, the last ones."""
TRAINING = "training"
"""The rule of runs without evaluations."""

GREEDY_NOTE = (
    "score: mean over the evaluations of each seed in the last tenth of its frames, at most the "
    'last three; "3 × 30 episodes" are three evaluations of 30 greedy episodes each'
)
TRAINING_NOTE = (
    "training: return of the training policy, mean over the episodes that ended in the last tenth "
    "of the frames"
)


class SeedScore(NamedTuple):
    """The score of one seed and what it was computed from."""

    value: float
    """NaN if no episode ended in the evaluations."""
    episodes: tuple[int, ...]
    """Episodes that ended in each evaluation that counts."""
    at: float = 1.0
    """Frames of the last evaluation that counts, as a share of the frames of the run."""


def seed_score(run: Run, seed: int) -> SeedScore:
    """The score of a seed by its evaluations.

    If the run stopped before its first evaluation in the last tenth, the last evaluation counts,
    and `at` says where it was.
    """
    lines = run.lines(seed, "eval_return")
    late = [r for r in lines if r["frames"] > (1 - LAST_PART) * run.frames]
    counted = late[-MOST_EVALUATIONS:] or lines[-1:]
    returns = [r["eval_return"] for r in counted if r["eval_return"] is not None]
    return SeedScore(
        float(np.mean(returns)) if returns else math.nan,
        tuple(_episodes(run, record) for record in counted),
        1.0 if late or not counted else counted[-1]["frames"] / run.frames,
    )


def _episodes(run: Run, record: dict[str, Any]) -> int:
    """Episodes that ended in an evaluation.

    Older logs have only the share of episodes that did not end. Their number is in the config.
    """
    ended = record.get("eval_episodes")
    if ended is not None:
        return int(ended)
    planned = run.config.get("eval_episodes", 0)
    return round(planned * (1 - (record.get("eval_unfinished") or 0.0)))


def training_return(run: Run, seed: int) -> float:
    """The mean return of the training episodes that ended in the last tenth of the frames.

    If none ended there, the last episodes that did end count. NaN if no episode ever ended.

    A log line counts for as many episodes as ended since the line before. Environments that began
    together end together, quick episodes first, so lines with one episode stand beside lines with
    hundreds.
    """
    lines = [record for record in run.lines(seed, "return") if record["return"] is not None]
    if not lines:
        return math.nan
    ended = [line.get("episodes") or i for i, line in enumerate(lines, 1)]
    counts = np.maximum(np.diff([0, *ended]), 1)
    first = (1 - LAST_PART) * run.frames
    late = [i for i, line in enumerate(lines) if line["frames"] > first] or [len(lines) - 1]
    return float(np.average([lines[i]["return"] for i in late], weights=counts[late]))


def rule(scores: Sequence[SeedScore]) -> str:
    """The rule in words, for the seeds of a group: "3 × 30 episodes"."""
    counts = _range(len(score.episodes) for score in scores)
    episodes = _range(n for score in scores for n in score.episodes)
    early = min(score.at for score in scores)
    return f"{counts} × {episodes} episodes" + (f" at {early:.0%} of the frames" * (early < 1))


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    if not found:
        return "0"
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"
