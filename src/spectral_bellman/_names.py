"""Names of settings: as flags, and suggestions for misspelt ones."""

import difflib
from collections.abc import Iterable


def flag_of(name: str) -> str:
    """A setting as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The hint "did you mean this or that?" with the nearest known names; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}?" if close else ""
