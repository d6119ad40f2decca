"""Few seeds, told honestly: the interquartile mean, and bootstrap intervals over seeds."""

from collections.abc import Callable
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
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    value = np.asarray(statistic(data, axis=0))
    if len(data) == 1:
        return Interval(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    drawn = np.random.default_rng(seed).integers(len(data), size=(len(data), resamples))
    columns = data.reshape(len(data), value.size)  # not −1, which an empty curve leaves open
    ends = np.empty((2, columns.shape[1]))
    step = max(1, BLOCK // drawn.size)
    for start in range(0, columns.shape[1], step):
        block = slice(start, start + step)
        ends[:, block] = np.quantile(statistic(columns[drawn, block], axis=0), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    low, high = ends.reshape(2, *value.shape)
    return Interval(value, np.asarray(low), np.asarray(high))
