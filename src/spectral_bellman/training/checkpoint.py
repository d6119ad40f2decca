"""Checkpoints of a training run: written whole or not at all, checked against a checksum when read, free of pickle.

One writer per folder. A checkpoint is a folder named by its step, `000000001000/`, with two files:

- `arrays.safetensors`: every leaf of the pytree under its key path. The format has no name for typed PRNG keys and some
  dtypes (complex128, int4, ...): keys are stored as their key data, the others as bytes along a last axis.
- `info.json`: what the caller wants kept beside the arrays, and the size, the checksum and those leaves of the arrays.
"""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.analysis.provenance import write_json

ARRAYS = "arrays.safetensors"
INFO = "info.json"

_HIDDEN = ".partial-"  # begins the name of what is being written or removed; never a checkpoint
_FORMAT = {
    **{"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"},
    **{f"{kind}{bits}": f"{letter}{bits}" for kind, letter in (("int", "I"), ("uint", "U")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}
_DTYPES = {stored: jnp.dtype(name) for name, stored in _FORMAT.items()}


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Parts:
    """A leaf that is written as it comes: too large to be held at once."""

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: Iterable[np.ndarray]
    """Contiguous arrays that make up the leaf's memory, in order."""


def save(folder: Path, step: int, tree: Any, info: dict[str, Any], keep: int = 2) -> Path:
    """Write the arrays of `tree` and the JSON of `info` as the checkpoint of `step`; return its path.

    A kill at any moment leaves the earlier checkpoints whole (saving the same step again takes the old one's place).
    Afterwards the newest `keep` up to this step stay; later ones, of a run that went back, are left alone.

    Raises:
        OSError: it could not be written, for want of space or otherwise; nothing of it is left behind.
        TypeError: a leaf is no array of numbers.
        ValueError: `step`, `keep` or `info` cannot be used.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would remove the checkpoint just written: keep at least 1")

    def state() -> str:
        whole = next((old.name for old in candidates(folder) if _is_whole(old)), None)
        return f"the last good checkpoint, {whole}, is whole: make room and resume from it" if whole else "no earlier one is whole"

    path = write(folder, step, tree, info, "checkpoint", state)
    older = [old for old in candidates(folder) if old.name < path.name]
    remove(folder, older[keep - 1 :])
    return path


def write(folder: Path, step: int, tree: Any, info: dict[str, Any], noun: str, state: Callable[[], str]) -> Path:
    """As `save`, of what the messages call `noun`; removes no other. `state` ends the message where there is no room."""
    if not 0 <= step < 10**12:
        raise ValueError(f"step {step} cannot name a {noun}: count steps from 0 to 10**12 - 1")
    try:
        text = json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"info of {noun} {step} must be JSON (finite numbers, strings, lists, dicts): {error}") from error

    leaves = _named(tree, jax.Array | np.ndarray | np.generic | Parts)
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if _is_key(leaf)}
    leaves |= {name: jax.random.key_data(leaves[name]) for name in keys}
    raw = {name: leaf.dtype.name for name, leaf in leaves.items() if leaf.dtype.name not in _FORMAT}
    header, end = {}, 0
    for name, leaf in leaves.items():
        start, end = end, end + math.prod(leaf.shape) * leaf.dtype.itemsize
        shape = (*leaf.shape, leaf.dtype.itemsize) if name in raw else leaf.shape
        header[name] = {"dtype": _FORMAT.get(leaf.dtype.name, "U8"), "shape": shape, "data_offsets": (start, end)}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the format asks that the arrays begin at a multiple of 8
    size = 8 + len(head) + end
    need = size + len(text)

    path = folder / f"{step:012d}"
    temporary = folder / (_HIDDEN + path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove(folder)
        if need > _free(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        digest = hashlib.sha256()
        with open(temporary / ARRAYS, "wb") as file:

            def put(data: bytes | memoryview) -> None:
                file.write(data)
                digest.update(data)

            put(len(head).to_bytes(8, "little"))
            put(head)
            for name, leaf in leaves.items():
                rest = math.prod(leaf.shape) * leaf.dtype.itemsize
                for data in map(memory, leaf.parts if isinstance(leaf, Parts) else (fetched(leaf),)):
                    put(data)
                    rest -= len(data)
                    del data  # one at a time: the tree may be larger than the memory
                if rest:
                    raise ValueError(f"the parts of leaf {name} are {abs(rest)} bytes too {'few' if rest > 0 else 'many'}")
        content = {"info": json.loads(text), "arrays": {"bytes": size, "sha256": digest.hexdigest(), "keys": keys, "raw": raw}}
        write_json(temporary / INFO, {**content, "sha256": _seal(content)})
        for written in (temporary / ARRAYS, temporary / INFO, temporary):
            _sync(written)
        if path.exists():
            path.rename(folder / (_HIDDEN + "replaced"))
        temporary.rename(path)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # before the free space is counted
        raise OSError(
            error.errno,
            f"{noun} {path.name} could not be written to {folder} ({error.strerror or error}): "
            f"it needs {need / 1e6:.1f} MB, {_free(folder) / 1e6:.1f} MB are free; {state()}",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    remove(folder)
    return path


def remove(folder: Path, paths: Iterable[Path] = ()) -> None:
    """Remove checkpoints of `folder`, and what a killed writer left there."""
    for path in paths:
        hidden = folder / (_HIDDEN + path.name)
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)  # first: one half removed must not be taken for a checkpoint
    for left in folder.glob(_HIDDEN + "*"):
        shutil.rmtree(left)


def load(path: Path, like: Any) -> Any:
    """The pytree of the checkpoint at `path`, in the structure of `like` (leaves: arrays or `jax.ShapeDtypeStruct`).

    Raises:
        Damaged: a file is missing, cut short or altered.
        ValueError: the names, shapes or dtypes of the leaves are not those of `like`.
    """
    stored = contents(path)
    wanted = _named(like, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    cure = "resume with the settings and the version that it was written with, or start in another folder"
    if stored.keys() != wanted.keys():
        lacking, beyond = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
        raise ValueError(f"checkpoint {path} is of another run: it lacks leaves {lacking}, and has {beyond} beyond it; {cure}")
    with open(path / ARRAYS, "rb") as file:

        def read(name: str, want: Any) -> jax.Array:
            shape, dtype, key, offset = stored[name]
            restore: Callable[[Any], jax.Array] = jnp.asarray
            have = jax.ShapeDtypeStruct(shape, dtype)
            if key is not None:
                restore = partial(jax.random.wrap_key_data, impl=key)
                have = jax.eval_shape(restore, have)
            if (have.shape, have.dtype.name) != (want.shape, want.dtype.name):
                raise ValueError(
                    f"leaf {name} is {have.dtype.name}{list(have.shape)} in checkpoint {path} "
                    f"and {want.dtype.name}{list(want.shape)} in this run: {cure}"
                )
            if jax.dtypes.canonicalize_dtype(dtype) != dtype:
                raise ValueError(f"leaf {name} of checkpoint {path} is {dtype.name}, which jax would round: set jax_enable_x64")
            file.seek(offset)
            array = np.empty(shape, dtype)
            file.readinto(memory(array))
            return restore(array)

        leaves = [read(name, want) for name, want in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


class Stored(NamedTuple):
    """A leaf in the file of arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype
    key: str | None
    """The kind of the PRNG keys that it is the data of."""
    offset: int
    """Where in the file it begins."""


def contents(path: Path) -> dict[str, Stored]:
    """Where the leaves of the checkpoint at `path` are in its file of arrays, by their names.

    Raises:
        Damaged: a file is missing, cut short or altered.
    """
    arrays = _verified(path)

    def leaf(name: str, entry: dict[str, Any]) -> Stored:
        shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
        if name in arrays["raw"]:
            shape, dtype = shape[:-1], jnp.dtype(arrays["raw"][name])
        return Stored(shape, dtype, arrays["keys"].get(name), begin + entry["data_offsets"][0])

    with open(path / ARRAYS, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
    return {name: leaf(name, entry) for name, entry in header.items()}


def read_info(path: Path) -> dict[str, Any]:
    """The `info` that the checkpoint at `path` was saved with.

    Raises:
        Damaged: `info.json` is missing or altered.
    """
    return document(path)["info"]


def candidates(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first, whole or not; none where there is no folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if len(path.name) == 12 and path.name.isdecimal()), reverse=True)


def load_newest(folder: Path, like: Any, warn: Callable[[str], None]) -> tuple[Path, Any, dict[str, Any]]:
    """The newest checkpoint in `folder` that is whole: its path, its pytree as by `load`, its `info`; as by `newest`."""
    path, (tree, info) = newest(folder, lambda path: (load(path, like), read_info(path)), warn)
    return path, tree, info


Read = TypeVar("Read")


def newest(folder: Path, read: Callable[[Path], Read], warn: Callable[[str], None]) -> tuple[Path, Read]:
    """The newest checkpoint in `folder` that `read` does not find `Damaged`, and what it read.

    A damaged one is reported through `warn`, and the one before it is taken.

    Raises:
        FileNotFoundError: there is no checkpoint.
        Damaged: there are checkpoints, and none is whole.
        ValueError: as by `load`; an earlier one would not fit either.
    """
    paths = candidates(folder)
    if not paths:
        raise FileNotFoundError(
            f"no checkpoint in {folder}: name the folder of a run that has saved one, or start without resuming"
        )
    for path in paths:
        try:
            return path, read(path)
        except Damaged as error:
            warn(f"checkpoint {path.name} is damaged, trying the one before it: {error}")
            last = error
    raise Damaged(
        f"none of the {len(paths)} checkpoints in {folder} is whole: restore a copy, or start again elsewhere; {last}"
    ) from last


def _named(tree: Any, kinds: Any) -> dict[str, Any]:
    """The leaves by their key paths, in the order of the tree; refuses what is no array of numbers."""
    leaves = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(keys)
        if not isinstance(leaf, kinds) or not (_is_key(leaf) or leaf.dtype == bool or jnp.issubdtype(leaf.dtype, np.number)):
            raise TypeError(
                f"leaf {name} is {type(leaf).__name__}, not an array of numbers: part it from the tree (equinox.partition)"
            )
        if name in leaves:
            raise ValueError(f"two leaves of the tree are named {name}: give the nodes above them distinct keys")
        leaves[name] = leaf
    return leaves


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def fetched(leaf: Any) -> np.ndarray:
    """The leaf on the host, contiguous and in this machine's byte order."""
    if isinstance(leaf, jax.Array):
        # A jax array keeps the host copy it was asked for as long as it lives; this second one on the same buffers does not.
        leaf = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [part.data for part in leaf.addressable_shards])
    return np.asarray(leaf, jnp.dtype(leaf.dtype.name), order="C")


def memory(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, not a copy."""
    return array.reshape(-1).view(np.uint8).data


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free(folder: Path) -> int:
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free


def document(path: Path) -> dict[str, Any]:
    """The content of `info.json`, its checksum included, if it is what was written.

    Raises:
        Damaged: it is missing or altered.
    """
    try:
        content = json.loads((path / INFO).read_text(encoding="utf-8"))
        seal = content.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path / INFO} cannot be read: {error!r}") from error
    if seal != _seal(content):
        raise Damaged(f"{path / INFO} is not what was written: its checksum differs")
    return {**content, "sha256": seal}


def _verified(path: Path) -> dict[str, Any]:
    """What `info.json` says about the arrays, if they are what was written."""
    arrays: dict[str, Any] = document(path)["arrays"]
    try:
        with open(path / ARRAYS, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != arrays["bytes"]:
                raise Damaged(f"{path / ARRAYS} has {size} bytes and was written with {arrays['bytes']}")
            if hashlib.file_digest(file, "sha256").hexdigest() != arrays["sha256"]:
                raise Damaged(f"{path / ARRAYS} is not what was written: its checksum differs")
    except OSError as error:
        raise Damaged(f"{path / ARRAYS} cannot be read: {error!r}") from error
    return arrays


def _is_whole(path: Path) -> bool:
    try:
        _verified(path)
    except Damaged:
        return False
    return True
