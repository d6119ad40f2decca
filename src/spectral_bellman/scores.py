"""Scores of games: what counts as 0 and as 1, and statistics over many runs on many games.

Tables of reference scores, scores normalised by them, and the statistics of Agarwal et al. (2021)
with the intervals of a stratified bootstrap.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectral_bellman._arrays import as_float64
from spectral_bellman._names import did_you_mean

# The paper's table of scores: (human, random) for each of its 55 games. Others give Video Pinball
# a random score of 16256.9.
_TABLE = {
    "alien": (7127.7, 227.8),
    "amidar": (1719.5, 5.8),
    "assault": (742.0, 222.4),
    "asterix": (8503.3, 210.0),
    "asteroids": (47388.7, 719.1),
    "atlantis": (29028.1, 12850.0),
    "bank_heist": (753.1, 14.2),
    "battle_zone": (37187.5, 2360.0),
    "beam_rider": (16926.5, 363.9),
    "berzerk": (2630.4, 123.7),
    "bowling": (160.7, 23.1),
    "boxing": (12.1, 0.1),
    "breakout": (30.5, 1.7),
    "centipede": (12017.0, 2090.9),
    "chopper_command": (7387.8, 811.0),
    "crazy_climber": (35829.4, 10780.5),
    "demon_attack": (1971.0, 152.1),
    "double_dunk": (-16.4, -18.6),
    "enduro": (860.5, 0.0),
    "fishing_derby": (-38.7, -91.7),
    "freeway": (29.6, 0.0),
    "frostbite": (4334.7, 65.2),
    "gopher": (2412.5, 257.6),
    "gravitar": (3351.4, 173.0),
    "hero": (30826.4, 1027.0),
    "ice_hockey": (0.9, -11.2),
    "jamesbond": (302.8, 29.0),
    "kangaroo": (3035.0, 52.0),
    "krull": (2665.5, 1598.0),
    "kung_fu_master": (22736.3, 258.5),
    "montezuma_revenge": (4753.3, 0.0),
    "ms_pacman": (6951.6, 307.3),
    "name_this_game": (8049.0, 2292.3),
    "phoenix": (7242.6, 761.4),
    "pitfall": (6463.7, -229.4),
    "pong": (14.6, -20.7),
    "private_eye": (69571.3, 24.9),
    "qbert": (13455.0, 163.9),
    "riverraid": (17118.0, 1338.5),
    "road_runner": (7845.0, 11.5),
    "robotank": (11.9, 2.2),
    "seaquest": (42054.7, 68.4),
    "skiing": (-4336.9, -17098.1),
    "solaris": (12326.7, 1236.3),
    "space_invaders": (1668.7, 148.0),
    "star_gunner": (10250.0, 664.0),
    "tennis": (-8.3, -23.8),
    "time_pilot": (5229.2, 3568.0),
    "tutankham": (167.6, 11.4),
    "up_n_down": (11693.2, 533.4),
    "venture": (1187.5, 0.0),
    "video_pinball": (17667.9, 0.0),
    "wizard_of_wor": (4756.5, 563.5),
    "yars_revenge": (54576.9, 3092.9),
    "zaxxon": (9173.3, 32.5),
}

HUMAN: dict[str, float] = {game: human for game, (human, _) in _TABLE.items()}
"""The human score of each of the paper's 55 games, by the name of its ROM."""

RANDOM: dict[str, float] = {game: random for game, (_, random) in _TABLE.items()}
"""The score of random play, likewise."""

ATARI_EXPLORE = (
    "montezuma_revenge",
    "pitfall",
    "private_eye",
    "skiing",
    "freeway",
    "solaris",
    "venture",
    "beam_rider",
    "pong",
)
"""The paper's nine games with sparse or late rewards."""

MINATAR: dict[str, tuple[float, float]] = {
    "asterix": (10.0, 0.45),
    "breakout": (10.0, 0.54),
    "freeway": (50.0, 0.14),
    "seaquest": (10.0, 0.10),
    "space_invaders": (50.0, 2.96),
}
"""The scores that count as 1 and as 0 on MinAtar.

The first is a round number in the range of the MinAtar authors' DQN. The second is random play, the
mean of 512 episodes.
"""


