"""How a result can be had again: the command, the commit, the versions and the hardware it came from."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("spectral_bellman", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


def provenance() -> dict[str, Any]:
    """The facts that a result is stored with; values that cannot be known here are null."""
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


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write readable JSON, whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _command() -> str:
    """The command line; a program goes by its name, ours by that too if it runs as a module, a script by its path if relative."""
    program = Path(sys.argv[0])
    if program == Path(__file__).parents[1] / "cli.py":
        return shlex.join(["sbm", *sys.argv[1:]])
    script = program.suffix == ".py" and not program.is_absolute()
    return shlex.join([*(["python", str(program)] if script else [program.name]), *sys.argv[1:]])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree this package is imported from, with a plus if files differ from it.

    Where the tree came without its history, the variable SPECTRAL_BELLMAN_COMMIT can name it.
    """
    file = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=file.parents[1], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(file))  # installed inside another repository, the package is no part of it
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SPECTRAL_BELLMAN_COMMIT")


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
