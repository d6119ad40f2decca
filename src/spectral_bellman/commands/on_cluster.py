"""The runs of a suite on the nodes of a Ray cluster, with one line for each in the terminal."""

import collections
import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spectral_bellman.commands.side_by_side import MEMORY_SHARE, STOPPED, refuse_failed
from spectral_bellman.disk.run_folder import CONFIG
from spectral_bellman.training.cluster import connect
from spectral_bellman.training.progress import say

LOOK_SECONDS = 0.5
"""Between two looks at the runs."""
BEGIN_SECONDS = 120.0
"""For a node to begin a run."""
MOST_LOSSES = 5
"""Nodes under which one run may be lost, before it counts as failed."""
LOST = 1_000
"""In place of the exit status of a run whose node is gone."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


class Process:
    """A run on a node: ``sbm`` as a child process, which ends with its parent."""

    def __init__(self, arguments: list[str], folder: str, sign: str, memory: float) -> None:
        """``sign``: a file that every node sees; ``memory``: share of the GPU's."""
        if not Path(sign).exists():
            raise FileNotFoundError(
                f"{os.uname().nodename} does not see {Path(sign).parent}: --out must be a folder "
                "that all nodes share"
            )
        # What was begun, on another node perhaps, goes on.
        begun = (Path(folder) / CONFIG).exists()
        self._lines: collections.deque[str] = collections.deque(maxlen=100)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "spectral_bellman",
                *(["resume", folder] if begun else arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env={"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{memory:.3f}", **os.environ},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self._lines.append(line.rstrip())

    def look(self) -> tuple[str, list[str], int | None]:
        """The node, what was said since the last look, and the exit status."""
        ended = self._process.poll()
        if ended is not None:
            self._reader.join()
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return os.uname().nodename, lines, ended

    def stop(self) -> None:
        """As by Ctrl-C: the run leaves a checkpoint."""
        self._process.send_signal(signal.SIGINT)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def on_cluster(
    commands: Mapping[str, tuple[Path, Sequence[str]]],
    console: Console,
    cluster: str,
    at_once: int = 1,
    minutes: float = 0.0,
    ended: Callable[[str], None] = lambda _: None,
) -> None:
    """Run ``sbm`` with each list of arguments, on whatever node has room.

    A run whose node is lost is resumed on another, from its last checkpoint. A stop (Ctrl-C)
    reaches all runs, and each leaves a checkpoint. A run that fails does not stop the others.

    Args:
      commands: name -> its folder, and the arguments that begin it.
      console: where the runs are shown.
      cluster: address of the cluster, or auto.
      at_once: runs that share a GPU, or a node without one.
      minutes: after which all are stopped; 0 for never.
      ended: told the name of each that has ended well.
    """
    if not commands:
        return
    until = time.monotonic() + 60 * (minutes or math.inf)
    with Board(console) as board, _sign(commands) as sign:
        runs = Runs(connect(cluster), commands, board, at_once, sign, ended)
        try:
            while runs.waiting or runs.running:
                try:
                    runs.begin()
                    runs.look()
                    if time.monotonic() > until:
                        until = math.inf
                        runs.stop()
                    time.sleep(LOOK_SECONDS)
                except KeyboardInterrupt:
                    runs.stop()
        finally:
            runs.close()
    refuse_failed(runs.failed)


@contextlib.contextmanager
def _sign(commands: Mapping[str, tuple[Path, Sequence[str]]]) -> Iterator[Path]:
    """A file that every node has to see, beside the folders of the runs."""
    sign = next(iter(commands.values()))[0].parent / f".seen-{uuid.uuid4().hex[:8]}"
    sign.parent.mkdir(parents=True, exist_ok=True)
    sign.touch()
    try:
        yield sign
    finally:
        sign.unlink(missing_ok=True)


@dataclass
class Runs:
    """Which runs wait, which are running, and what became of the others."""

    ray: Any
    commands: Mapping[str, tuple[Path, Sequence[str]]]
    board: "Board"
    at_once: int
    sign: Path
    ended: Callable[[str], None]

    def __post_init__(self) -> None:
        self.waiting, self.running = list(self.commands), dict[str, Any]()
        self.failed: list[str] = []
        self._losses: collections.Counter[str] = collections.Counter()
        self._stopping = False

    def begin(self) -> None:
        """Begin runs until the living nodes are full."""
        room = max(0, rooms(self.ray, self.at_once) - len(self.running))
        begun, self.waiting = self.waiting[:room], self.waiting[room:]
        for name in begun:
            folder, arguments = self.commands[name]
            self.running[name] = _remote(self.ray, self.at_once).remote(
                list(arguments),
                str(folder.absolute()),
                str(self.sign.absolute()),
                MEMORY_SHARE / self.at_once,
            )
            self.board.show(name, "", "begins")

    def look(self) -> None:
        """Show what the runs say, and settle those that have ended."""
        for name, handle in list(self.running.items()):
            status = look(self.ray, handle, name, self.board)
            if status is None:
                continue
            # Its share of the node is free again; it may only have been silent.
            self.ray.kill(self.running.pop(name))
            self._settle(name, status)

    def _settle(self, name: str, status: int) -> None:
        if status == 0:
            self.board.show(name, "", "finished")
            self.ended(name)
        elif status == LOST:
            self._losses[name] += 1
            if self._losses[name] >= MOST_LOSSES:
                self.failed.append(name)
            elif not self._stopping:
                self.board.show(name, "", "its node is lost: it goes on elsewhere")
                self.waiting.append(name)
        elif not (self._stopping and status in STOPPED):
            self.failed.append(name)

    def stop(self) -> None:
        """Begin no more, and ask the others for a checkpoint."""
        self._stopping = True
        self.waiting.clear()
        for handle in self.running.values():
            handle.stop.remote()

    def close(self) -> None:
        """End what is left."""
        for handle in self.running.values():
            self.ray.kill(handle)


def look(ray: Any, handle: Any, name: str, board: "Board") -> int | None:
    """Show what a run has said; its exit status if it has ended."""
    try:
        node, lines, status = ray.get(handle.look.remote(), timeout=BEGIN_SECONDS)
    except ray.exceptions.RayActorError as error:
        cause = str(error)
        if "FileNotFoundError" in cause:  # its beginning failed, and will again
            raise ValueError(next(x for x in cause.splitlines() if "--out must" in x)) from None
        return LOST
    except ray.exceptions.GetTimeoutError:
        return LOST
    for line in lines:
        board.show(name, node, line)
    return None if status is None else int(status)


def rooms(ray: Any, at_once: int) -> int:
    """Runs that the living nodes have room for."""
    rooms = 0
    for node in ray.nodes():
        if node["Alive"]:
            gpus = int(node["Resources"].get("GPU", 0))
            rooms += at_once * (gpus or 1)
    return rooms


def _remote(ray: Any, at_once: int) -> Any:
    """A ``Process`` with its share of a node."""
    return ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **share(ray, at_once))(Process)


def share(ray: Any, at_once: int) -> dict[str, int | float]:
    """What of a node a run asks for."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpu = min((each["GPU"] for each in alive if "GPU" in each), default=0)
    cores = min(each.get("CPU", 1) / (at_once * max(1, each.get("GPU", 0))) for each in alive)
    # Less than a core where there are more runs than cores: a run without its share would wait.
    return {"num_gpus": 1 / at_once if gpu else 0, "num_cpus": int(cores) or cores}


class Board:
    """A line for each run: on a terminal one that changes, else what each says."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, tuple[str, str]] = {}
        self._live = Live(console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Board":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        if self._live:
            self._live.__exit__(*given)

    def show(self, name: str, node: str, line: str) -> None:
        """The newest that is known of a run."""
        node = node or self._last.get(name, ("", ""))[0]
        self._last[name] = (node, line)
        if self._live is None:
            say(self._console, f"{name} {f'on {node}: ' if node else ''}{line}")
            return
        table = Table(box=None)
        for head in ("run", "node", ""):
            table.add_column(head, overflow="fold")
        for run, (where, text) in self._last.items():
            table.add_row(Text(run), Text(where), Text(text))
        self._live.update(table)
