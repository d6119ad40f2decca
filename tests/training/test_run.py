"""Runs: what they write, that they resume to the bit, and that nothing is lost when something goes wrong."""

import dataclasses
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.environments import make
from spectral_bellman.training import Broken, checkpoint, memory, resume, train
from spectral_bellman.training.config import TrainConfig, override, read_config
from spectral_bellman.training.run import build, configure

QUIET = Console(quiet=True)
WALL_CLOCK = ("wall_s", "frames_per_s", "checkpoint_s", "checkpoint_mb")
SMALL = {
    "hidden": (16,),
    "features": 8,
    "batch": 16,
    "theta_samples": 8,
    "representation_steps": 3,
    "q_steps": 2,
    "precision_samples": 64,
    "warmup_steps": 40,
    "eval_episodes": 2,
    "checkpoint_minutes": 0.0,
}
RUNS = {
    "device, one seed": ("sbm-dqn-ts", "deep_sea/4", {"seeds": 1, "frames": 400, "num_envs": 2}),
    "device, seeds": (
        "sbm-dqn-ts",
        "deep_sea/4",
        {"seeds": 2, "frames": 400, "num_envs": 2, "exploration": "propagated", "propagated_draws": 2},
    ),
    "host": ("sbm-dqn-ts", "gym/CartPole-v1", {"seeds": 2, "frames": 600, "num_envs": 3, "round_steps": 5, "replay_capacity": 200}),
    "atari": (
        "sbm-dqn-ts",
        "atari/breakout",
        {
            "seeds": 1,
            "frames": 2_400,
            "log_frames": 160,
            "num_envs": 4,
            "groups": 2,
            "round_steps": 5,
            "replay_capacity": 200,
            "dispatch_steps": 1,
            "network": "mlp",
            "episode_frames": 240,
            "eval_frames": 800,
            "eval_max_steps": 100,
            "cores": 2,
        },
    ),
}


def metrics(folder: Path) -> list[dict]:
    """What was logged of each seed at each point; an evaluation in the background has a line of its own, written when it ended."""
    points: dict[tuple[int, int], dict] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = {k: v for k, v in json.loads(line).items() if k not in WALL_CLOCK}
        points.setdefault((record["frames"], record["seed"]), {}).update(record)
    return [points[place] for place in sorted(points)]


def run(name: str, folder: Path, **changes):
    preset, env, settings = RUNS[name]
    return train(preset, env, out=folder, console=QUIET, **{**SMALL, **settings, **changes})


@pytest.fixture(scope="module", params=RUNS)
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return request.param, run(request.param, folder)


def test_a_run_leaves_what_the_readme_says(finished):
    name, result = finished
    preset, env, settings = RUNS[name]
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["preset"], config["env"], config["agent"]["features"]) == (preset, env, 8)
    assert config["provenance"]["packages"]["jax"] == jax.__version__
    lines = metrics(result.folder)
    assert {line["seed"] for line in lines} == set(range(settings["seeds"]))
    last = [line for line in lines if line["frames"] >= settings["frames"]]
    assert len(last) == settings["seeds"]
    for line in last:
        assert line["episodes"] > 0
        assert np.isfinite(line["eval_return"])
        assert line["loss/value" if config["agent"]["norm"] == "value" else "loss/spectral"] is not None
        assert line["diagnostic/sigma_effective_rank"] >= 1
        assert 0 <= line["diagnostic/share_outside_unit_ball"] <= 1
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
    assert len(checkpoint.candidates(result.folder / "checkpoints")) == 2
    assert not any(path.suffix in (".pkl", ".pickle") for path in result.folder.rglob("*"))


def test_seeds_differ_and_are_reproducible(finished, tmp_path):
    name, result = finished
    again = run(name, tmp_path / "again")
    assert metrics(again.folder) == metrics(result.folder)
    by_seed = [[line["return"] for line in metrics(result.folder) if line["seed"] == seed] for seed in range(2)]
    assert by_seed[0] != by_seed[1]


CHILD = """
import sys
from rich.console import Console
from spectral_bellman.training import resume, train
from tests_run_settings import RUNS, SMALL
folder, name = sys.argv[1:]
preset, env, settings = RUNS[name]
import pathlib
if (pathlib.Path(folder) / "config.json").exists():
    resume(folder, console=Console(quiet=True))
else:
    train(preset, env, out=folder, console=Console(quiet=True), **{**SMALL, **settings})
"""


