"""What a report knows of an environment: its family's title, its frames, the scale of its scores.

A run stores this in `config.json` under `environment`, as its family has it in the catalogue of
environments. Runs from before version 4 do not store it. For them there is a table here, which new
families do not need.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectral_bellman.report.runs import Run
from spectral_bellman.scores import ATARI_EXPLORE, HUMAN, MINATAR, RANDOM

ENVIRONMENT = "environment"
"""Key of the config."""


class Scale(NamedTuple):
    """Puts the scores of an environment on the scale of its family."""

    label: str
    """What the scaled score is called."""
    zero: float
    """The score that counts as 0."""
    one: float
    """The score that counts as 1."""
    ends: tuple[str, str] | None = None
    """Names of `zero` and `one`, if tables have a column for each."""
    subsets: tuple[str, ...] = ()
    """The parts of the family that the environment belongs to and that are also averaged alone."""

    def normalized(self, score: ArrayLike) -> NDArray[np.float64]:
        """(score − zero)/(one − zero)."""
        return (np.asarray(score, np.float64) - self.zero) / (self.one - self.zero)


class Environment(NamedTuple):
    """What a report knows of an environment."""

    family: str
    title: str
    """The family's, as people write it."""
    frame_unit: str
    """Label of the axis of frames: what a frame is."""
    score: Scale | None = None
    """None if nobody knows the bounds."""


UNKNOWN = Environment("", "", "frames")


def environment(run: Run) -> Environment:
    """What a run stores of its environment, or what the table says of an older run.

    Raises:
      ValueError: the record in the config is not complete.
    """
    record = run.config.get(ENVIRONMENT)
    if record is None:
        return _older(run.config["env"])
    try:
        score = record["score"]
        return Environment(
            _text(record["family"]),
            _text(record["title"]),
            _text(record["frame_unit"]),
            None if score is None else _scale(score),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{run.folder}: the record "{ENVIRONMENT}" in config.json cannot be used ({error!r}); '
            "restore the file or leave the run out"
        ) from error


def environments(runs: Sequence[Run]) -> dict[str, Environment]:
    """Each environment by its name. All its runs share one record: what the last one stored.

    Raises:
      ValueError: two runs store different scales of the score.
    """
    found: dict[str, Environment] = {}
    source: dict[str, Run] = {}
    for run in runs:
        env, known = run.config["env"], environment(run)
        if ENVIRONMENT not in run.config:
            found.setdefault(env, known)
            continue
        if env in source and known.score != found[env].score:
            raise ValueError(
                f"{source[env].folder} and {run.folder} scale the scores of {env} differently: "
                f"{found[env].score} and {known.score}; report them apart"
            )
        found[env], source[env] = known, run
    return found


def _scale(record: Mapping[str, Any]) -> Scale:
    ends = record["ends"]
    zero, one = float(record["zero"]), float(record["one"])
    if zero == one:
        raise ValueError(f"zero and one are both {zero:g}")
    return Scale(
        _text(record["label"]),
        zero,
        one,
        None if ends is None else (_text(ends[0]), _text(ends[1])),
        tuple(map(_text, record["subsets"])),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _atari(game: str) -> Scale | None:
    if game not in HUMAN:
        return None
    subsets = ("with sparse rewards",) if game in ATARI_EXPLORE else ()
    label = "human-normalised score"
    return Scale(label, RANDOM[game], HUMAN[game], ("random", "human"), subsets)


def _minatar(game: str) -> Scale | None:
    if game not in MINATAR:
        return None
    one, zero = MINATAR[game]
    return Scale("normalised score", zero, one)


_STEPS = "frames (= agent steps)"
_OLDER: dict[str, tuple[str, str, Callable[[str], Scale | None]]] = {
    "atari": ("Atari", "frames (4 per agent step)", _atari),
    "minatar": ("MinAtar", _STEPS, _minatar),
    "deep_sea": ("DeepSea", _STEPS, lambda _: None),
    "gym": ("Gymnasium", _STEPS, lambda _: None),
}
"""Families of runs from before version 4: title, frame unit and scale of the score."""


def _older(env: str) -> Environment:
    """Plain words for an unknown family."""
    family, _, name = env.partition("/")
    title, unit, scale = _OLDER.get(family, (family, UNKNOWN.frame_unit, lambda _: None))
    return Environment(family, title, unit, scale(name))
