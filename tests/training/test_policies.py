"""Policies by version: which one acts, and that whoever waits for one is released."""

import threading

import pytest

from spectral_bellman.training.policies import Policies

from .counting import within


def started(staleness: int, number: int = 0) -> Policies:
    policies = Policies(staleness)
    policies.start(number, tuple(f"version {number - staleness + i}" for i in range(staleness)))
    return policies


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_a_round_acts_on_the_policy_of_that_many_rounds_before(staleness):
    policies = started(staleness)
    for number in range(6):
        assert policies.acting(number) == f"version {number - staleness}"
        assert policies.newest(number) == f"version {number - 1}"
        policies.publish(number, f"version {number}")
        policies.forget(number)
        kept = range(number + 1 - staleness, number + 1)
        assert policies.kept(number + 1) == tuple(f"version {version}" for version in kept)


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_what_is_kept_is_enough_to_go_on(staleness):
    policies = started(staleness)
    for number in range(4):
        policies.publish(number, f"version {number}")
        policies.forget(number)
    again = Policies(staleness)
    again.start(4, policies.kept(4))
    assert [again.acting(n) for n in range(4, 4 + staleness)] == [
        policies.acting(n) for n in range(4, 4 + staleness)
    ]
    assert again.newest(4) == policies.newest(4) == "version 3"


def test_whoever_waits_gets_the_version_when_it_is_published():
    policies, found = started(1), []
    policies.expect(0)
    waiting = threading.Thread(target=lambda: found.append(policies.acting(1)), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert found == []
    policies.publish(0, "version 0")
    within(waiting.join)
    assert found == ["version 0"]


def test_whoever_waits_is_released_with_an_error_when_the_run_stops():
    policies, errors = started(1), []
    policies.expect(0)

    def wait() -> None:
        with pytest.raises(RuntimeError, match="the run was stopped"):
            policies.acting(1)
        errors.append("released")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    policies.close()
    within(waiting.join)
    assert errors == ["released"]
    assert policies.acting(0) == "version -1"  # what was published stays


def test_a_version_is_published_once():
    policies = started(1)
    policies.publish(0, "one")
    with pytest.raises(Exception, match="FINISHED"):
        policies.publish(0, "another")
    assert policies.acting(1) == "one"


def test_old_versions_are_forgotten():
    policies = started(2)
    for number in range(50):
        policies.publish(number, number)
        policies.forget(number)
    assert len(policies._published) == 2


def test_as_many_policies_are_needed_as_rounds_of_staleness():
    with pytest.raises(ValueError, match="a staleness of 2 needs as many policies"):
        Policies(2).start(0, ("only one",))
