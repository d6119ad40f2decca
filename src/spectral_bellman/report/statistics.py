"""Bootstrap intervals over few seeds; statistics over games are in `scores`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from spectral_bellman.scores import Interval, quantiles

Statistic = Callable[..., Any]
"""A function of an array and a keyword `axis`, which it reduces: `np.mean`, `scores.iqm`, …"""

BLOCK = 4_000_000
"""Numbers that are resampled at a time, which bounds the memory of a long curve."""


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap over the first axis (seeds), for each entry of the other axes.

    Seeds are drawn with replacement, the same ones for every entry. One seed has no variation to
    measure: its interval is NaN. With fewer than about ten seeds the interval is too narrow.
    """
    data = np.asarray(values, float)
    if data.ndim < 1 or len(data) < 1:
        raise ValueError(
            f"values must hold at least one seed along the first axis, got shape {data.shape}"
        )
    ends_at = quantiles(confidence, resamples)
    value = np.asarray(statistic(data, axis=0))
    if len(data) == 1:
        return Interval(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    drawn = np.random.default_rng(seed).integers(len(data), size=(len(data), resamples))
    columns = data.reshape(len(data), value.size)  # not -1, which an empty curve leaves open
    ends = np.empty((2, columns.shape[1]))
    step = max(1, BLOCK // drawn.size)
    for start in range(0, columns.shape[1], step):
        block = slice(start, start + step)
        ends[:, block] = np.quantile(statistic(columns[drawn, block], axis=0), ends_at, axis=0)
    low, high = ends.reshape(2, *value.shape)
    return Interval(value, np.asarray(low), np.asarray(high))
