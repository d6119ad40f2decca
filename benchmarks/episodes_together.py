"""The mean return of episodes that were played side by side, from kept runs.

    python benchmarks/episodes_together.py results/atari-dqn/*boxing* results/atari-dqn/*freeway*

Each mean is over as many episodes as there are environments. Long episodes begin together and end
together, quick ones first, so a mean over the last lines of the log alone would be biased.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from spectral_bellman.report.runs import load_run


@dataclass(frozen=True)
class Together:
    """Runs of one seed."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Their folders."""


def main(together: Together) -> None:
    """Print a line for each run; a line of the log counts where its last episode does."""
    for folder in together.runs:
        run = load_run(folder)
        before, sums = 0, dict[int, tuple[float, int]]()
        for line in run.records:
            if line.get("return") is None:
                continue
            new, before = line["episodes"] - before, line["episodes"]
            total, count = sums.get((before - 1) // run.config["num_envs"], (0.0, 0))
            sums[(before - 1) // run.config["num_envs"]] = total + new * line["return"], count + new
        print(folder.name, *(f"{total / count:.1f} ({count})" for total, count in sums.values()))


if __name__ == "__main__":
    main(tyro.cli(Together))