def child(folder: Path, name: str) -> subprocess.Popen:
    settings = folder.parent / "tests_run_settings.py"
    settings.write_text(f"RUNS = {RUNS!r}\nSMALL = {SMALL!r}\n")
    environment = {**os.environ, "PYTHONPATH": str(folder.parent)}
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), name], env=environment)


def lines_in(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_kill_minus_nine_changes_nothing(finished, tmp_path):
    name, result = finished
    folder, rng, kills = tmp_path / "run", np.random.default_rng(len(name)), 0
    for _ in range(3):
        process, before = child(folder, name), lines_in(folder)
        goal = before + int(rng.integers(2, 7) if name == "atari" else rng.integers(4, 30))
        while process.poll() is None and lines_in(folder) < goal:
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 1, "the run ended before it could be killed"
    assert child(folder, name).wait(timeout=120) == 0
    assert metrics(folder) == metrics(result.folder)
    newest, whole = (checkpoint.candidates(f / "checkpoints")[0] for f in (folder, result.folder))
    assert (newest / checkpoint.ARRAYS).read_bytes() == (whole / checkpoint.ARRAYS).read_bytes()


def test_sigterm_stops_with_a_checkpoint(tmp_path):
    name, folder = "device, one seed", tmp_path / "run"
    process = child(folder, name)
    while lines_in(folder) < 5:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert checkpoint.candidates(folder / "checkpoints")
    if not (folder / "summary.json").exists():
        resume(folder, console=QUIET)
    assert (folder / "summary.json").exists()


def test_resuming_a_finished_run_keeps_its_summary(finished, tmp_path):
    _, result = finished
    folder = shutil.copytree(result.folder, tmp_path / "copy")
    assert resume(folder, console=QUIET).summary["seeds"] == result.summary["seeds"]


def test_a_longer_run_goes_on_where_the_shorter_ended(finished, tmp_path):
    name, result = finished
    longer = RUNS[name][2]["frames"] * 2
    log, evaluation = (json.loads((result.folder / "config.json").read_text())[k] for k in ("log_frames", "eval_frames"))
    folder = tmp_path / "short"
    run(name, folder)
    resume(folder, frames=longer, console=QUIET)
    straight = run(name, tmp_path / "long", frames=longer, log_frames=log, eval_frames=evaluation)
    assert metrics(folder)[-1]["frames"] == metrics(straight.folder)[-1]["frames"]
    mine, theirs = ([line["return"] for line in metrics(f)] for f in (folder, straight.folder))
    assert mine == theirs


def test_a_second_run_into_a_folder_is_refused(finished):
    name, result = finished
    before = (result.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="sbm resume"):
        run(name, result.folder)
    assert (result.folder / "metrics.jsonl").read_bytes() == before


def test_two_processes_do_not_write_one_run(tmp_path):
    folder = tmp_path / "run"
    process = child(folder, "device, one seed")
    while lines_in(folder) < 1:
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(FileExistsError, match="another process"):
        resume(folder, console=QUIET)
    process.kill()
    process.wait()


def test_a_damaged_checkpoint_falls_back_with_a_warning(tmp_path):
    folder = tmp_path / "run"
    first = run("device, one seed", folder)
    expected = metrics(folder)
    newest = checkpoint.candidates(folder / "checkpoints")[0]
    data = bytearray((newest / checkpoint.ARRAYS).read_bytes())
    data[-1] ^= 1
    (newest / checkpoint.ARRAYS).write_bytes(data)
    console = Console(record=True, file=io.StringIO(), width=300)
    again = resume(folder, console=console)
    assert "warning" in console.export_text()
    assert metrics(folder) == expected
    assert again.summary["seeds"] == first.summary["seeds"]


def test_other_versions_are_warned_about(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run("device, one seed", folder)
    from spectral_bellman.training import run as module

    real = module._versions()
    monkeypatch.setattr(module, "_versions", lambda: {**real, "jax": "9.9.9"})
    console = Console(record=True, file=io.StringIO(), width=300)
    resume(folder, console=console)
    assert "and is 9.9.9" in console.export_text()


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    folder, saves, real = tmp_path / "run", [], checkpoint.save

    def save(*args, **kwargs):
        saves.append(1)
        if len(saves) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(OSError, match="No space"):
        run("device, one seed", folder)
    monkeypatch.undo()
    assert len(checkpoint.candidates(folder / "checkpoints")) == 2
    resume(folder, console=QUIET)
    assert metrics(folder)[-1]["frames"] == 400


def test_nan_names_the_term_and_keeps_the_state(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Broken, match=r"loss/\w+ of seed 0 is not finite after round \d+ .*kept in .*broken"):
        run("device, one seed", folder, learning_rate=1e30)
    kept = checkpoint.candidates(folder / "broken")
    assert len(kept) == 1
    assert checkpoint.read_info(kept[0])["term"]
    assert not list((folder / "checkpoints").glob("*")) or checkpoint.candidates(folder / "checkpoints")


def test_resume_of_nothing_names_the_cure(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        resume(tmp_path, console=QUIET)


def test_unknown_settings_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean learning_rate"):
        override(TrainConfig("dqn", "deep_sea/4"), {"learning_rat": 1.0})
    with pytest.raises(ValueError, match="--seeds must be at least 1"):
        TrainConfig("dqn", "deep_sea/4", seeds=0)


def test_configs_come_back_from_their_folder(finished):
    name, result = finished
    config = read_config(result.folder)
    preset, env, settings = RUNS[name]
    wanted = configure(preset, make(env), {**SMALL, **settings}).resolved()
    assert config == wanted


def test_an_object_of_the_users(tmp_path):
    """A JAX environment and a function that makes a Gymnasium one, neither registered anywhere."""
    import gymnasium

    from spectral_bellman.environments.deep_sea import DeepSea

    settings = {**SMALL, "frames": 200, "num_envs": 2, "replay_capacity": 200, "round_steps": 5}
    assert train("dqn", DeepSea(3), out=tmp_path / "a", console=QUIET, **settings).summary
    assert train("dqn", lambda: gymnasium.make("CartPole-v1"), out=tmp_path / "b", console=QUIET, **settings).summary


def test_deep_sea_has_a_direction_for_everything_that_can_be_met():
    for size, width in ((4, 128), (10, 128), (14, 256), (20, 512), (30, 1024)):
        config = configure("sbm-dqn-ts", make(f"deep_sea/{size}"), {})
        assert config.agent.features >= size * (size + 1)
        assert (config.agent.features, config.agent.hidden) == (width, (width,))
        assert config.replay_capacity < config.agent.precision_samples  # Σ is made of all of the replay
    assert configure("sbm-dqn-ts", make("deep_sea/20"), {"features": 32}).agent.features == 32
    assert configure("sbm-dqn-ts-paper", make("deep_sea/20"), {}).agent.features == 256


def test_atari_on_a_cpu_takes_shorter_rounds_at_the_same_rates(monkeypatch):
    small = configure("dqn-dopamine", make("atari/pong"), {})
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    large = configure("dqn-dopamine", make("atari/pong"), {})
    assert small.round_agent_steps < large.round_agent_steps == 4_096
    assert small.samples_per_step == large.samples_per_step == 8
    targets = [config.agent.target_rounds * config.round_agent_steps for config in (small, large)]
    assert targets == [8_192, 8_192]


def test_what_cannot_fit_is_refused_before_anything_is_allocated(monkeypatch):
    made = make("deep_sea/4")
    config = configure("dqn", made, {**SMALL, "replay_capacity": 10**9})
    began = memory.resident()
    loop = build(config, made)
    monkeypatch.setattr(memory, "limit", lambda: 8 * 2**30)
    with pytest.raises(ValueError, match=r"--replay-capacity [\d,]+ would fit"):
        memory.check(memory.estimate(loop), config)
    assert memory.resident() - began < 2**30


def test_memory_is_estimated_to_15_percent(tmp_path):
    """In a process of its own, whose peak is that of this run alone."""
    code = """
import sys
from rich.console import Console
from spectral_bellman.environments import make
from spectral_bellman.training import memory
from spectral_bellman.training.run import build, configure
made = make("deep_sea/20")
loop = build(configure("sbm-dqn-ts", made, {"replay_capacity": 600_000, "warmup_steps": 0}), made)
estimate = memory.estimate(loop)
loop.init()
for number in range(20):
    loop.run_round(number)
loop.tally()
print(estimate.total, memory.peak_resident(), estimate.replay)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    estimated, peak, replay = (int(x) for x in out.split())
    assert replay > 0.9e9
    assert abs(estimated / peak - 1) < 0.15, (estimated, peak)


def test_frozen_dataclass_of_settings():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig("dqn", "deep_sea/4").seeds = 3  # type: ignore[misc]


def test_rounds_do_not_recompile():
    """The state that a round returns has the very types it took: a compiled program refuses anything else."""
    made = make("deep_sea/4")
    loop = build(configure("sbm-dqn-ts", made, {**SMALL, "warmup_steps": 0}), made).loops[0]
    loop.init()
    before = jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), loop.state)
    loop.run_round(0)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), loop.state) == before
    assert jnp.isfinite(loop.state[0].agent.theta).all()
