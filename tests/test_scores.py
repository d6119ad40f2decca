import csv
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from spectral_bellman.scores import (
    ATARI_EXPLORE,
    HUMAN,
    RANDOM,
    aggregate,
    human_normalized,
    iqm,
    iqm_difference,
    performance_profile,
    probability_of_improvement,
    rom_name,
    stratified_interval,
)


@pytest.fixture(scope="module")
def paper() -> list[dict[str, str]]:
    """The paper's table of scores, a row a game."""
    with (Path(__file__).parent / "data" / "paper_scores.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("rliable.library", reason="rliable does not install on every Python")


@pytest.fixture(scope="module")
def metrics() -> Any:
    return pytest.importorskip("rliable.metrics", reason="rliable does not install on every Python")


def legacy_seed(seed: int) -> None:
    """rliable draws from NumPy's global generator."""
    np.random.seed(seed)  # noqa: NPY002


# The paper's numbers


def test_human_and_random_are_the_papers(paper: list[dict[str, str]]) -> None:
    assert len(HUMAN) == 55
    assert {rom_name(row["game"]): float(row["human"]) for row in paper} == HUMAN
    assert {rom_name(row["game"]): float(row["random"]) for row in paper} == RANDOM
    assert RANDOM["video_pinball"] == 0, "others use 16256.9"


@pytest.mark.parametrize(
    ("agent", "games", "mean", "median"),
    [
        ("dqn", "all", 1.62, 0.52),
        ("sbm_dqn", "all", 2.23, 0.85),
        ("r2d2", "all", 3.21, 1.14),
        ("sbm_r2d2", "all", 3.53, 1.37),
        ("dqn", "explore", 0.24, 0.11),
        ("sbm_dqn", "explore", 0.45, 0.232),  # the paper has 0.24
        ("r2d2", "explore", 0.40, 0.22),
        ("sbm_r2d2", "explore", 0.61, 0.312),  # the paper has 0.30
    ],
)
def test_its_scores_give_its_aggregates(
    agent: str, games: str, mean: float, median: float, paper: list[dict[str, str]]
) -> None:
    """Table 1 is the table of scores, cut off (not rounded) after two decimals."""
    rows = [row for row in paper if games == "all" or rom_name(row["game"]) in ATARI_EXPLORE]
    assert len(rows) == (55 if games == "all" else 9)
    ours = aggregate([[human_normalized(row["game"], float(row[agent])) for row in rows]])
    assert math.floor(100 * ours["mean"].value) / 100 == mean
    if median in (0.232, 0.312):
        assert round(ours["median"].value, 3) == median
    else:
        assert math.floor(100 * ours["median"].value) / 100 == median


def test_normalized_by_hand() -> None:
    assert human_normalized("pong", -20.7) == 0
    assert human_normalized("pong", 14.6) == 1
    assert human_normalized("skiing", -10_717.5) == pytest.approx(0.5)
    assert type(human_normalized("pong", 3)) is float
    several = human_normalized("freeway", np.array([[0, 29.6], [14.8, -29.6]], np.float32))
    assert isinstance(several, np.ndarray)
    assert several.dtype == np.float64
    np.testing.assert_allclose(several, [[0, 1], [0.5, -1]], rtol=1e-6)


# Names


def test_every_game_is_a_rom() -> None:
    from ale_py.roms import get_all_rom_ids

    assert set(HUMAN) <= set(get_all_rom_ids())
    assert set(ATARI_EXPLORE) <= set(HUMAN)
    assert len(set(ATARI_EXPLORE)) == 9


def test_gymnasiums_names_are_those_of_their_roms() -> None:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    specs = [spec for name, spec in gymnasium.registry.items() if name.startswith("ALE/")]
    assert len(specs) > 100
    for spec in specs:
        game = spec.kwargs["game"]
        spellings = (spec.id, f"gym/{spec.id}", spec.name, game, f"atari/{game}", game.upper())
        assert {rom_name(name) for name in spellings} == {game}


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        ("Montezuma's Revenge", "montezuma_revenge"),
        ("Montezuma’s Revenge", "montezuma_revenge"),
        ("Yars' Revenge", "yars_revenge"),
        ("Yar's Revenge", "yars_revenge"),
        ("Pitfall!", "pitfall"),
        ("Q*bert", "qbert"),
        ("H.E.R.O.", "hero"),
        ("Ms. Pac-Man", "ms_pacman"),
        ("Pac-Man", "pacman"),
        ("Up'n Down", "up_n_down"),
        ("James Bond", "jamesbond"),
        ("River Raid", "riverraid"),
        (" BeamRider ", "beam_rider"),
        ("Atlantis 2", "atlantis2"),
    ],
)
def test_titles(name: str, rom: str) -> None:
    assert rom_name(name) == rom


