"""The folder of a run: names of its files, the version of its config, and its lock.

`config.json` is read and written here as plain JSON. What the settings mean is known to the
modules that use them.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spectral_bellman.disk.archive import is_archive, read_file
from spectral_bellman.disk.migrate import OldRun, migrated, upgraded, with_choices
from spectral_bellman.disk.provenance import write_json

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
EVALUATION = "evaluation.json"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"

SCHEMA = 6
"""Version of `config.json`. Runs of older versions are reported, and not resumed. Versions 2 and 3
are translated for that. Version 1, without a number, has one flat record for the agent."""

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "EVALUATION",
    "LOCK",
    "METRICS",
    "SCHEMA",
    "SUMMARY",
    "OldRun",
    "lock",
    "read_config",
    "write_config",
]


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json` with the version of its schema."""
    write_json(folder / CONFIG, {"schema": SCHEMA, **config})


def read_config(folder: Path, *, migrate: bool = False) -> dict[str, Any]:
    """The content of `config.json`, checked as far as every reader needs it.

    Args:
      folder: the folder of the run, or its path in an archive.
      migrate: translate the config of an older version, which is enough for a report. An older
        run cannot be resumed.

    Raises:
      FileNotFoundError: there is no config.
      OldRun: the run was written by an older version, and `migrate` is False.
      ValueError: the file is not a config, or was written by a newer version.
    """
    path = folder / CONFIG
    cure = "restore the file or leave the run out"
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no {CONFIG} in {folder}; give the folder that a training run wrote"
        ) from None
    try:
        config = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {cure}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object; {cure}")
    for key in ("preset", "env"):
        if not isinstance(config.get(key), str):
            raise ValueError(f'{path}: no text under "{key}"; {cure}')
    schema = config.get("schema")
    if schema is None:
        if not migrate:
            raise OldRun(
                f"{path} has no schema version, so an older version of spectral_bellman wrote "
                "this run. sbm report still reads it. To go on training or evaluate it, install "
                f"the version that wrote it: {_commit(config)}"
            )
        return migrated(config, SCHEMA)
    if type(schema) is not int or not 2 <= schema <= SCHEMA:
        raise ValueError(
            f"{path} has schema version {schema!r} and this version of spectral_bellman reads "
            f"version {SCHEMA}: update spectral_bellman, or leave the run out"
        )
    if schema == SCHEMA:
        return config
    if not migrate:
        raise OldRun(
            f"{path} has schema version {schema}, so an older version of spectral_bellman wrote "
            "this run. sbm report still reads it. To go on training or evaluate it, install the "
            f"version that wrote it: {_commit(config)}"
        )
    return upgraded(config, SCHEMA) if schema == 2 else with_choices(config, SCHEMA)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the run's lock, so that two processes do not write one run.

    The lock ends with its process, however that ends. Systems without `fcntl` (Windows) have no
    lock.

    Raises:
      FileExistsError: another process holds the lock.
      NotADirectoryError: the run is in an archive.
    """
    if is_archive(folder.parent):
        raise NotADirectoryError(
            f"{folder} is in an archive, which keeps no checkpoints: sbm report reads it, and "
            "sbm train can make the run again"
        )
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"{folder} is being written by another process: wait for it, or stop it first"
            ) from None
        yield


def _commit(config: Mapping[str, Any]) -> str:
    facts = config.get("provenance")
    commit = facts.get("commit") if isinstance(facts, Mapping) else None
    return f"commit {commit}" if commit else "its commit is not known"
