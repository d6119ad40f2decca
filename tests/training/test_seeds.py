"""Seeds side by side, which look like one runner."""

import numpy as np
import pytest

from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.seeds import Seeds

CONFIG = TrainConfig("dqn", "deep_sea/3", seeds=3, first_seed=4)


class Runner:
    """Writes down what it is asked to do."""

    background = True

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.agent, self.calls = config, "agent", []
        self.programs = {f"compiled for {config.first_seed}": None}
        self.state, self.found = f"state {config.first_seed}", []

    def prepare(self):
        self.calls.append("prepare")

    def init(self):
        self.calls.append("init")

    def run_round(self, number, *, ahead=False):
        self.calls.append((number, ahead))

    def tally(self):
        return {"x": np.full(self.config.seeds, self.config.first_seed)}

    def diagnostics(self, number):
        return {"y": np.full(self.config.seeds, number + self.config.first_seed)}

    def start_evaluation(self, number, episodes):
        first = self.config.first_seed
        self.found.append((number, np.full((self.config.seeds, episodes), first, float)))

    def evaluated(self, wait=False):
        found, self.found = self.found, []
        return found

    def extra(self):
        return {"seed": self.config.first_seed}

    def close(self):
        self.calls.append("close")


@pytest.fixture
def seeds():
    return Seeds(CONFIG, Runner, host=True)


def test_each_seed_of_a_host_environment_has_a_runner(seeds):
    assert [r.config.first_seed for r in seeds.runners] == [4, 5, 6]
    assert {r.config.seeds for r in seeds.runners} == {1}
    assert seeds.state == ("state 4", "state 5", "state 6")
    assert [x["seed"] for x in seeds.extra()] == [4, 5, 6]
    assert seeds.background


def test_programs_are_compiled_once(seeds):
    assert all(r.programs is seeds.runners[0].programs for r in seeds.runners)
    seeds.prepare()
    assert [r.calls for r in seeds.runners] == [["prepare"], [], []]


def test_rounds_are_of_all_seeds(seeds):
    seeds.init()
    seeds.run_round(7, ahead=True)
    assert seeds.ahead
    seeds.run_round(8)
    assert not seeds.ahead
    seeds.close()
    wanted = ["init", (7, True), (8, False), "close"]
    assert [r.calls for r in seeds.runners] == [wanted] * 3


def test_what_seeds_say_is_put_together_in_their_order(seeds):
    assert seeds.tally()["x"].tolist() == [4, 5, 6]
    assert seeds.diagnostics(10)["y"].tolist() == [14, 15, 16]
    seeds.start_evaluation(2, 4)
    seeds.runners[1].start_evaluation(3, 4)
    found = [(number, seed, row.tolist()) for number, seed, row in seeds.evaluated()]
    assert found == [(2, 0, [4] * 4), (2, 1, [5] * 4), (3, 1, [5] * 4), (2, 2, [6] * 4)]


def test_on_an_accelerator_seeds_of_a_device_environment_share_a_runner(monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    together = Seeds(CONFIG, Runner)
    assert [r.config.seeds for r in together.runners] == [3]
    assert not together.background
    together.start_evaluation(2, 4)
    assert [seed for _, seed, _ in together.evaluated()] == [0, 1, 2]
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    assert [r.config.seeds for r in Seeds(CONFIG, Runner).runners] == [1, 1, 1]
