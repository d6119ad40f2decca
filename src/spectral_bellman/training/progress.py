"""What a person sees while a run goes on: a progress bar, or plain lines without a terminal."""

import math

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from spectral_bellman.training.config import TrainConfig

MOST_SEEDS = 8
"""Seeds whose last return is shown."""


def say(console: Console, text: str) -> None:
    """A line that is not wrapped: it may hold a path."""
    console.print(text, highlight=False, soft_wrap=True)


def warn(console: Console, text: str) -> None:
    """Say what is not as it should be."""
    say(console, f"[yellow]warning:[/yellow] {text}")


class Bar:
    """Frames, frames per second, time left, and the last return of each seed."""

    def __init__(self, config: TrainConfig, console: Console, start: int) -> None:
        self._console, self._config = console, config
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("frames  {task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[returns]}"),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._name = f"{config.preset} on {config.env}"
        self._task = self._progress.add_task(
            self._name, total=config.frames, completed=start, speed="compiling…", returns=""
        )
        self._said = start

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, frames: int, frames_per_s: float, returns: list[float]) -> None:
        """Show where the run is; frames per second are of all seeds together."""
        shown = " ".join("–" if math.isnan(x) else f"{x:.4g}" for x in returns[:MOST_SEEDS])
        shown += " …" if len(returns) > MOST_SEEDS else ""
        total = self._config.frames
        frames = min(frames, total)
        speed = f"{frames_per_s:,.0f}/s"
        self._progress.update(self._task, completed=frames, speed=speed, returns=f"return {shown}")
        due = frames - self._said >= total / 10 or frames == total
        if not self._console.is_terminal and due:
            self._said = frames
            say(
                self._console,
                f"{self._name}: {frames:,} of {total:,} frames, {speed}, return {shown}",
            )

    def say(self, text: str) -> None:
        """A line above the bar."""
        say(self._progress.console, text)
