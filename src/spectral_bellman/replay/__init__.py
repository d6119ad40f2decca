"""Replay on the device: where steps are stored, what is read from them, and how it is drawn."""

from spectral_bellman.replay.ring import Ring, Rollout, Stored, add, count, init_ring, push_frame
from spectral_bellman.replay.sampling import (
    UNIFORM,
    Index,
    Priorities,
    Rows,
    Sample,
    Sampler,
    admit,
    by_priority,
    init_priorities,
    prioritised,
    rows,
    sample,
    update_priorities,
)
from spectral_bellman.replay.windows import NStep, OneStep, Sequence, Sequences, Transition, Window

__all__ = [
    "UNIFORM",
    "Index",
    "NStep",
    "OneStep",
    "Priorities",
    "Ring",
    "Rollout",
    "Rows",
    "Sample",
    "Sampler",
    "Sequence",
    "Sequences",
    "Stored",
    "Transition",
    "Window",
    "add",
    "admit",
    "by_priority",
    "count",
    "init_priorities",
    "init_ring",
    "prioritised",
    "push_frame",
    "rows",
    "sample",
    "update_priorities",
]
