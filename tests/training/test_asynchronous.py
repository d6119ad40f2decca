"""Actors that do not wait for one another: what is stored is whole, and every step is counted."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.environments.catalogue import make
from spectral_bellman.training import asynchronous, ray_actors
from spectral_bellman.training.actors import Part
from spectral_bellman.training.asynchronous import Arrived, FreeActors
from spectral_bellman.training.cluster import connect
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build, resume, train

from .runs import FEW

SMALL: dict[str, Any] = {
    **FEW,
    "hidden": (16,),
    "features": 8,
    "actors": 2,
    "asynchronous": 8,
}
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for the file."""
    found = connect("")
    yield found
    found.shutdown()


class Policies(ray_actors.Shared):
    """In place of Ray's object store."""

    def reference(self, number: int, policy: Any) -> Any:
        return policy


class Fake(asynchronous.FreeActor):
    """An actor that is as fast as it is told to be."""

    def __init__(self, group: int) -> None:
        super().__init__(group, lambda: None, Policies())
        self.may_go = threading.Semaphore(0)

    def round(self, number: int, version: int, policy: Any, key: Any) -> tuple[Arrived, float]:
        if not self.may_go.acquire(timeout=20):
            raise RuntimeError("the test has ended")
        part = Part(None, None, None, np.zeros(1), None, None, None)
        return Arrived(self._group, version, part, False), 0.0

    def end(self) -> None:
        self.may_go.release(100)


@pytest.fixture
def two() -> Iterator[tuple[FreeActors, Fake, Fake]]:
    """A fast actor and a slow one; learning may be three rounds ahead of its policy."""
    fast, slow = Fake(0), Fake(1)
    free = FreeActors([fast, slow], Policies(), most_stale=3)
    yield free, fast, slow
    free.stop()


def test_learning_does_not_wait_for_a_slow_actor_until_its_policy_is_too_old(two):
    free, fast, slow = two
    free.start(-1, "policy", jax.random.key(0))
    fast.may_go.release(100)
    while slow.version is None:
        time.sleep(0.001)
    for number in range(3):
        found = free.take(number)
        assert [one.group for one in found] == [0, 0]
        free.publish(number, "policy")
    # The slow one still acts on the policy from before round 0, which is 4 rounds old in round 3.
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.extend(free.take(3)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "waits"
    slow.may_go.release()
    thread.join(20)
    assert len(late) == 2
    groups = [one.group for _ in range(2) for one in free.take(3)] + [one.group for one in late]
    assert groups.count(1) == 1, "and takes what it has done"
    figures = free.figures(learner_waited=0.0)
    assert figures["most_stale"] >= 3
    assert figures["megabytes"] == pytest.approx(12 * 8 / 1e6)
    assert figures["learner_idle_share"] == 0
    assert free.figures(learner_waited=0.0) == {}


def test_nobody_answers(two, monkeypatch):
    monkeypatch.setattr(ray_actors, "ANSWER_SECONDS", 0.1)
    free, *_ = two
    free.start(-1, "policy", jax.random.key(0))
    with pytest.raises(RuntimeError, match=r"no actor has answered for 0 s.*sbm resume goes on"):
        free.take(0)


def test_an_error_of_an_actor_is_the_error_of_the_run(two, monkeypatch):
    free, fast, _ = two

    def broken(*_: Any) -> None:
        raise ValueError("the environment is broken")

    monkeypatch.setattr(fast, "round", broken)
    free.start(-1, "policy", jax.random.key(0))
    with pytest.raises(ValueError, match=r"^the environment is broken$"):
        free.take(0)


def test_killed_actors_leave_nothing_half_stored(ray):
    """Every stored step is a step of CartPole, also before episodes that were given up."""
    spec = make("gym/CartPole-v1")
    runners = build(configure("sbm-dqn-ts", spec, {**SMALL, "frames": 100_000}).resolved(), spec)
    runner = runners.runners[0]
    kills, rounds = 2, 30
    try:
        runners.prepare()
        runners.init()
        for number in range(rounds):
            runners.run_round(number, ahead=True)
            if number % 12 == 6:
                victim = runner.actors[number // 12 % 2]
                os.kill(ray.get(victim._handle.process.remote()), signal.SIGKILL)
        ring, tally = runner.replay, runners.tally()
        deaths = sum(actor.deaths for actor in runner.actors)
    finally:
        runners.close()
    assert deaths >= kills
    valid = np.asarray(ring.valid)
    assert valid.sum() == rounds * 64, "a round is as many steps as ever"
    observation, done = np.asarray(ring.observation), np.asarray(ring.steps.discount) == 0
    action, age = np.asarray(ring.steps.action), np.asarray(ring.age)
    cartpole: Any = gymnasium.make("CartPole-v1").unwrapped
    cartpole.reset(seed=0)
    begun, ended = 0, 0
    for env, slot in np.argwhere(valid):
        cartpole.state, cartpole.steps_beyond_terminated = observation[env, slot], None
        expected, _, terminated, _, _ = cartpole.step(int(action[env, slot]))
        assert terminated == done[env, slot]
        begun, ended = begun + (age[env, slot] == 0), ended + terminated
        if not terminated:
            np.testing.assert_allclose(observation[env, slot + 1], expected, atol=1e-4)
    assert int(tally.episodes[0]) == ended
    running, given_up = 4, begun - ended - 4
    assert given_up > 0, f"{begun} episodes began, {ended} ended, {running} are under way"


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_new_episodes(ray, tmp_path):
    run = {**SMALL, "env": "gym/CartPole-v1", "out": tmp_path / "a", "console": QUIET}
    train("sbm-dqn-ts", frames=1_280, **{**run, "actors": 1})
    resume(tmp_path / "a", console=QUIET, frames=2_560)
    lines = [json.loads(x) for x in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["frames"] == 2_560
    assert 1 <= lines[-1]["actors/staleness"] <= 8 + 2
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["host"]["asynchronous"] == 8


def test_without_actors_there_is_nothing_asynchronous(tmp_path):
    with pytest.raises(ValueError, match="--asynchronous must be with --actors"):
        train("mse-dqn-ts", env="gym/CartPole-v1", out=tmp_path / "a", **{**SMALL, "actors": 0})


def test_an_actor_is_not_replaced_after_the_end():
    begun: list[int] = []

    def begin() -> Any:
        begun.append(1)
        return object()

    actor = asynchronous.FreeActor(0, begin, ray_actors.Shared())
    actor.end()
    with pytest.raises(RuntimeError, match="the run was stopped"):
        actor._replace()
    assert begun == [1]
