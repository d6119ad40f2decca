"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The hint "did you mean this or that?" with the nearest known names; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}?" if close else ""
