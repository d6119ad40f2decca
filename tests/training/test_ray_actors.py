"""Actors in processes of their own: the same run to the bit, whatever dies on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spectral_bellman.training import ray_actors
from spectral_bellman.training.cluster import connect
from spectral_bellman.training.runner import resume, train

from .runs import FEW

ray: Any = None
"""Not imported: ``connect`` says how it is to be imported."""

SMALL = {
    "frames": 2_400,
    **FEW,
}
FEED_FORWARD = {"preset": "sbm-dqn-ts", "hidden": (16,), "features": 8}
RECURRENT = {"preset": "sbm-r2d2-ts", "hidden": (16,), "features": 8, "lstm": 8, "updates": 9}
NOT_LEARNED = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    """One Ray for the file."""
    global ray
    ray = connect("")
    yield
    ray.shutdown()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[ray_actors.RayActor]:
    """The actors of a run, as soon as they are begun."""
    found: list[ray_actors.RayActor] = []
    start = ray_actors.start

    def kept(*given: Any) -> list[ray_actors.RayActor]:
        found.extend(start(*given))
        return found[-given[0].on_host.actors :]

    monkeypatch.setattr(ray_actors, "start", kept)
    return found


def run(out: Path, agent: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """What a run logs, without its times."""
    given = {**SMALL, **agent, **settings}
    train(given.pop("preset"), env="gym/CartPole-v1", out=out, console=Console(quiet=True), **given)
    return logged(out)


def logged(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k not in NOT_LEARNED} for x in lines]


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(FEED_FORWARD, id="feed-forward"),
        pytest.param(RECURRENT, id="recurrent", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_actors_is_the_run_with_groups_of_their_size(tmp_path, agent):
    assert run(tmp_path / "a", agent, actors=2) == run(tmp_path / "g", agent, groups=2)


def test_actors_that_are_killed_are_replaced_and_nothing_changes(tmp_path, begun, monkeypatch):
    """Also long after their environments were saved last."""
    monkeypatch.setattr(ray_actors, "SAVE_ROUNDS", 7)
    expected, ended, rng = (
        run(tmp_path / "g", FEED_FORWARD, groups=2, frames=6_400),
        threading.Event(),
        random.Random(0),
    )

    def shoot() -> None:
        """Ten times one that has played a round since it was hit last, at any point of a round."""
        seen: dict[int, Any] = {}
        for _ in range(10):
            while not ended.wait(rng.uniform(0.0, 0.05)):
                ready = [a for a in begun if a.state is not seen.get(id(a))]
                process = pid(rng.choice(ready)) if ready else None
                if process:
                    seen.update({id(a): a.state for a in begun})
                    os.kill(process, signal.SIGKILL)
                    break

    thread = threading.Thread(target=shoot)
    thread.start()
    try:
        found = run(tmp_path / "a", FEED_FORWARD, actors=2, frames=6_400)
    finally:
        ended.set()
        thread.join()
    assert found == expected
    assert sum(actor.deaths for actor in begun) == 10


def pid(actor: ray_actors.RayActor) -> int | None:
    try:
        return ray.get(actor._handle.process.remote(), timeout=20)
    except ray.exceptions.RayError:
        return None


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_new_actors(tmp_path):
    """The checkpoint holds the running episodes of every actor."""
    whole = run(tmp_path / "whole", FEED_FORWARD, actors=2)
    run(tmp_path / "cut", FEED_FORWARD, actors=2, frames=1_200)
    resume(tmp_path / "cut", console=Console(quiet=True), frames=2_400)
    assert logged(tmp_path / "cut")[-1] == whole[-1]


class Silent:
    """An actor that does not answer."""

    def __getattr__(self, name: str) -> Any:
        return ray.remote(num_cpus=0)(lambda: time.sleep(30))


def test_an_actor_that_does_not_answer_ends_the_run_with_its_name(monkeypatch):
    monkeypatch.setattr(ray_actors, "ANSWER_SECONDS", 0.2)
    actor = ray_actors.RayActor(3, Silent, ray_actors.Shared())
    with pytest.raises(RuntimeError, match=r"actor 3 has not answered for 0 s.*sbm resume"):
        actor.ask("save")


def test_an_actor_that_always_dies_ends_the_run_with_advice(monkeypatch):
    @ray.remote(num_cpus=0, max_restarts=0)
    class Doomed:
        def save(self) -> None:
            os._exit(1)

    actor = ray_actors.RayActor(1, Doomed.remote, ray_actors.Shared())
    with pytest.raises(RuntimeError, match="actor 1 died 5 times in a row: look at the memory"):
        actor.ask("save")
    assert actor.deaths == 5


def test_an_error_of_an_environment_is_the_error_of_the_run():
    @ray.remote(num_cpus=0)
    class Wrong:
        def save(self) -> None:
            raise ValueError("the environment is broken")

    actor = ray_actors.RayActor(0, Wrong.remote, ray_actors.Shared())
    with pytest.raises(ValueError, match=r"^the environment is broken$"):
        actor.ask("save")
    assert actor.deaths == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actors": 3}, "--num-envs 4 cannot be divided into --actors 3"),
        ({"actors": -1}, "--actors must be 0 or more"),
        ({"cluster": "auto"}, "--cluster must be with --actors"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "x", FEED_FORWARD, **settings)
    assert not (tmp_path / "x").exists()


COMMAND = """
import json, sys
from rich.console import Console
from spectral_bellman.training.runner import resume, train
out, given, quiet = sys.argv[1], json.loads(sys.argv[2]), Console(quiet=True)
if given:
    train(given.pop("preset"), env="gym/CartPole-v1", out=out, console=quiet, **given)
