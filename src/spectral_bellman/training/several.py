"""Several runs at once on one machine, each a process of its own: they share the accelerator and divide the cores."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

MEMORY_SHARE = 0.9
"""Of the accelerator's memory, divided among the runs."""


def environments_in(names: str) -> list[str]:
    """``atari/pong,boxing`` is ``atari/pong`` and ``atari/boxing``: a name without a family has that of the one before."""
    found: list[str] = []
    for name in (part.strip() for part in names.split(",")):
        if not name:
            raise ValueError(f"--env {names!r} names no environment between two commas")
        family = found[-1].partition("/")[0] if found else ""
        found.append(name if "/" in name or not family else f"{family}/{name}")
    if len(set(found)) < len(found):
        raise ValueError(f"--env {names!r} names an environment twice: more runs of one are --seeds")
    return found


def side_by_side(commands: Mapping[str, Sequence[str]], console: Console) -> None:
    """Run ``sbm`` with each list of arguments until all have ended; what they say is shown with their names before it.

    A stop (Ctrl-C, SIGTERM) reaches all of them, and each leaves a checkpoint. One that fails does not stop the others.
    """
    shares = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY_SHARE / len(commands):.3f}", "PYTHONUNBUFFERED": "1"}
    environment = {**shares, **os.environ}
    running: dict[str, subprocess.Popen[str]] = {}
    readers = []
    for name, arguments in commands.items():
        process = subprocess.Popen(
            [sys.executable, "-m", "spectral_bellman.cli", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C comes to us, and we hand it on once
        )
        running[name] = process
        readers.append(threading.Thread(target=_show, args=(name, process.stdout, console), daemon=True))
        readers[-1].start()

    def hand_on(number: int, _: Any) -> None:
        for process in running.values():
            if process.poll() is None:
                process.send_signal(number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        failed = [name for name, process in running.items() if process.wait() != 0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in running.values():
            if process.poll() is None:
                process.terminate()
    for reader in readers:
        reader.join()
    if failed:
        raise ValueError(f"{', '.join(failed)} did not end well: what went wrong is said above; the others are whole")


def cores_for_each(runs: int) -> int:
    """Cores that each of so many runs may use."""
    return max(1, (os.cpu_count() or 1) // runs)


def _show(name: str, lines: Any, console: Console) -> None:
    with lines:
        for line in lines:
            if line.strip():
                console.print(f"[bold]{escape(name)}[/bold] {escape(line.rstrip())}", highlight=False, soft_wrap=True)
