"""Runs as they lie on disk: a folder with ``config.json`` and ``metrics.jsonl``, a line for each log point and seed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = "config.json"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Run:
    """A run, finished or not."""

    folder: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    """The lines of ``metrics.jsonl`` in their order."""

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that have logged something, in order."""
        return sorted({record["seed"] for record in self.records})

    @cached_property
    def keys(self) -> list[str]:
        """The names of everything logged, in order."""
        return sorted({key for record in self.records for key in record})


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The folders of all runs at or below the given ones, each once, in order."""
    found: dict[Path, Path] = {}
    for folder in folders:
        below = [path.parent for path in sorted(folder.rglob(METRICS)) if (path.parent / CONFIG).is_file()]
        if not below:
            what = (
                f"no run (a folder with {CONFIG} and {METRICS}) at or below {folder}" if folder.exists() else f"no folder {folder}"
            )
            raise FileNotFoundError(f"{what}; give the folder that a training run wrote, or one above it")
        found.update((path.resolve(), path) for path in below)
    if not found:
        raise FileNotFoundError("no folders given; give the folder that a training run wrote, or one above it")
    return sorted(found.values())


def load_run(folder: Path) -> Run:
    """Read a run. The last line may be cut off half-way, where a run was killed; it is left out then."""
    for name in (CONFIG, METRICS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no {name} in {folder}; give the folder that a training run wrote")
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: not JSON ({error}); restore the file or leave the run out") from error
    for key in ("preset", "env"):
        if not isinstance(config, dict) or not isinstance(config.get(key), str):
            raise ValueError(f'{folder / CONFIG}: no text under "{key}"; restore the file or leave the run out')
    *lines, rest = (folder / METRICS).read_bytes().split(b"\n")
    records = [_record(line, f"{folder / METRICS}:{number}") for number, line in enumerate(lines, 1)]
    # Only a line without its newline can be one cut off; no part of an object is an object, so that JSON tells.
    if _is_json(rest):
        records.append(_record(rest, f"{folder / METRICS}:{len(lines) + 1}"))
    return Run(folder, config, records)


def series(run: Run, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The log points of a key, as frames (T,) and values (seeds, T) in the order of ``run.seeds``.

    NaN stands where a seed has null or no line. A null "return" says that no episode ended since the last line: once there
    was a value, it is carried forward.
    """
    points = [record for record in run.records if key in record]
    frames = np.unique(np.array([record["frames"] for record in points], int))
    column = {int(frame): index for index, frame in enumerate(frames)}
    row = {seed: index for index, seed in enumerate(run.seeds)}
    values = np.full((len(row), len(frames)), np.nan)
    last: dict[int, float] = {}
    for record in points:
        seed, value = record["seed"], record[key]
        if value is None and key == "return":
            value = last.get(seed)
        if value is not None:
            values[row[seed], column[record["frames"]]] = last[seed] = value
    return frames, values


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _record(line: bytes, place: str) -> dict[str, Any]:
    cure = "mend or remove the line"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error}): {line[:60]!r}; {cure}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{place}: not a JSON object: {line[:60]!r}; {cure}")
    for key in ("seed", "frames"):
        if type(record.get(key)) is not int:
            raise ValueError(f'{place}: "{key}" must be a whole number, got {record.get(key)!r}; {cure}')
    for key, value in record.items():
        if type(value) not in (int, float, type(None)):
            raise ValueError(f'{place}: "{key}" must be a number or null, got {value!r}; {cure}')
    return record
