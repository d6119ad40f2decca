"""Agent steps per second on CartPole-v1: this package's dqn against a single-file DQN.

The single-file DQN has one environment and dispatches one update at a time. Both use the same
network, batch and ratio of updates. They run one after the other in one process on the same cores,
each for a fixed time:

    python benchmarks/cartpole.py
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import tyro
from one_env_dqn import OneEnvDQN, run
from rich.console import Console

from spectral_bellman import train
from spectral_bellman.disk.provenance import provenance, write_json


@dataclass(frozen=True)
class Benchmark:
    """Speed on CartPole, and whether both learn it."""

    frames: int = 100_000
    """Agent steps of each."""
    seed: int = 0
    """Of both."""
    out: Path = Path("out/cartpole.json")
    """Where the figures go."""


def main(config: Benchmark) -> None:
    """Run both and print the ratio."""
    # The baseline is faster so: its calls are short and it waits for each.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    console = Console()
    with console.status("one environment, one update a dispatch"):
        baseline = run(OneEnvDQN(steps=config.frames, seed=config.seed))
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            "dqn",
            "gym/CartPole-v1",
            out=Path(folder) / "run",
            console=console,
            frames=config.frames,
            first_seed=config.seed,
            eval_episodes=20,
            eval_frames=5_000,
            log_frames=5_000,
            checkpoint_minutes=60.0,
        )
        lines = [
            json.loads(line)
            for line in (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    # The speed in a log line covers the rounds since the previous line, without the evaluation. The
    # first line includes the compilation.
    speeds = sorted(line["frames_per_s"] for line in lines[1:])
    ours = speeds[len(speeds) // 2]
    reached = next(
        (line["frames"] for line in lines if (line.get("eval_return") or 0) >= 475), None
    )
    figures = {
        "agent steps per second, one environment": baseline["agent_steps_per_second"],
        "agent steps per second, dqn of this package": ours,
        "ratio": ours / baseline["agent_steps_per_second"],
        "step of the first evaluation of 475, one environment": baseline["solved_step"],
        "step of the first evaluation of 475, dqn of this package": reached,
        "provenance": provenance(),
    }
    for name, value in figures.items():
        if name != "provenance":
            console.print(
                f"{name}: {value:,.1f}" if value is not None else f"{name}: never", highlight=False
            )
    config.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(config.out, figures)
    console.print(str(config.out))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
