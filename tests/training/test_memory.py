"""How much memory a run will need, and what is refused."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

from spectral_bellman.environments import make
from spectral_bellman.training import memory
from spectral_bellman.training.config import TrainConfig, configure
from spectral_bellman.training.memory import Memory
from spectral_bellman.training.programs import array_bytes, largest_divisor
from spectral_bellman.training.runner import build

GB = 2**30
CONFIG = TrainConfig("dqn", "deep_sea/4", replay_capacity=1_000)
NEED = Memory(parameters=1, replay=4 * GB, agent=GB, working=GB, process=GB)


def test_a_total_is_of_the_device_alone():
    assert NEED.total == 7 * GB
    assert NEED._replace(aside=True).total == 3 * GB


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (7 * GB, None),
        (None, None),
        # 3 GB go elsewhere; 0.95 · 3 / 4 of the capacity fit.
        (6 * GB, "the run needs 7.00 GiB, of which the replay is 4.00 GiB.*--replay-capacity 712"),
        (3 * GB, "fewer --seeds or smaller batches would"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_what_would(monkeypatch, bound, message):
    monkeypatch.setattr(memory, "limit", lambda: bound)
    if message is None:
        memory.check(NEED, CONFIG)
        return
    with pytest.raises(ValueError, match=message):
        memory.check(NEED, CONFIG)


def test_a_replay_in_the_memory_of_the_host_has_to_fit_there(monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda: 4 * GB)
    monkeypatch.setattr(memory, "host_limit", lambda: 2 * GB)
    aside = NEED._replace(aside=True)
    with pytest.raises(ValueError, match=r"of the host's memory.*--replay-capacity 475 would fit"):
        memory.check(aside, CONFIG)
    monkeypatch.setattr(memory, "host_limit", lambda: 5 * GB)
    memory.check(aside, CONFIG)


def test_what_cannot_fit_is_refused_before_anything_is_allocated(monkeypatch):
    spec = make("deep_sea/4")
    settings = {"hidden": (16,), "batch": 16, "updates": 1, "replay_capacity": 10**9}
    config = configure("dqn", spec, settings)
    resident = memory.resident
    began = resident()
    runners = build(config, spec)
    monkeypatch.setattr(memory, "limit", lambda: 8 * GB)
    monkeypatch.setattr(memory, "resident", lambda: GB // 8)  # whatever ran here before
    with pytest.raises(ValueError, match=r"--replay-capacity [\d,]+ would fit"):
        memory.check(memory.estimate(runners), config)
    assert resident() - began < GB


def test_a_replay_is_counted_by_its_shapes():
    spec = make("deep_sea/4")
    config = configure("dqn", spec, {"hidden": (16,), "replay_capacity": 999, "seeds": 2})
    runners = build(config, spec)
    replay, rest = memory.held(runners, runners.shapes())
    # A slot: 16 cells, action, reward, discount, probability and age of 4 bytes, and one flag.
    slots = 999 + 1
    assert replay == 2 * (slots * (16 * 4 + 5 * 4 + 1) + 4)
    assert 0 < rest < replay


def test_bytes_of_a_tree():
    assert array_bytes((jnp.zeros((3, 5), jnp.float32), {"a": jnp.zeros(7, bool)})) == 67


@pytest.mark.parametrize(
    ("number", "bound", "found"), [(12, 5, 4), (12, 12, 12), (12, 100, 12), (7, 5, 1), (0, 3, 1)]
)
def test_largest_divisors(number, bound, found):
    assert largest_divisor(number, bound) == found


@pytest.mark.slow
def test_memory_is_estimated_to_15_percent():
    """In a process of its own, whose peak is of this run alone."""
    code = """
from spectral_bellman.environments import make
from spectral_bellman.training import memory
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build
spec = make("deep_sea/20")
settings = {"replay_capacity": 600_000, "warmup_steps": 0}
runners = build(configure("sbm-dqn-ts", spec, settings), spec)
estimate = memory.estimate(runners)
runners.init()
for number in range(20):
    runners.run_round(number)
runners.tally()
print(estimate.total, memory.peak_resident(), estimate.replay)
"""
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    estimated, peak, replay = (int(x) for x in out.split())
    assert replay > 0.9e9
    assert abs(estimated / peak - 1) < 0.15, (estimated, peak)
