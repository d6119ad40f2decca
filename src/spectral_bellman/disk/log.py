"""The log of a run: `metrics.jsonl` always, TensorBoard and Weights & Biases on request."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spectral_bellman.disk.run_folder import METRICS

Board = Callable[[Mapping[str, Any]], None]


class MetricsLog:
    """`metrics.jsonl`: one line for each log point and seed.

    A resumed run passes the `position` that its checkpoint remembers. Lines after that position
    are removed, so that no line appears twice.

    Args:
      folder: the folder of the run.
      tensorboard: also write TensorBoard files, one writer for each seed.
      wandb: also log to the Weights & Biases project of this name, if it is not empty.
      position: bytes of the log to keep.
    """

    def __init__(
        self, folder: Path, *, tensorboard: bool = False, wandb: str = "", position: int = 0
    ) -> None:
        self._closing = contextlib.ExitStack()
        self._boards: list[Board] = []
        if tensorboard:
            self._boards.append(_tensorboard(folder / "tensorboard", self._closing))
        if wandb:
            self._boards.append(_wandb(folder, wandb, self._closing))
        self._file = self._closing.enter_context((folder / METRICS).open("ab"))
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a line that can be read at once; numbers that are not finite become null."""
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self._file.write(json.dumps(clean, allow_nan=False).encode() + b"\n")
        self._file.flush()
        for board in self._boards:
            board(clean)

    def flush(self) -> int:
        """Wait until all lines are on the disk; return the position for a checkpoint."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write what is left and close all files."""
        self._closing.close()


def _tensorboard(folder: Path, closing: contextlib.ExitStack) -> Board:
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise ImportError(
            "--tensorboard needs tensorboardX: pip install 'spectral_bellman[tensorboard]'"
        ) from error
    writers: dict[int, Any] = {}

    def write(record: Mapping[str, Any]) -> None:
        seed = record["seed"]
        if seed not in writers:
            writers[seed] = closing.enter_context(SummaryWriter(str(folder / f"seed-{seed}")))
        for name, value in record.items():
            if isinstance(value, float):
                writers[seed].add_scalar(name, value, record["frames"])
        writers[seed].flush()

    return write


def _wandb(folder: Path, project: str, closing: contextlib.ExitStack) -> Board:
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise ImportError("--wandb needs wandb: pip install 'spectral_bellman[wandb]'") from error
    run = wandb.init(project=project, name=folder.name, dir=str(folder), resume="allow")
    closing.callback(run.finish)

    def write(record: Mapping[str, Any]) -> None:
        run.log({f"seed-{record['seed']}/{name}": value for name, value in record.items()})

    return write
