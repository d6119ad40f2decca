"""Replay memories on the device."""

from spectral_bellman.replay.transitions import Replay, Rows, Transition, add, count, init_replay, push_frame, rows, sample

__all__ = ["Replay", "Rows", "Transition", "add", "count", "init_replay", "push_frame", "rows", "sample"]
