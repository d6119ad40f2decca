"""How much memory a run will need, before any of it is allocated."""

import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Memory(NamedTuple):
    """Bytes on the device that learns."""

    parameters: int
    """Numbers, not bytes: parameters of φ and what is trained beside it, one seed."""
    replay: int
    agent: int
    """Everything else that is kept."""
    working: int
    """What a compiled round needs besides."""
    process: int
    """What this process holds already, where device and host share their memory."""

    @property
    def total(self) -> int:
        """All of it, at the peak."""
        return self.replay + self.agent + self.working + self.process


def estimate(loop: Any) -> Memory:
    """What a loop will need: its state by shapes, and the working memory that the compiler reports."""
    states = loop.shapes()
    learners = [state[0] for state in states]
    replay = sum(size(learner.replay) for learner in learners)
    analysis = loop.loops[0].program(True).memory_analysis()
    working = 0
    if analysis is not None:
        outputs = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
        working = analysis.temp_size_in_bytes + outputs + analysis.generated_code_size_in_bytes
    agent = learners[0].agent
    parameters = sum(int(np.prod(x.shape)) for x in jax.tree.leaves((agent.network, agent.theta, agent.backup))) // len(agent.theta)
    process = resident() if jax.default_backend() == "cpu" else 0
    return Memory(parameters, replay, size(states) - replay, working, process)


def size(tree: Any) -> int:
    """Bytes of the leaves of a tree of arrays or shapes."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def limit() -> int | None:
    """Bytes that the device can hold, or what is free where it is the host; None if nobody says."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024 + resident())
        control = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
        bounds += [int(control)] if control.isdigit() else []
    except OSError:
        pass
    return min(bounds, default=None)


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096
    except OSError:
        return 0


def check(memory: Memory, capacity: int) -> None:
    """Refuse a run that cannot fit, and say what would."""
    bound = limit()
    if bound is None or memory.total <= bound:
        return
    rest = memory.total - memory.replay
    fits = max(0, int(0.95 * (bound - rest) / max(memory.replay, 1) * capacity))
    cure = f"--replay-capacity {fits:,} would fit" if fits else "fewer --seeds or smaller batches would"
    raise ValueError(
        f"the run needs {show(memory.total)}, of which the replay is {show(memory.replay)}, and {show(bound)} are there: {cure}"
    )


def show(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def peak_resident() -> int:
    """The most this process has had in memory."""
    try:
        # Not getrusage, whose maximum begins with what the parent had when it forked.
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
