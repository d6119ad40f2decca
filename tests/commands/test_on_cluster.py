"""Suites on the nodes of a cluster: every run is finished, whatever node is lost."""

import io
import threading
import time
import warnings

import pytest
from rich.console import Console

from spectral_bellman.commands import on_cluster
from spectral_bellman.commands.suite import suite
from spectral_bellman.commands.suites import SUITES, Block, Suite
from spectral_bellman.disk.run_folder import CONFIG, SUMMARY
from spectral_bellman.report.runs import find_runs
from spectral_bellman.training import cluster
from spectral_bellman.training.cluster import connect


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Another test's is not ours."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "started_here", lambda: "")


SHORT = {"eval_episodes": 1, "score_episodes": 1, "hidden": (8,), "checkpoint_minutes": 0.05}


def tiny(seeds, frames, presets=("dqn",)):
    blocks = [
        Block(presets, ("deep_sea/3",), 1, {**SHORT, "frames": frames, "learning_rate": 10.0**-n})
        for n in range(1, seeds + 1)
    ]
    return Suite("a test", tuple(blocks), table="small")


def test_a_suite_on_this_machine_alone(tmp_path, monkeypatch):
    """Without a cluster, the same command uses this machine."""
    monkeypatch.setitem(SUITES, "tiny", tiny(2, 60))
    console = Console(file=io.StringIO(), width=300)
    suite("tiny", tmp_path / "out", tmp_path / "keep", 0.0, 1, False, console, "auto")
    connect("").shutdown()
    said = console.file.getvalue()
    assert "2 of 2 runs finished" in said
    assert said.count(": finished, ") == 2, "what the runs say is shown"
    assert len(find_runs([tmp_path / "keep" / "small"])) == 2
    assert not list((tmp_path / "out" / "tiny").glob(".seen-*"))
    suite("tiny", tmp_path / "out", tmp_path / "keep", 0.0, 1, False, console, "auto")
    assert "2 runs are finished, 0 are not" in console.file.getvalue()


class Nodes:
    """Ray with some nodes."""

    def __init__(self, *resources):
        self._nodes = [{"Alive": bool(each), "Resources": each} for each in resources]

    def nodes(self):
        return self._nodes


@pytest.mark.parametrize(
    ("nodes", "at_once", "room", "share"),
    [
        (Nodes({"CPU": 2.0}), 1, 1, {"num_gpus": 0, "num_cpus": 2}),
        (Nodes({"CPU": 2.0}), 8, 8, {"num_gpus": 0, "num_cpus": 0.25}),
        (Nodes({"CPU": 16.0, "GPU": 2.0}), 4, 8, {"num_gpus": 0.25, "num_cpus": 2}),
        (Nodes({"CPU": 4.0}, {}, {"CPU": 8.0}), 2, 4, {"num_gpus": 0, "num_cpus": 2}),
    ],
)
def test_what_a_run_asks_for_is_what_there_is_room_for(nodes, at_once, room, share):
    """All runs that are begun together get their share, also where there are fewer cores."""
    assert on_cluster.rooms(nodes, at_once) == room
    assert on_cluster.share(nodes, at_once) == share
    cores = sum(each["Resources"].get("CPU", 0) for each in nodes.nodes())
    assert room * share["num_cpus"] <= cores


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    board, ray = on_cluster.Board(Console(file=io.StringIO())), connect("")
    process = ray.remote(num_cpus=0)(on_cluster.Process)
    handle = process.remote([], str(tmp_path / "run"), str(tmp_path / "elsewhere" / ".seen"), 0.5)
    with pytest.raises(ValueError, match=r"does not see .*--out must be a folder that all nodes"):
        on_cluster.look(ray, handle, "run", board)
    ray.shutdown()


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES, "tiny", tiny(2, 60))
    bad = tmp_path / "out" / "tiny" / "dqn-hidden=(8,)-learning_rate=0.01-deep_sea-3-seed-0"
    bad.mkdir(parents=True)
    (bad / "checkpoints").write_text("not a folder")
    console = Console(file=io.StringIO(), width=300)
    with pytest.raises(ValueError, match=r"learning_rate=0.01.* failed: the reason is printed"):
        suite("tiny", tmp_path / "out", tmp_path / "keep", 0.0, 1, False, console, "auto")
    connect("").shutdown()
    assert "1 of 2 runs finished" in console.file.getvalue()


@pytest.mark.slow
def test_a_node_is_lost_and_every_run_is_finished_on_the_others(tmp_path, monkeypatch):
    connect("").shutdown()  # says how Ray is to be imported
    from ray.cluster_utils import Cluster

    monkeypatch.setitem(SUITES, "tiny", tiny(8, 30_000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        lost = nodes.add_node(num_cpus=1)
    out, console = tmp_path / "out", Console(file=io.StringIO(), width=300)

    def lose() -> None:
        while len(list((out / "tiny").glob(f"*/{CONFIG}"))) < 2:
            time.sleep(0.1)
        time.sleep(5)
        nodes.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        suite("tiny", out, tmp_path / "keep", 0.0, 1, False, console, nodes.address)
    finally:
        thread.join()
        connect(nodes.address).shutdown()
        nodes.shutdown()
    said = console.file.getvalue()
    assert "its node is lost: it goes on elsewhere" in said
    assert "8 of 8 runs finished" in said
    assert len(list((out / "tiny").glob(f"*/{SUMMARY}"))) == 8
    assert len(find_runs([tmp_path / "keep" / "small"])) == 8
