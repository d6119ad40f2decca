"""A pytree of arrays as one safetensors file, written leaf by leaf while its checksum is computed.

The `safetensors` library reads these files, here and elsewhere. It does not write them, for a
measured reason: `safetensors.numpy.save_file` needs all leaves in host memory at once and has no
way to add to a file. Our leaves may lie on an accelerator, and a replay may be larger than the
free memory. A tree of 1 GB on two cores of an AMD EPYC, with its SHA-256 and an fsync (three
processes each, seconds and additional peak memory):

| | this module | `save_file`, then hash the file |
|---|---|---|
| sixteen leaves that are in memory | 1.4, 1.4, 3.5 s; 0 MB | 2.5, 3.3, 4.1 s; 0 MB |
| one leaf that arrives in 64 chunks | 1.8, 3.6, 3.9 s; 16 MB | 6.1, 6.3, 6.8 s; 2,048 MB |

Reading 1 GB takes the same time with `safetensors.safe_open` (2.3 to 2.8 s) as with our own code
(2.4 to 2.5 s), so the library reads. `read_rows` loads a replay of 210 MB in chunks of 32 MB as
fast as our own code did (1.2 to 1.4 s of processor time, 1.1 to 1.5 s before). At its peak it needs
at most one chunk more (363 to 391 MB with the replay itself, 314 to 376 MB before).

The format has no name for typed PRNG keys and for some dtypes (complex128, int4, ...). Keys are
stored as their key data. Arrays of the other dtypes are stored as bytes along a last axis.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

_BITS = (("int", "I"), ("uint", "U"))
_FORMAT = {
    **{"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"},
    **{f"{kind}{n}": f"{letter}{n}" for kind, letter in _BITS for n in (8, 16, 32, 64)},
    **{f"float{n}": f"F{n}" for n in (16, 32, 64)},
}
_DTYPES = {stored: jnp.dtype(name) for name, stored in _FORMAT.items()}


@dataclass(frozen=True)
class Chunks:
    """A leaf that is written piece by piece because it is too large to be held at once."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: Iterable[np.ndarray]
    """Contiguous arrays that make up the leaf's memory, in order."""


class Layout(NamedTuple):
    """What a file of arrays will hold, known before a byte is written."""

    leaves: dict[str, Any]
    """Arrays or `Chunks` by key path; PRNG keys are already replaced by their data."""
    keys: dict[str, str]
    """Kind of the PRNG keys, by key path, where a leaf holds the data of keys."""
    raw: dict[str, str]
    """Name of the dtype, by key path, where the format has no name for it."""
    header: bytes
    size: int
    """Bytes of the whole file."""


class Stored(NamedTuple):
    """A leaf in a file of arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype
    key: str | None
    """Kind of the PRNG keys whose data this leaf is."""


def layout(tree: Any) -> Layout:
    """Names, header and size of the file for `tree`, whose leaves are arrays or `Chunks`.

    Raises:
        TypeError: a leaf is not an array of numbers.
    """
    leaves = named(tree, jax.Array | np.ndarray | np.generic | Chunks)
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if _is_key(leaf)}
    leaves |= {name: jax.random.key_data(leaves[name]) for name in keys}
    raw = {n: leaf.dtype.name for n, leaf in leaves.items() if leaf.dtype.name not in _FORMAT}
    entries, end = {}, 0
    for name, leaf in leaves.items():
        start, end = end, end + _bytes(leaf)
        entries[name] = {
            "dtype": _FORMAT.get(leaf.dtype.name, "U8"),
            "shape": (*leaf.shape, leaf.dtype.itemsize) if name in raw else leaf.shape,
            "data_offsets": (start, end),
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # the arrays must begin at a multiple of 8
    return Layout(leaves, keys, raw, header, 8 + len(header) + end)


def write_arrays(path: Path, content: Layout) -> str:
    """Write the file with one leaf in host memory at a time; return its SHA-256.

    Raises:
        ValueError: the chunks of a leaf do not add up to the leaf.
    """
    digest = hashlib.sha256()
    with open(path, "wb") as file:

        def put(data: bytes | memoryview) -> None:
            file.write(data)
            digest.update(data)

        put(len(content.header).to_bytes(8, "little"))
        put(content.header)
        for name, leaf in content.leaves.items():
            rest = _bytes(leaf)
            chunks = leaf.chunks if isinstance(leaf, Chunks) else (fetched(leaf),)
            for data in map(memory, chunks):
                put(data)
                rest -= len(data)
                del data  # before the next one is fetched: the tree may be larger than the memory
            if rest:
                which = "few" if rest > 0 else "many"
                raise ValueError(f"the chunks of leaf {name} are {abs(rest)} bytes too {which}")
    return digest.hexdigest()


def stored(path: Path, keys: dict[str, str], raw: dict[str, str]) -> dict[str, Stored]:
    """The leaves in the file, by key path; `keys` and `raw` as in its `Layout`."""

    def leaf(name: str, entry: Any) -> Stored:
        shape, dtype = tuple(entry.get_shape()), _DTYPES[entry.get_dtype()]
        if name in raw:
            shape, dtype = shape[:-1], jnp.dtype(raw[name])
        return Stored(shape, dtype, keys.get(name))

    with safe_open(path, framework="numpy") as file:
        return {name: leaf(name, file.get_slice(name)) for name in file.offset_keys()}


def read_rows(path: Path, name: str, leaf: Stored, begin: int, end: int) -> np.ndarray:
    """The elements `begin` to `end` of a leaf along its first axis.

    The library maps the file into memory, and pages that were read stay there. The file is opened
    anew for each part, so that no more than this part stays.
    """
    with safe_open(path, framework="numpy") as file:
        rows = file.get_slice(name)[begin:end]
    shape = (len(rows), *leaf.shape[1:])
    return np.asarray(rows.view(leaf.dtype).reshape(shape))


def read_arrays(path: Path, leaves: dict[str, Stored]) -> dict[str, jax.Array]:
    """The leaves as jax arrays, by key path; PRNG keys as their key data."""
    with safe_open(path, framework="numpy") as file:
        return {
            name: jnp.asarray(file.get_tensor(name).view(leaf.dtype).reshape(leaf.shape))
            for name, leaf in leaves.items()
        }


def named(tree: Any, kinds: Any) -> dict[str, Any]:
    """The leaves of a pytree by key path, in order.

    Raises:
        TypeError: a leaf is none of `kinds`, or not an array of numbers.
        ValueError: two leaves have the same key path.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if not isinstance(leaf, kinds) or not (
            _is_key(leaf) or leaf.dtype == bool or jnp.issubdtype(leaf.dtype, np.number)
        ):
            raise TypeError(
                f"leaf {name} is {type(leaf).__name__}, not an array of numbers: "
                "take it out of the tree (equinox.partition)"
            )
        if name in leaves:
            raise ValueError(
                f"two leaves of the tree are named {name}: give their parents distinct keys"
            )
        leaves[name] = leaf
    return leaves


def fetched(leaf: Any) -> np.ndarray:
    """The leaf on the host, contiguous and in this machine's byte order."""
    if isinstance(leaf, jax.Array):
        # A jax array keeps the host copy that NumPy asked for. This second array on the same
        # buffers takes its copy with it when it goes.
        buffers = [shard.data for shard in leaf.addressable_shards]
        leaf = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, buffers)
    return np.asarray(leaf, jnp.dtype(leaf.dtype.name), order="C")


def memory(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * int(leaf.dtype.itemsize)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
