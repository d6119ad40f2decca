"""A replay on the disk, saved by what is new in it: each save writes the slots since the one before, as a segment.

One writer per folder, and one replay. A segment is a checkpoint of its own (`checkpoint.write`), named by the number of the save.
It holds the newest slots of every ring, as many of each, the oldest first: arrays of (slots, N, …), which stream in parts. What
rebuilds a replay is a manifest, JSON for the caller to keep: the segments in order, each by its number and its checksum.
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from spectral_bellman.replay.transitions import Replay
from spectral_bellman.training import checkpoint
from spectral_bellman.training.checkpoint import ARRAYS, INFO, Damaged

PART = 1 << 25
"""Bytes of a ring that are on their way at a time."""

Manifest = list[dict[str, Any]]


class Saved(NamedTuple):
    """What a save came to."""

    bytes: int
    """Written to the disk."""
    manifest: Manifest
    """What `load` rebuilds the replay from."""


class _Segment(NamedTuple):
    """What its `info.json` says of a segment."""

    written: np.ndarray
    """(N,), when it was saved."""
    slots: int
    """For each ring, the head among them."""

    @property
    def start(self) -> np.ndarray:
        """(N,), the slots written before the oldest that it holds."""
        return self.written + 1 - self.slots

    def slot(self, capacity: int) -> np.ndarray:
        """(slots, N), where in the rings they are."""
        return ((self.start + np.arange(self.slots)[:, None]) % capacity).astype(np.int32)


def save(folder: Path, number: int, replay: Replay, since: Manifest | None) -> Saved:
    """Write what is new in `replay` since the save of `since` as segment `number`.

    `since` is the manifest that the replay in memory comes from: of its last save, or of the load that it began with; None where
    there is none, or it is not to be relied on, and everything is written. Nothing is written where there is nothing new.

    Segments after those of `since`, of a run that went back, are removed first. A kill at any moment leaves the earlier ones whole.

    Raises:
        OSError: it could not be written, for want of space or otherwise; nothing of it is left behind.
        ValueError: `number` cannot be used.
    """
    if not 0 <= number < 10**12:
        raise ValueError(f"number {number} cannot name a replay segment: count from 0 to 10**12 - 1")
    num_envs, capacity = replay.whole.shape
    written = np.asarray(replay.written).astype(np.int64)
    manifest = [entry for entry in since or [] if entry["number"] <= number]
    last = max((entry["number"] for entry in manifest), default=number)
    later = [path for path in checkpoint.candidates(folder) if int(path.name) > last]
    if later:
        checkpoint.remove(folder, later)

    chain = [_found(folder, entry) for entry in manifest]
    if chain and chain[-1] is not None and np.array_equal(chain[-1].written, written) and None not in chain:
        return Saved(0, manifest)
    if manifest and manifest[-1]["number"] == number:  # saved again: the new takes its place
        del manifest[-1], chain[-1]

    everything = _Segment(written, min(int(written.max()) + 1, capacity))
    newest = chain[-1] if chain else None
    segment, needed = everything, len(chain)
    if newest is not None and np.all(newest.written <= written):
        segment = _Segment(written, min(int((written - newest.written).max()) + 1, capacity))
        # Segments run on from one another: those before one that reaches back to the oldest slot there is are not needed.
        oldest = np.maximum(written + 1 - capacity, 0)
        reach = [i for i, link in enumerate([*chain, segment]) if link is not None and np.all(link.start <= oldest)]
        needed = max(reach, default=0)
        if not reach or None in chain[needed:]:
            segment, needed = everything, len(chain)

    slot = segment.slot(capacity)
    tree = {
        name: checkpoint.Parts((segment.slots, num_envs, *ring.shape[2:]), np.dtype(ring.dtype), _parts(ring, slot))
        for name, ring in _rings(replay).items()
    }
    info = {"written": written.tolist(), "slots": segment.slots, "capacity": capacity, "stack": replay.stack}
    state = "what was saved before it is untouched: make room and resume from the last checkpoint"
    path = checkpoint.write(folder, number, tree, info, "replay segment", lambda: state)
    entry = {"number": number, "sha256": checkpoint.document(path)["sha256"]}
    return Saved(sum(file.stat().st_size for file in path.iterdir()), [*manifest[needed:], entry])


def load(folder: Path, manifest: Manifest, like: Replay, place: jax.Device | None = None) -> Replay:
    """The replay of `manifest`, as `like` (leaves: arrays or `jax.ShapeDtypeStruct`), on the device `place`.

    All segments are checked before the rings are made, and these are filled in place: they are in memory once.

    Raises:
        Damaged: a segment is missing, cut short, altered, or not the one that was saved.
        ValueError: the manifest is empty, or the rings are not those of `like`.
    """
    if not manifest:
        raise ValueError(f"no segments are named to load a replay from {folder}: give the manifest that save returned")
    _, capacity = like.whole.shape
    segments = [(_path(folder, entry) / ARRAYS, _offsets(folder, entry, like), _described(folder, entry)) for entry in manifest]
    rings: dict[str, Any] = {name: jnp.zeros(ring.shape, ring.dtype, device=place) for name, ring in _rings(like).items()}
    for file, offsets, segment in segments:
        slot = segment.slot(capacity)
        rings = {name: _filled(ring, file, offsets[name], slot) for name, ring in rings.items()}
    written = jnp.asarray(segment.written.astype(like.written.dtype), device=place)
    return Replay(**rings, written=written, stack=like.stack)


def prune(folder: Path, manifests: list[Manifest]) -> None:
    """Remove the segments that none of `manifests` needs: give those of all checkpoints that there are, the newest among them."""
    needed = {_path(folder, entry) for manifest in manifests for entry in manifest}
    checkpoint.remove(folder, [path for path in checkpoint.candidates(folder) if path not in needed])


def _path(folder: Path, entry: dict[str, Any]) -> Path:
    return folder / f"{entry['number']:012d}"


def _rings(replay: Replay) -> dict[str, Any]:
    """The arrays of (N, C, …)."""
    return {field.name: getattr(replay, field.name) for field in fields(replay) if field.name not in ("written", "stack")}


def _document(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    content = checkpoint.document(_path(folder, entry))
    if content["sha256"] != entry["sha256"]:
        raise Damaged(f"{_path(folder, entry) / INFO} is of another save: its checksum is not the one in the manifest")
    return content


def _described(folder: Path, entry: dict[str, Any]) -> _Segment:
    info = _document(folder, entry)["info"]
    return _Segment(np.asarray(info["written"], np.int64), info["slots"])


def _found(folder: Path, entry: dict[str, Any]) -> _Segment | None:
    """The segment if it seems whole: its checksum is not computed."""
    try:
        size = (_path(folder, entry) / ARRAYS).stat().st_size
        return _described(folder, entry) if size == _document(folder, entry)["arrays"]["bytes"] else None
    except (Damaged, OSError):
        return None


def _offsets(folder: Path, entry: dict[str, Any], like: Replay) -> dict[str, int]:
    """Where the segment's file has the slots of each ring, if it is whole and has those of `like`."""
    path, info = _path(folder, entry), _document(folder, entry)["info"]
    stored = {name.strip("[']"): leaf for name, leaf in checkpoint.contents(path).items()}
    have: dict[str, Any] = {"capacity": info["capacity"], "stack": info["stack"]}
    have |= {name: [leaf.dtype.name, *leaf.shape] for name, leaf in stored.items()}
    num_envs, capacity = like.whole.shape
    want: dict[str, Any] = {"capacity": capacity, "stack": like.stack}
    want |= {name: [ring.dtype.name, info["slots"], num_envs, *ring.shape[2:]] for name, ring in _rings(like).items()}
    if have != want:
        differing = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
        raise ValueError(
            f"replay segment {path} is of another run: {', '.join(f'{name} is {have.get(name)}' for name in differing)} in it "
            f"and {', '.join(str(want.get(name)) for name in differing)} in this run: "
            "resume with the settings and the version that it was written with, or start in another folder"
        )
    return {name: leaf.offset for name, leaf in stored.items()}


