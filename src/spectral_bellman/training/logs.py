"""What a run writes while it goes: metrics.jsonl always, TensorBoard and W&B when asked, and the progress bar."""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

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


def say(console: Console, text: str) -> None:
    """A line that is not wrapped: it may hold a path."""
    console.print(text, highlight=False, soft_wrap=True)


class MetricsLog:
    """metrics.jsonl: one line a log point and seed. What was written after a checkpoint is cut off when the run resumes."""

    def __init__(self, folder: Path, config: TrainConfig, position: int = 0) -> None:
        self._closing = contextlib.ExitStack()
        self._boards = _boards(folder, config, self._closing)
        self._file = self._closing.enter_context((folder / "metrics.jsonl").open("ab"))
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, record: dict[str, Any]) -> None:
        """A line, there to be read at once; what is not finite becomes null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        self._file.write(json.dumps(clean, allow_nan=False).encode() + b"\n")
        self._file.flush()
        for board in self._boards:
            board(clean)

    def flush(self) -> int:
        """Everything on the disk; the position a checkpoint remembers."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write what is left."""
        self._closing.close()


def _boards(folder: Path, config: TrainConfig, closing: contextlib.ExitStack) -> list[Any]:
    boards = []
    if config.tensorboard:
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise ImportError("--tensorboard needs tensorboardX: pip install 'spectral_bellman[tensorboard]'") from error
        writers: dict[int, Any] = {}

        def to_tensorboard(record: dict[str, Any]) -> None:
            seed = record["seed"]
            if seed not in writers:
                writers[seed] = closing.enter_context(SummaryWriter(str(folder / "tensorboard" / f"seed-{seed}")))
            for name, value in record.items():
                if isinstance(value, float):
                    writers[seed].add_scalar(name, value, record["frames"])
            writers[seed].flush()

        boards.append(to_tensorboard)
    if config.wandb:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ImportError("--wandb needs wandb: pip install 'spectral_bellman[wandb]'") from error
        run = wandb.init(project=config.wandb, name=folder.name, dir=str(folder), resume="allow")
        boards.append(lambda record: run.log({f"seed-{record['seed']}/{k}": v for k, v in record.items()}))
    return boards


class Bar:
    """The progress bar: frames, frames per second, time left, last return of each seed; plain lines where there is no terminal."""

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
        name = f"{config.preset} on {config.env}"
        self._task = self._progress.add_task(name, total=config.frames, completed=start, speed="compiling…", returns="")
        self._said = start

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, frames: int, frames_per_s: float, returns: list[float]) -> None:
        """Show where the run is; frames per second are those of all seeds together."""
        shown = " ".join("–" if math.isnan(x) else f"{x:.4g}" for x in returns[:8]) + (" …" if len(returns) > 8 else "")
        frames = min(frames, self._config.frames)
        self._progress.update(self._task, completed=frames, speed=f"{frames_per_s:,.0f}/s", returns=f"return {shown}")
        if not self._console.is_terminal and (frames - self._said >= self._config.frames / 10 or frames == self._config.frames):
            self._said = frames
            say(
                self._console,
                f"{self._config.preset} on {self._config.env}: {frames:,} of {self._config.frames:,} frames, "
                f"{frames_per_s:,.0f}/s, return {shown}",
            )

    def say(self, text: str) -> None:
        """A line above the bar."""
        say(self._progress.console, text)
