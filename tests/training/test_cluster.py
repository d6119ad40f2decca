"""Ray on this machine alone, and what is said where it is not there."""

import sys

import pytest

from spectral_bellman.training import cluster
from spectral_bellman.training.cluster import connect, started_here


@pytest.fixture
def ray():
    found = connect("")
    yield found
    found.shutdown()


def test_without_a_cluster_nobody_else_can_reach_it(ray):
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    assert connect("") is ray, "twice is once"


@pytest.mark.parametrize("left", ["", "127.0.0.1:1\n"], ids=["no cluster", "one that has ended"])
def test_auto_is_this_machine_where_there_is_no_cluster(left, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    if left:
        (tmp_path / "ray" / "ray_current_cluster").write_text(left)
    assert started_here() == left.strip()
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr(cluster, "connect", lambda address: refuse(address, asked))
        assert connect("auto") == "this machine"
    assert asked == ([""] if not left else ["127.0.0.1:1", ""])


def refuse(address, asked):
    """A machine without clusters."""
    asked.append(address)
    if address:
        raise ValueError("no Ray cluster")
    return "this machine"


def test_auto_is_the_cluster_that_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(cluster, "connect", lambda address: address)
    assert connect("auto") == "10.0.0.1:6379"


def test_an_address_where_nobody_listens_is_refused():
    with pytest.raises(ValueError, match=r"no Ray cluster at --cluster '127.0.0.1:1'.*ray start"):
        connect("127.0.0.1:1")


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'spectral_bellman\[ray\]'"):
        connect("")
