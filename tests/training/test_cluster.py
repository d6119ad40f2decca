"""Ray on this machine alone, and what is said where it is not there."""

import sys

import pytest

from spectral_bellman.training.cluster import connect


@pytest.fixture
def ray():
    found = connect("")
    yield found
    found.shutdown()


def test_without_a_cluster_nobody_else_can_reach_it(ray):
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    assert connect("") is ray, "twice is once"


def test_auto_is_this_machine_where_there_is_no_cluster():
    ray = connect("auto")
    assert len(ray.nodes()) == 1
    ray.shutdown()


def test_an_address_where_nobody_listens_is_refused():
    with pytest.raises(ValueError, match=r"no Ray cluster at --cluster '127.0.0.1:1'.*ray start"):
        connect("127.0.0.1:1")


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'spectral_bellman\[ray\]'"):
        connect("")
