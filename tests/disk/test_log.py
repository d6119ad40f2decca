"""The log of a run: what is written, what a resumed run removes, and the boards."""

import json
import math
import re
import sys

import pytest

from spectral_bellman.disk.log import MetricsLog


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    log = MetricsLog(tmp_path)
    log.write({"seed": 0, "frames": 1, "x": 0.5})
    position = log.flush()
    assert position == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.write({"seed": 0, "frames": 2, "x": 1.5})
    log.close()
    assert len(read(tmp_path)) == 2
    log = MetricsLog(tmp_path, position=position)
    log.write({"seed": 0, "frames": 3, "x": 2.5})
    assert log.flush() == (tmp_path / "metrics.jsonl").stat().st_size
    log.close()
    assert [line["frames"] for line in read(tmp_path)] == [1, 3]


def test_a_line_can_be_read_while_the_run_goes_on(tmp_path):
    log = MetricsLog(tmp_path)
    log.write({"seed": 0, "frames": 1})
    assert read(tmp_path) == [{"seed": 0, "frames": 1}]
    log.close()


def test_a_new_run_begins_an_empty_log(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("rest of another\n")
    MetricsLog(tmp_path).close()
    assert read(tmp_path) == []


def test_a_resumed_run_that_stops_at_once_remembers_where_it_was(tmp_path):
    """Resume, then stop before the next line: the position is the length of the cut file."""
    log = MetricsLog(tmp_path)
    log.write({"seed": 0, "frames": 1})
    position = log.flush()
    log.write({"seed": 0, "frames": 2})
    log.close()
    log = MetricsLog(tmp_path, position=position)
    again = log.flush()
    log.close()
    MetricsLog(tmp_path, position=again).close()
    assert again == position
    assert [line["frames"] for line in read(tmp_path)] == [1]


def test_what_is_not_finite_becomes_null(tmp_path):
    log = MetricsLog(tmp_path)
    log.write({"seed": 0, "frames": 1, "a": math.nan, "b": -math.inf, "c": 0.25, "d": None, "e": 3})
    log.close()
    assert read(tmp_path) == [
        {"seed": 0, "frames": 1, "a": None, "b": None, "c": 0.25, "d": None, "e": 3}
    ]


def test_tensorboard_files_are_written_when_asked(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    log = MetricsLog(tmp_path, tensorboard=True)
    for seed in (0, 1):
        log.write({"seed": seed, "frames": 7, "return": 0.5 + seed, "broken": math.nan})
    log.close()
    for seed in (0, 1):
        (path,) = (tmp_path / "tensorboard" / f"seed-{seed}").iterdir()
        data, found = path.read_bytes(), {}
        while data:  # length (8 bytes), checksum (4), event, checksum (4)
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
        assert found == {"return": (7, 0.5 + seed)}


def test_no_tensorboard_unless_asked(tmp_path):
    log = MetricsLog(tmp_path)
    log.write({"seed": 0, "frames": 7, "return": 0.5})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("setting", "package", "extra"),
    [("tensorboard", "tensorboardX", "tensorboard"), ("wandb", "wandb", "wandb")],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, setting, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=re.escape(f"pip install 'spectral_bellman[{extra}]'")):
        MetricsLog(tmp_path, **{setting: True if setting == "tensorboard" else "project"})


class Wandb:
    """Stands for the wandb module, and remembers its calls."""

    def __init__(self):
        self.calls = []

    def init(self, **settings):
        self.calls.append(settings)
        return self

    def log(self, values):
        self.calls.append(values)

    def finish(self):
        self.calls.append("finished")


def test_wandb_gets_the_lines_by_seed_and_is_finished(tmp_path, monkeypatch):
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    log = MetricsLog(tmp_path, wandb="project")
    log.write({"seed": 3, "frames": 7, "return": 0.5, "bad": math.inf})
    log.close()
    settings, line, end = wandb.calls
    assert (settings["project"], settings["name"]) == ("project", tmp_path.name)
    assert line == {"seed-3/seed": 3, "seed-3/frames": 7, "seed-3/return": 0.5, "seed-3/bad": None}
    assert end == "finished"
