import numpy as np
import pytest
import scipy.stats

from spectral_bellman.report import statistics
from spectral_bellman.report.statistics import bootstrap_interval
from spectral_bellman.scores import iqm


@pytest.mark.parametrize("statistic", [np.mean, np.median, iqm])
def test_the_interval_is_that_of_scipy(statistic: statistics.Statistic) -> None:
    values = np.random.default_rng(1).normal(size=12)
    ours = bootstrap_interval(values, statistic, confidence=0.8, resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (values,),
        statistic,
        confidence_level=0.8,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours.value == statistic(values)
    np.testing.assert_allclose([ours.low, ours.high], theirs, atol=0.02)


def test_two_seeds_by_hand() -> None:
    """Means of two draws from {0, 1} are 0, ½, ½, 1.

    The quantiles 0.2 and 0.8 are 0 and 1, those at 0.3 and 0.7 are ½.
    """
    assert bootstrap_interval([0.0, 1.0], np.mean, confidence=0.6) == (0.5, 0, 1)
    assert bootstrap_interval([0.0, 1.0], np.mean, confidence=0.4) == (0.5, 0.5, 0.5)


def test_it_covers_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(3, 2, size=(30, 500))
    interval = bootstrap_interval(samples, np.mean, confidence=0.9)
    covered = np.mean((interval.low < 3) & (interval.high > 3))
    assert 0.84 < covered < 0.94  # 0.90 but for small samples and chance (0.013)


def test_every_entry_has_its_own_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(4, 3, 5))
    whole = bootstrap_interval(values, np.mean, resamples=100)
    assert whole.low.shape == (3, 5)
    np.testing.assert_allclose(
        bootstrap_interval(values[:, 2, 1], np.mean, resamples=100), [part[2, 1] for part in whole]
    )
    monkeypatch.setattr(statistics, "BLOCK", 2 * 4 * 100)  # two entries at a time
    np.testing.assert_array_equal(bootstrap_interval(values, np.mean, resamples=100), whole)
    assert bootstrap_interval(values[:, 0, :0], np.mean).high.shape == (0,)


def test_the_seed_decides_the_draws() -> None:
    values = np.random.default_rng(0).normal(size=7)
    assert bootstrap_interval(values, np.mean, seed=3) == bootstrap_interval(
        values, np.mean, seed=3
    )
    assert bootstrap_interval(values, np.mean, seed=3) != bootstrap_interval(
        values, np.mean, seed=4
    )


def test_one_seed_has_no_interval() -> None:
    interval = bootstrap_interval([[2.0, 5.0]], np.median)
    np.testing.assert_array_equal(interval, [[2, 5], [np.nan] * 2, [np.nan] * 2])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one seed .* got shape \(0, 3\)"):
        bootstrap_interval(np.zeros((0, 3)), np.mean)
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        bootstrap_interval([1.0, 2.0], np.mean, confidence=95.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        bootstrap_interval([1.0, 2.0], np.mean, resamples=0)
