"""bsuite's memory_len and memory_size, played in bsuite's environments and scored by its rule.

Every setting is a run of 10,000 episodes. The rule of bsuite counts a setting as learned if more
than 62.5% of all its episodes ended with the right answer; guessing gives 50%. The score is the
share of settings that were learned. Each agent has the same settings in every run, except that a
sequence of a recurrent agent is one episode long.

    python benchmarks/bsuite_memory.py

A second call goes on where the first was stopped. About 40 minutes on two cores.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import pandas as pd
import tyro
from bsuite.environments.memory_chain import MemoryChain
from bsuite.experiments.memory_len import analysis as memory_len
from bsuite.experiments.memory_len import sweep as lengths
from bsuite.experiments.memory_size import analysis as memory_size
from bsuite.experiments.memory_size import sweep as sizes
from rich.console import Console
from rich.progress import Progress

from spectral_bellman import train
from spectral_bellman.disk.pictures import to_png
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.report.figures import styles, tidy

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ENVS, SEQUENCES = 16, 16
LONGEST = 30
"""Of the lengths of memory_len."""
AGENTS = ("dqn", "r2d2", "sbm-r2d2-ts")
EXPERIMENTS = {
    "memory_len": [s for s in lengths.SETTINGS if s["memory_length"] <= LONGEST],
    "memory_size": list(sizes.SETTINGS),
}
RULES = {"memory_len": memory_len.score, "memory_size": memory_size.score}


@dataclass(frozen=True)
class Benchmark:
    """Score agents on bsuite's memory experiments."""

    agents: tuple[str, ...] = AGENTS
    """Presets."""
    experiments: tuple[str, ...] = tuple(EXPERIMENTS)
    """memory_len, memory_size or both."""
    episodes: int = lengths.NUM_EPISODES
    """Of each run; bsuite's rule asks for 10,000."""
    out: Path = Path("results/memory")
    """Where the figures go."""


class Chain(gymnasium.Env):
    """bsuite's memory chain behind Gymnasium's interface."""

    def __init__(self, length: int, bits: int) -> None:
        self._chain = (length, bits)
        self._environment = MemoryChain(length, bits, seed=0)
        self.observation_space = gymnasium.spaces.Box(-1.0, float(max(bits, 1)), (bits + 2,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new chain, drawn from the seed."""
        self._environment = MemoryChain(*self._chain, seed=seed)
        return self._environment.reset().observation[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        step = self._environment.step(int(action))
        return step.observation[0], float(step.reward), bool(step.last()), False, {}


def settings_of(agent: str, steps: int) -> dict[str, Any]:
    """The same for every run of an agent, given the steps of an episode.

    A round is one episode of each environment, and each gradient step sees 16 episodes of steps.
    """
    common = {
        "num_envs": ENVS,
        "round_steps": steps,
        "replay_capacity": 1_000 * steps,
        "updates": 16,
        "warmup_steps": 20 * ENVS * steps,
        "hidden": (32,),
        "learning_rate": 1e-3,
        "discount": 0.99,
        "eval_episodes": 1,
        "score_episodes": 1,
        "checkpoint_minutes": 60.0,
    }
    noise = {"noise_anneal_steps": 1_000 * steps} if agent.endswith("-ts") else {}
    if agent == "dqn":
        return common | {"batch": SEQUENCES * steps, "epsilon_steps": 1_000 * steps}
    sbm = {"features": 32, "q_steps": 8} if agent.startswith("sbm") else {}
    sequences = {"lstm": 32, "burn_in": 0, "trained": steps, "period": steps, "batch": SEQUENCES}
    return common | noise | sbm | sequences


def correct_answers(agent: str, chain: dict[str, int], episodes: int) -> int:
    """How many episodes of a run ended with the right answer."""
    length, bits = chain.get("memory_length", 2), chain.get("num_bits", 1)
    steps = length + 1
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            agent,
            lambda: Chain(length, bits),
            out=Path(folder) / "run",
            console=Console(quiet=True),
            frames=episodes * steps,
            log_frames=episodes * steps // 10,
            **settings_of(agent, steps),
        )
        text = (result.folder / "metrics.jsonl").read_text(encoding="utf-8")
    played, right, before = 0, 0.0, 0
    for line in map(json.loads, text.splitlines()):
        if "return" not in line:
            continue
        played = line["episodes"]
        right += (played - before) * (1 + line["return"]) / 2
        before = played
    if played != episodes:
        raise RuntimeError(f"{agent} on {chain}: {played} episodes were played, not {episodes}")
    return round(right)


def main(config: Benchmark) -> None:
    """Play what has not been played, then score, print and draw."""
    path = config.out / "bsuite.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    right = kept.setdefault("right answers", {})
    wanted = [
        (experiment, agent, chain)
        for experiment in config.experiments
        for agent in config.agents
        for chain in EXPERIMENTS[experiment]
    ]
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(wanted))
        for experiment, agent, chain in wanted:
            size = str(next(iter(chain.values())))
            progress.update(task, description=f"{experiment} {size}: {agent}")
            found = right.setdefault(experiment, {}).setdefault(agent, {})
            if size not in found:
                found[size] = correct_answers(agent, chain, config.episodes)
                kept |= {"episodes": config.episodes, "provenance": provenance()}
                write_json(path, kept)
            progress.advance(task)
    kept["scores"] = {
        experiment: {
            agent: _score(experiment, found, config.episodes) for agent, found in of.items()
        }
        for experiment, of in right.items()
    }
    write_json(path, kept)
    for experiment, scores in kept["scores"].items():
        for agent, score in scores.items():
            console.print(f"{experiment} {agent}: {score:.2f}", highlight=False)
    _draw(right, config.episodes, config.out / "bsuite.png")
    console.print(str(path))


def _score(experiment: str, found: dict[str, int], episodes: int) -> float:
    """By bsuite's own function."""
    column = "memory_length" if experiment == "memory_len" else "num_bits"
    rows = [
        {column: int(size), "episode": episodes, "total_perfect": total}
        for size, total in found.items()
    ]
    return float(RULES[experiment](pd.DataFrame(rows)))


def _draw(right: dict[str, Any], episodes: int, path: Path) -> None:
    """The share of right answers over the length and over the bits, a line for each agent."""
    plt.style.use("default")  # bsuite's plots change it
    figure, panels = plt.subplots(1, len(right), figsize=(9, 3.2), sharey=True, squeeze=False)
    look = styles({agent for of in right.values() for agent in of})
    names = {"memory_len": "steps to remember one bit", "memory_size": "bits to remember"}
    for axes, (experiment, of) in zip(panels[0], right.items(), strict=True):
        for agent, found in of.items():
            order = sorted(found, key=int)
            shares = np.array([found[size] for size in order]) / episodes
            axes.plot([int(size) for size in order], shares, label=agent, **look[agent])
        axes.axhline(0.625, color="grey", linestyle=":", linewidth=1)
        axes.set(xlabel=names[experiment], title=experiment, ylim=(0.45, 1.02), xscale="log")
        axes.set_xticks(ticks := (1, 2, 5, 10, 20, 40), [str(tick) for tick in ticks])
        axes.minorticks_off()
        tidy(axes)
    panels[0][0].set_ylabel("share of right answers,\nall 10,000 episodes")
    panels[0][-1].legend(frameon=False)
    figure.tight_layout()
    path.write_bytes(to_png(figure))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