def _length(shape: tuple[int, ...], itemsize: int, slots: int) -> int:
    """Slots of each ring in a part; a power of two where they are few, so that few lengths are compiled for."""
    num_envs, capacity, *rest = shape
    row = num_envs * max(int(np.prod(rest)) * itemsize, 4)  # the index of a slot has 4 bytes
    return min(max(PART // row, 1), 1 << (slots - 1).bit_length(), capacity)


def _parts(ring: Array, slot: np.ndarray) -> Iterator[np.ndarray]:
    """The slots (slots, N) of a ring, in order."""
    length = _length(ring.shape, ring.dtype.itemsize, len(slot))
    for begin in range(0, len(slot), length):
        index = slot[begin : begin + length]
        padded = np.concatenate([index, np.repeat(index[-1:], length - len(index), axis=0)])
        yield checkpoint.fetched(_take(ring, padded))[: len(index)]


def _filled(ring: Array, file: Path, offset: int, slot: np.ndarray) -> Array:
    """The ring, its memory used again, with the slots (slots, N) from `offset` on of a file."""
    num_envs, capacity, *rest = ring.shape
    length = _length(ring.shape, ring.dtype.itemsize, len(slot))
    with open(file, "rb") as source:
        source.seek(offset)
        for begin in range(0, len(slot), length):
            index = slot[begin : begin + length]
            # Rows beyond go past the end, each to a place of its own, as those of `add` do.
            beyond = np.arange(capacity, capacity + length - len(index), dtype=np.int32)
            padded = np.concatenate([index, np.broadcast_to(beyond[:, None], (len(beyond), num_envs))])
            part = np.zeros((length, num_envs, *rest), ring.dtype)
            source.readinto(checkpoint.memory(part[: len(index)]))
            ring = _put(ring, part, padded).block_until_ready()  # one part on its way at a time
    return ring


@jax.jit
def _take(ring: Array, slot: Int[Array, "n N"]) -> Array:
    return ring.at[_envs(slot), slot].get(mode="promise_in_bounds")


@partial(jax.jit, donate_argnums=0)
def _put(ring: Array, rows: Array, slot: Int[Array, "n N"]) -> Array:
    return ring.at[_envs(slot), slot].set(rows, mode="drop", unique_indices=True)


def _envs(slot: Int[Array, "n N"]) -> Int[Array, "n N"]:
    return jnp.broadcast_to(jnp.arange(slot.shape[1], dtype=slot.dtype), slot.shape)
