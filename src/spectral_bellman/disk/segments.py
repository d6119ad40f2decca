"""A ring on the disk, saved by what is new: each save writes the slots since the save before it.

One writer per folder, and one ring. What a save writes is a *segment*, a checkpoint of its own
(``checkpoint.write``), named by the number of the save. It holds the newest slots of every
environment, as many of each, the oldest first: arrays of (slots, N, …), written and read in chunks.
A *manifest* says what rebuilds the ring: the segments in order, each with its number and its
checksum. The caller keeps the manifest, which is JSON.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from spectral_bellman.disk import checkpoint
from spectral_bellman.disk.arrays import Chunks, Stored, fetched, read_rows
from spectral_bellman.disk.checkpoint import ARRAYS, INFO, Damaged
from spectral_bellman.replay import Ring

CHUNK = 1 << 25
"""Bytes of an array that are copied at a time."""

Manifest = list[dict[str, Any]]


class Saved(NamedTuple):
    """The result of a save."""

    bytes: int
    """Bytes written to the disk."""
    manifest: Manifest
    """What ``load`` rebuilds the ring from."""


class _Segment(NamedTuple):
    """What a segment's ``info.json`` says."""

    written: np.ndarray
    """(N,) ``Ring.written`` at the time of the save."""
    slots: int
    """Slots of each environment, the head among them."""

    @property
    def start(self) -> np.ndarray:
        """(N,) ``Ring.written`` when the oldest slot of the segment was the head."""
        return self.written + 1 - self.slots

    def slot(self, capacity: int) -> np.ndarray:
        """(slots, N) where in the ring they are."""
        return ((self.start + np.arange(self.slots)[:, None]) % capacity).astype(np.int32)


def save(folder: Path, number: int, ring: Ring, since: Manifest | None) -> Saved:
    """Write what is new in ``ring`` since the save of ``since`` as segment ``number``.

    Args:
      folder: of the segments.
      number: names the segment, and is higher than the numbers of ``since``, or equal to the last.
      ring: what to save.
      since: the manifest of the last save of this ring, or of the load that it began with. None
        where there is none or it is not to be relied on: everything is written.

    Nothing is written where nothing is new. Later segments than those of ``since``, left by a run
    that went back, are removed first. A kill at any moment leaves the earlier segments whole.

    Raises:
      OSError: the segment could not be written, for want of space or otherwise; none of it stays.
      ValueError: ``number`` cannot be used.
    """
    if not 0 <= number < 10**12:
        raise ValueError(
            f"number {number} cannot name a replay segment: count from 0 to 10**12 - 1"
        )
    num_envs, capacity = ring.valid.shape
    written = np.asarray(ring.written).astype(np.int64)
    manifest = [entry for entry in since or [] if entry["number"] <= number]
    last = max((entry["number"] for entry in manifest), default=number)
    later = [path for path in checkpoint.candidates(folder) if int(path.name) > last]
    if later:
        checkpoint.remove(folder, later)

    chain = [_found(folder, entry) for entry in manifest]
    if (
        chain
        and chain[-1] is not None
        and np.array_equal(chain[-1].written, written)
        and None not in chain
    ):
        return Saved(0, manifest)
    if manifest and manifest[-1]["number"] == number:  # saved again: the new takes its place
        del manifest[-1], chain[-1]

    everything = _Segment(written, min(int(written.max()) + 1, capacity))
    newest = chain[-1] if chain else None
    segment, needed = everything, len(chain)
    # `Ring.written` goes down when it wraps: everything is written then.
    if newest is not None and np.all(newest.written <= written):
        segment = _Segment(written, min(int((written - newest.written).max()) + 1, capacity))
        # Segments follow one another without gaps: those before the last one that reaches back to
        # the oldest slot are not needed.
        oldest = np.maximum(written + 1 - capacity, 0)
        links = enumerate([*chain, segment])
        reach = [i for i, link in links if link is not None and np.all(link.start <= oldest)]
        needed = max(reach, default=0)
        if not reach or None in chain[needed:]:
            segment, needed = everything, len(chain)

    slot = segment.slot(capacity)

    def chunks(leaf: Array) -> Chunks:
        shape = (segment.slots, num_envs, *leaf.shape[2:])
        return Chunks(shape, np.dtype(leaf.dtype), _chunks(leaf, slot))

    info = {
        "written": written.tolist(),
        "slots": segment.slots,
        "capacity": capacity,
        "stack": ring.stack,
    }
    state = "earlier saves are untouched: make room and resume from the last checkpoint"
    tree = jax.tree.map(chunks, _slots(ring))
    path = checkpoint.write(folder, number, tree, info, "replay segment", lambda: state)
    entry = {"number": number, "sha256": checkpoint.document(path)["sha256"]}
    return Saved(sum(file.stat().st_size for file in path.iterdir()), [*manifest[needed:], entry])


