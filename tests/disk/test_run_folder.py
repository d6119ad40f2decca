"""The files of a run: its config with a version, and its lock."""

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spectral_bellman.disk import run_folder
from spectral_bellman.disk.archive import add_runs
from spectral_bellman.disk.migrate import BEFORE
from spectral_bellman.disk.run_folder import OldRun, lock, read_config, write_config

CONFIG = {"preset": "dqn", "env": "deep_sea/10", "agent": {"discount": 0.9}}


def put(folder: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def test_a_config_comes_back_with_its_version(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    assert read_config(tmp_path) == {"schema": run_folder.SCHEMA, **CONFIG}
    assert read_config(tmp_path, migrate=True) == {"schema": run_folder.SCHEMA, **CONFIG}
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert text.splitlines()[1] == f'  "schema": {run_folder.SCHEMA},', "the version comes first"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json: not JSON .*restore the file"),
        ("[]", r"config\.json: not a JSON object"),
        ({"env": "x"}, r'config\.json: no text under "preset"'),
        ({"preset": "dqn", "env": 3}, r'config\.json: no text under "env"'),
        (CONFIG | {"schema": 7}, "schema version 7 .* reads version 6: update spectral_bellman"),
        (CONFIG | {"schema": "2"}, "schema version '2'"),
        (CONFIG | {"schema": True}, "schema version True"),
    ],
)
def test_what_is_not_a_config_is_named_with_a_cure(
    tmp_path: Path, content: Any, message: str
) -> None:
    for migrate in (False, True):
        with pytest.raises(ValueError, match=message):
            read_config(put(tmp_path, content), migrate=migrate)


def test_no_config_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"no config\.json in {tmp_path}; give the folder"):
        read_config(tmp_path)


def test_an_older_run_is_refused_with_a_reason_and_its_commit(tmp_path: Path) -> None:
    old = CONFIG | {"provenance": {"commit": "abc123"}}
    message = "no schema version.*sbm report still reads it.*the version that wrote it: commit abc"
    with pytest.raises(OldRun, match=message):
        read_config(put(tmp_path, old))
    with pytest.raises(OldRun, match="its commit is not known"):
        read_config(put(tmp_path, CONFIG))
    for version in (2, 3):
        with pytest.raises(OldRun, match=f"schema version {version}, .*: commit abc123"):
            read_config(put(tmp_path, old | {"schema": version}))


def test_an_older_run_is_migrated_for_a_report(tmp_path: Path) -> None:
    found = read_config(put(tmp_path, CONFIG), migrate=True)
    assert found["schema"] == run_folder.SCHEMA
    assert found["agent"] == {**BEFORE, "discount": 0.9}


HOLD = """
import sys, time
from pathlib import Path
from spectral_bellman.disk.run_folder import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl, so no lock")
def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(FileExistsError, match="is being written by another process"),
            lock(tmp_path),
        ):
            pass
        other.kill()
    with lock(tmp_path):  # the lock died with its process
        pass


def test_without_fcntl_there_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_fcntl(name: str, *arguments: Any) -> Any:
        if name == "fcntl":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.delitem(sys.modules, "fcntl", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_fcntl)
    with lock(tmp_path), lock(tmp_path):
        assert not (tmp_path / ".lock").exists()


def test_fcntl_is_not_imported_with_the_module() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import spectral_bellman.disk.run_folder"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_archived_run_cannot_be_written(tmp_path: Path) -> None:
    add_runs(tmp_path / "runs.zip", {"a": {"config.json": b"{}"}})
    with (
        pytest.raises(NotADirectoryError, match=r"runs\.zip/a is in an archive.*sbm report"),
        lock(tmp_path / "runs.zip" / "a"),
    ):
        pass
