"""``sbm tune``: lanes with numbers of their own, in one program."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.commands.tune import Tuning, tune
from spectral_bellman.environments import make
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build

QUIET = Console(quiet=True)
FIXED = {
    "batch": 8,
    "updates": 2,
    "num_envs": 2,
    "replay_capacity": 100,
    "epsilon_end": 0.0,
    "epsilon_steps": 30,
}


def tuning(folder: Path, **changes) -> Tuning:
    given = {
        "preset": "dqn",
        "env": "deep_sea/3",
        "settings": json.dumps({"learning_rate": [1e-2, 1e-6], "head_rate": [0.5]}),
        "fixed": json.dumps(FIXED),
        "frames": 120,
        "seeds": 2,
        "first_seed": 7,
        "episodes": 2,
        "out": folder / "tune.json",
    }
    return Tuning(**{**given, **changes})


def test_lanes_are_settings_times_seeds(tmp_path: Path) -> None:
    found = tune(tuning(tmp_path), QUIET)
    settings = [row["setting"] for row in found]
    assert sorted(s["learning_rate"] for s in settings) == [1e-6, 1e-2]
    assert all(s["head_rate"] == 0.5 for s in settings)
    assert all(len(row["greedy"]) == len(row["training"]) == 2 for row in found)
    means = [np.mean(row["training"]) for row in found]
    assert means == sorted(means, reverse=True)
    content = json.loads((tmp_path / "tune.json").read_text(encoding="utf-8"))
    assert (content["results"], content["first_seed"]) == (found, 7)
    assert found[0]["training"] != found[1]["training"] or found[0]["greedy"] != found[1]["greedy"]


@pytest.mark.parametrize("name", ["num_envs", "staleness", "warmup_steps", "batch"])
def test_only_real_numbers_of_the_agent_differ_between_lanes(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot differ between lanes"):
        tune(tuning(tmp_path, settings=json.dumps({name: [2, 3]})), QUIET)


def test_a_lane_is_the_run_of_its_setting_and_seed(tmp_path: Path) -> None:
    rate = 1e-2
    (row,) = tune(tuning(tmp_path, settings=json.dumps({"learning_rate": [rate]})), QUIET)
    spec = make("deep_sea/3")
    given = {"frames": 120, "learning_rate": rate, "seeds": 2, "first_seed": 7, **FIXED}
    config = configure("dqn", spec, given).resolved()
    runners = build(config, spec)
    runners.init()
    episodes, returns = np.zeros(2), np.zeros(2)
    for number in range(config.rounds):
        runners.run_round(number)
        if (number + 1) % config.log_rounds == 0 and number >= 0.9 * config.rounds:
            tally = runners.tally()
            episodes += tally.recent_episodes
            returns += tally.recent_return
    np.testing.assert_allclose(row["training"], returns / episodes, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "gym/CartPole-v1"}, "runs on the host"),
        ({"settings": "nothing"}, "--settings must be JSON"),
        ({"fixed": "[1]"}, "--fixed must be a JSON object"),
        ({"settings": '{"learning_rat": [1.0]}'}, "did you mean learning_rate"),
        ({"settings": '{"noise_scale": [1.0]}'}, "--noise-scale has no use here"),
        ({"settings": '{"learning_rate": [-1.0]}'}, "--learning-rate must be 0 or more"),
    ],
)
def test_a_mistake_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tune(tuning(tmp_path, **changes), QUIET)
    assert not (tmp_path / "tune.json").exists()
