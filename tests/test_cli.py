import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spectral_bellman import cli
from spectral_bellman.tabular import study


def sbm(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sbm", *arguments])
    cli.main()


def test_tabular_writes_the_figure_and_how_to_have_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "RANKS", {study.AGGREGATED: (6,), study.GENERIC: (21,)})
    sbm(monkeypatch, "tabular", "--out", str(tmp_path), "--seeds", "1")
    assert (tmp_path / "tabular.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["provenance"]["command"] == f"sbm tabular --out {tmp_path} --seeds 1"
    errors = summary["inherent_bellman_error_over_bound"]
    for name in (study.AGGREGATED, study.GENERIC):
        assert errors[name]["spectral"][0][0] < 1e-10
        assert errors[name]["random"][0][0] > 0.1
    printed = capsys.readouterr().out
    assert "tabular.png" in printed
    assert "Inherent Bellman error" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabulr"], "tabular"),
        (["tabular", "--seed", "1"], "--seeds"),
        (["tabular", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["tabular", "--out", "/dev/null/[/x]"], "/dev/null/[/x]"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_ctrl_c_is_no_error_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupted)
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "tabular", "--out", str(tmp_path))
    assert stop.value.code == 130


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).with_name("sbm")
    help_text = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "120"})
    assert "tabular" in help_text.stdout
