"""Agent steps per second of training with actors in processes, beside threads in one process.

Both collect and learn at the same time; what differs is who steps the environments. The overhead of
Ray is the time of N actors over the time of as many groups in one process.

    python benchmarks/ray_scaling.py --env atari/pong --preset dqn --actors 1 2 4 8
"""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.catalogue import make
from spectral_bellman.training.config import TrainConfig, configure, override
from spectral_bellman.training.runner import build


@dataclass(frozen=True)
class Benchmark:
    """Speed of training by the number of actors."""

    env: str = "atari/pong"
    """An environment on the host."""
    preset: str = "dqn"
    """The agent."""
    actors: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of actors, each of which divides the number of environments."""
    seconds: float = 20.0
    """How long each is timed, after compilation and the first rounds that learn."""
    out: Path = Path("out/ray_scaling.json")
    """Where the figures go."""


def main(benchmark: Benchmark) -> None:
    """Time every arrangement, and print."""
    console, spec = Console(), make(benchmark.env)
    base = configure(benchmark.preset, spec).resolved()
    figures: dict[str, Any] = {"agent steps per second": {}}
    speeds = figures["agent steps per second"]
    for count in benchmark.actors:
        for kind in ("groups", "actors"):
            name = f"{count} {kind}"
            config = override(base, {"groups": count, "actors": count * (kind == "actors")})
            with console.status(f"{name}: compiling, then {benchmark.seconds:g} seconds"):
                speeds[name] = speed(config, benchmark)
            console.print(f"{name}: {speeds[name]:,.0f} agent steps/s", highlight=False)
        overhead = speeds[f"{count} groups"] / speeds[f"{count} actors"] - 1
        figures[f"overhead of {count} actors over as many groups"] = overhead
        console.print(f"{count} actors: {overhead:+.0%} time over groups", highlight=False)
    settings = {name: str(value) for name, value in dataclasses.asdict(benchmark).items()}
    benchmark.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(benchmark.out, {**figures, "config": settings, "provenance": provenance()})
    console.print(str(benchmark.out))


def speed(config: TrainConfig, benchmark: Benchmark) -> float:
    """Agent steps per second."""
    runners = build(config, make(benchmark.env))
    try:
        runners.prepare()
        runners.init()
        first = -(-config.agent.warmup_steps // config.round_agent_steps) + 3
        for number in range(first):
            runners.run_round(number, ahead=True)
        runners.tally()
        began, number = time.perf_counter(), first
        while time.perf_counter() - began < benchmark.seconds:
            runners.run_round(number, ahead=True)
            number += 1
        runners.tally()
        return (number - first) * config.round_agent_steps / (time.perf_counter() - began)
    finally:
        runners.close()


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
