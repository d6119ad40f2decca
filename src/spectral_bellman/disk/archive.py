"""Finished runs in one ZIP file, such as `results/minatar/runs.zip`.

The archive has a folder for each run, with the files of the run in it. The path of an archived run
is the path of the archive and the name of the run: `results/minatar/runs.zip/NAME`. `read_file`
reads the files of such a run. Nothing is extracted to the disk.
"""

import contextlib
import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

ARCHIVE = "runs.zip"
"""Name of the archive in the folder of a table."""
MOST_BYTES = 256 * 2**20
"""Uncompressed bytes that the files of an archive may have together."""
CURE = "restore the file, or leave it out"
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)
"""Errors that zipfile raises for a damaged or an encrypted archive."""


class Unreadable(ValueError):
    """An archive that is damaged, too large, or holds something else than files of runs."""


def is_archive(path: Path) -> bool:
    """Whether the path is a ZIP file."""
    return path.suffix == ".zip" and path.is_file()


def archived_runs(archive: Path) -> dict[Path, set[str]]:
    """The path of each run in an archive, in order, and the names of its files.

    Raises:
      Unreadable: the archive cannot be used; the message names it and the cure.
    """
    runs: dict[Path, set[str]] = {}
    with _opened(archive) as members:
        for name in members.names:
            run, _, file = name.partition("/")
            runs.setdefault(archive / run, set()).add(file)
    return runs


def read_file(path: Path) -> bytes:
    """The content of a file of a run, which is in a folder or in an archive.

    Raises:
      FileNotFoundError: there is no such file.
      Unreadable: the archive cannot be used; the message names it and the cure.
    """
    archive = path.parent.parent
    if not is_archive(archive):
        return path.read_bytes()
    with _opened(archive) as members:
        return members.read(f"{path.parent.name}/{path.name}")


def add_runs(archive: Path, runs: Mapping[str, Mapping[str, bytes]]) -> None:
    """Add runs to an archive, or replace the runs of the same name, completely or not at all.

    Equal runs give equal bytes. The archive is made if there is none. On Linux and macOS a lock on
    its folder keeps two processes from losing each other's runs.

    Args:
      archive: the ZIP file.
      runs: name of a run -> name of a file -> its content.

    Raises:
      Unreadable: the archive cannot be used or would become too large; it stays as it was.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _locked(archive.parent):
        files: dict[str, bytes] = {}
        if archive.exists():
            with _opened(archive) as members:
                files = {name: members.read(name) for name in members.names}
        files = {name: data for name, data in files.items() if name.partition("/")[0] not in runs}
        files |= {f"{run}/{name}": data for run, own in runs.items() for name, data in own.items()}
        _check(archive, {name: len(data) for name, data in files.items()})
        temporary = archive.with_name(archive.name + ".partial")
        with temporary.open("wb") as file:
            with zipfile.ZipFile(file, "w") as target:
                for name in sorted(files):
                    # ZipInfo has a fixed date, so that equal runs give equal bytes.
                    target.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED, 9)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(archive)


class _Members:
    """The files in an open archive."""

    def __init__(self, archive: Path, file: zipfile.ZipFile) -> None:
        self._archive, self._file = archive, file
        members = [member for member in file.infolist() if not member.is_dir()]
        self.names = sorted(member.filename for member in members)
        if len(set(self.names)) < len(self.names):
            raise ValueError("two files have one name")
        if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
            raise ValueError("a file is compressed by another method than deflate")
        _check(archive, {member.filename: member.file_size for member in members})

    def read(self, name: str) -> bytes:
        try:
            member = self._file.getinfo(name)
        except KeyError:
            run, _, wanted = name.partition("/")
            raise FileNotFoundError(f"no {wanted} of {run} in {self._archive}") from None
        with self._file.open(member) as file:
            # With a number, no more than so many bytes are decompressed, whatever the file holds.
            data = file.read(member.file_size + 1)
        if len(data) != member.file_size:
            raise ValueError(f"{name} has {len(data)} bytes, not {member.file_size}")
        return data


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[_Members]:
    try:
        with zipfile.ZipFile(archive) as file:
            yield _Members(archive, file)
    except Unreadable:
        raise
    except (*DAMAGE, OSError) as error:
        # Seeking to a place that cannot be is an invalid argument; a missing file stays missing.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise Unreadable(f"{archive} is damaged ({error}): {CURE}") from error


def _check(archive: Path, sizes: Mapping[str, int]) -> None:
    """Refuse names that are not those of a run's files, and more bytes than an archive may have."""
    for name in sizes:
        parts = name.split("/")
        if len(parts) != 2 or not set(parts).isdisjoint({"", ".", ".."}) or "\\" in name:
            raise Unreadable(
                f"{archive} holds {name!r}, which is not NAME/FILE, a file of a run: {CURE}"
            )
    if (total := sum(sizes.values())) > MOST_BYTES:
        raise Unreadable(
            f"{archive}: its runs have {total:,} bytes without compression, at most "
            f"{MOST_BYTES:,} are read: divide them into several archives"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process writes in the folder, and keep others waiting."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)  # the new name of the archive
    finally:
        os.close(descriptor)
