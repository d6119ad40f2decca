"""Suites: what is missing is run, what was cut is resumed, what is finished is kept."""

import dataclasses
import io
import json
import os
import re
import shutil
from pathlib import Path

import jax
import pytest
from rich.console import Console

from spectral_bellman.commands import keeping, planning, train
from spectral_bellman.commands import suite as suites
from spectral_bellman.commands.keeping import keep_finished
from spectral_bellman.commands.planning import plan
from spectral_bellman.commands.suite import suite
from spectral_bellman.commands.suites import SUITES, Block, Suite
from spectral_bellman.disk.archive import Unreadable
from spectral_bellman.disk.run_folder import write_config
from spectral_bellman.report.runs import find_runs, load_run
from spectral_bellman.training.config import override, to_json

RESULTS = Path(__file__).parents[2] / "results"
SHORT = {"frames": 30, "eval_episodes": 1, "score_episodes": 1, "hidden": (8,)}
BLOCK = Block(("dqn", "sbm-dqn-ts"), ("deep_sea/3",), 3, {"frames": 90})
TINY = Suite("a test", (BLOCK,), table="small")


def names(wanted, out, keep):
    return [job.name for job in plan(wanted, out, keep)[0]]


def pretend(folder, config, *, finished=True, returns=(0.0,)):
    """A run as training leaves it."""
    folder.mkdir(parents=True)
    write_config(folder, to_json(config))
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    last = config.frames - len(returns) + 1 if finished else 1
    lines = [
        {"seed": s, "frames": last + i, "return": value}
        for i, value in enumerate(returns)
        for s in seeds
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    if finished:
        (folder / "summary.json").write_text(
            json.dumps({"frames": config.frames}), encoding="utf-8"
        )


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "out", tmp_path / "keep"


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_can_be_planned(name, folders, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: config.seeds)
    wanted = SUITES[name]
    if name == "atari-55":
        block = wanted.blocks[0]
        assert (len(block.presets), len(block.envs), block.seeds) == (11, 55, 10)
        wanted = Suite("", (block._replace(envs=block.envs[:2]),), table="")
    planned = names(wanted, *folders)
    assert len(planned) == len(set(planned)) > 0


def test_only_what_is_missing_is_planned(folders):
    out, keep = folders
    assert names(TINY, out, keep) == ["dqn-deep_sea-3-seed-0-2", "sbm-dqn-ts-deep_sea-3-seed-0-2"]
    config = plan(TINY, out, keep)[0][0].config
    # Seed 1 is kept, seed 0 was cut.
    pretend(keep / "a", dataclasses.replace(config, first_seed=1, seeds=1))
    pretend(out / "dqn-deep_sea-3-seed-0", dataclasses.replace(config, seeds=1), finished=False)
    jobs, finished, _ = plan(TINY, out, keep)
    assert [(job.name, job.why) for job in jobs] == [
        ("dqn-deep_sea-3-seed-0", "it was stopped"),
        ("dqn-deep_sea-3-seed-2", "other seeds are kept"),
        ("sbm-dqn-ts-deep_sea-3-seed-0-2", "none is kept"),
    ]
    assert [kept.name for kept in finished] == ["a"]
    assert suites._arguments(jobs[0], 1) == ["resume", str(out / "dqn-deep_sea-3-seed-0")]
    assert suites._arguments(jobs[1], 1)[:4] == ["train", "dqn", "--env", "deep_sea/3"]


OTHER = [
    ({"frames": 45}, "frames 45, not "),
    ({"replay_capacity": 900}, "replay_capacity 900, not "),
    ({"learning_rate": 0.5}, r"learning_rate 0\.5, not "),
]


@pytest.mark.parametrize(
    "name", ["minatar-dqn", "atari-dqn", "dqn-minatar", "dqn-dopamine", "deep-sea"]
)
@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
def test_what_is_kept_counts_for_its_suite(name, backend, monkeypatch):
    """A preset that changes must not leave runs behind that no line of the table asks for.

    The runs were made on a GPU. They count on every machine.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    wanted = list(planning.lines_of(SUITES[name]))
    counted = []
    presets = {preset for block in SUITES[name].blocks for preset in block.presets}
    for kept in keeping.kept_runs(RESULTS / SUITES[name].table).values():
        if kept.run.config["preset"] not in presets:
            continue  # of another suite in the same table
        config = kept.config
        assert config is not None, kept.problem
        counts = any(line.holds(config) and config.frames >= line.config.frames for line in wanted)
        # A run that counts no more says by its name which settings it has.
        named = backend == "cpu" or kept.name == planning.run_name(config)
        assert counts or ("=" in kept.name and named), kept.name
        counted.append(counts)
    # The runs of the published agents are to be made again, with the settings of today.
    assert any(counted) or name in ("dqn-minatar", "dqn-dopamine")


def test_a_kept_run_that_was_stopped_does_not_count_and_is_replaced(folders):
    out, keep = folders
    job = plan(TINY, out, keep)[0][0]
    pretend(keep / "x" / job.name, job.config)
    log = keep / "x" / job.name / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"frames": 90', b'"frames": 80'))
    jobs, finished, _ = plan(TINY, out, keep)
    assert (jobs[0].name, jobs[0].taken, finished) == (job.name, "", [])
    assert jobs[0].why == "the kept run ended at 80 of 90 frames"
    log.write_bytes(whole)
    jobs, finished, _ = plan(TINY, out, keep)
    assert (job.name in [j.name for j in jobs], len(finished)) == (False, 1)


def test_what_is_kept_in_the_archive_counts_and_stays_when_more_is_kept(folders):
    out, keep = folders
    first, second = plan(TINY, out, keep)[0]
    pretend(out / first.name, first.config)
    keep_finished(out, keep)
    assert len(plan(TINY, out, keep).finished) == 1
    before = (keep / "runs.zip").read_bytes()
    keep_finished(out, keep)
    assert (keep / "runs.zip").read_bytes() == before
    shutil.rmtree(out)
    pretend(out / second.name, second.config, returns=[1.0, 2.0])
    keep_finished(out, keep)
    planned = plan(TINY, out, keep)
    assert (planned.jobs, len(planned.finished)) == ([], 2)
    assert [run.name for run in find_runs([keep])] == [first.name, second.name]
    assert load_run(keep / "runs.zip" / second.name).records[-1]["return"] == 2


def test_runs_of_another_suite_in_the_same_table_are_not_counted(folders):
    out, keep = folders
    for job in plan(TINY, out, keep)[0]:
        pretend(out / job.name, job.config)
    keep_finished(out, keep)
    alone = TINY._replace(blocks=(BLOCK._replace(presets=("dqn",)),))
    planned = plan(alone, out, keep)
    assert (planned.jobs, len(planned.finished)) == ([], 1)


def test_a_damaged_archive_stops_a_suite(folders):
    out, keep = folders
    keep.mkdir()
    (keep / "runs.zip").write_bytes(b"?")
    with pytest.raises(Unreadable, match=r"keep/runs\.zip is damaged .*restore the file"):
        plan(TINY, out, keep)
    config = dataclasses.replace(plan(TINY, out, out)[0][0].config)
    pretend(out / "a", config)
    with pytest.raises(Unreadable, match="damaged"):
        keep_finished(out, keep)
    assert (keep / "runs.zip").read_bytes() == b"?"
    # Damage to the config of one run: it must not count as a run that is missing.
    (keep / "runs.zip").unlink()
    keep_finished(out, keep)
    damaged = bytearray((keep / "runs.zip").read_bytes())
    damaged[40 + len("a/config.json")] ^= 255
    (keep / "runs.zip").write_bytes(damaged)
    with pytest.raises(Unreadable, match=r"keep/runs\.zip is damaged"):
        plan(TINY, out / "new", keep)


@pytest.mark.parametrize("change", [change for change, _ in OTHER])
def test_a_run_with_other_settings_does_not_count(folders, change):
    out, keep = folders
    pretend(keep / "a", override(plan(TINY, out, keep)[0][0].config, change))
    assert names(TINY, out, keep)[0] == "dqn-deep_sea-3-seed-0-2"


@pytest.mark.parametrize(("change", "named"), OTHER)
@pytest.mark.parametrize("place", ["out/tiny", "keep/small"])
def test_a_run_with_other_settings_is_not_written_over(folders, change, named, place, monkeypatch):
    out, keep = folders
    monkeypatch.setitem(SUITES, "tiny", TINY)
    folder = out.parent / place / "dqn-deep_sea-3-seed-0-2"
    pretend(folder, override(plan(TINY, out, keep)[0][0].config, change))
    words = f"{place}/dqn-deep_sea-3-seed-0-2 holds a run with other settings .*{named}.*--keep"
    with pytest.raises(ValueError, match=words):
        suite("tiny", out, keep, 0.0, 1, False, Console(file=io.StringIO()))
    assert dry("tiny", out, keep).count("refuse") == 1
    assert re.search(words, plan(TINY, out / "tiny", keep / "small").jobs[0].taken)


def test_dopamine_has_as_many_samples_and_as_old_a_target_in_every_run():
    configs = [line.config for line in planning.lines_of(SUITES["dqn-dopamine"])]
    assert {config.samples_per_step for config in configs} == {8}
    assert {config.agent.target_rounds * config.round_agent_steps for config in configs} == {8_192}


def test_seeds_are_divided_into_runs_that_fit(folders, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: 2)
    assert names(TINY, *folders)[:2] == ["dqn-deep_sea-3-seed-0-1", "dqn-deep_sea-3-seed-2"]


def test_what_fits_is_bounded_by_the_memory_there_is(folders, monkeypatch):
    config = plan(TINY, *folders)[0][0].config
    assert planning.seeds_that_fit(config, 1) >= 3
    monkeypatch.setattr(planning.memory, "limit", lambda: 1)
    assert planning.seeds_that_fit(config, 1) == 1


def test_runs_at_once_share_the_memory(folders, monkeypatch):
    config = dataclasses.replace(plan(TINY, *folders)[0][0].config, seeds=100)
    runners = planning.build(
        dataclasses.replace(config, seeds=1).resolved(), planning.make(config.env)
    )
    one = sum(planning.memory.held(runners, runners.shapes()))
    monkeypatch.setattr(planning.memory, "limit", lambda: int(100 * one))
    assert (planning.seeds_that_fit(config, 1), planning.seeds_that_fit(config, 4)) == (60, 15)


def test_a_suite_leaves_the_memory_of_the_accelerator_to_its_runs(monkeypatch):
    seen = []
    monkeypatch.setattr(
        suites.jax,
        "local_devices",
        lambda: seen.append(os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]),
    )
    for before in (None, "true"):
        if before:
            monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", before)
        suites._open_accelerator()
        assert os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") == before
    assert seen == ["false", "false"]


def test_of_episodes_that_seldom_end_the_ends_are_kept():
    records = [
        {"seed": 0, "frames": f, "return": 1.0 if f in (101, 503) else None, "x": 0.0}
        for f in range(1, 1_000)
    ]
    kept = [record["frames"] for record in keeping.thinned(records)]
    assert {101, 503, 999} <= set(kept)
    assert len(kept) <= keeping.KEPT_POINTS + 2


def test_a_thinned_log_has_the_last_point_and_every_evaluation(folders):
    out, keep = folders
    config = plan(TINY, out, keep)[0][0].config
    pretend(out / "a", config, returns=[i / 3 for i in range(1_000)])
    with (out / "a" / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"seed": 0, "frames": 7, "eval_return": 0.123456789}) + "\n")
    keep_finished(out, keep)
    run = load_run(keep / "runs.zip" / "a")
    assert keeping.KEPT_POINTS / 2 < len(run.records) / config.seeds <= keeping.KEPT_POINTS + 1
    assert {"seed": 2, "frames": 90, "return": 333} in run.records
    assert run.records[-1] == {"seed": 0, "frames": 7, "eval_return": 0.12346}
    assert run.config == json.loads((out / "a" / "config.json").read_bytes())


def test_a_suite_runs_stops_goes_on_and_is_done(folders, monkeypatch):
    out, keep = folders
    wanted = Suite("a test", (Block(("dqn",), ("deep_sea/3",), 2, SHORT),), table="small")
    monkeypatch.setitem(SUITES, "tiny", wanted)
    console = Console(file=io.StringIO(), width=300)
    # No time at all: stopped as soon as it is begun.
    suite("tiny", out, keep, 1e-6, 1, False, console)
    assert "1 runs are not finished, nothing is lost" in console.file.getvalue()
    suite("tiny", out, keep, 0.0, 1, False, console)
    assert "1 of 1 runs finished" in console.file.getvalue()
    (kept,) = find_runs([keep / "small"])
    assert kept.parent == keep / "small" / "runs.zip"
    assert kept.name == "dqn-hidden=(8,)-deep_sea-3-seed-0-1"
    run = load_run(kept)
    assert run.seeds == [0, 1]
    assert max(record["frames"] for record in run.records) == 30
    before = sorted(path.stat().st_mtime_ns for path in (out / "tiny").rglob("*"))
    suite("tiny", out, keep, 0.0, 1, False, console)
    assert sorted(path.stat().st_mtime_ns for path in (out / "tiny").rglob("*")) == before
    assert "1 runs are finished, 0 are not" in console.file.getvalue()
    assert "1 runs are finished, 0 are not" in dry("tiny", out, keep)


def dry(name, out, keep, width=300):
    """What a dry run says."""
    console = Console(file=io.StringIO(), width=width)
    suite(name, out, keep, 0.0, 1, True, console)
    return console.file.getvalue()


def test_a_dry_run_writes_nothing_and_counts_what_has_finished(folders, monkeypatch):
    out, keep = folders
    monkeypatch.setitem(SUITES, "tiny", TINY)
    job = plan(TINY, out, keep).jobs[0]
    pretend(out / "tiny" / job.name, job.config)
    assert "1 runs are finished, 1 are not" in dry("tiny", out, keep)
    assert not keep.exists()


WITHOUT_FINISHED_RUNS = {
    *("dqn-minatar", "dqn-dopamine", "atari-r2d2"),
    "deep-sea-features",
}
"""Suites with no kept run, or with kept runs whose settings are no longer the preset's."""


@pytest.mark.parametrize("name", [name for name in SUITES if name != "atari-55"])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
def test_every_suite_says_on_any_machine_what_it_would_run(name, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: config.seeds)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    said = dry(name, tmp_path, RESULTS)
    assert "refuse" not in said
    finished = int(re.search(r"(\d+) runs are finished", said)[1])
    assert (finished > 0) == (name not in WITHOUT_FINISHED_RUNS)


def test_the_commands_of_every_suite_are_understood(tmp_path, monkeypatch):
    """Runs with settings of their own: the flags that the suite writes give the planned config."""
    found = []
    monkeypatch.setattr(train, "describe", lambda config, *_: found.append(config))
    lengths = {"frames", "seeds", "eval_frames", "log_frames", "replay_capacity"}
    blocks = [block for wanted in SUITES.values() for block in wanted.blocks]
    one = [block._replace(envs=block.envs[:1]) for block in blocks if set(block.settings) - lengths]
    lines = planning.lines_of(Suite("own settings", tuple(one), table=""))
    kinds = {(c.preset, str(planning.changes(c))): c for c in (line.config for line in lines)}
    for config in kinds.values():
        job = planning.Job(config, tmp_path / "run", "")
        train.train([*suites._arguments(job, 1)[1:], "--dry-run"])
        assert found.pop() == config
    chosen = [config.agent.operator.name for config in kinds.values()]
    assert {"n_step", "retrace", "one_step"} <= set(chosen)


def test_a_dry_run_says_why_a_run_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: config.seeds)
    said = dry("dqn-minatar", tmp_path, RESULTS)
    assert said.count("the kept run has reward_clip 1.0, not 0.0") == 5
    assert said.count("dqn-minatar now learns from unclipped rewards") == 1
    said = dry("dqn-dopamine", tmp_path, RESULTS)
    # Compared with what the suite has on a GPU, where the runs were made.
    assert "num_envs 256, not 128, target_rounds 2, not 4, updates 1024, not 512" in said
    assert said.count("dqn-dopamine now has Dopamine's network") == 1
    assert "none is kept" in said