BLOCK = 4_000_000
"""Numbers that are resampled at a time, which bounds the memory of a bootstrap."""


class Interval(NamedTuple):
    """A statistic and the ends of its confidence interval, all of the statistic's shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Estimate(NamedTuple):
    """A number and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def rom_name(name: str) -> str:
    """The name of a game's ROM in ale-py: `montezuma_revenge` for Montezuma's Revenge.

    Case, spaces and punctuation do not matter. The name may be spelled as in the paper, as in
    Gymnasium (`ALE/MontezumaRevenge-v5`), or as an environment here (`atari/montezuma_revenge`).
    """
    game = re.sub(r"^((atari|gym|ale)/)+|-v\d+$", "", name.strip().lower())
    spellings = (_letters(game), _letters(re.sub(r"['’]s\b", "", game)))
    if rom := _find(spellings, tuple(HUMAN)):
        return rom
    from ale_py.roms import get_all_rom_ids  # loads the emulator, rarely needed

    roms = get_all_rom_ids()
    if rom := _find(spellings, roms):
        return rom
    hint = did_you_mean(spellings[0], roms) or "ale_py.roms.get_all_rom_ids() lists them"
    raise ValueError(f"there is no Atari game {name!r}; {hint}")


@overload
def human_normalized(game: str, score: float) -> float: ...
@overload
def human_normalized(game: str, score: ArrayLike) -> float | NDArray[np.float64]: ...
def human_normalized(game: str, score: int | float | ArrayLike) -> float | NDArray[np.float64]:
    """(score − random)/(human − random) of one game: 0 is random play, 1 is the human score.

    Args:
      game: one of the 55 games in `HUMAN`, spelled as `rom_name` takes it.
      score: a number, or an array of any shape.

    Returns:
      A number for a number, an array for an array.
    """
    rom = rom_name(game)
    if rom not in HUMAN:
        raise ValueError(
            f"game {game!r} has no human score: it is not among the paper's {len(HUMAN)}, "
            "spectral_bellman.scores.HUMAN"
        )
    normalized = (np.asarray(score, np.float64) - RANDOM[rom]) / (HUMAN[rom] - RANDOM[rom])
    return normalized if normalized.ndim else float(normalized)


def iqm(x: ArrayLike, axis: int = 0) -> np.ndarray:
    """The interquartile mean: the mean along `axis` without the ⌊n/4⌋ values at either end."""
    data = np.asarray(x, float)
    n = data.shape[axis]
    cut = n // 4
    ordered = np.partition(data, (cut, n - 1 - cut), axis=axis)
    return np.asarray(np.mean(np.take(ordered, range(cut, n - cut), axis=axis), axis=axis))


def aggregate(
    scores: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Estimate]:
    """IQM, median and mean of many runs on many games, with stratified bootstrap intervals.

    - `iqm`: the mean of the middle half of all runs on all games together.
    - `median`: the median over games of the mean over runs.
    - `mean`: the mean over runs and games.

    The interval accounts for the variation between runs, not between games. One run has no
    variation to measure: its interval is NaN. With fewer than about ten runs the interval is too
    narrow.

    Args:
      scores: shape (runs, games), normalised; finite.
      samples: number of bootstrap resamples. Runs are drawn independently within each game.
      confidence: of the intervals.
      seed: of the resamples.

    Returns:
      `{"iqm": (value, low, high), "median": …, "mean": …}`
    """
    table = _table(scores, "scores", "runs games")
    ends = zip(*stratified_interval([table], _aggregates, confidence, samples, seed), strict=True)
    return {
        name: Estimate(*map(float, end))
        for name, end in zip(("iqm", "median", "mean"), ends, strict=True)
    }


