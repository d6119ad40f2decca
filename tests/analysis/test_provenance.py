import json
import subprocess
from pathlib import Path

import pytest

from spectral_bellman.analysis.provenance import provenance, write_json


def test_it_names_what_a_rerun_needs() -> None:
    facts = provenance()
    assert set(facts) >= {"command", "commit", "python", "packages", "device", "processor", "cores"}
    assert facts["packages"]["jax"]
    assert "/" not in facts["command"].split()[0], "no paths of the machine"


def test_the_commit_is_that_of_the_source() -> None:
    root = Path(__file__).parents[2]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    expected = head.stdout.strip() if head.returncode == 0 else None
    commit = provenance()["commit"]
    assert (commit and commit.rstrip("+")) == expected


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
    assert path.stat().st_ino != first, "a new file takes the place of the old one, which is never half written"
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": 1}