def load(folder: Path, manifest: Manifest, like: Ring, place: jax.Device | None = None) -> Ring:
    """The ring of ``manifest`` on the device ``place``.

    All segments are checked before the arrays are made. These are filled in place, so that they are
    in memory once.

    Args:
      folder: of the segments.
      manifest: what ``save`` returned.
      like: a ring of the same shapes; its leaves are arrays or ``jax.ShapeDtypeStruct``.
      place: the device; None for the default one.

    Raises:
      Damaged: a segment is missing, cut short, altered, or not the one that was saved.
      ValueError: the manifest is empty, or the ring does not have the shapes of ``like``.
    """
    if not manifest:
        raise ValueError(
            f"no segments are named to load a replay from {folder}: "
            "give the manifest that save returned"
        )
    segments = [
        (_path(folder, entry) / ARRAYS, _stored(folder, entry, like), _described(folder, entry))
        for entry in manifest
    ]
    names, structure = list(_named(like)), jax.tree.structure(_slots(like))
    shapes = _named(like).values()
    leaves: list[Any] = [jnp.zeros(leaf.shape, leaf.dtype, device=place) for leaf in shapes]
    for file, stored, segment in segments:
        slot = segment.slot(like.capacity)
        for i, name in enumerate(names):
            leaves[i] = _filled(leaves[i], file, name, stored[name], slot)
    written = jnp.asarray(segment.written.astype(like.written.dtype), device=place)
    ring: Ring = jax.tree.unflatten(structure, leaves)
    return eqx.tree_at(lambda ring: ring.written, ring, written, is_leaf=lambda leaf: leaf is None)


def prune(folder: Path, manifests: list[Manifest]) -> None:
    """Remove the segments that none of ``manifests`` needs.

    Give the manifests of all checkpoints that are kept.
    """
    needed = {_path(folder, entry) for manifest in manifests for entry in manifest}
    checkpoint.remove(
        folder, [path for path in checkpoint.candidates(folder) if path not in needed]
    )


def _path(folder: Path, entry: dict[str, Any]) -> Path:
    return folder / f"{entry['number']:012d}"


def _slots(ring: Ring) -> Ring:
    """The ring without ``written``: every leaf is (N, C, …)."""
    return eqx.tree_at(lambda ring: ring.written, ring, None)


def _named(ring: Ring) -> dict[str, Any]:
    """The leaves of (N, C, …) by their names in a checkpoint."""
    leaves = jax.tree_util.tree_leaves_with_path(_slots(ring))
    return {jax.tree_util.keystr(keys): leaf for keys, leaf in leaves}


