"""What a run writes while it goes."""

import io
import json
import math
import re
import sys

import pytest
from rich.console import Console

from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.logs import Bar, MetricsLog

CONFIG = TrainConfig("dqn", "deep_sea/3", frames=100)


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    log = MetricsLog(tmp_path, CONFIG)
    log.write({"seed": 0, "frames": 1, "x": 0.5})
    position = log.flush()
    assert position == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.write({"seed": 0, "frames": 2, "x": 1.5})
    log.close()
    assert len(read(tmp_path)) == 2
    log = MetricsLog(tmp_path, CONFIG, position)
    log.write({"seed": 0, "frames": 3, "x": 2.5})
    assert log.flush() == (tmp_path / "metrics.jsonl").stat().st_size
    log.close()
    assert [line["frames"] for line in read(tmp_path)] == [1, 3]


def test_a_line_can_be_read_while_the_run_goes_on(tmp_path):
    log = MetricsLog(tmp_path, CONFIG)
    log.write({"seed": 0, "frames": 1})
    assert read(tmp_path) == [{"seed": 0, "frames": 1}]
    log.close()


def test_a_new_run_begins_an_empty_log(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("rest of another\n")
    MetricsLog(tmp_path, CONFIG).close()
    assert read(tmp_path) == []


def test_a_resumed_run_that_stops_at_once_remembers_where_it_was(tmp_path):
    """Resume, then stop before the next line: the position must be that of the file as it was cut."""
    log = MetricsLog(tmp_path, CONFIG)
    log.write({"seed": 0, "frames": 1})
    position = log.flush()
    log.write({"seed": 0, "frames": 2})
    log.close()
    log = MetricsLog(tmp_path, CONFIG, position)
    again = log.flush()
    log.close()
    MetricsLog(tmp_path, CONFIG, again).close()
    assert again == position
    assert [line["frames"] for line in read(tmp_path)] == [1]


def test_what_is_not_finite_becomes_null(tmp_path):
    log = MetricsLog(tmp_path, CONFIG)
    log.write({"seed": 0, "frames": 1, "a": math.nan, "b": -math.inf, "c": 0.25, "d": None, "e": 3})
    log.close()
    assert read(tmp_path) == [{"seed": 0, "frames": 1, "a": None, "b": None, "c": 0.25, "d": None, "e": 3}]


def test_tensorboard_files_are_written_when_asked(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    log = MetricsLog(tmp_path, TrainConfig("dqn", "deep_sea/3", tensorboard=True))
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
    log = MetricsLog(tmp_path, CONFIG)
    log.write({"seed": 0, "frames": 7, "return": 0.5})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("setting", "package", "extra"), [("tensorboard", "tensorboardX", "tensorboard"), ("wandb", "wandb", "wandb")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, setting, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    config = TrainConfig("dqn", "deep_sea/3", **{setting: True if setting == "tensorboard" else "project"})
    with pytest.raises(ImportError, match=re.escape(f"pip install 'spectral_bellman[{extra}]'")):
        MetricsLog(tmp_path, config)


def test_without_a_terminal_the_bar_is_a_line_every_tenth(tmp_path):
    file = io.StringIO()
    with Bar(CONFIG, Console(file=file, width=200), 0) as bar:
        for frames in range(5, 101, 5):
            bar.update(frames, 1234.0, [math.nan, 0.123456])
    lines = file.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "dqn on deep_sea/3: 10 of 100 frames, 1,234/s, return – 0.1235"
    assert lines[-1].startswith("dqn on deep_sea/3: 100 of 100 frames")
