"""Several runs side by side: their names, what they say, and how they fail and stop."""

import io

import pytest
from rich.console import Console

from spectral_bellman.commands.side_by_side import cores_for_each, environments_in, side_by_side


def test_a_name_without_a_family_has_that_of_the_one_before():
    assert environments_in("atari/pong,boxing, minatar/breakout,freeway") == [
        "atari/pong",
        "atari/boxing",
        "minatar/breakout",
        "minatar/freeway",
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [("atari/pong,,boxing", "two commas"), ("atari/pong,pong", "twice")],
)
def test_bad_lists_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        environments_in(names)


def test_every_run_has_a_core():
    assert cores_for_each(10_000) == 1


def test_what_they_say_has_their_names_and_one_that_fails_is_named():
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ValueError, match="bad failed"):
        side_by_side({"good": ["presets"], "bad": ["presents"]}, console)
    text = console.file.getvalue()
    assert "good" in text
    assert "sbm-dqn-ts" in text
    assert "bad error: there is no command 'presents'" in text


def test_runs_are_stopped_when_the_time_is_over_and_those_that_wait_are_not_begun():
    console, ended = Console(file=io.StringIO(), width=200), []
    commands = {name: ["presets"] for name in ("one", "two", "three")}
    side_by_side(commands, console, at_once=1, minutes=1e-6, ended=ended.append)
    assert "two" not in ended
    assert "three" not in ended


def test_whoever_asks_is_told_of_every_run_that_has_ended_well():
    console, ended = Console(file=io.StringIO(), width=200), []
    side_by_side({"one": ["envs"]}, console, ended=ended.append)
    assert ended == ["one"]
