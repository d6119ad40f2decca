"""``sbm presets`` and ``sbm envs``."""

from pathlib import Path

import pytest

from spectral_bellman.agents.presets import PRESETS

from .calling import sbm


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("presets", sorted(PRESETS)),
        ("envs", ["deep_sea/N", "minatar/breakout", "minatar/seaquest", "gym/ID"]),
    ],
)
def test_lists(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wide: Path,
    command: str,
    names: list[str],
) -> None:
    sbm(monkeypatch, command)
    lines = capsys.readouterr().out.splitlines()
    first_words = [line.split()[1] for line in lines if len(line.split()) > 1]
    assert set(names) <= set(first_words)


def test_the_list_says_what_else_a_preset_is_composed_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: Path
) -> None:
    sbm(monkeypatch, "presets")
    lines = capsys.readouterr().out.splitlines()
    (recurrent,) = [line for line in lines if line.startswith("backbone recurrent")]
    assert "operator retrace, sampling prioritised: r2d2, sbm-r2d2, sbm-r2d2-ts" in recurrent
    (other,) = [line for line in lines if line.startswith("backbone feed_forward")]
    assert "operator one_step, sampling uniform: dqn, dqn-ts" in other


def test_a_preset_is_listed_with_all_of_its_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: Path
) -> None:
    sbm(monkeypatch, "presets", "sbm-dqn-ts", "--env", "deep_sea/20")
    printed = capsys.readouterr().out
    rows = {line.split()[1]: line.split()[3] for line in printed.splitlines() if "│" in line}
    assert "sbm-dqn-ts on deep_sea/20" in printed
    assert (rows["features"], rows["exploration"], rows["staleness"]) == ("512", "thompson", "1")
    assert "epsilon_end" not in rows
