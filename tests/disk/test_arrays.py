"""Files of arrays and the safetensors library: each reads what the other wrote."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from spectral_bellman.disk.arrays import (
    Chunks,
    layout,
    read_arrays,
    read_rows,
    stored,
    write_arrays,
)

from .test_checkpoint import bits_of, patterns

NAMES = (
    *("bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"),
    "complex64",
)


@pytest.fixture
def tree() -> dict[str, np.ndarray]:
    shapes = {name: patterns(name, (3, 5)) for name in NAMES}
    return shapes | {"empty": np.zeros((0, 2)), "scalar": np.array(3.0)}


def test_the_library_reads_what_we_write(tmp_path: Path, tree: dict[str, np.ndarray]) -> None:
    path = tmp_path / "ours.safetensors"
    chunks = Chunks(
        (4, 2),
        np.dtype(np.int8),
        iter((np.ones((3, 2), np.int8),) * 1 + (np.zeros((1, 2), np.int8),)),
    )
    write_arrays(path, layout(tree | {"chunks": chunks}))
    want = {f"['{name}']": array for name, array in tree.items()}
    want["['chunks']"] = np.array([[1, 1]] * 3 + [[0, 0]], np.int8)
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(want)
        for name, array in want.items():
            assert bits_of(file.get_tensor(name)) == bits_of(array)
    assert {n: bits_of(x) for n, x in load_file(path).items()} == {
        n: bits_of(x) for n, x in want.items()
    }


@pytest.mark.parametrize("metadata", [None, {"format": "np"}])
def test_we_read_what_the_library_writes(
    tmp_path: Path, tree: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file(tree, path, metadata)
    leaves = stored(path, {}, {})
    assert leaves.keys() == tree.keys()
    with jax.enable_x64(True):
        read = read_arrays(path, leaves)
        for name, array in tree.items():
            assert bits_of(read[name]) == bits_of(array)
            if array.size > 1:
                rows = read_rows(path, name, leaves[name], 1, len(array))
                assert bits_of(rows) == bits_of(array[1:])


def test_dtypes_without_a_name_in_the_format_are_bytes_to_the_library(tmp_path: Path) -> None:
    array = patterns("complex128", (3,))
    content = layout([array])
    write_arrays(tmp_path / "raw", content)
    with safe_open(tmp_path / "raw", framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("[0]"), array.view(np.uint8).reshape(3, 16))
    (leaf,) = stored(tmp_path / "raw", content.keys, content.raw).values()
    assert (leaf.shape, leaf.dtype) == ((3,), np.dtype("complex128"))
    rows = read_rows(tmp_path / "raw", "[0]", leaf, 1, 3)
    np.testing.assert_array_equal(rows, array[1:])


def test_the_layout_knows_the_size_and_the_keys_before_anything_is_written(tmp_path: Path) -> None:
    content = layout({"key": jax.random.key(0, impl="rbg"), "x": jnp.ones(3, jnp.int4)})
    assert content.keys == {"['key']": "rbg"}
    assert content.raw == {"['x']": "int4"}
    write_arrays(tmp_path / "file", content)
    assert (tmp_path / "file").stat().st_size == content.size
