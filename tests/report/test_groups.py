"""Which runs are pooled, and what distinguishes the others in their labels."""

import numpy as np
import pytest

from spectral_bellman.report.groups import Group, flat_settings, group_runs
from spectral_bellman.report.report import summarise

from .made import make


def test_the_same_agent_is_pooled_over_folders() -> None:
    groups = group_runs(
        [make([[1.0]]), make([[2.0]], first=1, name="other"), make([[3.0]], env="gym/x")]
    )
    assert [(g.env, g.agent, len(g.runs)) for g in groups] == [
        ("gym/x", "dqn", 1),
        ("minatar/breakout", "dqn", 2),
    ]
    assert summarise(groups[1])["scores"] == [1, 2]
    assert summarise(groups[1])["seeds"] == [0, 1]


def test_a_seed_counts_once() -> None:
    with pytest.raises(
        ValueError, match=r"seed 1 of dqn in minatar/breakout is in both a and b; give one of them"
    ):
        group_runs([make([[1.0], [2.0]], name="a"), make([[2.0]], first=1, name="b")])


def test_agents_are_labelled_by_what_differs() -> None:
    settings = [
        {"alpha": 0.1, "net": {"width": 8}},
        {"alpha": 0.3, "net": {"width": 8}},
        {"alpha": 0.3, "net": {"width": [9, 9]}},
        {},
    ]
    runs = [make([[1.0]], preset="ts", agent=agent) for agent in settings]
    assert [g.agent for g in group_runs([*runs[:2], make([[1.0]])])] == [
        "dqn",
        "ts (alpha=0.1)",
        "ts (alpha=0.3)",
    ]
    assert [g.agent for g in group_runs(runs)] == [
        "ts (alpha=0.1, net.width=8)",
        "ts (alpha=0.3, net.width=8)",
        "ts (alpha=0.3, net.width=[9, 9])",
        "ts (alpha=unset, net.width=unset)",
    ]


def test_labels_name_as_few_settings_as_tell_agents_apart() -> None:
    settings = [
        {"alpha": 1, "norm": "unit", "representation": "mse", "width": 8},
        {"alpha": 1, "norm": "unit", "representation": "spectral", "width": 8},
        {"alpha": 2, "norm": "none", "representation": "averaged", "width": 9},
        {"alpha": 1, "norm": "none", "representation": "averaged", "width": 9},
    ]
    runs = [make([[1.0]], preset="sbm", agent=agent) for agent in settings]
    # Another choice has other numbers, and its name says enough.
    labels = ["sbm (representation=averaged)", "sbm (representation=spectral)"]
    assert [g.agent for g in group_runs(runs[1:3])] == labels
    # A representation of an earlier version is named even if there is no other.
    assert [g.agent for g in group_runs(runs[3:])] == labels[:1]
    assert {g.agent for g in group_runs(runs[:3])} == {
        f"sbm (representation={x['representation']})" for x in settings[:3]
    }
    assert {g.agent for g in group_runs(runs)} == {
        f"sbm (alpha={x['alpha']}, representation={x['representation']})" for x in settings
    }
    numbers = [
        make([[1.0]], agent=dict(zip("abcd", values, strict=True)))
        for values in np.eye(5, 4).tolist()
    ]
    # More than three are needed, and all are named.
    assert len({g.agent for g in group_runs(numbers)}) == 5
    assert group_runs(numbers)[0].agent.count("=") == 4


def test_a_setting_that_one_config_lacks_is_a_difference() -> None:
    """What the run without it did is not known: neither today's default nor the other's value."""
    without, low, high = (
        make([[1.0]], first=i, preset="sbm", agent={"representation": "spectral"} | more)
        for i, more in enumerate(({}, {"head_rate": 0.1}, {"head_rate": 1.0}))
    )
    for other, value in ((low, 0.1), (high, 1.0)):
        groups = group_runs([without, other])
        labels = [f"sbm (head_rate={value})", "sbm (head_rate=unset)"]
        assert [(g.agent, len(g.runs)) for g in groups] == [(label, 1) for label in labels]
    assert len(group_runs([without, low, high])) == 3


def test_runs_that_lack_the_same_settings_are_pooled() -> None:
    runs = [make([[1.0]], first=i, agent={"alpha": 1.0}) for i in range(2)]
    assert [(g.agent, len(g.runs)) for g in group_runs(runs)] == [("dqn", 2)]


NESTED = {
    "discount": 0.99,
    "representation": {"name": "spectral", "theta_variance": 0.01},
    "exploration": {"name": "ucb", "noise_scale": 0.3},
    "net": {"hidden": [64, 64]},
}


def test_nested_choices_read_like_flat_settings() -> None:
    assert flat_settings(NESTED) == {
        "discount": "0.99",
        "representation": "spectral",
        "theta_variance": "0.01",
        "exploration": "ucb",
        "noise_scale": "0.3",
        "net.hidden": "[64, 64]",
    }
    flat = {"discount": 0.99, "representation": "spectral", "theta_variance": 0.01}
    nested = {"discount": 0.99, "representation": {"name": "spectral", "theta_variance": 0.01}}
    runs = [make([[1.0]], agent=flat), make([[2.0]], first=1, agent=nested)]
    assert [(g.agent, len(g.runs)) for g in group_runs(runs)] == [("dqn", 2)]


def test_two_nested_choices_may_use_one_name() -> None:
    both = {"a": {"name": "x", "rate": 1}, "b": {"name": "y", "rate": 2}, "c": {"rate": 3}}
    found = flat_settings(both | {"rate": 0})
    assert found == {"rate": "0", "a": "x", "a.rate": "1", "b": "y", "b.rate": "2", "c.rate": "3"}
    found = flat_settings(both)
    assert (found["rate"], found["b.rate"]) == ("1", "2")


def test_a_nested_choice_is_the_label() -> None:
    other = NESTED | {"exploration": {"name": "thompson", "noise_scale": 1.0, "ridge": 0.1}}
    runs = [make([[1.0]], agent=NESTED), make([[1.0]], agent=other)]
    assert [g.agent for g in group_runs(runs)] == [
        "dqn (exploration=thompson)",
        "dqn (exploration=ucb)",
    ]


def test_a_setting_that_goes_with_the_environment_is_no_label_but_all_share_labels() -> None:
    wide = make([[1.0]], env="gym/x", agent={"alpha": 1, "width": 9})
    narrow = [make([[1.0]], agent={"alpha": alpha, "width": 8}) for alpha in (1, 2)]
    assert [g.agent for g in group_runs([wide, narrow[0]])] == ["dqn", "dqn"]
    assert [(g.env[:3], g.agent) for g in group_runs([wide, *narrow])] == [
        ("gym", "dqn (alpha=1)"),
        ("min", "dqn (alpha=1)"),
        ("min", "dqn (alpha=2)"),
    ]


def test_pooled_runs_that_logged_at_other_frames_are_read_off_at_those_of_the_longest() -> None:
    slow, fast = (
        make([[0.0, 4.0, 8.0]], every=20),
        make([[1.0, 2.0, 3.0, None, 5.0]], every=10, first=1),
    )
    frames, values = group_runs([fast, slow])[0].curve("return")
    assert frames.tolist() == [20, 40, 60]
    np.testing.assert_array_equal(values, [[2, 3, np.nan], [0, 4, 8]])


def test_nulls_do_not_spread() -> None:
    _, values = Group("e", "a", [make([[0.0] * 4], loss=[[1.0, None, 3.0, None]])]).curve("loss")
    np.testing.assert_array_equal(values, [[1, np.nan, 3, np.nan]])
