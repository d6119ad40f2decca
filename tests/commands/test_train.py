"""``sbm train`` and ``sbm resume``."""

import json
import sys
from pathlib import Path

import pytest

from spectral_bellman.agents import choices
from spectral_bellman.commands import train as module
from spectral_bellman.commands.train import value_of, without

from .calling import FLAGS, refusal, sbm


def test_train_takes_its_settings_from_the_flags(run_folder: Path) -> None:
    config = json.loads((run_folder / "config.json").read_text(encoding="utf-8"))
    names = ("preset", "env", "frames", "num_envs", "round_steps")
    assert [config[name] for name in names] == ["dqn", "deep_sea/3", 60, 2, 3]
    assert (config["agent"]["batch"], config["agent"]["hidden"]) == (8, [8])
    summary = json.loads((run_folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["frames"] == 60
    assert summary["seeds"]["0"]["episodes"] == 20


def test_a_second_run_into_the_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "dqn", "--env", "deep_sea/3", *FLAGS, "--out", str(run_folder)]
    error = refusal(monkeypatch, capsys, *arguments)
    assert "already holds a run: sbm resume" in error.replace("\n", " ")


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, wide: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dqn", "--env", "deep_sea/3", *FLAGS, "--out", "here", "--dry-run"]
    sbm(monkeypatch, "train", *arguments)
    printed = capsys.readouterr().out
    # 9 cells to 8 units to 2 actions: 9·8 + 8 + 8·2 + 2 = 98, and θ = 1 beside them
    assert "99 parameters a seed" in printed
    assert "2.67 samples per agent step" in printed  # 2 steps of 8 for 6 agent steps
    assert "10 rounds of 6 frames" in printed
    assert "memory: " in printed
    assert "the run would go to here" in printed
    assert list(wide.iterdir()) == []


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list:
    """The configs of dry runs, which compile nothing."""
    found: list = []
    monkeypatch.setattr(module, "describe", lambda config, *_: found.append(config))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["dqn", "--env", "deep_sea/3", *FLAGS],
        ["--env", "deep_sea/3", *FLAGS, "dqn"],
        ["--env=deep_sea/3", "--frames=60", "dqn", *FLAGS[2:]],
    ],
)
def test_flags_may_come_before_the_preset(
    monkeypatch: pytest.MonkeyPatch, described: list, arguments: list[str]
) -> None:
    sbm(monkeypatch, "train", *arguments, "--dry-run")
    (config,) = described
    assert (config.preset, config.env, config.frames) == ("dqn", "deep_sea/3", 60)


def test_a_choice_brings_its_flags(monkeypatch: pytest.MonkeyPatch, described: list) -> None:
    flags = ["--exploration", "epsilon", "--epsilon-end", "0.2", "--q-steps", "1"]
    sbm(monkeypatch, "train", "sbm-dqn-ts", "--env", "deep_sea/3", *flags, "--dry-run")
    (config,) = described
    assert (config.agent.exploration.name, config.agent.exploration.epsilon_end) == ("epsilon", 0.2)
    assert config.agent.representation.solver.q_steps == 1


