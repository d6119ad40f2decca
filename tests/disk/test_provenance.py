import json
import subprocess
import sys
from pathlib import Path

import pytest

import spectral_bellman
from spectral_bellman.disk.provenance import provenance, write_json

ROOT = Path(__file__).parents[2]


def test_it_names_what_a_rerun_needs() -> None:
    facts = provenance()
    assert set(facts) >= {"command", "commit", "python", "packages", "device", "processor", "cores"}
    assert facts["packages"]["jax"]
    assert "/" not in facts["command"].split()[0], "no paths of the machine"


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/usr/bin/sbm", "sbm train dqn"),
        # python -m spectral_bellman.cli
        (str(Path(spectral_bellman.__file__).with_name("cli.py")), "sbm train dqn"),
        (str(Path(spectral_bellman.__file__).with_name("commands") / "main.py"), "sbm train dqn"),
        ("benchmarks/tune.py", "python benchmarks/tune.py train dqn"),
        ("/somewhere/tune.py", "tune.py train dqn"),
    ],
)
def test_the_command_can_be_given_again(
    program: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "train", "dqn"])
    assert provenance()["command"] == command


def test_the_commit_is_that_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTRAL_BELLMAN_COMMIT", raising=False)
    commit = provenance()["commit"]
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        assert commit is None, "an archive without history, or a machine without git"
    else:
        assert commit is not None
        assert commit.rstrip("+") == head


def test_changes_in_the_package_are_marked_and_no_other_repository_is_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers of git decide.

    A status with lines gives the plus. A file that git does not track gives no commit.
    """
    answers = {"ls-files": "provenance.py", "rev-parse": "abc", "status": " M objective.py"}
    folders = []

    def git(command: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        folders.append(cwd)
        if command[1] not in answers:
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, stdout=answers[command[1]])

    monkeypatch.setattr(subprocess, "run", git)
    monkeypatch.delenv("SPECTRAL_BELLMAN_COMMIT", raising=False)
    assert provenance()["commit"] == "abc+"
    assert {folder.name for folder in folders} == {"spectral_bellman"}
    answers["status"] = ""
    assert provenance()["commit"] == "abc"
    del answers["ls-files"]
    assert provenance()["commit"] is None


def test_without_history_the_commit_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    monkeypatch.delenv("SPECTRAL_BELLMAN_COMMIT", raising=False)
    assert provenance()["commit"] is None
    monkeypatch.setenv("SPECTRAL_BELLMAN_COMMIT", "abc")
    assert provenance()["commit"] == "abc"


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"σ": 0})
    first = path.stat().st_ino
    write_json(path, {"σ": 1})
    assert path.stat().st_ino != first, (
        "a new file takes the place of the old one, which is never half written"
    )
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"not JSON": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": 1}
