"""Runs on the disk: a folder with `config.json` and `metrics.jsonl`, or the same in an archive.

The log has one line for each log point and seed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from spectral_bellman.disk.archive import ARCHIVE, archived_runs, is_archive, read_file
from spectral_bellman.disk.run_folder import CONFIG, METRICS, read_config


@dataclass(frozen=True)
class Run:
    """A run, finished or not."""

    folder: Path
    """Its folder, or its path in an archive: `results/minatar/runs.zip/NAME`."""
    config: dict[str, Any]
    records: list[dict[str, Any]]
    """The lines of `metrics.jsonl` in their order."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it comes from, as far as it is known."""
        facts = self.config.get("provenance")
        return facts if isinstance(facts, dict) else {}

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that have logged something, in order."""
        return sorted({record["seed"] for record in self.records})

    @cached_property
    def keys(self) -> list[str]:
        """The names of everything logged, in order."""
        return sorted({key for record in self.records for key in record})

    @cached_property
    def frames(self) -> int:
        """The last frame that any seed has logged."""
        return max(int(record["frames"]) for record in self.records)

    def lines(self, seed: int, key: str) -> list[dict[str, Any]]:
        """The records of a seed that have a key, in the order of their frames."""
        found = (r for r in self.records if r["seed"] == seed and key in r)
        return sorted(found, key=lambda record: int(record["frames"]))


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The paths of all runs at or below the given ones, each once, in order.

    Runs are found in folders, and in archives named `runs.zip`. An archive may have another name
    if it is given itself.
    """
    found: dict[Path, Path] = {}
    cure = "give the folder that a training run wrote, or one above it"
    for folder in folders:
        below = _runs_below(folder)
        if not below and folder.exists():
            raise FileNotFoundError(
                f"no run (a folder with {CONFIG} and {METRICS}) at or below {folder}; {cure}"
            )
        if not below:
            raise FileNotFoundError(f"no folder {folder}; {cure}")
        found.update((path.resolve(), path) for path in below)
    if not found:
        raise FileNotFoundError(f"no folders given; {cure}")
    return sorted(found.values())


def _runs_below(folder: Path) -> list[Path]:
    if is_archive(folder):
        runs = archived_runs(folder)
        return [run for run, files in runs.items() if {CONFIG, METRICS} <= files]
    if is_archive(folder.parent):
        return [run for run in _runs_below(folder.parent) if run == folder]
    logs = sorted(folder.rglob(METRICS))
    archives = sorted(folder.rglob(ARCHIVE))
    return [
        *(path.parent for path in logs if (path.parent / CONFIG).is_file()),
        *(run for archive in archives if is_archive(archive) for run in _runs_below(archive)),
    ]


def load_run(folder: Path) -> Run:
    """Read a run; the config of an older version is translated.

    An incomplete last line, left by a run that was killed, is ignored.

    Raises:
      FileNotFoundError: a file of the run is missing.
      ValueError: a file cannot be used; the message names the file and the line.
    """
    config = read_config(folder, migrate=True)
    try:
        *lines, rest = read_file(folder / METRICS).split(b"\n")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no {METRICS} in {folder}; give the folder that a training run wrote"
        ) from None
    records = [_record(line, f"{folder / METRICS}:{i}") for i, line in enumerate(lines, 1)]
    # Only a line without its newline can be incomplete. No prefix of a JSON object is JSON.
    if _is_json(rest):
        records.append(_record(rest, f"{folder / METRICS}:{len(lines) + 1}"))
    return Run(folder, config, records)


def series(run: Run, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The log points of a key: frames (T,) and values (seeds, T), in the order of `run.seeds`.

    NaN stands where a seed has null or no line. A null "return" means that no episode ended since
    the line before: the last value is carried forward.
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
    cure = "repair or remove the line"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error}): {line[:60]!r}; {cure}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{place}: not a JSON object: {line[:60]!r}; {cure}")
    for key in ("seed", "frames"):
        if type(record.get(key)) is not int:
            got = record.get(key)
            raise ValueError(f'{place}: "{key}" must be a whole number, got {got!r}; {cure}')
    for key, value in record.items():
        if type(value) not in (int, float, type(None)):
            raise ValueError(f'{place}: "{key}" must be a number or null, got {value!r}; {cure}')
    return record
