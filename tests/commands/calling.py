"""How a test calls ``sbm``: in this process."""

import sys

import pytest

from spectral_bellman.commands import main

TINY = {
    "--frames": "60",
    "--batch": "8",
    "--hidden": "8",
    "--num-envs": "2",
    "--updates": "2",
    "--eval-episodes": "2",
    "--score-episodes": "2",
    "--seeds": "1",
    "--replay-capacity": "100",
}
FLAGS = [word for pair in TINY.items() for word in pair]
"""Flags of a run of dqn on deep_sea/3 that takes a moment."""


def sbm(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sbm", *arguments])
    main.main()


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """The answer to a mistake: exit status 2, and no traceback."""
    with pytest.raises(SystemExit) as stop:
        sbm(monkeypatch, *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error
