"""Few seeds, told honestly: the interquartile mean, and bootstrap intervals over seeds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]
"""A function of an array and a keyword ``axis``, which it reduces: ``np.mean``, ``np.median``, ``iqm``, …"""

BLOCK = 4_000_000  # numbers resampled at a time: what bounds the memory of a long curve


class Interval(NamedTuple):
    """A statistic and the ends of its confidence interval, each of the shape that the statistic has."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(x: ArrayLike, axis: int = 0) -> np.ndarray:
    """The interquartile mean: what is left when ⌊n/4⌋ values at either end are put aside, averaged along ``axis``."""
    return np.asarray(scipy.stats.trim_mean(np.asarray(x, float), 0.25, axis=axis))


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The percentile bootstrap over the first axis (seeds), for each entry of the others.

    Whole seeds are drawn with replacement, the same ones for every entry. One seed says nothing about the spread between
    seeds: its interval is NaN. With fewer than about ten the interval is narrower than its confidence promises.
    """
    data = np.asarray(values, float)
    if data.ndim < 1 or len(data) < 1:
        raise ValueError(f"values must hold at least one seed along the first axis, got shape {data.shape}")
    ends_at = _ends(confidence, resamples)
    value = np.asarray(statistic(data, axis=0))
    if len(data) == 1:
        return Interval(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    drawn = np.random.default_rng(seed).integers(len(data), size=(len(data), resamples))
    columns = data.reshape(len(data), value.size)  # not −1, which an empty curve leaves open
    ends = np.empty((2, columns.shape[1]))
    step = max(1, BLOCK // drawn.size)
    for start in range(0, columns.shape[1], step):
        block = slice(start, start + step)
        ends[:, block] = np.quantile(statistic(columns[drawn, block], axis=0), ends_at, axis=0)
    low, high = ends.reshape(2, *value.shape)
    return Interval(value, np.asarray(low), np.asarray(high))


def stratified_interval(
    tables: Sequence[np.ndarray],
    statistic: Callable[..., np.ndarray],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    *,
    work: int | None = None,
) -> Interval:
    """The percentile bootstrap of a statistic of one or more (runs, games) tables, runs drawn independently within each game.

    Right where a run belongs to its game alone, that is, where run 3 of one game has nothing in common with run 3 of another.

    Args:
      tables: finite arrays of shape (runs, games), at least one run each. One run says nothing about the spread between runs: if a
        table has no more, the interval is NaN.
      statistic: takes as many arrays (resamples, runs, games) and reduces the last two axes: (resamples, …).
      confidence: of the interval, between 0 and 1.
      resamples: how many are drawn.
      seed: of the draws.
      work: numbers that the statistic handles at once for one resample, if more than the tables hold; bounds the memory.
    """
    ends_at = _ends(confidence, resamples)
    value = np.asarray(statistic(*(table[None] for table in tables))[0])
    if min(len(table) for table in tables) == 1:
        return Interval(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    generators = np.random.default_rng(seed).spawn(len(tables))
    step = max(1, BLOCK // (work or sum(table.size for table in tables)))
    drawn = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        rows = [rng.integers(len(table), size=(size, *table.shape)) for rng, table in zip(generators, tables, strict=True)]
        drawn.append(statistic(*(np.take_along_axis(table[None], row, axis=1) for row, table in zip(rows, tables, strict=True))))
    low, high = np.quantile(np.concatenate(drawn), ends_at, axis=0)
    return Interval(value, np.asarray(low), np.asarray(high))


def _ends(confidence: float, resamples: int) -> list[float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"the number of resamples must be at least 1, got {resamples}")
    return [(1 - confidence) / 2, (1 + confidence) / 2]
