"""Runs: what they write, that they resume to the bit, and that nothing is lost when they break."""

import contextlib
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
import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.disk import checkpoint, segments
from spectral_bellman.disk.log import MetricsLog
from spectral_bellman.environments import make
from spectral_bellman.training import records, resume, runner, saving, train
from spectral_bellman.training.config import configure, read_config
from spectral_bellman.training.runner import Broken

from .runs import QUIET, RUNS, lines_in, metrics, run, settings_of, share_programs

ONE = "device, one seed"


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    with pytest.MonkeyPatch.context() as patch:
        share_programs(patch)
        yield


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Finished runs by name, which tests may read and copy."""
    finished = {}

    def find(name: str):
        if name not in finished:
            finished[name] = run(name, tmp_path_factory.mktemp("finished") / "run")
        return finished[name]

    return find


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


SLOW = ("atari", "recurrent, host", "recurrent, device", "device, one seed")


@pytest.fixture(params=[slow(n) if n in SLOW else n for n in RUNS if n != "quick"])
def finished(request, run_of):
    return request.param, run_of(request.param)


@pytest.fixture
def one(run_of, tmp_path):
    """A copy of the quickest run, to change."""
    return shutil.copytree(run_of("quick").folder, tmp_path / "copy")


def arrays(folder: Path) -> bytes:
    return (checkpoint.candidates(folder / "checkpoints")[0] / checkpoint.ARRAYS).read_bytes()


def recording() -> Console:
    return Console(record=True, file=io.StringIO(), width=300)


def test_a_run_leaves_what_the_readme_says(finished):
    name, result = finished
    preset, env, settings = RUNS[name]
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["preset"], config["env"]) == (preset, env)
    assert config["agent"]["representation"]["features"] == 8
    assert config["provenance"]["packages"]["jax"] == jax.__version__
    lines = metrics(result.folder)
    assert {line["seed"] for line in lines} == set(range(settings["seeds"]))
    last = [line for line in lines if line["frames"] >= settings["frames"]]
    assert len(last) == settings["seeds"]
    for line in last:
        assert line["episodes"] > 0
        assert np.isfinite(line["eval_return"])
        assert line["eval_episodes"] + 3 * line["eval_unfinished"] == 3
        assert np.isfinite(line["loss/spectral"])
        assert line["diagnostic/sigma_effective_rank"] >= 1
        assert 0 <= line["diagnostic/share_outside_unit_ball"] <= 1
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
    assert len(checkpoint.candidates(result.folder / "checkpoints")) == 2
    assert not any(path.suffix in (".pkl", ".pickle") for path in result.folder.rglob("*"))


def test_evaluations_are_where_the_config_says(finished):
    _, result = finished
    config = read_config(result.folder)
    for seed in range(config.seeds):
        lines = [line for line in metrics(result.folder) if line["seed"] == seed]
        played = {
            line["round"]: round(line["eval_episodes"] / (1 - line["eval_unfinished"]))
            for line in lines
            if line.get("eval_unfinished", 1) < 1
        }
        due = {n: config.episodes_at(n) for n in range(1, config.rounds + 1)}
        assert played == {n: episodes for n, episodes in due.items() if episodes}


def test_seeds_differ_and_are_reproducible(finished, tmp_path):
    name, result = finished
    again = run(name, tmp_path / "again")
    assert metrics(again.folder) == metrics(result.folder)
    assert arrays(again.folder) == arrays(result.folder)
    by_seed = [
        [line.get("loss/q") for line in metrics(result.folder) if line["seed"] == seed]
        for seed in range(2)
    ]
    assert by_seed[0] != by_seed[1]


class Killed(BaseException):
    """Stands for the end of the process."""


@contextlib.contextmanager
def killed_at(owner, name: str, call: int, *, after: bool = False):
    """The process ends at this call of a function, or after it."""
    calls, real = [], getattr(owner, name)

    def function(*given, **named):
        calls.append(1)
        if len(calls) == call and not after:
            raise Killed
        answer = real(*given, **named)
        if len(calls) == call:
            raise Killed
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, function)
        yield
    assert len(calls) >= call, f"the run ended before {name} was called {call} times"


def go_on(name: str, folder: Path):
    if (folder / "config.json").exists():
        return resume(folder, console=QUIET)
    return run(name, folder)


KILLS = [
    (MetricsLog, "write", 1, False),  # before there is a checkpoint
    (saving, "save", 1, False),
    (checkpoint, "save", 2, False),  # of a host environment's replay: after its segments
    (MetricsLog, "write", 4, True),
    (checkpoint, "remove", 2, False),  # with more checkpoints than are kept
    (saving, "save", 2, True),
    (runner, "write_json", 1, False),  # the summary
]


def test_a_kill_at_any_point_changes_nothing(finished, tmp_path):
    """One run that is killed at all of these points, one after the other."""
    name, result = finished
    folder = tmp_path / "run"
    for owner, function, call, after in KILLS:
        with killed_at(owner, function, call, after=after), contextlib.suppress(Killed):
            go_on(name, folder)
        assert not (folder / "summary.json").exists()
        with (folder / "metrics.jsonl").open("a") as log:
            log.write('{"half a li')
    assert go_on(name, folder).summary["seeds"] == result.summary["seeds"]
    assert metrics(folder) == metrics(result.folder)
    assert arrays(folder) == arrays(result.folder)


@pytest.mark.parametrize("name", ["host", slow("atari")])
def test_a_kill_between_segments_of_the_replay_changes_nothing(run_of, tmp_path, name):
    folder = tmp_path / "run"
    for function, after in (("save", True), ("prune", False), ("prune", True)):
        with (
            killed_at(segments, function, 2, after=after),
            contextlib.suppress(Killed),
        ):
            go_on(name, folder)
    go_on(name, folder)
    assert metrics(folder) == metrics(run_of(name).folder)
    assert arrays(folder) == arrays(run_of(name).folder)


CHILD = """
import sys
from pathlib import Path
from rich.console import Console
from spectral_bellman.training import resume, train
from tests_run_settings import ENV, PRESET, SETTINGS
folder = Path(sys.argv[1])
if (folder / "config.json").exists():
    resume(folder, console=Console(quiet=True))
