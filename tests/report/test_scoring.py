"""The score of a seed by hand, and the words for the rule."""

import math

import numpy as np
import pytest

from spectral_bellman.report.groups import Group
from spectral_bellman.report.report import scores_table, summarise
from spectral_bellman.report.scoring import (
    GREEDY_NOTE,
    TRAINING_NOTE,
    SeedScore,
    rule,
    seed_score,
    training_return,
)

from .made import make


def evaluated(returns, *, points=20, **more):
    """A run of `points` log lines with these evaluations at its end, `...` where there is none."""
    row = [...] * (points - len(returns)) + list(returns)
    return make([[0.0] * points], eval_return=[row], **more)


def test_the_score_is_the_mean_over_the_evaluations_of_the_last_tenth():
    """Of 200 frames, those at 190 and 200 count, and those at 170 and 180 do not."""
    run = evaluated([50.0, 60.0, 4.0, 7.0])
    assert seed_score(run, 0) == SeedScore(5.5, (10, 10))
    assert summarise(Group("e", "a", [run]))["scores"] == [5.5]
    assert summarise(Group("e", "a", [run]))["rule"] == "2 × 10 episodes"


def test_at_most_the_last_three_evaluations_count():
    run = evaluated([90.0, 1.0, 2.0, 6.0], points=40)
    assert seed_score(run, 0) == SeedScore(3.0, (10, 10, 10))
    assert summarise(Group("e", "a", [run]))["rule"] == "3 × 10 episodes"


def test_evaluations_count_alike_however_many_of_their_episodes_ended():
    run = evaluated([2.0, 4.0], eval_episodes=[[...] * 18 + [30, 15]], planned=30)
    assert seed_score(run, 0) == SeedScore(3.0, (30, 15))
    assert rule([seed_score(run, 0)]) == "2 × 15–30 episodes"


def test_the_log_says_how_many_episodes_ended_and_older_logs_what_share_did_not():
    older = evaluated([2.0, 4.0], eval_unfinished=[[...] * 18 + [0.0, 0.4]])
    assert seed_score(older, 0).episodes == (10, 6)


def test_an_evaluation_in_which_no_episode_ended_has_no_part_in_the_mean():
    run = evaluated([5.0, None], eval_unfinished=[[...] * 18 + [0.0, 1.0]])
    assert seed_score(run, 0) == SeedScore(5.0, (10, 0))
    none = seed_score(evaluated([7.0] * 18 + [None, None]), 0)
    assert math.isnan(none.value), "an earlier evaluation is not the end of the run"


def test_a_run_cut_before_its_last_tenth_has_its_last_evaluation_and_the_row_says_where():
    run = make([[0.0] * 20], eval_return=[[...] * 9 + [3.0] + [...] * 3 + [8.0] + [...] * 6])
    assert seed_score(run, 0) == SeedScore(8.0, (10,), 0.7)
    row = summarise(Group("e", "a", [run]))
    assert (row["scores"], row["rule"]) == ([8.0], "1 × 10 episodes at 70% of the frames")


def test_the_tenth_is_of_each_run_and_seeds_may_differ():
    long, short = evaluated([9.0, 4.0, 6.0], points=40), evaluated([5.0, 7.0], first=1)
    group = Group("e", "a", [long, short])
    np.testing.assert_allclose(group.final, [19 / 3, 6.0])
    assert group.rule == "2–3 × 10 episodes"


def test_the_table_says_by_which_rule_each_row_was_scored():
    new = {"eval_episodes": [[...] * 37 + [30] * 3], "planned": 30, "preset": "new"}
    groups = [
        Group("e", "old", [evaluated([1.0], points=10)]),
        Group("e", "new", [evaluated([1.0, 2.0, 3.0], points=40, **new)]),
        Group("e", "blind", [make([[1.0]], first=5)]),
    ]
    table = scores_table([summarise(group) for group in groups])
    column = table.header.index("score")
    rules = [row[column].text for row in table.rows]
    assert rules == ["1 × 10 episodes", "3 × 30 episodes", "training"]
    assert table.notes[:2] == [GREEDY_NOTE, TRAINING_NOTE]
    training = table.header.index("training")
    assert [row[training].text for row in table.rows] == ["0", "0", "1"], "beside every score"


def test_without_evaluations_it_is_the_end_of_training():
    """Of 110 frames the last tenth holds two log points.

    Where no episode ended in it, the last one before counts.
    """
    run = make(
        [
            [0.0] * 9 + [3.0, 5.0],
            [0.0] * 8 + [4.0, None, 8.0],
            [0.0] * 8 + [6.0, None, None],
            [None] * 11,
        ]
    )
    row = summarise(Group("e", "a", [run]))
    assert row["score"] == "return"
    assert row["scores"] == [4, 8, 6, None]
    assert row["mean"]["value"] == 6
    other = make([[7.0] * 11], first=5, eval_return=[[1.0] * 11])
    assert summarise(Group("e", "a", [run, other]))["scores"] == [4, 8, 6, None, 7], (
        "one kind of score for all"
    )


def test_every_episode_of_the_end_of_training_counts_once():
    """One episode that was quick, and then nineteen that began with it."""
    run = make([[0.0] * 9 + [50.0, 10.0]], episodes=[[5] * 9 + [6, 25]])
    assert summarise(Group("e", "a", [run]))["scores"] == [pytest.approx((50 + 19 * 10) / 20)]
    assert training_return(run, 0) == pytest.approx(12.0)
