import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.disk import arrays, checkpoint
from spectral_bellman.disk.arrays import Chunks
from spectral_bellman.disk.checkpoint import (
    ARRAYS,
    INFO,
    Damaged,
    candidates,
    load,
    load_newest,
    read_info,
    save,
)

# What the format has a name for, what it has none for, and what has fewer bits than a byte.
DTYPES = (
    *(
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
)


class State(NamedTuple):
    weights: Any
    rest: Any


def patterns(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits, so every kind of NaN; random values where only some bits are used."""
    bits = np.random.default_rng(0).integers(
        0, 256, (int(np.prod(shape)), jnp.dtype(dtype).itemsize), np.uint8
    )
    if dtype == "bool" or "int4" in dtype:
        return (bits[:, 0] % 2).astype(jnp.dtype(dtype)).reshape(shape)
    return bits.view(jnp.dtype(dtype)).reshape(shape)


def bits_of(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf.dtype.name, leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return leaf.dtype.name, leaf.shape, np.asarray(leaf).tobytes()


def assert_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert [bits_of(leaf) for leaf in jax.tree.leaves(got)] == [
        bits_of(leaf) for leaf in jax.tree.leaves(want)
    ]


def tree(seed: int) -> State:
    key = jax.random.key(seed)
    return State(
        weights={"w": jax.random.normal(key, (40, 30)), "b": jnp.zeros(0)},
        rest=[key, jnp.int32(seed)],
    )


def fail(message: str) -> None:
    raise AssertionError(f"no warning was due: {message}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    with jax.enable_x64(True):
        arrays = [patterns(dtype, shape) for shape in [(), (0,), (3, 0, 2), (7,), (5, 4, 3)]]
        want = {
            "numpy": arrays,
            "odd": np.zeros(3, np.uint8),
            "jax": [jnp.asarray(array) for array in arrays],
        }
        got = load(save(tmp_path, 1, want, {}), want)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
        assert_same(got, want)


def test_the_payload_of_a_nan_survives(tmp_path: Path) -> None:
    payload = np.array(
        [0x7FC12345, 0xFFC00001, 0x7F800001, 0x80000000], np.uint32
    )  # quiet, negative, signalling; and -0
    got = load(
        save(tmp_path, 0, payload.view(np.float32), {}), jax.ShapeDtypeStruct((4,), np.float32)
    )
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), payload)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_come_back_as_keys_that_draw_the_same(tmp_path: Path, impl: str) -> None:
    want = {
        "one": jax.random.key(7, impl=impl),
        "many": jax.random.split(jax.random.key(8, impl=impl), (2, 3)),
    }
    got = load(save(tmp_path, 1, want, {}), jax.eval_shape(lambda: want))
    assert_same(got, want)
    assert jax.random.uniform(got["one"]) == jax.random.uniform(want["one"])
    legacy = {name: jax.eval_shape(jax.random.key_data, key) for name, key in want.items()}
    with pytest.raises(
        ValueError, match=r"leaf \['many'\] is key<\w+>\[2, 3\].* and uint32\[2, 3, "
    ):
        load(candidates(tmp_path)[0], legacy)


def test_kinds_of_keys_with_equal_data_are_told_apart(tmp_path: Path) -> None:
    path = save(tmp_path, 1, jax.random.key(7, impl="rbg"), {})
    with pytest.raises(ValueError, match=r"key<rbg>\[\].*key<urbg>\[\]"):
        load(path, jax.random.key(7, impl="unsafe_rbg"))


def test_strided_and_byte_swapped_arrays_keep_their_values(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = load(
        save(tmp_path, 1, [values.T, values[:, ::2], values.astype(">f4")], {}),
        [values.T, values[:, ::2], values],
    )
    for array, want in zip(got, (values.T, values[:, ::2], values), strict=True):
        np.testing.assert_array_equal(array, want)


def test_info_comes_back_and_names_the_arrays(tmp_path: Path) -> None:
    info = {
        "step": 3,
        "loss": 0.1,
        "name": "θ",
        "seeds": [1, 2],
        "none": None,
        "in": {"1": "twice"},
    }
    path = save(tmp_path, 3, tree(0), info | {"in": {1: "once", "1": "twice"}})  # one name, in JSON
    assert path == tmp_path / "000000000003"
    assert read_info(path) == info
    facts = json.loads((path / INFO).read_text(encoding="utf-8"))["arrays"]
    assert facts["bytes"] == (path / ARRAYS).stat().st_size
    assert facts["keys"] == {".rest[0]": "threefry2x32"}
    assert facts["sha256"] == hashlib.sha256((path / ARRAYS).read_bytes()).hexdigest()


def test_no_copy_on_the_host_outlives_the_save(tmp_path: Path) -> None:
    # What is fetched from an accelerator stays with the array. On a CPU that holds for packed
    # dtypes.
    leaf = jnp.ones(5, jnp.int4)
    save(tmp_path, 1, leaf, {})
    assert leaf._npy_value is None
    np.asarray(leaf)
    assert leaf._npy_value is not None


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "complex128"])
def test_a_leaf_in_chunks_is_the_leaf(tmp_path: Path, dtype: str) -> None:
    array = patterns(dtype, (10, 3, 2))
    whole = save(tmp_path / "whole", 1, {"a": array, "b": np.arange(3)}, {})
    parts = {
        "a": Chunks(array.shape, array.dtype, iter((array[:4], array[4:4], array[4:]))),
        "b": np.arange(3),
    }
    assert (save(tmp_path / "parts", 1, parts, {}) / ARRAYS).read_bytes() == (
        whole / ARRAYS
    ).read_bytes()


def test_one_chunk_is_held_at_a_time(tmp_path: Path) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def parts() -> Iterator[np.ndarray]:
        for _ in range(4):
            assert not any(part() is not None for part in held)
            part = np.zeros((2, 3))
            held.append(weakref.ref(part))
            yield part
            del part

    save(tmp_path, 1, Chunks((8, 3), np.dtype(float), parts()), {})
    assert len(held) == 4


@pytest.mark.parametrize(
    ("rows", "message"), [(7, r"leaf \['a'\] are 6 bytes too few"), (9, "6 bytes too many")]
)
def test_chunks_that_are_not_the_leaf_are_refused(tmp_path: Path, rows: int, message: str) -> None:
    save(tmp_path, 1, tree(1), {})
    with pytest.raises(ValueError, match=message):
        save(
            tmp_path,
            2,
            {"a": Chunks((8, 3), np.dtype(np.int16), [np.zeros((rows, 3), np.int16)])},
            {},
        )
    assert os.listdir(tmp_path) == ["000000000001"]


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path, at: float = 0.7) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "arrays cut": (ARRAYS, cut, r"has \d+ bytes and was written with"),
    "arrays flipped": (ARRAYS, flip, "checksum"),
    "arrays' header flipped": (ARRAYS, lambda file: flip(file, 0.0), "checksum"),
    "arrays missing": (ARRAYS, Path.unlink, "cannot be read"),
    "info missing": (INFO, Path.unlink, "cannot be read"),
    "info empty": (INFO, lambda file: file.write_text(""), "cannot be read"),
    "info not ours": (INFO, lambda file: file.write_text("[]"), "cannot be read"),
    "info not text": (INFO, lambda file: file.write_bytes(b"\xff"), "cannot be read"),
    "info altered": (
        INFO,
        lambda file: file.write_text(file.read_text().replace('"step": 2', '"step": 3')),
        "checksum",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    name, harm, message = DAMAGE[damage]
    first, second = (save(tmp_path, step, tree(step), {"step": step}) for step in (1, 2))
    assert load_newest(tmp_path, tree(0), fail)[0] == second
    harm(second / name)
    with pytest.raises(Damaged, match=f"{second / name} .*{message}"):
        load(second, tree(0))
    warnings: list[str] = []
    path, got, info = load_newest(tmp_path, tree(0), warnings.append)
    assert (path, info) == (first, {"step": 1})
    assert_same(got, tree(1))
    assert len(warnings) == 1
    assert str(second / name) in warnings[0]
    flip(first / ARRAYS)
    with pytest.raises(Damaged, match=f"none of the 2 checkpoints in {tmp_path} is intact"):
        load_newest(tmp_path, tree(0), warnings.append)
    assert len(warnings) == 3


def test_no_checkpoint_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / ".partial-000000000009").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert candidates(folder) == []
        with pytest.raises(
            FileNotFoundError, match=f"no checkpoint in {folder}: .*start without resuming"
        ):
            load_newest(folder, tree(0), fail)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {"w": np.zeros((2, 4), np.float32)},
            r"leaf \['w'\] is float32\[2, 3\] in checkpoint .* and float32\[2, 4\] in this run",
        ),
        (
            {"w": np.zeros((2, 3), np.float16)},
            r"leaf \['w'\] is float32\[2, 3\] in checkpoint .* and float16\[2, 3\] in this run",
        ),
        (
            {"v": np.zeros((2, 3), np.float32)},
            r"lacks the leaves \[\"\['v'\]\"\] and has the unknown leaves \[\"\['w'\]\"\]",
        ),
        ({}, r"lacks the leaves \[\] and has the unknown leaves \[\"\['w'\]\"\]"),
    ],
)
def test_another_tree_is_refused(tmp_path: Path, like: Any, message: str) -> None:
    for step in (1, 2):  # two: the fallback is for damage, not for this
        save(tmp_path, step, {"w": np.zeros((2, 3), np.float32)}, {})
    with pytest.raises(ValueError, match=message):
        load_newest(tmp_path, like, fail)


def test_doubles_are_not_rounded_silently(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"w": np.ones(2)}, {})
    with pytest.raises(ValueError, match=r"leaf \['w'\] .*float64.*jax_enable_x64"):
        load(path, {"w": np.ones(2)})


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for leaf in (3.0, "a", jnp.tanh, np.array(["a"]), np.array([None])):
        with pytest.raises(TypeError, match=r"leaf \['a'\] is .*partition"):
            save(folder, 1, {"a": leaf}, {})
    for info in ({"loss": float("nan")}, {"path": tmp_path}):
        with pytest.raises(ValueError, match="info of checkpoint 1 must be JSON"):
            save(folder, 1, tree(0), info)
    for step, keep in ((-1, 2), (10**12, 2), (1, 0)):
        with pytest.raises(ValueError, match=f"step {step}|keep={keep}"):
            save(folder, step, tree(0), {}, keep)
    assert not folder.exists()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_few_are_kept(tmp_path: Path, keep: int) -> None:
    for step in (5, 9, 10, 100, 1000):
        save(tmp_path, step, tree(step), {}, keep)
    assert [int(path.name) for path in candidates(tmp_path)] == [1000, 100, 10][:keep]
    assert len(os.listdir(tmp_path)) == keep


def test_going_back_removes_neither_the_new_nor_the_later(tmp_path: Path) -> None:
    for step in (200, 300, 250):
        save(tmp_path, step, tree(step), {}, keep=1)
    assert [int(path.name) for path in candidates(tmp_path)] == [300, 250]


def test_the_same_step_again_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = save(tmp_path, 1, tree(1), {"time": 1})
    flip(path / ARRAYS)
    save(tmp_path, 1, tree(2), {"time": 2})
    _, got, info = load_newest(tmp_path, tree(0), fail)
    assert info == {"time": 2}
    assert_same(got, tree(2))
    assert os.listdir(tmp_path) == [path.name]


def test_what_a_killed_writer_left_is_no_checkpoint_and_goes_with_the_next_save(
    tmp_path: Path,
) -> None:
    path = save(tmp_path, 1, tree(1), {})
    for name in (".partial-000000000002", ".partial-replaced"):
        shutil.copytree(path, tmp_path / name)
        cut(tmp_path / name / ARRAYS)
    (tmp_path / ".other").mkdir()
    assert load_newest(tmp_path, tree(0), fail)[0] == path
    save(tmp_path, 2, tree(2), {})
    assert sorted(os.listdir(tmp_path)) == [".other", "000000000001", "000000000002"]


WRITER = """
import itertools, sys
from pathlib import Path
import numpy as np
from spectral_bellman.disk.checkpoint import save
for step in itertools.count():
    tree = [np.full(50_000, step, np.int32) for _ in range(20)]
    save(Path(sys.argv[1]), step, tree, {"step": step})
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    like = [np.zeros(50_000, np.int32)] * 20
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    for round_ in range(2):
        folder = tmp_path / str(round_)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, folder],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as writer:
            assert writer.stdout is not None
            reported = [int(writer.stdout.readline()) for _ in range(4 + round_)][-1]
            while writer.poll() is None and not list(
                folder.glob(".partial-*")
            ):  # until it is in the middle of a save
                pass
            writer.send_signal(signal.SIGKILL)
        assert writer.returncode == -signal.SIGKILL
        path, got, info = load_newest(folder, like, fail)
        assert info["step"] == int(path.name) >= reported
        assert_same(got, [np.full(50_000, info["step"], np.int32)] * 20)
        save(folder, 10**6, like, {})
        assert not list(folder.glob(".*"))


class Full:
    """A file on a disk that has room for `room` bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> None:
        self.file.write(bytes(data)[: self.room])
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def assert_unwritten(folder: Path, error: OSError, number: int) -> None:
    """The error is clear, nothing of the new checkpoint is left, and the old one is whole."""
    assert error.errno == number
    assert (
        f"checkpoint 000000000002 could not be written to {folder} ({os.strerror(number)})"
        in str(error)
    )
    assert "it needs 0.8 MB, " in str(error)
    assert "MB are free; the last checkpoint, 000000000001, is intact" in str(error)
    assert os.listdir(folder) == ["000000000001"]
    assert_same(load_newest(folder, tree(0), fail)[1], tree(1))


@pytest.mark.parametrize("room", [0, 4, 1_000, 500_000])
def test_a_disk_that_fills_up_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    save(tmp_path, 1, tree(1), {})
    big = [np.zeros(100_000, np.float32), np.zeros(100_000, np.float32)]

    def fills_up(path: Path, mode: str) -> Any:
        return Full(open(path, mode), room) if "w" in mode else open(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "open", fills_up, raising=False)
        with pytest.raises(OSError) as caught:
            save(tmp_path, 2, big, {})
    assert_unwritten(tmp_path, caught.value, errno.ENOSPC)
    save(tmp_path, 2, big, {})  # and with room again all is well


def test_a_disk_without_room_is_seen_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, tree(1), {})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=700_000))
        patch.setattr(
            Path, "mkdir", lambda path, **options: None if options else fail(f"{path} was begun")
        )
        with pytest.raises(OSError, match=r"0\.8 MB, 0\.7 MB are free") as caught:
            save(tmp_path, 2, np.zeros(200_000, np.float32), {})
    assert_unwritten(tmp_path, caught.value, errno.ENOSPC)


def test_a_write_that_the_system_refuses_leaves_the_old_one_whole(tmp_path: Path) -> None:
    save(tmp_path, 1, tree(1), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(OSError) as caught:
            save(tmp_path, 2, [np.zeros(100_000, np.float32)] * 2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_unwritten(tmp_path, caught.value, errno.EFBIG)


def test_a_failure_with_no_whole_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(save(tmp_path, 1, tree(1), {}) / ARRAYS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(OSError, match="no earlier checkpoint is intact"):
        save(tmp_path, 2, tree(2), {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        OSError,
        match=f"could not be written to {tmp_path / 'file'} .*no earlier checkpoint is intact",
    ):
        save(tmp_path / "file", 2, tree(2), {})


def test_files_are_on_the_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = checkpoint._sync, Path.rename
    monkeypatch.setattr(checkpoint, "_sync", lambda path: (events.append(path.name), sync(path))[1])
    monkeypatch.setattr(
        Path,
        "rename",
        lambda path, to: (events.append(f"{path.name} -> {to.name}"), rename(path, to))[1],
    )
    save(tmp_path, 1, tree(1), {})
    hidden = ".partial-000000000001"
    assert events == [ARRAYS, INFO, hidden, f"{hidden} -> 000000000001", tmp_path.name]
