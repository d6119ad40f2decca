"""Archives of runs: what is added is read, what was there is kept, and damage is an error."""

import io
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from spectral_bellman.disk import archive
from spectral_bellman.disk.archive import Unreadable, add_runs, archived_runs, is_archive, read_file

RUN = {"config.json": b"{}", "metrics.jsonl": b"line\n" * 1_000}


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def test_what_is_added_is_read_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.zip"
    add_runs(path, {"b": RUN})
    add_runs(path, {"a": RUN, "c": {"config.json": "ν".encode()}})
    assert archived_runs(path) == {
        path / "a": set(RUN),
        path / "b": set(RUN),
        path / "c": {"config.json"},
    }
    assert read_file(path / "b" / "metrics.jsonl") == RUN["metrics.jsonl"]
    assert read_file(path / "c" / "config.json").decode() == "ν"
    add_runs(path, {"b": {"config.json": b"[]"}})
    assert archived_runs(path)[path / "b"] == {"config.json"}, "replaced, all files of it"
    assert read_file(path / "b" / "config.json") == b"[]"
    assert read_file(path / "a" / "config.json") == b"{}"
    assert [file.name for file in path.parent.iterdir()] == ["runs.zip"]


def test_it_is_compressed_and_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    add_runs(one, {"a": RUN, "b": RUN})
    add_runs(two, {"b": RUN})
    add_runs(two, {"a": RUN})
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < 1_000


def test_a_file_is_read_from_a_folder_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    assert read_file(tmp_path / "config.json") == b"{}"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "summary.json")
    path = tmp_path / "runs.zip"
    add_runs(path, {"a": RUN})
    assert is_archive(path)
    assert not is_archive(tmp_path)
    assert not is_archive(tmp_path / "absent.zip")
    with pytest.raises(FileNotFoundError, match=r"no summary\.json of a in .*runs\.zip"):
        read_file(path / "a" / "summary.json")


@pytest.mark.parametrize(
    "name", ["../a/config.json", "/a/config.json", "config.json", "a/b/c", "../x", "a/..", "a\\b/c"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "runs.zip", {"a/config.json": b"{}", name: b"x"})
    for read in (lambda: archived_runs(path), lambda: read_file(path / "a" / "config.json")):
        with pytest.raises(Unreadable, match=r"runs\.zip holds .*, which is not NAME/FILE"):
            read()
    run, _, file = name.partition("/")
    with pytest.raises(Unreadable, match="which is not NAME/FILE"):
        add_runs(tmp_path / "other.zip", {run: {file: b"x"}})


def test_a_folder_has_a_member_of_its_own_in_some_archives(tmp_path: Path) -> None:
    path = zipped(tmp_path / "runs.zip", {"a/": b"", "a/config.json": b"{}"})
    assert archived_runs(path) == {path / "a": {"config.json"}}


def test_more_bytes_than_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.zip"
    add_runs(path, {"a": RUN})
    before = path.read_bytes()
    monkeypatch.setattr(archive, "MOST_BYTES", 9_000)
    with pytest.raises(Unreadable, match=r"10,004 bytes without compression, at most 9,000"):
        add_runs(path, {"b": RUN})
    assert path.read_bytes() == before
    monkeypatch.setattr(archive, "MOST_BYTES", 5_000)
    with pytest.raises(Unreadable, match=r"5,002 bytes .* divide them"):
        read_file(path / "a" / "config.json")


def test_a_bomb_that_hides_its_size_is_not_decompressed(tmp_path: Path) -> None:
    """Its headers name 10 bytes; it has 64 MiB."""
    path = zipped(tmp_path / "runs.zip", {"a/x": bytes(64 * 2**20)})
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<L", 64 * 2**20), struct.pack("<L", 10)))
    kilobytes = int(
        child(
            "import resource\n"
            "size = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "before = size()\n"
            "try:\n"
            "    archive.read_file(path / 'a' / 'x')\n"
            "except archive.Unreadable:\n"
            "    print(size() - before)\n",
            path,
        ).communicate(timeout=60)[0]
    )
    assert kilobytes < 10_000, "what one read takes"


def child(code: str, path: Path) -> subprocess.Popen[str]:
    """Another process that runs the code on the archive."""
    first = (
        "import pathlib, sys\n"
        "from spectral_bellman.disk import archive\n"
        "path = pathlib.Path(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", first + code, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_other_compression_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "runs.zip", {"a/config.json": b"{}"}, zipfile.ZIP_LZMA)
    with pytest.raises(Unreadable, match="another method than deflate"):
        archived_runs(path)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/config.json", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a/config.json", b"2")
    with pytest.raises(Unreadable, match="two files have one name"):
        read_file(path / "a" / "config.json")


def test_a_damaged_archive_is_named_and_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.zip"
    add_runs(path, {"a": RUN})
    whole = path.read_bytes()
    for data in (b"", b"no archive", whole[: len(whole) // 2], whole[:-10]):
        path.write_bytes(data)
        for use in (lambda: archived_runs(path), lambda: add_runs(path, {"b": RUN})):
            with pytest.raises(Unreadable) as error:
                use()
            text = str(error.value)
            assert f"{path} is damaged" in text
            assert "restore the file" in text
            assert "\n" not in text
        assert path.read_bytes() == data


WHOLE = io.BytesIO()
with zipfile.ZipFile(WHOLE, "w", zipfile.ZIP_DEFLATED) as _file:
    for _name, _data in {**RUN, "summary.json": os.urandom(50)}.items():
        _file.writestr(f"a/{_name}", _data)


@hypothesis.given(st.integers(0, len(WHOLE.getvalue()) - 1), st.integers(1, 255))
@hypothesis.settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_a_changed_byte_changes_no_content_unnoticed(tmp_path: Path, at: int, change: int) -> None:
    data = bytearray(WHOLE.getvalue())
    data[at] ^= change
    path = tmp_path / "runs.zip"
    path.write_bytes(data)
    try:
        found = {run.name: {f: read_file(run / f) for f in files}
                 for run, files in archived_runs(path).items()}  # fmt: skip
    except Unreadable:
        return
    for files in found.values():  # a name may have changed
        assert [data for name, data in sorted(files.items()) if name in RUN] == [
            RUN[name] for name in sorted(files) if name in RUN
        ]


def test_a_cut_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.zip"
    add_runs(path, {"a": RUN})
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add_runs(path, {"b": RUN})
    assert path.read_bytes() == before
    monkeypatch.undo()
    add_runs(path, {"b": RUN})
    assert len(archived_runs(path)) == 2


def test_two_processes_do_not_lose_each_others_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.zip"
    code = "for i in range(20): archive.add_runs(path, {'%s-' + str(i): {'config.json': b'{}'}})"
    children = [child(code % name, path) for name in "ab"]
    assert [each.communicate(timeout=60)[0] for each in children] == ["", ""]
    assert [each.returncode for each in children] == [0, 0]
    assert {run.name for run in archived_runs(path)} == {
        f"{n}-{i}" for n in "ab" for i in range(20)
    }
