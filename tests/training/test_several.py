"""Several runs side by side: their names, what they say, and how they fail and stop."""

import io

import pytest
from rich.console import Console

from spectral_bellman.cli import _without
from spectral_bellman.training.several import cores_for_each, environments_in, side_by_side


def test_a_name_without_a_family_has_that_of_the_one_before():
    assert environments_in("atari/pong,boxing, minatar/breakout,freeway") == [
        "atari/pong",
        "atari/boxing",
        "minatar/breakout",
        "minatar/freeway",
    ]


@pytest.mark.parametrize(("names", "message"), [("atari/pong,,boxing", "two commas"), ("atari/pong,pong", "twice")])
def test_bad_lists_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        environments_in(names)


def test_flags_are_taken_out_with_their_values():
    assert _without(["dqn", "--env", "a,b", "--seeds", "2", "--env=c"], "--env") == ["dqn", "--seeds", "2"]


def test_every_run_has_a_core():
    assert cores_for_each(10_000) == 1


def test_what_they_say_has_their_names_and_one_that_fails_is_named():
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ValueError, match="bad did not end well"):
        side_by_side({"good": ["presets"], "bad": ["presents"]}, console)
    text = console.file.getvalue()
    assert "good" in text
    assert "sbm-dqn-ts" in text
    assert "bad error: there is no command 'presents'" in text