def test_every_kind_of_choice_has_a_flag(
    monkeypatch: pytest.MonkeyPatch, described: list, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(module.CHOICES) == set(choices.KINDS)
    flags = ["--backbone=recurrent", "--operator=retrace", "--sampling=prioritised"]
    flags += ["--representation=spectral", "--q-solver=adam", "--exploration=ladder"]
    own = ["--trained=40", "--trace-decay=0.5", "--importance-exponent=0.1", "--ladder-power=2"]
    sbm(monkeypatch, "train", "dqn-ts", "--env", "deep_sea/3", *flags, *own, "--dry-run")
    agent = described[0].agent
    assert (agent.backbone.trained, agent.operator.trace_decay) == (40, 0.5)
    assert (agent.sampling.importance_exponent, agent.exploration.ladder_power) == (0.1, 2)
    with pytest.raises(SystemExit):
        sbm(monkeypatch, "train", "dqn", "--env", "deep_sea/3", "--help")
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "One of one_step, n_step, retrace; each" in printed


def test_a_family_brings_flags_for_how_it_is_played(
    monkeypatch: pytest.MonkeyPatch, described: list
) -> None:
    flags = ["--episode-frames", "240", "--dry-run"]
    sbm(monkeypatch, "train", "dqn", "--env", "atari/pong", *flags)
    (config,) = described
    assert config.protocol.episode_frames == 240


ON = ["train", "dqn", "--env", "deep_sea/3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "sbm train PRESET --env ENV"),
        (["train", "dqn"], "sbm train PRESET --env ENV"),
        (["train", "dqm", "--env", "deep_sea/3"], "did you mean dqn"),
        (["train", "dqn", "--env", "deep_sea"], "deep_sea/10"),
        (["train", "dqn", "--env=minatar/breakot"], "minatar/breakout"),
        ([*ON, "--learning-rat", "1"], "--learning-rate"),
        ([*ON, "--frames", "many"], "many"),
        ([*ON, "--frames", "0"], "--frames must be at least 1"),
        ([*ON, "--noise-scale", "1"], "--noise-scale has no use here"),
        ([*ON, "--noise-scale=1"], "it is a setting of exploration thompson"),
        ([*ON, "--exploration", "ucb"], "needs features"),
        ([*ON, "--q-solver", "adam"], "--q-solver has no use here"),
        ([*ON, "--operator", "retrace"], "take --backbone recurrent"),
        ([*ON, "--sticky-actions", "0"], "it is a setting of atari/"),
        ([*ON, "--hidden-frames=0.5"], "it is a setting of minatar_hidden/"),
        ([*ON, "--exploration", "ubc"], "did you mean ucb"),
        (["train", "dqn", "--env", "atari/pong,,boxing"], "two commas"),
        (["train", "dqn", "--env", "deep_sea/3,3"], "twice"),
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


def test_help_shows_the_defaults_of_the_preset_on_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, "train", "sbm-dqn-ts-paper", "--env", "deep_sea/7", "--help")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "(default: 2100)" in printed  # frames: 300 episodes of 7 steps
    assert "(default: 576)" in printed  # the paper's 512 + 64 gradient steps
    assert "--noise-scale" in printed
    assert "--epsilon-end" not in printed


def test_a_missing_extra_does_not_leave_half_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the folder would hold a run, and the command without the flag would be refused."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    # These would compile the run.
    monkeypatch.setattr("spectral_bellman.training.seeds.Seeds.prepare", lambda _: None)
    monkeypatch.setattr("spectral_bellman.training.memory.estimate", lambda _: None)
    monkeypatch.setattr("spectral_bellman.training.memory.check", lambda *_: None)
    folder = tmp_path / "run"
    error = refusal(monkeypatch, capsys, *ON, *FLAGS, "--tensorboard", "--out", str(folder))
    assert "spectral_bellman[tensorboard]" in error.replace("\n", "")
    assert not (folder / "config.json").exists()


def test_flags_are_found_and_taken_out_with_their_values() -> None:
    arguments = ["dqn", "--env", "a,b", "--seeds", "2", "--env=c"]
    assert without(arguments, "--env") == ["dqn", "--seeds", "2"]
    assert (value_of(arguments, "--env"), value_of(arguments, "--seeds")) == ("a,b", "2")
    assert value_of(["--env=c"], "--env") == "c"
    assert value_of(["dqn", "--env"], "--env") is None


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The commands that would be run side by side."""
    found: list[dict] = []
    monkeypatch.setattr(module, "side_by_side", lambda commands, _: found.append(commands))
    return found


def test_several_environments_are_runs_of_their_own(
    monkeypatch: pytest.MonkeyPatch, side_by_side: list[dict]
) -> None:
    flags = ["--env", "deep_sea/3,4", "--seeds", "2", "--out", "here", "--cores", "1"]
    sbm(monkeypatch, "train", "dqn", *flags)
    rest = ["train", "dqn", "--seeds", "2", "--cores", "1", "--env"]
    assert side_by_side == [
        {
            "deep_sea/3": [*rest, "deep_sea/3", "--out", "here/deep_sea-3"],
            "deep_sea/4": [*rest, "deep_sea/4", "--out", "here/deep_sea-4"],
        }
    ]


def test_resume_goes_on_with_all_runs_in_a_folder(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, side_by_side: list[dict]
) -> None:
    sbm(monkeypatch, "resume", str(run_folder.parent), "--frames", "90")
    wanted = {"run": ["resume", str(run_folder), "--frames", "90"]}
    assert side_by_side == [wanted]