def test_names_of_runs_are_whole_on_a_narrow_screen(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: config.seeds)
    said = dry("dqn-minatar", tmp_path, RESULTS, width=80)
    column = "".join(line.split("│")[1].strip() for line in said.splitlines() if "│" in line)
    assert "dqn-minatar-minatar-space_invaders-seed-0-4" in column
    assert "…" not in said


def test_finished_runs_of_another_kind_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "seeds_that_fit", lambda config, _: config.seeds)
    words = "sbm-linear-dqn-ts: 6 finished runs annealed the variance of their noise"
    assert words in " ".join(dry("atari-dqn", tmp_path, RESULTS).split())
    assert "annealed" not in dry("deep-sea", tmp_path, RESULTS)


def test_a_run_of_another_machine_is_finished_here(folders):
    """Only the numbers that a family changes by machine may differ."""
    out, keep = folders
    block = Block(("dqn",), ("atari/pong",), 1, {"frames": 8192})
    wanted = Suite("", (block,), table="")
    (line,) = planning.lines_of(wanted)
    numbers = {name: (line.anywhere[name].num_envs, line.anywhere[name].agent.updates)
               for name in planning.BACKENDS}  # fmt: skip
    assert numbers == {"cpu": (16, 8), "gpu": (256, 128)}
    for config in line.anywhere.values():
        assert line.holds(config)
        assert not line.holds(override(config, {"learning_rate": 0.5}))
        assert not line.holds(override(config, {"batch": 128}))
    mixed = override(line.anywhere["cpu"], {"num_envs": 256})
    assert not line.holds(mixed)
    pretend(keep / "x", line.anywhere["gpu"])
    planned = plan(wanted, out, keep)
    assert (planned.jobs, [kept.name for kept in planned.finished]) == ([], ["x"])


def test_a_run_whose_settings_have_no_meaning_today_is_a_reason(folders):
    out, keep = folders
    job = plan(TINY, out, keep).jobs[0]
    pretend(keep / "a", job.config)
    path = keep / "a" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["agent"]["norm_of_old"] = 1
    path.write_text(json.dumps(config), encoding="utf-8")
    jobs, finished, _ = plan(TINY, out, keep)
    assert (jobs[0].name, finished) == (job.name, [])
    assert jobs[0].why == ("the kept run has no meaning today: there is no setting norm_of_old")


def test_an_unknown_suite_is_answered_with_the_nearest(folders):
    with pytest.raises(ValueError, match="did you mean minatar-dqn"):
        suite("minatar-dqm", *folders, 0.0, 1, False, Console(file=io.StringIO()))
