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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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


def save(folder: Path, step: int, tree: Any, info: dict[str, Any], keep: int = 2) -> Path:
    """Write the arrays of `tree` and the JSON of `info` as the checkpoint of `step`; return its path.

    A kill at any moment leaves the earlier checkpoints whole (saving the same step again takes the old one's place).
    Afterwards the newest `keep` up to this step stay; later ones, of a run that went back, are left alone.

    Raises:
        OSError: it could not be written, for want of space or otherwise; nothing of it is left behind.
        TypeError: a leaf is no array of numbers.
        ValueError: `step`, `keep` or `info` cannot be used.
    """
    if not 0 <= step < 10**12:
        raise ValueError(f"step {step} cannot name a checkpoint: count steps from 0 to 10**12 - 1")
    if keep < 1:
        raise ValueError(f"keep={keep} would remove the checkpoint just written: keep at least 1")
    try:
        text = json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"info of checkpoint {step} must be JSON (finite numbers, strings, lists, dicts): {error}") from error

    leaves = _named(tree, jax.Array | np.ndarray | np.generic)
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
        for left in folder.glob(_HIDDEN + "*"):
            shutil.rmtree(left)
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
            for leaf in leaves.values():
                put(_bytes(_fetched(leaf)))  # one at a time: the tree may be larger than the memory
        document = {"info": json.loads(text), "arrays": {"bytes": size, "sha256": digest.hexdigest(), "keys": keys, "raw": raw}}
        write_json(temporary / INFO, {**document, "sha256": _seal(document)})
        for written in (temporary / ARRAYS, temporary / INFO, temporary):
            _sync(written)
        if path.exists():
            path.rename(folder / (_HIDDEN + "replaced"))
        temporary.rename(path)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # before the free space is counted
        whole = next((old.name for old in candidates(folder) if _is_whole(old)), None)
        last = f"the last good checkpoint, {whole}, is whole: make room and resume from it" if whole else "no earlier one is whole"
        raise OSError(
            error.errno,
            f"checkpoint {path.name} could not be written to {folder} ({error.strerror or error}): "
            f"it needs {need / 1e6:.1f} MB, {_free(folder) / 1e6:.1f} MB are free; {last}",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

    older = [old for old in candidates(folder) if old.name < path.name]
    for old in older[keep - 1 :]:
        old.rename(folder / (_HIDDEN + old.name))  # hidden first: one half removed must not be taken for a checkpoint
    for left in folder.glob(_HIDDEN + "*"):
        shutil.rmtree(left)
    return path


def load(path: Path, like: Any) -> Any:
    """The pytree of the checkpoint at `path`, in the structure of `like` (leaves: arrays or `jax.ShapeDtypeStruct`).

    Raises:
        Damaged: a file is missing, cut short or altered.
        ValueError: the names, shapes or dtypes of the leaves are not those of `like`.
    """
    arrays = _verified(path)
    wanted = _named(like, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    cure = "resume with the settings and the version that it was written with, or start in another folder"
    with open(path / ARRAYS, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        if header.keys() != wanted.keys():
            lacking, beyond = sorted(wanted.keys() - header.keys()), sorted(header.keys() - wanted.keys())
            raise ValueError(f"checkpoint {path} is of another run: it lacks leaves {lacking}, and has {beyond} beyond it; {cure}")

        def read(name: str, want: Any) -> jax.Array:
            shape, dtype = tuple(header[name]["shape"]), _DTYPES[header[name]["dtype"]]
            if name in arrays["raw"]:
                shape, dtype = shape[:-1], jnp.dtype(arrays["raw"][name])
            restore: Callable[[Any], jax.Array] = jnp.asarray
            have = jax.ShapeDtypeStruct(shape, dtype)
            if name in arrays["keys"]:
                restore = partial(jax.random.wrap_key_data, impl=arrays["keys"][name])
                have = jax.eval_shape(restore, have)
            if (have.shape, have.dtype.name) != (want.shape, want.dtype.name):
                raise ValueError(
                    f"leaf {name} is {have.dtype.name}{list(have.shape)} in checkpoint {path} "
                    f"and {want.dtype.name}{list(want.shape)} in this run: {cure}"
                )
            if jax.dtypes.canonicalize_dtype(dtype) != dtype:
                raise ValueError(f"leaf {name} of checkpoint {path} is {dtype.name}, which jax would round: set jax_enable_x64")
            file.seek(begin + header[name]["data_offsets"][0])
            array = np.empty(shape, dtype)
            file.readinto(_bytes(array))
            return restore(array)

        leaves = [read(name, want) for name, want in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read_info(path: Path) -> dict[str, Any]:
    """The `info` that the checkpoint at `path` was saved with.

    Raises:
        Damaged: `info.json` is missing or altered.
    """
    return _document(path)["info"]


def candidates(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first, whole or not; none where there is no folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if len(path.name) == 12 and path.name.isdecimal()), reverse=True)


def load_newest(folder: Path, like: Any, warn: Callable[[str], None]) -> tuple[Path, Any, dict[str, Any]]:
    """The newest checkpoint in `folder` that is whole: its path, its pytree as by `load`, its `info`.

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
            return path, load(path, like), read_info(path)
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


def _fetched(leaf: Any) -> np.ndarray:
    """The leaf on the host, contiguous and in this machine's byte order."""
    if isinstance(leaf, jax.Array):
        # A jax array keeps the host copy it was asked for as long as it lives; this second one on the same buffers does not.
        leaf = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [part.data for part in leaf.addressable_shards])
    return np.asarray(leaf, jnp.dtype(leaf.dtype.name), order="C")


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, not a copy."""
    return array.reshape(-1).view(np.uint8).data


def _seal(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free(folder: Path) -> int:
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free


def _document(path: Path) -> dict[str, Any]:
    """The content of `info.json`, if it is what was written."""
    try:
        document = json.loads((path / INFO).read_text(encoding="utf-8"))
        seal = document.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path / INFO} cannot be read: {error!r}") from error
    if seal != _seal(document):
        raise Damaged(f"{path / INFO} is not what was written: its checksum differs")
    return document


def _verified(path: Path) -> dict[str, Any]:
    """What `info.json` says about the arrays, if they are what was written."""
    arrays: dict[str, Any] = _document(path)["arrays"]
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
