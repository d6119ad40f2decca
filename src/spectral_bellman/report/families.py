"""Words for each family of environments, by the part of the name before the slash."""

from typing import NamedTuple


class Family(NamedTuple):
    """Words for a family of environments."""

    title: str
    frames: str
    """Label of the axis of frames: what a frame is."""
    score: str = "return"
    """Name of the score that is averaged over games, where there is one."""


_STEPS = "frames (= agent steps)"
FAMILIES = {
    "atari": Family("Atari", "frames (4 per agent step)", "human-normalised score"),
    "minatar": Family("MinAtar", _STEPS, "normalised score"),
    "deep_sea": Family("DeepSea", _STEPS),
    "gym": Family("Gymnasium", _STEPS),
}


def family_of(env: str) -> Family:
    """The family of an environment's name; plain words for an unknown family."""
    name = env.partition("/")[0]
    return FAMILIES.get(name, Family(name, "frames"))
