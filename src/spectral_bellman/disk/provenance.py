"""What is needed to produce a result again: command, commit, versions and hardware."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("spectral_bellman", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
"""Packages whose versions are stored with a result."""


def provenance() -> dict[str, Any]:
    """The facts that are stored with a result; null where they cannot be known."""
    return {
        "command": _command(),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": [device.device_kind for device in jax.devices()],
        "processor": _processor(),
        "cores": os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON, completely or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(to_json(content), encoding="utf-8")
    temporary.replace(path)


def to_json(content: Mapping[str, Any]) -> str:
    """Readable JSON as text."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _command() -> str:
    """The command line, without paths of this machine.

    Our own program is `sbm`, also when it runs as a module. A script keeps its path if that is
    relative. Any other program goes by its file name.
    """
    program = Path(sys.argv[0])
    if Path(__file__).parents[1] in program.parents:
        return shlex.join(["sbm", *sys.argv[1:]])
    script = program.suffix == ".py" and not program.is_absolute()
    name = ["python", str(program)] if script else [program.name]
    return shlex.join([*name, *sys.argv[1:]])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree of this package, with a plus if its files were changed.

    The environment variable SPECTRAL_BELLMAN_COMMIT names the commit where the source tree came
    without its history.
    """
    file = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(
            command, cwd=file.parents[1], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        # A package installed inside another repository is not tracked by it.
        git("ls-files", "--error-unmatch", str(file))
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SPECTRAL_BELLMAN_COMMIT")


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
