"""How much memory a run will need, before any of it is allocated."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.programs import array_bytes


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
    aside: bool = False
    """Whether the replay lies in the host's memory, away from the device."""

    @property
    def total(self) -> int:
        """All of it on the device, at the peak."""
        return (0 if self.aside else self.replay) + self.agent + self.working + self.process


def estimate(runners: Any) -> Memory:
    """What a run will need: its state by shapes, and the compiler's report of working memory."""
    states = runners.shapes()
    replay, rest = held(runners, states)
    agent = states[0][0].agent
    # A seed's own axis comes first where seeds are vmapped.
    seeds = len(agent.theta) if agent.theta.ndim == 2 else 1
    parameters = (
        sum(
            int(np.prod(x.shape))
            for x in jax.tree.leaves((agent.network, agent.theta, agent.beside))
        )
        // seeds
    )
    working = runners.runners[0].working()  # compiles, which the process remembers
    process = resident() if jax.default_backend() == "cpu" else 0
    return Memory(
        parameters=parameters,
        replay=replay,
        agent=rest,
        working=working,
        process=process,
        aside=runners.host
        and runners.runners[0].config.on_host.replay_memory == "host"
        and jax.default_backend() != "cpu",
    )


def held(runners: Any, states: Any) -> tuple[int, int]:
    """Bytes that runners keep, by their ``shapes()``: the replay, and everything else."""
    replays = [
        part.replay_shapes() if runners.host else state[0].replay
        for part, state in zip(runners.runners, states, strict=True)
    ]
    replay = array_bytes(replays)
    return replay, array_bytes(states) - (0 if runners.host else replay)


def limit() -> int | None:
    """Bytes that the device can hold, or what is free where it is the host; None if nobody says."""
    stats = jax.local_devices()[0].memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else host_limit()


def host_limit() -> int | None:
    """Bytes of the host that this process may have; None if nobody says."""
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


def check(memory: Memory, config: TrainConfig) -> None:
    """Refuse a run that cannot fit, and say what would."""
    bound, capacity = limit(), config.replay_capacity
    if memory.aside and (free := host_limit()) is not None and memory.replay > free:
        raise ValueError(
            f"the replay needs {show(memory.replay)} of the host's memory, and {show(free)} are "
            f"there: "
            f"--replay-capacity {int(0.95 * free / memory.replay * capacity)} would fit"
        )
    if bound is None or memory.total <= bound:
        return
    rest = memory.total - memory.replay
    fits = (
        0 if memory.aside else max(0, int(0.95 * (bound - rest) / max(memory.replay, 1) * capacity))
    )
    cure = (
        f"--replay-capacity {fits} would fit" if fits else "fewer --seeds or smaller batches would"
    )
    if not memory.aside and config.emulated and jax.default_backend() != "cpu":
        cure += ", and --replay-memory host keeps it out of the accelerator"
    raise ValueError(
        f"the run needs {show(memory.total)}, of which the replay is {show(memory.replay)}, and "
        f"{show(bound)} are there: {cure}"
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
        import resource  # not on every system

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