def _document(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    content = checkpoint.document(_path(folder, entry))
    if content["sha256"] != entry["sha256"]:
        raise Damaged(
            f"{_path(folder, entry) / INFO} is of another save: "
            "its checksum is not the one in the manifest"
        )
    return content


def _described(folder: Path, entry: dict[str, Any]) -> _Segment:
    info = _document(folder, entry)["info"]
    return _Segment(np.asarray(info["written"], np.int64), info["slots"])


def _found(folder: Path, entry: dict[str, Any]) -> _Segment | None:
    """The segment if it seems whole: its checksum is not computed."""
    try:
        size = (_path(folder, entry) / ARRAYS).stat().st_size
        return (
            _described(folder, entry)
            if size == _document(folder, entry)["arrays"]["bytes"]
            else None
        )
    except (Damaged, OSError):
        return None


def _stored(folder: Path, entry: dict[str, Any], like: Ring) -> dict[str, Stored]:
    """The leaves in the segment's file, which must be the leaves of ``like``."""
    path, info = _path(folder, entry), _document(folder, entry)["info"]
    stored, wanted = checkpoint.contents(path), _named(like)
    have: dict[str, Any] = {"capacity": info["capacity"], "stack": info["stack"]}
    have |= {name[1:]: [leaf.dtype.name, *leaf.shape] for name, leaf in stored.items()}
    num_envs, capacity = like.valid.shape
    rows = [info["slots"], num_envs]
    want: dict[str, Any] = {"capacity": capacity, "stack": like.stack}
    want |= {name[1:]: [leaf.dtype.name, *rows, *leaf.shape[2:]] for name, leaf in wanted.items()}
    if have != want:
        names = have.keys() | want.keys()
        differing = sorted(name for name in names if have.get(name) != want.get(name))
        raise ValueError(
            f"replay segment {path} is of another run: "
            f"{', '.join(f'{name} is {have.get(name)}' for name in differing)} in it and "
            f"{', '.join(str(want.get(name)) for name in differing)} in this run: resume with the "
            "settings and the version that it was written with, or start in another folder"
        )
    return stored


def _length(shape: tuple[int, ...], itemsize: int, slots: int) -> int:
    """Slots in a chunk; a power of two where they are few, so that few lengths are compiled."""
    num_envs, capacity, *rest = shape
    row = num_envs * max(int(np.prod(rest)) * itemsize, 4)  # the index of a slot has 4 bytes
    return min(max(CHUNK // row, 1), 1 << (slots - 1).bit_length(), capacity)


def _chunks(leaf: Array, slot: np.ndarray) -> Iterator[np.ndarray]:
    """The slots (slots, N) of a leaf, in order."""
    length = _length(leaf.shape, leaf.dtype.itemsize, len(slot))
    for begin in range(0, len(slot), length):
        index = slot[begin : begin + length]
        padded = np.concatenate([index, np.repeat(index[-1:], length - len(index), axis=0)])
        yield fetched(_take(leaf, padded))[: len(index)]


def _filled(leaf: Array, file: Path, name: str, stored: Stored, slot: np.ndarray) -> Array:
    """The leaf, in the same memory, with its slots (slots, N) read from a file."""
    num_envs, capacity, *_ = leaf.shape
    length = _length(leaf.shape, leaf.dtype.itemsize, len(slot))
    for begin in range(0, len(slot), length):
        index = slot[begin : begin + length]
        chunk = read_rows(file, name, stored, begin, begin + len(index))
        if missing := length - len(index):
            # Padding goes past the end, each row to a place of its own, as in `replay.add`.
            beyond = np.arange(capacity, capacity + missing, dtype=np.int32)
            beyond = np.broadcast_to(beyond[:, None], (missing, num_envs))
            index = np.concatenate([index, beyond])
            chunk = np.concatenate([chunk, np.zeros((missing, *chunk.shape[1:]), chunk.dtype)])
        leaf = _put(leaf, chunk, index).block_until_ready()  # one chunk at a time
    return leaf


@jax.jit
def _take(leaf: Array, slot: Int[Array, "n N"]) -> Array:
    return leaf.at[_envs(slot), slot].get(mode="promise_in_bounds")


@partial(jax.jit, donate_argnums=0)
def _put(leaf: Array, rows: Array, slot: Int[Array, "n N"]) -> Array:
    return leaf.at[_envs(slot), slot].set(rows, mode="drop", unique_indices=True)


def _envs(slot: Int[Array, "n N"]) -> Int[Array, "n N"]:
    return jnp.broadcast_to(jnp.arange(slot.shape[1], dtype=slot.dtype), slot.shape)
