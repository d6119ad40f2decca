"""Finished runs of suites: added to the archive of their table, and read from there."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spectral_bellman.disk.archive import ARCHIVE, Unreadable, add_runs, read_file
from spectral_bellman.disk.provenance import to_json
from spectral_bellman.disk.run_folder import CONFIG, METRICS, SUMMARY
from spectral_bellman.report.deep_sea import KEY, episodes_to_solve
from spectral_bellman.report.runs import Run, find_runs, load_run
from spectral_bellman.training.config import TrainConfig, read_config

KEPT_POINTS = 40
"""Log points that are kept of each seed."""


class Kept(NamedTuple):
    """A run in the results."""

    run: Run
    config: TrainConfig | None
    """Its settings in today's terms; None if they have no meaning today."""
    problem: str = ""
    """Why they have none."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.folder.name


def kept_runs(keep: Path) -> dict[str, Kept]:
    """The runs in the folder of a table, by their names."""
    try:
        paths = find_runs([keep])
    except FileNotFoundError:  # nothing is kept yet
        return {}
    return {path.name: _read(path) for path in paths}


def finished_runs(out: Path) -> dict[str, Kept]:
    """The finished runs among those of a suite, by their names, whether they are kept or not."""
    folders = [path.parent for path in sorted(out.glob(f"*/{SUMMARY}"))]
    return {folder.name: _read(folder) for folder in folders}


def _read(path: Path) -> Kept:
    run = load_run(path)
    try:
        return Kept(run, read_config(path, migrate=True))
    except Unreadable:
        raise
    except ValueError as error:
        return Kept(run, None, str(error).removeprefix(f"{path / CONFIG}: "))


def keep_finished(out: Path, keep: Path) -> None:
    """Add what has finished to the archive: config, summary, and some points of the log."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(out.glob(f"*/{SUMMARY}")):
        run, name = load_run(path.parent), path.parent.name
        summary = json.loads(path.read_bytes())
        if run.config["env"].startswith("deep_sea/"):
            summary[KEY] = {
                str(seed): episodes for seed, episodes in episodes_to_solve(run).items()
            }
        with contextlib.suppress(FileNotFoundError):
            if json.loads(read_file(keep / ARCHIVE / name / SUMMARY)) == summary:
                continue
        log = "".join(json.dumps(record) + "\n" for record in thinned(run.records))
        files = {CONFIG: to_json(run.config), METRICS: log, SUMMARY: to_json(summary)}
        found[name] = {file: text.encode() for file, text in files.items()}
    if found:
        add_runs(keep / ARCHIVE, found)


def thinned(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every evaluation, and ``KEPT_POINTS`` evenly spaced other lines of each seed.

    As many lines again in which an episode ended: long episodes that began together end together,
    and seldom.
    """
    chosen = set[int]()
    for lines in (
        [r for r in records if "return" in r],
        [r for r in records if r.get("return") is not None],
    ):
        frames = sorted({record["frames"] for record in lines})
        chosen |= set(frames[::-1][:: max(1, math.ceil(len(frames) / KEPT_POINTS))])
    for record in records:
        if "eval_return" in record or record["frames"] in chosen:
            yield {
                key: float(f"{value:.5g}") if isinstance(value, float) else value
                for key, value in record.items()
            }
