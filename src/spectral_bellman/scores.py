"""Human-normalised scores of Atari games, and what many runs on many games come to."""

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectral_bellman._arrays import as_float64
from spectral_bellman._names import did_you_mean
from spectral_bellman.analysis.statistics import Interval, iqm, stratified_interval

# The paper's table of scores, (human, random) of each of its 55 games. Others give Video Pinball a random score of 16256.9.
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
"""The paper's nine games with sparse rewards or late ones."""


MINATAR: dict[str, tuple[float, float]] = {
    "asterix": (10.0, 0.45),
    "breakout": (10.0, 0.54),
    "freeway": (50.0, 0.14),
    "seaquest": (10.0, 0.10),
    "space_invaders": (50.0, 2.96),
}
"""What counts as 1 and as 0 on MinAtar: round numbers in the range of the authors' DQN, and random play (512 episodes of each)."""


class Estimate(NamedTuple):
    """A number and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def rom_name(name: str) -> str:
    """The name that ale-py gives the ROM of a game: ``montezuma_revenge`` for Montezuma's Revenge.

    Case, spaces and punctuation do not matter, so the spelling may be the paper's, Gymnasium's (``ALE/MontezumaRevenge-v5``) or
    that of an environment here (``atari/montezuma_revenge``).
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
    """(score − random)/(human − random) of one game: 0 is random play, 1 a human's. An array gives an array, a number a number.

    ``game`` is spelt as ``rom_name`` takes it, and must be one of the 55 in ``HUMAN``.
    """
    rom = rom_name(game)
    if rom not in HUMAN:
        raise ValueError(
            f"game {game!r} has no human score: it is not among the paper's {len(HUMAN)}, spectral_bellman.scores.HUMAN"
        )
    normalized = (np.asarray(score, np.float64) - RANDOM[rom]) / (HUMAN[rom] - RANDOM[rom])
    return normalized if normalized.ndim else float(normalized)


def normalized(env: str, score: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Scores on an environment, fit to be averaged with those on others.

    Human-normalised for the paper's Atari games, by ``MINATAR`` for its five; None for environments without such constants.
    """
    family, _, game = env.partition("/")
    if family == "atari" and game in HUMAN:
        return np.asarray(human_normalized(game, score))
    if family == "minatar" and game in MINATAR:
        one, zero = MINATAR[game]
        return (np.asarray(score, np.float64) - zero) / (one - zero)
    return None


def aggregate(scores: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0) -> dict[str, Estimate]:
    """IQM, median and mean of many runs on many games, each with the interval of a stratified bootstrap.

    ``iqm`` is the mean of the middle half of all runs on all games together, ``median`` the median over games of the mean over
    runs, ``mean`` the mean over both. In the interval runs vary and games do not: the percentiles of ``samples`` resamples, in
    which runs are drawn independently within each game. One run says nothing about their spread: its interval is NaN. With fewer
    than about ten the interval is narrower than its confidence promises.

    Args:
      scores: shape (runs, games), human-normalised; finite.
      samples: resamples of the bootstrap.
      confidence: of the intervals.
      seed: of the resamples.

    Returns:
      ``{"iqm": (value, low, high), "median": …, "mean": …}``
    """
    table = _table(scores, "scores", "runs games")
    parts = zip(*stratified_interval([table], _aggregates, confidence, samples, seed), strict=True)
    return {name: Estimate(*map(float, part)) for name, part in zip(("iqm", "median", "mean"), parts, strict=True)}


def probability_of_improvement(
    x: ArrayLike, y: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """How likely a run of X is better than a run of Y on the same game, P(X > Y) + ½ P(X = Y), averaged over games.

    Mann and Whitney's U over the number of pairs. ``x`` has shape (runs, games) and ``y`` (runs', games), games in the same order.
    The interval as in ``aggregate``, runs of X and Y drawn apart; NaN if either has one run alone.
    """
    ours, theirs = _table(x, "x", "runs games"), _table(y, "y", "runs games")
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(f"x and y must hold the same games along the second axis, got shapes {ours.shape} and {theirs.shape}")
    interval = stratified_interval([ours, theirs], _improvement, confidence, samples, seed, work=len(ours) * theirs.size)
    return Estimate(*map(float, interval))


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """The share of runs × games that score more than each threshold, and its interval at each, as in ``aggregate``.

    ``scores`` has shape (runs, games), ``thresholds`` (τ,), as have the three arrays returned.
    """
    table, above = _table(scores, "scores", "runs games"), _table(thresholds, "thresholds", "τ")

    def share(drawn: np.ndarray) -> np.ndarray:
        return np.stack([np.mean(drawn > threshold, axis=(1, 2)) for threshold in above], axis=-1)

    return stratified_interval([table], share, confidence, samples, seed)


def _aggregates(drawn: np.ndarray) -> np.ndarray:
    games = drawn.mean(axis=1)
    return np.stack([iqm(drawn.reshape(len(drawn), -1), axis=1), np.median(games, axis=1), games.mean(axis=1)], axis=-1)


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
