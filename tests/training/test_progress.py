"""What a person sees while a run goes on."""

import io
import math

from rich.console import Console

from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.progress import MOST_SEEDS, Bar, say, warn

CONFIG = TrainConfig("dqn", "deep_sea/3", frames=100)


def test_without_a_terminal_the_bar_is_a_line_every_tenth():
    file = io.StringIO()
    with Bar(CONFIG, Console(file=file, width=200), 0) as bar:
        for frames in range(5, 101, 5):
            bar.update(frames, 1234.0, [math.nan, 0.123456])
    lines = file.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "dqn on deep_sea/3: 10 of 100 frames, 1,234/s, return – 0.1235"
    assert lines[-1].startswith("dqn on deep_sea/3: 100 of 100 frames")


def test_a_resumed_run_goes_on_from_its_frame_and_never_past_the_end():
    file = io.StringIO()
    with Bar(CONFIG, Console(file=file, width=200), 90) as bar:
        bar.update(96, 1.0, [0.0])
        bar.update(104, 1.0, [0.0])
    assert file.getvalue().splitlines() == ["dqn on deep_sea/3: 100 of 100 frames, 1/s, return 0"]


def test_no_more_seeds_are_shown_than_fit():
    file = io.StringIO()
    with Bar(CONFIG, Console(file=file, width=200), 0) as bar:
        bar.update(100, 1.0, [1.0] * (MOST_SEEDS + 1))
    assert file.getvalue().rstrip().endswith("return " + "1 " * MOST_SEEDS + "…")


def test_a_path_is_not_wrapped():
    file = io.StringIO()
    console = Console(file=file, width=20)
    path = "/a/long/path/" + "x" * 50
    say(console, path)
    warn(console, path)
    assert file.getvalue().splitlines() == [path, f"warning: {path}"]
