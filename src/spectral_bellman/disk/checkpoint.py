"""Checkpoints: written completely or not at all, verified by checksum when read, without pickle.

One writer per folder. A checkpoint is a folder named by its step, `000000001000/`, with two files:

- `arrays.safetensors`: every leaf of the pytree under its key path (see `disk.arrays`).
- `info.json`: JSON of the caller, and size, checksum and special leaves of the arrays.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from spectral_bellman.disk import arrays
from spectral_bellman.disk.arrays import Stored
from spectral_bellman.disk.provenance import write_json

ARRAYS = "arrays.safetensors"
INFO = "info.json"

_HIDDEN = ".partial-"  # prefix of what is being written or removed; never a checkpoint


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the message names the file and its fault."""


def save(folder: Path, step: int, tree: Any, info: dict[str, Any], keep: int = 2) -> Path:
    """Write the arrays of `tree` and the JSON of `info` as the checkpoint of `step`.

    If the process is killed at any moment, the earlier checkpoints stay intact. Saving the same
    step again replaces the old checkpoint. Afterwards the newest `keep` checkpoints up to this
    step remain. Later ones, from before the run went back, are not touched.

    Returns:
        The folder of the checkpoint.

    Raises:
        OSError: it could not be written; nothing of it is left behind.
        TypeError: a leaf is not an array of numbers.
        ValueError: `step`, `keep` or `info` cannot be used.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would remove the checkpoint just written: keep at least 1")

    def state() -> str:
        intact = next((old.name for old in candidates(folder) if _is_intact(old)), None)
        if intact is None:
            return "no earlier checkpoint is intact"
        return f"the last checkpoint, {intact}, is intact: free some space and resume from it"

    path = write(folder, step, tree, info, "checkpoint", state)
    older = [old for old in candidates(folder) if old.name < path.name]
    remove(folder, older[keep - 1 :])
    return path


def write(
    folder: Path,
    step: int,
    tree: Any,
    info: dict[str, Any],
    noun: str,
    state: Callable[[], str],
) -> Path:
    """Write as `save` does, without removing older ones.

    Args:
        folder: the folder of checkpoints.
        step: names the checkpoint.
        tree: pytree of arrays and `Chunks`.
        info: JSON to keep beside the arrays.
        noun: what error messages call the thing written.
        state: ends the message of an `OSError`: what the user can still rely on.
    """
    if not 0 <= step < 10**12:
        raise ValueError(f"step {step} cannot name a {noun}: count steps from 0 to 10**12 - 1")
    try:
        text = json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        wanted = "must be JSON (finite numbers, strings, lists, dicts)"
        raise ValueError(f"info of {noun} {step} {wanted}: {error}") from error
    content = arrays.layout(tree)
    need = content.size + len(text)

    path = folder / f"{step:012d}"
    temporary = folder / (_HIDDEN + path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove(folder)
        if need > _free(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        digest = arrays.write_arrays(temporary / ARRAYS, content)
        facts = {"bytes": content.size, "sha256": digest, "keys": content.keys, "raw": content.raw}
        described = {"info": json.loads(text), "arrays": facts}
        write_json(temporary / INFO, {**described, "sha256": _checksum(described)})
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
    """Remove the given checkpoints of `folder`, and the remains of a killed writer."""
    for path in paths:
        hidden = folder / (_HIDDEN + path.name)
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)  # first: half a checkpoint must not look like one
    for left in folder.glob(_HIDDEN + "*"):
        shutil.rmtree(left)


def load(path: Path, like: Any) -> Any:
    """The pytree of the checkpoint at `path`, in the structure of `like`.

    Args:
        path: the folder of the checkpoint.
        like: pytree whose leaves are arrays or `jax.ShapeDtypeStruct`.

    Raises:
        Damaged: a file is missing, truncated or altered.
        ValueError: names, shapes or dtypes of the leaves differ from those of `like`.
    """
    found = contents(path)
    wanted = arrays.named(like, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    cure = "resume with the settings and the version that wrote it, or start in another folder"
    if found.keys() != wanted.keys():
        missing = sorted(wanted.keys() - found.keys())
        unknown = sorted(found.keys() - wanted.keys())
        raise ValueError(
            f"checkpoint {path} belongs to another run: it lacks the leaves {missing} "
            f"and has the unknown leaves {unknown}; {cure}"
        )

    for name, want in wanted.items():
        shape, dtype, key = found[name]
        have = jax.ShapeDtypeStruct(shape, dtype)
        if key is not None:
            have = jax.eval_shape(partial(jax.random.wrap_key_data, impl=key), have)
        if (have.shape, have.dtype.name) != (want.shape, want.dtype.name):
            raise ValueError(
                f"leaf {name} is {have.dtype.name}{list(have.shape)} in checkpoint {path} "
                f"and {want.dtype.name}{list(want.shape)} in this run: {cure}"
            )
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(
                f"leaf {name} of checkpoint {path} is {dtype.name}, which jax would round: "
                "set jax_enable_x64"
            )
    leaves = arrays.read_arrays(path / ARRAYS, found)
    for name, leaf in leaves.items():
        if (key := found[name].key) is not None:
            leaves[name] = jax.random.wrap_key_data(leaf, impl=key)
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted])


def contents(path: Path) -> dict[str, Stored]:
    """The leaves in the file of arrays of the checkpoint at `path`, by key path.

    Raises:
        Damaged: a file is missing, truncated or altered.
    """
    facts = _verified(path)
    return arrays.stored(path / ARRAYS, facts["keys"], facts["raw"])


def read_info(path: Path) -> dict[str, Any]:
    """The `info` that the checkpoint at `path` was saved with.

    Raises:
        Damaged: `info.json` is missing or altered.
    """
    return document(path)["info"]


def candidates(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first, intact or not; empty if there is no folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in found if len(p.name) == 12 and p.name.isdecimal()), reverse=True)


def load_newest(
    folder: Path, like: Any, warn: Callable[[str], None]
) -> tuple[Path, Any, dict[str, Any]]:
    """The newest intact checkpoint in `folder`: its path, its pytree and its `info`.

    Raises as `load` and `newest` do.
    """
    path, (tree, info) = newest(folder, lambda path: (load(path, like), read_info(path)), warn)
    return path, tree, info


Read = TypeVar("Read")


def newest(
    folder: Path, read: Callable[[Path], Read], warn: Callable[[str], None]
) -> tuple[Path, Read]:
    """The newest checkpoint in `folder` that `read` does not find `Damaged`, and what it read.

    Each damaged checkpoint is reported through `warn`, and the one before it is tried.

    Raises:
        FileNotFoundError: there is no checkpoint.
        Damaged: there are checkpoints, and none is intact.
        ValueError: as `load`; an earlier checkpoint would not fit either.
    """
    paths = candidates(folder)
    if not paths:
        raise FileNotFoundError(
            f"no checkpoint in {folder}: name the folder of a run that has saved one, "
            "or start without resuming"
        )
    for path in paths:
        try:
            return path, read(path)
        except Damaged as error:
            warn(f"checkpoint {path.name} is damaged, trying the one before it: {error}")
            last = error
    raise Damaged(
        f"none of the {len(paths)} checkpoints in {folder} is intact: "
        f"restore a copy, or start again elsewhere; {last}"
    ) from last


def document(path: Path) -> dict[str, Any]:
    """The content of `info.json`, with its checksum.

    Raises:
        Damaged: it is missing or altered.
    """
    try:
        content = json.loads((path / INFO).read_text(encoding="utf-8"))
        checksum = content.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path / INFO} cannot be read: {error!r}") from error
    if checksum != _checksum(content):
        raise Damaged(f"{path / INFO} was altered after it was written: its checksum differs")
    return {**content, "sha256": checksum}


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free(folder: Path) -> int:
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    return shutil.disk_usage(existing).free


def _verified(path: Path) -> dict[str, Any]:
    """The description of the arrays in `info.json`, after their size and checksum are checked."""
    facts: dict[str, Any] = document(path)["arrays"]
    try:
        with open(path / ARRAYS, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != facts["bytes"]:
                raise Damaged(
                    f"{path / ARRAYS} has {size} bytes and was written with {facts['bytes']}"
                )
            if hashlib.file_digest(file, "sha256").hexdigest() != facts["sha256"]:
                raise Damaged(
                    f"{path / ARRAYS} was altered after it was written: its checksum differs"
                )
    except OSError as error:
        raise Damaged(f"{path / ARRAYS} cannot be read: {error!r}") from error
    return facts


def _is_intact(path: Path) -> bool:
    try:
        _verified(path)
    except Damaged:
        return False
    return True