else:
    train(PRESET, ENV, out=folder, console=Console(quiet=True), **SETTINGS)
"""


@contextlib.contextmanager
def child(folder: Path, name: str):
    """A run in a process of its own, which begins or goes on."""
    (preset, env, _), settings = RUNS[name], settings_of(name)
    text = f"PRESET = {preset!r}\nENV = {env!r}\nSETTINGS = {settings!r}\n"
    (folder.parent / "tests_run_settings.py").write_text(text)
    paths = filter(None, [str(folder.parent), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_lines(process: subprocess.Popen, folder: Path, lines: int) -> None:
    while process.poll() is None and lines_in(folder) < lines:
        time.sleep(0.002)
    assert process.poll() is None, "the run ended too early"


@pytest.mark.parametrize(
    "name", ["quick", *(slow(name) for name in (ONE, "device, seeds", "host", "atari"))]
)
def test_signals_change_nothing(run_of, tmp_path, name):
    """Two other processes, which compile for themselves; while they live no other may write."""
    folder = tmp_path / "run"
    with child(folder, name) as process:
        wait_for_lines(process, folder, 4)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(FileExistsError, match="another process"):
            resume(folder, console=QUIET)
        process.kill()
        process.wait()
    before = lines_in(folder)
    with child(folder, name) as process:
        wait_for_lines(process, folder, before + 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    assert checkpoint.candidates(folder / "checkpoints")
    resume(folder, console=QUIET)
    assert metrics(folder) == metrics(run_of(name).folder)
    assert arrays(folder) == arrays(run_of(name).folder)


def test_a_signal_stops_after_the_round_and_says_how_to_go_on(run_of, tmp_path, monkeypatch):
    name, folder, console = "host", tmp_path / "run", recording()
    real, before = records.record, signal.getsignal(signal.SIGINT)

    def interrupt(config, tally, i, number, *rest):
        if number == 7 and i == 0:
            signal.raise_signal(signal.SIGINT)
        return real(config, tally, i, number, *rest)

    monkeypatch.setattr(records, "record", interrupt)
    assert run(name, folder, console).summary == {}
    assert f"nothing lost: sbm resume {folder} goes on" in console.export_text()
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
    resume(folder, console=QUIET)
    assert metrics(folder) == metrics(run_of(name).folder)


def test_resuming_a_finished_run_keeps_its_summary(finished, tmp_path):
    _, result = finished
    folder = shutil.copytree(result.folder, tmp_path / "copy")
    assert resume(folder, console=QUIET).summary["seeds"] == result.summary["seeds"]


def test_a_longer_run_goes_on_where_the_shorter_ended(finished, tmp_path):
    name, result = finished
    longer = RUNS[name][2]["frames"] * 3 // 2
    config = json.loads((result.folder / "config.json").read_text())
    kept = {key: config[key] for key in ("log_frames", "eval_frames")}
    folder = shutil.copytree(result.folder, tmp_path / "short")
    resume(folder, frames=longer, console=QUIET)
    straight = run(name, tmp_path / "long", frames=longer, **kept)
    assert metrics(folder)[-1]["frames"] == metrics(straight.folder)[-1]["frames"] >= longer
    # Evaluations for the score are at other rounds: at the end of each.
    mine, theirs = (
        [{k: v for k, v in line.items() if "eval" not in k} for line in metrics(f)]
        for f in (folder, straight.folder)
    )
    assert mine == theirs


def test_a_second_run_into_a_folder_is_refused(one):
    before = (one / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="sbm resume"):
        run("quick", one)
    assert (one / "metrics.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_falls_back_with_a_warning(one):
    expected, console = metrics(one), recording()
    newest = checkpoint.candidates(one / "checkpoints")[0]
    data = bytearray((newest / checkpoint.ARRAYS).read_bytes())
    data[-1] ^= 1
    (newest / checkpoint.ARRAYS).write_bytes(data)
    first = json.loads((one / "summary.json").read_text())
    again = resume(one, console=console)
    assert "warning" in console.export_text()
    assert metrics(one) == expected
    assert again.summary["seeds"] == first["seeds"]


def test_other_versions_are_warned_about(one, monkeypatch):
    real, console = saving.versions(), recording()
    monkeypatch.setattr(saving, "versions", lambda: {**real, "jax": "9.9.9"})
    resume(one, console=console)
    assert "and is 9.9.9" in console.export_text()


def test_a_replay_that_was_not_kept_is_filled_anew_and_said_so(tmp_path):
    folder, console = tmp_path / "run", recording()
    with killed_at(MetricsLog, "write", 15), contextlib.suppress(Killed):
        run("host", folder, checkpoint_replay="off")
    assert not (folder / "replay").exists()
    assert resume(folder, console=console).summary
    assert "the replay was not kept (--checkpoint-replay off)" in console.export_text()
    assert metrics(folder)[-1]["frames"] == RUNS["host"][2]["frames"]


def test_a_full_disk_leaves_the_last_checkpoint_whole(run_of, tmp_path, monkeypatch):
    folder, saves, real = tmp_path / "run", [], checkpoint.save

    def save(*args, **kwargs):
        saves.append(1)
        if len(saves) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(OSError, match="No space"):
        run("quick", folder)
    monkeypatch.undo()
    assert len(checkpoint.candidates(folder / "checkpoints")) == 2
    resume(folder, console=QUIET)
    assert metrics(folder) == metrics(run_of("quick").folder)


def test_nan_names_the_term_and_keeps_the_state(tmp_path):
    folder = tmp_path / "run"
    message = r"loss/\w+ of seed 0 is not finite after round \d+ .*kept in .*broken"
    with pytest.raises(Broken, match=message):
        run("quick", folder, learning_rate=1e30)
    kept = checkpoint.candidates(folder / "broken")
    assert len(kept) == 1
    assert checkpoint.read_info(kept[0])["term"]
    assert not (folder / "summary.json").exists()


def test_resume_of_nothing_names_the_cure(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the folder that a training run wrote"):
        resume(tmp_path, console=QUIET)


def test_configs_come_back_from_their_folder(finished):
    name, result = finished
    preset, env, _ = RUNS[name]
    wanted = configure(preset, make(env), settings_of(name)).resolved()
    assert read_config(result.folder) == wanted


@pytest.mark.slow
def test_an_object_of_the_users(tmp_path):
    """A JAX environment and a function that makes a Gymnasium one, neither registered anywhere."""
    import gymnasium

    from spectral_bellman.environments.deep_sea import DeepSea

    settings = settings_of("quick") | {
        "frames": 100,
        "num_envs": 2,
        "replay_capacity": 200,
        "round_steps": 5,
    }
    objects = {"jax": DeepSea(3), "gym": lambda: gymnasium.make("CartPole-v1")}
    for name, environment in objects.items():
        folder = tmp_path / name
        assert train("dqn", environment, out=folder, console=QUIET, **settings).summary
        assert resume(folder, environment, frames=150, console=QUIET).summary["frames"] >= 150


def test_results_without_checkpoints_are_left_alone(one):
    """A finished run that was kept for its results: resume must not begin it again."""
    shutil.rmtree(one / "checkpoints")
    before = {path.name: path.read_bytes() for path in one.iterdir() if path.is_file()}
    with pytest.raises(FileNotFoundError, match="results of a finished run, without checkpoints"):
        resume(one, frames=10**6, console=QUIET)
    assert {path.name: path.read_bytes() for path in one.iterdir() if path.is_file()} == before


def test_a_run_says_once_that_its_preset_meant_something_else_before(tmp_path, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(folder):
        raise Stopped

    monkeypatch.setattr(runner, "_keep_compiled", stop)  # what follows compiles the run
    said = io.StringIO()
    for preset, env in (("dqn-minatar", "minatar/seaquest"), ("dqn", "deep_sea/4")):
        with pytest.raises(Stopped):
            train(preset, env, out=tmp_path / preset, console=Console(file=said, width=300))
    assert said.getvalue().count("now learns from unclipped rewards") == 1
    assert len(said.getvalue().splitlines()) == 1