def test_the_emulator_is_left_alone_for_a_known_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setitem(sys.modules, "ale_py.roms", None)
    assert [rom_name(game) for game in HUMAN] == list(HUMAN)
    with pytest.raises(ImportError):
        rom_name("defender")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MontezumaRevange", "did you mean montezuma_revenge"),
        ("atari/pongg", "did you mean pong"),
        ("minatar/breakout", "did you mean breakout"),  # another game than Atari's
        ("xyzzyxyzzy", "get_all_rom_ids"),
        ("", "get_all_rom_ids"),
    ],
)
@pytest.mark.parametrize("function", [rom_name, lambda name: human_normalized(name, 1.0)])
def test_a_wrong_name_is_answered_with_the_nearest(
    function: Callable[[str], object], name: str, hint: str
) -> None:
    with pytest.raises(ValueError, match=f"no Atari game '{name}'; .*{hint}"):
        function(name)


def test_a_game_outside_the_table_has_no_human_score() -> None:
    assert rom_name("Defender") == "defender"
    with pytest.raises(ValueError, match=r"'Defender' has no human score.* 55"):
        human_normalized("Defender", 1.0)


# Values, against rliable


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (3, 1), (2, 3), (5, 4), (10, 55)])
def test_values_are_those_of_rliable(shape: tuple[int, int], library: Any, metrics: Any) -> None:
    rng = np.random.default_rng(shape)
    for scores in (
        rng.normal(size=shape),
        rng.standard_cauchy(size=shape),
        rng.integers(3, size=shape) / 2,
    ):
        ours = aggregate(scores, samples=2)
        assert list(ours) == ["iqm", "median", "mean"]
        theirs = {
            "iqm": metrics.aggregate_iqm,
            "median": metrics.aggregate_median,
            "mean": metrics.aggregate_mean,
        }
        for name, estimate in ours.items():
            assert estimate.value == pytest.approx(theirs[name](scores), rel=1e-12, abs=1e-12)
        thresholds = np.array([-1.0, 0.0, 0.5, 1.0])  # scores that are integers/2 lie on them
        profile = performance_profile(scores, thresholds, samples=2)
        np.testing.assert_allclose(
            profile.value, library.score_distributions(scores, thresholds), atol=1e-12
        )
        assert profile.low.shape == profile.high.shape == (4,)


