"""Settings that are numbers, many of them and several seeds of each in one compiled program: every lane a setting and a seed.

    python benchmarks/tune.py --preset dqn --env minatar/breakout --settings '{"learning_rate": [1e-4, 3e-4, 1e-3]}'

Of lists the product is taken. What is no number (``--fixed '{"target_rounds": 4}'``) is the same for all.
"""

import copy
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spectral_bellman.agents import Agent
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import make
from spectral_bellman.training.device_loop import DeviceLoop
from spectral_bellman.training.run import configure
from spectral_bellman.training.seeds import over_seeds


@dataclass(frozen=True)
class Tuning:
    """A grid of settings on one environment."""

    preset: str = "sbm-dqn-ts"
    """Whose settings."""
    env: str = "minatar/breakout"
    """One in JAX."""
    settings: str = '{"learning_rate": [0.0003, 0.001]}'
    """JSON: name -> numbers."""
    fixed: str = "{}"
    """JSON: name -> value, the same for all."""
    frames: int = 1_000_000
    """Of each lane."""
    seeds: int = 5
    """Of each setting."""
    first_seed: int = 100
    """Tables take theirs from 0 on."""
    episodes: int = 30
    """Greedy ones at the end."""
    out: Path = Path("out/tune.json")
    """Where the figures go."""


def main(tuning: Tuning) -> None:
    """Train all lanes; print and keep what they came to."""
    console, began = Console(), time.monotonic()
    grid = json.loads(tuning.settings)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    made = make(tuning.env)
    given = {"frames": tuning.frames, "eval_episodes": tuning.episodes, **json.loads(tuning.fixed)}
    config = configure(tuning.preset, made, given).resolved()
    if made.device is None:
        raise ValueError(f"{tuning.env} is not written in JAX, and lanes are")
    loop = DeviceLoop(config, made.device)
    lanes = [(point, seed) for point in points for seed in range(tuning.first_seed, tuning.first_seed + tuning.seeds)]
    numbers = {name: jnp.array([point[name] for point, _ in lanes], jnp.float32) for name in grid}

    def with_numbers(values: dict[str, Any]) -> DeviceLoop:
        """The loop of a lane; its numbers are traced, so the checks of a config would not know what to say."""
        changed, agent = copy.copy(loop), copy.copy(config.agent)
        for name, value in values.items():
            object.__setattr__(agent, name, value)
        changed.agent = Agent(agent, loop.agent.observation, loop.agent.num_actions)
        return changed

    def program(learning: bool) -> Any:
        def one(values: dict[str, Any], learner: Any, policy: Any, scene: Any, number: Any) -> Any:
            return with_numbers(values)._round(learner, policy, scene, number, learning=learning)

        return over_seeds(one, in_axes=(0, 0, 0, 0, None), donate=(1, 2, 3))

    programs = {learning: program(learning) for learning in (False, True)}
    state = loop.programs["init"](jnp.array([seed for _, seed in lanes]))
    episodes, returns = np.zeros(len(lanes)), np.zeros(len(lanes))
    for number in track(range(config.rounds), f"{tuning.preset} on {tuning.env}, {len(lanes)} lanes", console=console):
        state = programs[config.learns(number)](numbers, *state, jnp.int32(number))
        if (number + 1) % config.log_rounds == 0 and number >= 0.9 * config.rounds:
            tally = jax.device_get(state[0].tally)
            episodes, returns = episodes + tally.recent_episodes, returns + tally.recent_return
    keys = jax.vmap(jax.random.key)(jnp.arange(len(lanes)))
    greedy = np.nanmean(np.asarray(loop.programs["evaluate"](state[1], keys)), axis=1)
    found = []
    for i, point in enumerate(points):
        part = slice(i * tuning.seeds, (i + 1) * tuning.seeds)
        trained = returns[part] / np.maximum(episodes[part], 1)
        found.append({"setting": point, "greedy": greedy[part].round(3).tolist(), "training": trained.round(3).tolist()})
    found.sort(key=lambda row: -float(np.mean(row["training"])))
    table = Table(
        "setting", "greedy", "training", title=f"{tuning.preset} on {tuning.env}, {tuning.frames:,} frames, {tuning.fixed}"
    )
    for row in found:
        table.add_row(str(row["setting"]), *(_mean(row[name]) for name in ("greedy", "training")))
    console.print(table)
    tuning.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"preset": tuning.preset, "env": tuning.env, "fixed": json.loads(tuning.fixed), "frames": tuning.frames}
    content |= {"first_seed": tuning.first_seed, "results": found, "seconds": round(time.monotonic() - began, 1)}
    write_json(tuning.out, {**content, "provenance": provenance()})


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0:.2f}"


if __name__ == "__main__":
    main(tyro.cli(Tuning))
