"""The command ``sbm``: mistakes are answered in a line, and every command is found."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spectral_bellman.commands.main import COMMANDS
from spectral_bellman.tabular import study

from .calling import refusal, sbm


@pytest.mark.slow
def test_tabular_writes_the_figure_and_how_to_have_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "RANKS", {study.AGGREGATED: (6,), study.GENERIC: (21,)})
    monkeypatch.setattr(study, "STEPS", (1, 16))
    sbm(monkeypatch, "tabular", "--out", str(tmp_path), "--seeds", "1")
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "## Inherent Bellman error / D, state aggregation: median of 1 (largest)"
    assert lines[2] == "| rank | spectral | Laplacian | random |"
    assert lines[4].startswith("| 6 | ")
    assert "## Inherent Bellman error of T^h / D, state aggregation" in lines[12]
    assert lines[14] == "| h | for T^h | for T |"
    rows = 2 * 1 + 2 * len(study.STEPS)
    assert sum(re.match(r"\| \d+ \|", line) is not None for line in lines) == rows
    assert (tmp_path / "tabular.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["provenance"]["command"] == f"sbm tabular --out {tmp_path} --seeds 1"
    errors = summary["inherent_bellman_error_over_bound"]
    for name in (study.AGGREGATED, study.GENERIC):
        assert errors[name]["spectral"][0][0] < 1e-10
        assert errors[name]["random"][0][0] > 0.1
        of_powers = summary["h_step_error_over_bound"][name]
        learned, control = (np.array(of_powers[kind])[0] for kind in ("for T^h", "for T"))
        assert learned[0] == control[0]
        assert np.all(np.diff(learned) < 0)
        assert learned[-1] < 1e-5 < 1e-2 < control[-1]
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
        (["trane"], "did you mean train"),
        (["zzzzzz"], "there are train, resume"),
        (["resume", "/no/such/folder"], "give the folder that a training run wrote"),
        (["evaluate", "/no/such/folder"], "give the folder that a training run wrote"),
        (["evaluate", "/no/such/folder", "--episodes", "0"], "--episodes must be at least 1"),
        (["bench", "deep_see/3"], "deep_sea"),
        (["bench", "deep_sea/3", "--presets"], "--presets"),
        (["presets", "dqm"], "did you mean dqn"),
        (["suite", "minatar-dqm"], "did you mean minatar-dqn"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wide: Path,
    arguments: list[str],
    words: str,
) -> None:
    assert words in refusal(monkeypatch, capsys, *arguments)
    assert list(wide.iterdir()) == []


def test_ctrl_c_is_no_error_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupted)
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "tabular", "--out", str(tmp_path))
    assert stop.value.code == 130


def test_what_gymnasium_misses_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rendering CartPole without pygame, say."""
    import gymnasium

    from spectral_bellman.commands import evaluate

    def missing(*_: object) -> None:
        raise gymnasium.error.DependencyNotInstalled(
            'pygame is not installed, run `pip install "gymnasium[classic-control]"`'
        )

    monkeypatch.setattr(evaluate, "evaluate", missing)
    assert "gymnasium[classic-control]" in refusal(
        monkeypatch, capsys, "evaluate", "somewhere", "--video"
    )


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from spectral_bellman.commands import lists

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(lists, "envs", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sbm(monkeypatch, "envs")


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).with_name("sbm")
    environment = os.environ | {"COLUMNS": "120"}
    help_text = subprocess.run(
        [script, "--help"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    for command in COMMANDS:
        assert command in help_text


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "train"])
def test_every_command_has_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: Path, command: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, command, "--help")
    assert stop.value.code == 0
    summary = COMMANDS[command].__doc__.split("\n")[0].split(",")[0].split(":")[0]
    assert summary in " ".join(capsys.readouterr().out.split())


def test_report_writes_its_files(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    sbm(monkeypatch, "report", str(run_folder), "--out", str(out))
    assert {"table.md", "report.json"} < {path.name for path in out.iterdir()}
    assert "dqn" in (out / "table.md").read_text(encoding="utf-8")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["confidence"] == 0.95
    pictures = [path for path in out.iterdir() if path.suffix == ".png"]
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
