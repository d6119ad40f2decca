"""Several runs at once on one machine, each a process: they share its accelerator and cores."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

MEMORY_SHARE = 0.9
"""Of the accelerator's memory, divided among the runs."""
STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)
"""How a run ends that is stopped while it compiles."""
YOUNG = 10.0
"""Seconds in which a process may still be importing: it may end in any way, and loses nothing."""


def environments_in(names: str) -> list[str]:
    """``atari/pong,boxing`` is ``atari/pong`` and ``atari/boxing``: the family may be left out."""
    found: list[str] = []
    for name in (part.strip() for part in names.split(",")):
        if not name:
            raise ValueError(f"--env {names!r} names no environment between two commas")
        family = found[-1].partition("/")[0] if found else ""
        found.append(name if "/" in name or not family else f"{family}/{name}")
    if len(set(found)) < len(found):
        raise ValueError(
            f"--env {names!r} names an environment twice: more runs of one are --seeds"
        )
    return found


def side_by_side(
    commands: Mapping[str, Sequence[str]],
    console: Console,
    at_once: int = 0,
    minutes: float = 0.0,
    ended: Callable[[str], None] = lambda _: None,
) -> None:
    """Run ``sbm`` with each list of arguments; what they say is shown with their names before it.

    A stop (Ctrl-C, SIGTERM) reaches all of them, and each leaves a checkpoint. A run that fails
    does not stop the others.

    Args:
      commands: name -> arguments.
      console: where they speak.
      at_once: how many run at a time; 0 for all.
      minutes: after which they are stopped as if by Ctrl-C; 0 for never.
      ended: told the name of each that has ended well.
    """
    at_once = at_once or len(commands)
    shares = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY_SHARE / at_once:.3f}",
        "PYTHONUNBUFFERED": "1",
    }
    environment = {**shares, **os.environ}
    waiting, failed, stopping, until = (
        list(commands),
        list[str](),
        list[float](),
        time.monotonic() + 60 * (minutes or math.inf),
    )
    running: dict[str, tuple[subprocess.Popen[str], threading.Thread]] = {}
    begun: dict[str, float] = {}

    def hand_on(number: int, _: Any = None) -> None:
        stopping.append(time.monotonic())
        waiting.clear()
        for process, _ in running.values():
            if process.poll() is None:
                process.send_signal(number)

    main = threading.current_thread() is threading.main_thread()
    before = (
        {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
        if main
        else {}
    )
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name], begun[name] = (
                    _begin(name, commands[name], environment, console),
                    time.monotonic(),
                )
            if time.monotonic() > until:
                until = math.inf
                hand_on(signal.SIGINT)
            for name in [
                name for name, (process, _) in running.items() if process.poll() is not None
            ]:
                process, reader = running.pop(name)
                reader.join()
                if process.returncode == 0:
                    ended(name)
                elif not (
                    stopping
                    and (process.returncode in STOPPED or stopping[0] - begun[name] < YOUNG)
                ):
                    failed.append(name)
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process, _ in running.values():
            process.terminate()
    refuse_failed(failed)


def refuse_failed(failed: Sequence[str]) -> None:
    """Raise a ValueError that names the runs that have failed, if any."""
    if failed:
        raise ValueError(
            f"{', '.join(failed)} failed: the reason is printed above; the other runs are complete"
        )


def _begin(
    name: str, arguments: Sequence[str], environment: dict[str, str], console: Console
) -> tuple[subprocess.Popen[str], threading.Thread]:
    process = subprocess.Popen(
        [sys.executable, "-m", "spectral_bellman", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C comes to us, and we hand it on once
    )
    reader = threading.Thread(target=_show, args=(name, process.stdout, console), daemon=True)
    reader.start()
    return process, reader


def cores_for_each(runs: int) -> int:
    """Cores that each of so many runs may use."""
    return max(1, (os.cpu_count() or 1) // runs)


def _show(name: str, lines: Any, console: Console) -> None:
    with lines:
        for line in lines:
            if line.strip():
                console.print(
                    f"[bold]{escape(name)}[/bold] {escape(line.rstrip())}",
                    highlight=False,
                    soft_wrap=True,
                )