def probability_of_improvement(
    x: ArrayLike, y: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """P(X > Y) + ½ P(X = Y) for a run of X and a run of Y on the same game, averaged over games.

    This is the Mann-Whitney U divided by the number of pairs.

    Args:
      x: shape (runs, games).
      y: shape (runs', games), with the games in the same order.
      samples: as in `aggregate`; runs of X and Y are drawn independently.
      confidence: of the interval, which is NaN if X or Y has only one run.
      seed: of the resamples.
    """
    ours, theirs = _same_games(x, y)
    interval = stratified_interval(
        [ours, theirs], _improvement, confidence, samples, seed, work=len(ours) * theirs.size
    )
    return Estimate(*map(float, interval))


def iqm_difference(
    x: ArrayLike, y: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """IQM(X) − IQM(Y), paired by game: both are over the same games.

    Arguments as in `probability_of_improvement`.
    """

    def difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return iqm(ours.reshape(len(ours), -1), axis=1) - iqm(
            theirs.reshape(len(theirs), -1), axis=1
        )

    tables = _same_games(x, y)
    return Estimate(*map(float, stratified_interval(tables, difference, confidence, samples, seed)))


def _same_games(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = _table(x, "x", "runs games"), _table(y, "y", "runs games")
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(
            "x and y must hold the same games along the second axis, "
            f"got shapes {ours.shape} and {theirs.shape}"
        )
    return ours, theirs


def performance_profile(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The share of all runs on all games that score more than each threshold.

    Args:
      scores: shape (runs, games).
      thresholds: shape (τ,).
      samples: as in `aggregate`.
      confidence: of the interval at each threshold.
      seed: of the resamples.

    Returns:
      Three arrays of shape (τ,).
    """
    table, above = _table(scores, "scores", "runs games"), _table(thresholds, "thresholds", "τ")

    def share(drawn: np.ndarray) -> np.ndarray:
        return np.stack([np.mean(drawn > threshold, axis=(1, 2)) for threshold in above], axis=-1)

    return stratified_interval([table], share, confidence, samples, seed)


def stratified_interval(
    tables: Sequence[np.ndarray],
    statistic: Callable[..., np.ndarray],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    *,
    work: int | None = None,
) -> Interval:
    """The percentile bootstrap of a statistic of (runs, games) tables, stratified by game.

    Runs are drawn independently within each game. This is right if run 3 of one game has nothing
    in common with run 3 of another.

    Args:
      tables: finite arrays of shape (runs, games), at least one run each. The interval is NaN if
        a table has only one run.
      statistic: takes one array (resamples, runs, games) for each table and reduces the last two
        axes: (resamples, …).
      confidence: of the interval, between 0 and 1.
      resamples: number of resamples.
      seed: of the resamples.
      work: numbers that the statistic handles for one resample, if more than the tables hold. It
        bounds the memory.
    """
    ends_at = quantiles(confidence, resamples)
    value = np.asarray(statistic(*(table[None] for table in tables))[0])
    if min(len(table) for table in tables) == 1:
        return Interval(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    generators = np.random.default_rng(seed).spawn(len(tables))
    step = max(1, BLOCK // (work or sum(table.size for table in tables)))
    found = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = []
        for rng, table in zip(generators, tables, strict=True):
            rows = rng.integers(len(table), size=(size, *table.shape))
            drawn.append(np.take_along_axis(table[None], rows, axis=1))
        found.append(statistic(*drawn))
    low, high = np.quantile(np.concatenate(found), ends_at, axis=0)
    return Interval(value, np.asarray(low), np.asarray(high))


def quantiles(confidence: float, resamples: int) -> list[float]:
    """The quantiles of a bootstrap that are the ends of its interval, after both are checked."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"the number of resamples must be at least 1, got {resamples}")
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def _aggregates(drawn: np.ndarray) -> np.ndarray:
    games = drawn.mean(axis=1)
    return np.stack(
        [iqm(drawn.reshape(len(drawn), -1), axis=1), np.median(games, axis=1), games.mean(axis=1)],
        axis=-1,
    )


def _improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = x[:, :, None], y[:, None]
    return (np.mean(x > y, axis=(1, 2, 3)) + np.mean(x >= y, axis=(1, 2, 3))) / 2


def _table(values: ArrayLike, name: str, shape: str) -> NDArray[np.float64]:
    table = as_float64(values, name, shape)
    if not table.size:
        raise ValueError(f"{name} is empty: it has shape {table.shape}")
    return table


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _find(spellings: Sequence[str], roms: Sequence[str]) -> str | None:
    return next((rom for rom in roms if _letters(rom) in spellings), None)
