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


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a mistake is answered with: exit status 2, and no traceback."""
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


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
    assert words in refusal(monkeypatch, capsys, *arguments)


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


TINY = {
    "--frames": "60",
    "--batch": "8",
    "--hidden": "8",
    "--num-envs": "2",
    "--representation-steps": "1",
    "--q-steps": "1",
    "--eval-episodes": "2",
    "--seeds": "1",
    "--replay-capacity": "100",
}
FLAGS = [word for pair in TINY.items() for word in pair]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that the command line has trained."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        sbm(patch, "train", "dqn", "--env", "deep_sea/3", *FLAGS, "--out", str(folder))
    return folder


def test_train_takes_its_settings_from_the_flags(run_folder: Path) -> None:
    config = json.loads((run_folder / "config.json").read_text(encoding="utf-8"))
    assert (config["preset"], config["env"], config["frames"], config["num_envs"]) == ("dqn", "deep_sea/3", 60, 2)
    assert (config["round_steps"], config["agent"]["batch"], config["agent"]["hidden"]) == (3, 8, [8])
    summary = json.loads((run_folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["frames"] == 60
    assert summary["seeds"]["0"]["episodes"] == 20


def test_evaluate_writes_returns_and_a_gif(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sbm(monkeypatch, "evaluate", str(run_folder), "--episodes", "3", "--video")
    result = json.loads((run_folder / "evaluation.json").read_text(encoding="utf-8"))
    assert (result["episodes"], result["frames"], len(result["returns"]["0"])) == (3, 60, 3)
    assert all(-0.01 <= x <= 1 for x in result["returns"]["0"])
    (gif,) = run_folder.glob("*.gif")
    assert gif.read_bytes()[:6] == b"GIF89a"
    assert "4 pictures" in capsys.readouterr().out.replace("\n", " ")  # the first and one after each of three steps
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "evaluate", str(run_folder), "--checkpoint", "no-such")
    assert stop.value.code == 2
    assert result["checkpoint"] in capsys.readouterr().err.replace("\n", "")


def test_report_writes_its_files(monkeypatch: pytest.MonkeyPatch, run_folder: Path, tmp_path: Path) -> None:
    sbm(monkeypatch, "report", str(run_folder), "--out", str(tmp_path / "report"))
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"table.md", "report.json"} < names
    assert "dqn" in (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["confidence"] == 0.95
    pictures = [path for path in (tmp_path / "report").iterdir() if path.suffix == ".png"]
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_a_second_run_into_the_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "train", "dqn", "--env", "deep_sea/3", *FLAGS, "--out", str(run_folder))
    assert stop.value.code == 2
    assert "already holds a run: sbm resume" in capsys.readouterr().err.replace("\n", " ")


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    sbm(monkeypatch, "train", "dqn", "--env", "deep_sea/3", *FLAGS, "--out", "here", "--dry-run")
    printed = capsys.readouterr().out
    # 9 cells to 8 units to 2 actions: 9·8 + 8 + 8·2 + 2 = 98, and θ = 1 beside them
    assert "99 parameters a seed" in printed
    assert "2.67 samples per agent step" in printed  # 2 steps of 8 for 6 agent steps
    assert "10 rounds of 6 frames" in printed
    assert "memory: " in printed
    assert "the run would go to here" in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("presets", ["dqn", "dqn-ts", "mse-dqn-ts", "pvn-dqn", "sbm-dqn-ts", "sbm-dqn-ts-paper"]),
        ("envs", ["deep_sea/N", "minatar/breakout", "minatar/seaquest", "gym/ID"]),
    ],
)
def test_lists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, names: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    sbm(monkeypatch, command)
    first_words = [line.split()[1] for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1]
    assert set(names) <= set(first_words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trane"], "did you mean train"),
        (["zzzzzz"], "there are train, resume"),
        (["train"], "sbm train PRESET --env ENV"),
        (["train", "dqn"], "sbm train PRESET --env ENV"),
        (["train", "dqm", "--env", "deep_sea/3"], "did you mean dqn"),
        (["train", "dqn", "--env", "deep_sea"], "deep_sea/10"),
        (["train", "dqn", "--env=minatar/breakot"], "minatar/breakout"),
        (["train", "dqn", "--env", "deep_sea/3", "--learning-rat", "1"], "--learning-rate"),
        (["train", "dqn", "--env", "deep_sea/3", "--frames", "many"], "many"),
        (["train", "dqn", "--env", "deep_sea/3", "--frames", "0"], "--frames must be at least 1"),
        (["resume", "/no/such/folder"], "holds no run"),
        (["evaluate", "/no/such/folder"], "holds no run"),
        (["evaluate", "/no/such/folder", "--episodes", "0"], "--episodes must be at least 1"),
        (["bench", "deep_see/3"], "deep_sea"),
    ],
)
def test_a_mistake_in_training_is_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert words in refusal(monkeypatch, capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_flags_may_come_before_the_preset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    sbm(monkeypatch, "train", "--env", "deep_sea/3", *FLAGS, "dqn", "--dry-run")
    assert "dqn on deep_sea/3" in capsys.readouterr().out


def test_help_of_train_shows_the_defaults_of_the_preset_on_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "train", "sbm-dqn-ts-paper", "--env", "deep_sea/7", "--help")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "(default: 2100)" in printed  # frames: 300 episodes of 7 steps
    assert "(default: 512)" in printed  # representation steps of the paper


def test_a_missing_extra_does_not_leave_half_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the same command without the flag would be refused: the folder would hold a run."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr("spectral_bellman.training.memory.estimate", lambda loop: None)  # which would compile the run
    monkeypatch.setattr("spectral_bellman.training.memory.check", lambda *_: None)
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "train", "dqn", "--env", "deep_sea/3", *FLAGS, "--tensorboard", "--out", str(tmp_path / "run"))
    assert stop.value.code == 2
    assert "spectral_bellman[tensorboard]" in capsys.readouterr().err.replace("\n", "")
    assert not (tmp_path / "run" / "config.json").exists()


def test_what_gymnasium_misses_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rendering CartPole without pygame, say."""
    import gymnasium

    from spectral_bellman.training import evaluate

    def missing(*_: object) -> None:
        raise gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')

    monkeypatch.setattr(evaluate, "evaluate", missing)
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "evaluate", "somewhere", "--video")
    assert stop.value.code == 2
    assert "gymnasium[classic-control]" in capsys.readouterr().err


def test_bench_measures_the_presets_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    presets = ("dqn", "mse-dqn-ts", "sbm-dqn")
    sbm(monkeypatch, "bench", "deep_sea/3", "--presets", *presets, "--seconds", "0.05", "--out", str(tmp_path / "bench.json"))
    figures, printed = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8")), capsys.readouterr().out
    times = figures["seconds a round"]
    assert set(times) == set(presets)
    for preset in presets[1:]:
        assert figures[f"overhead of {preset} over dqn"] == pytest.approx(times[preset] / times["dqn"] - 1)
        assert f"overhead of {preset} over dqn" in printed
    assert "--presets" in refusal(monkeypatch, capsys, "bench", "deep_sea/3", "--presets")