else:
    resume(out, console=quiet)
"""


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on_from_its_checkpoint_with_new_actors(tmp_path):
    given = {**SMALL, **FEED_FORWARD, "actors": 2, "frames": 12_800, "checkpoint_minutes": 0.02}

    def command(out: Path, how: dict[str, Any]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", COMMAND, str(out), json.dumps(how)])

    assert command(tmp_path / "whole", given).wait() == 0
    cut, how, kills, rng = tmp_path / "cut", given, 0, random.Random(1)
    while not (cut / "summary.json").exists():
        process = command(cut, how)
        before = len(list(cut.glob("checkpoints/*")))
        while process.poll() is None and kills < 3:
            if list(cut.glob("checkpoints/*")) and len(list(cut.glob("checkpoints/*"))) >= before:
                time.sleep(rng.uniform(3.0, 6.0))
                if process.poll() is None:
                    process.kill()
                    kills += 1
                break
            time.sleep(0.05)
        process.wait()
        how = {}
    assert kills >= 1
    assert logged(cut) == logged(tmp_path / "whole")
    assert not processes_left(), "actors end with their learner"


def processes_left() -> list[str]:
    """Collectors that are still there, a while after."""
    for _ in range(50):
        found = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
        left = [name.decode() for name in found if b"ray::Collector" in name]
        if not left:
            return []
        time.sleep(0.2)
    return left


@pytest.mark.slow
def test_a_node_is_lost_and_its_actors_go_on_elsewhere(tmp_path, begun):
    from ray.cluster_utils import Cluster

    expected = run(tmp_path / "g", FEED_FORWARD, groups=2, frames=12_800)
    ray.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        lost = cluster.add_node(num_cpus=2)
    try:
        connect(cluster.address)

        def lose() -> None:
            while len(begun) < 2 or any(actor.state is None for actor in begun):
                time.sleep(0.05)
            time.sleep(1.0)
            cluster.remove_node(lost, allow_graceful=False)

        thread = threading.Thread(target=lose)
        thread.start()
        found = run(tmp_path / "a", FEED_FORWARD, actors=2, cluster=cluster.address, frames=12_800)
        thread.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
        connect("")
    assert found == expected
    assert sum(actor.deaths for actor in begun) >= 1, "the run ended before its node was lost"