@pytest.mark.parametrize(("runs", "others"), [(1, 1), (2, 5), (5, 2), (10, 10)])
@pytest.mark.parametrize("ties", [False, True])
def test_probability_of_improvement_is_that_of_rliable(
    runs: int, others: int, ties: bool, metrics: Any
) -> None:
    rng = np.random.default_rng([runs, others])
    x, y = rng.normal(0.5, size=(runs, 7)), rng.normal(size=(others, 7))
    if ties:
        x, y = np.round(x), np.round(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of p-values, which rliable does not use
        theirs = metrics.probability_of_improvement(x, y)
    assert probability_of_improvement(x, y, samples=2).value == pytest.approx(theirs, rel=1e-12)
    assert probability_of_improvement(y, x, samples=2).value == pytest.approx(1 - theirs, rel=1e-12)


def test_values_by_hand() -> None:
    scores = [[0.0, 4.0, 1.0], [2.0, 8.0, 1.0]]
    ours = {name: estimate.value for name, estimate in aggregate(scores).items()}
    assert ours == pytest.approx(
        {"iqm": 2.0, "median": 1.0, "mean": 8 / 3}
    )  # of 0 1 1 2 4 8, the middle four
    np.testing.assert_allclose(
        performance_profile(scores, [-1.0, 1.0, 8.0]).value,
        [1, 0.5, 0],
        err_msg="1 is not more than 1",
    )
    assert (
        probability_of_improvement([[3.0]], [[1.0], [3.0], [5.0]]).value == 0.5
    )  # one below, a tie, one above
    assert (
        probability_of_improvement([[3.0, 0.0]], [[1.0, 1.0], [2.0, 1.0]]).value == 0.5
    )  # 1 in one game, 0 in the other


# Intervals


def test_intervals_are_those_of_rliable(library: Any, metrics: Any) -> None:
    """Both are random; the tolerance is four standard errors, 3% of the width.

    The end of a 90% interval from n resamples of spread s has the error √(0.05·0.95/n)/0.103 · s,
    where 0.103 is the density of a normal at its 5% quantile, in units of 1/s. That is 0.021 s for
    the 10 000 of rliable, 0.015 s for our 20 000, and 0.026 s together.
    """
    scores = np.random.default_rng(0).normal(size=(6, 5)) * [1, 2, 3, 4, 5] + [0, 1, 2, 3, 4]
    ours = aggregate(scores, samples=20_000, confidence=0.9)
    legacy_seed(1)
    _, theirs = library.get_interval_estimates(
        {"": scores},
        lambda x: np.array(
            [metrics.aggregate_iqm(x), metrics.aggregate_median(x), metrics.aggregate_mean(x)]
        ),
        reps=10_000,
        confidence_interval_size=0.9,
    )
    for (_, low, high), (their_low, their_high) in zip(ours.values(), theirs[""].T, strict=True):
        spread = (their_high - their_low) / 3.29
        assert low == pytest.approx(their_low, abs=0.1 * spread)
        assert high == pytest.approx(their_high, abs=0.1 * spread)


def test_the_interval_of_a_profile_is_that_of_rliable(library: Any) -> None:
    """Its ends are multiples of 1/30, as there are 30 runs × games, and at most one step apart."""
    scores, thresholds = np.random.default_rng(0).normal(size=(6, 5)), np.linspace(-2, 2, 9)
    ours = performance_profile(scores, thresholds, samples=20_000, confidence=0.9)
    legacy_seed(1)
    _, theirs = library.create_performance_profile(
        {"": scores}, thresholds, reps=2000, confidence_interval_size=0.9
    )
    gaps = np.abs(np.stack([ours.low, ours.high]) - theirs[""])
    assert gaps.max() < 1.01 / 30
    assert np.mean(gaps > 1e-9) < 0.2
    assert np.max(ours.high - ours.low) > 4 / 30


def test_the_interval_of_an_improvement_is_that_of_rliable(library: Any, metrics: Any) -> None:
    """1000 resamples, as above: 0.067 of their spread, about 0.1, is 0.007."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(0.5, size=(5, 4)), rng.normal(size=(7, 4))
    ours = probability_of_improvement(x, y, samples=20_000, confidence=0.9)
    legacy_seed(1)
    _, theirs = library.get_interval_estimates(
        {"": [x, y]},
        lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
        reps=1000,
        confidence_interval_size=0.9,
    )
    np.testing.assert_allclose([ours.low, ours.high], theirs[""][:, 0], atol=0.025)
    assert 0.2 < ours.high - ours.low < 0.5


def test_runs_are_drawn_independently_within_each_game() -> None:
    """By hand: 4 draws from {0, 1} sum to 0, 1, 2, 3, 4 in 1, 4, 6, 4, 1 of 16.

    Draws of the same run in both games would give 0, ½, 1 in 1, 2, 1 of 4.
    """
    scores = [[0.0, 0.0], [1.0, 1.0]]
    assert aggregate(scores, confidence=0.8)["mean"] == (0.5, 0.25, 0.75)
    assert aggregate(scores, confidence=0.95)["mean"] == (0.5, 0, 1)
    assert aggregate(scores, confidence=0.3)["mean"] == (0.5, 0.5, 0.5)


def test_x_and_y_are_drawn_apart() -> None:
    """By hand: X and Y draw two from {0, 1} each.

    ½ + (sum of X − sum of Y)/4 is 0, ¼, ½, ¾, 1 in 1, 4, 6, 4, 1 of 16. The same draws for both
    would always give ½.
    """
    x = [[0.0], [1.0]]
    assert probability_of_improvement(x, x, confidence=0.8) == (0.5, 0.25, 0.75)
    assert probability_of_improvement(x, x, confidence=0.95) == (0.5, 0, 1)


def test_they_cover_as_often_as_they_say() -> None:
    """Percentile intervals of ten runs are 5% too narrow.

    At a confidence of 95% they cover 94% for the mean, and 90% for the median, which is that of one
    game here. The IQM of equal games is the centre of each. The error of 400 trials is 1.2%.
    """
    rng = np.random.default_rng(0)
    covered = np.zeros(3)
    for seed in range(400):
        apart = aggregate(rng.normal([1, 2, 3, 4, 5], 0.3, size=(10, 5)), samples=400, seed=seed)
        alike = aggregate(rng.standard_t(3, size=(10, 5)), samples=400, seed=seed)
        covered += [
            low <= truth <= high
            for truth, (_, low, high) in (
                (3, apart["mean"]),
                (3, apart["median"]),
                (0, alike["iqm"]),
            )
        ]
    assert np.all(np.abs(covered / 400 - [0.94, 0.90, 0.94]) < 0.036)


def test_the_seed_decides_the_draws() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 3))
    for function in (aggregate, lambda x, **o: probability_of_improvement(x, -x, **o)):
        assert function(scores, samples=100) == function(scores, samples=100, seed=0)
        assert function(scores, samples=100) != function(scores, samples=100, seed=1)


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3, 5))
    whole = aggregate(x, samples=50), probability_of_improvement(x, y, samples=50)
    for block in (1, 7 * 45):
        monkeypatch.setattr("spectral_bellman.scores.BLOCK", block)
        assert (aggregate(x, samples=50), probability_of_improvement(x, y, samples=50)) == whole


def test_one_run_has_no_interval() -> None:
    for value, low, high in aggregate([[1.0, 2.0, 6.0]]).values():
        assert value in (2.0, 3.0)  # of three, IQM puts none aside
        assert math.isnan(low)
        assert math.isnan(high)
    two = [[1.0], [2.0]]
    for x, y in (([[1.0]], two), (two, [[1.0]])):
        assert np.isnan(probability_of_improvement(x, y)[1:]).all()
    profile = performance_profile([[1.0, 2.0]], [0.0, 1.5])
    np.testing.assert_array_equal(profile, [[1, 0.5], [np.nan] * 2, [np.nan] * 2])


def test_equal_runs_have_an_interval_of_no_width() -> None:
    for value, low, high in aggregate(np.full((4, 3), 2.5)).values():
        assert value == low == high == 2.5
    assert probability_of_improvement(np.ones((4, 3)), np.ones((2, 3))) == (0.5, 0.5, 0.5)
    assert probability_of_improvement(np.ones((4, 3)), np.zeros((2, 3))) == (1, 1, 1)


def test_numbers_are_floats() -> None:
    estimates = [
        *aggregate(np.arange(6).reshape(2, 3)).values(),
        probability_of_improvement([[1], [2]], [[0], [1]]),
    ]
    assert {type(number) for estimate in estimates for number in estimate} == {float}
    assert {part.dtype for part in performance_profile(np.ones((2, 2), np.float32), [0, 1])} == {
        np.dtype(np.float64)
    }


# What is refused


@pytest.mark.parametrize(
    "function",
    [
        aggregate,
        lambda scores: probability_of_improvement(scores, [[1.0, 2.0]]),
        lambda scores: probability_of_improvement([[1.0, 2.0]], scores),
        lambda scores: performance_profile(scores, [0.5]),
    ],
)
def test_bad_scores(function: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"\[1, 0\] is nan; 1 of 4 entries"):
        function([[1.0, 2.0], [np.nan, 3.0]])
    with pytest.raises(ValueError, match=r"\[0, 1\] is inf"):
        function([[1.0, np.inf]])
    with pytest.raises(ValueError, match=r"must have shape \(runs, games\), got \(3,\)"):
        function([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"must have shape \(runs, games\), got \(1, 1, 1\)"):
        function([[[1.0]]])
    for shape in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match=rf"is empty: it has shape \({shape[0]}, {shape[1]}\)"):
            function(np.zeros(shape))


def test_other_bad_input() -> None:
    scores = [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(ValueError, match=r"same games .* got shapes \(2, 2\) and \(1, 3\)"):
        probability_of_improvement(scores, [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"thresholds must have shape \(τ,\), got \(\)"):
        performance_profile(scores, np.array(0.5))
    with pytest.raises(ValueError, match="thresholds is empty"):
        performance_profile(scores, [])
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        aggregate(scores, confidence=95.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        aggregate(scores, samples=0)


def test_one_game_is_the_plain_bootstrap() -> None:
    """With one game nothing is stratified, as in SciPy's bootstrap; tolerance as above."""
    runs = np.random.default_rng(3).normal(size=12)
    ours = aggregate(runs[:, None], samples=20_000)["mean"]
    theirs = scipy.stats.bootstrap(
        (runs,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    )
    spread = runs.std() / math.sqrt(12)
    np.testing.assert_allclose([ours.low, ours.high], theirs.confidence_interval, atol=0.1 * spread)


def test_iqm_by_hand() -> None:
    assert iqm([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert iqm([-50.0, 1.0, 2.0, 6.0, 900.0]) == 3.0, "of five, one at either end is put aside"
    np.testing.assert_array_equal(
        iqm([[0.0, 9.0], [1.0, 9.0], [2.0, 9.0], [99.0, 9.0]]), [1.5, 9.0]
    )
    np.testing.assert_array_equal(iqm([[0.0, 1.0, 2.0, 99.0]], axis=1), [1.5])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 33])
def test_iqm_is_the_trimmed_mean_of_scipy(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(3, n, 2))
    np.testing.assert_allclose(iqm(x, axis=1), scipy.stats.trim_mean(x, 0.25, axis=1), rtol=1e-12)


def test_runs_within_each_game_by_hand() -> None:
    """Four draws from {0, 1}, two in each game, sum to 0, 1, 2, 3, 4 in 1, 4, 6, 4, 1 of 16.

    The third game is 5 throughout.
    """
    scores = np.array([[0.0, 0.0, 5.0], [1.0, 1.0, 5.0]])
    interval = stratified_interval(
        [scores],
        lambda x: np.stack([x[..., :2].sum((1, 2)), x[..., 2].sum(1)], axis=-1),
        confidence=0.8,
    )
    np.testing.assert_array_equal(interval, [[2, 10], [1, 10], [3, 10]])
    alone = stratified_interval([scores, scores[:1]], lambda x, y: x.sum((1, 2)) - y.sum((1, 2)))
    np.testing.assert_array_equal(alone, [7, np.nan, np.nan])


def test_the_difference_of_two_iqms_is_over_the_same_games():
    rng = np.random.default_rng(0)
    x, y = rng.normal(1.0, 1.0, (12, 3)), rng.normal(0.0, 1.0, (9, 3))
    x[:, 2], y[:, 2] = x[:, 2] + 50, y[:, 2] + 50  # a game that is far from the others
    found = iqm_difference(x, y)
    assert found.value == pytest.approx(float(iqm(x.ravel()) - iqm(y.ravel())))
    assert found.low < found.value < found.high
    mirrored = iqm_difference(y, x, samples=2)
    assert mirrored.value == pytest.approx(-found.value)
    assert np.isnan(iqm_difference(x[:1], y).low)
    with pytest.raises(ValueError, match="same games"):
        iqm_difference(x, y[:, :2])


def test_the_interval_of_a_difference_holds_the_true_one_19_times_in_20():
    rng = np.random.default_rng(1)
    inside = 0
    for number in range(200):
        x, y = rng.normal(1.0, 1.0, (10, 4)), rng.normal(0.5, 1.0, (10, 4))
        found = iqm_difference(x, y, samples=200, seed=number)
        inside += found.low <= 0.5 <= found.high
    assert 175 <= inside <= 199
