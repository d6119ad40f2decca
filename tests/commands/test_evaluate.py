"""``sbm evaluate``."""

import json
import shutil
from pathlib import Path

import pytest

from .calling import refusal, sbm


def test_evaluate_writes_returns_and_a_gif(
    monkeypatch: pytest.MonkeyPatch,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    sbm(monkeypatch, "evaluate", str(folder), "--episodes", "3", "--video")
    result = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert (result["episodes"], result["frames"], len(result["returns"]["0"])) == (3, 60, 3)
    assert all(-0.01 <= x <= 1 for x in result["returns"]["0"])
    films = list(folder.glob("*.gif"))
    assert 1 <= len(films) <= 2  # the best episode and the median one may be the same
    assert all(film.read_bytes()[:6] == b"GIF89a" for film in films)
    # The first picture, and one after each of three steps.
    assert capsys.readouterr().out.count("4 pictures") == len(films)


def test_an_unknown_checkpoint_is_answered_with_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(monkeypatch, capsys, "evaluate", str(run_folder), "--checkpoint", "no-such")
    (newest, *_) = sorted((run_folder / "checkpoints").iterdir(), reverse=True)
    assert newest.name in error.replace("\n", "")
