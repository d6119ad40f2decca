"""``sbm tune``: many settings and seeds, in one program that has a lane for each of them."""

import copy
import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spectral_bellman.agents import choices
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.catalogue import make
from spectral_bellman.training.config import configure, override
from spectral_bellman.training.device_runner import DeviceRunner
from spectral_bellman.training.learner import Learner
from spectral_bellman.training.programs import compiled_over_seeds


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A grid of settings on one environment. Lists are combined in all ways."""

    preset: str = "sbm-dqn-ts"
    """The agent."""
    env: str = "minatar/breakout"
    """An environment on the device."""
    settings: str = '{"learning_rate": [0.0003, 0.001]}'
    """JSON: name -> numbers."""
    fixed: str = "{}"
    """JSON: name -> value, the same for all; choices and whole numbers belong here."""
    frames: int = 1_000_000
    """Frames of each lane."""
    seeds: int = 5
    """Seeds of each setting."""
    first_seed: int = 100
    """The first of them. Tables take their seeds from 0 on."""
    episodes: int = 30
    """Greedy episodes at the end."""
    out: Path = Path("out/tune.json")
    """Where the figures go."""


def tune(tuning: Tuning, console: Console) -> list[dict[str, Any]]:
    """Train all lanes; print and keep their returns, the best training return first."""
    began = time.monotonic()
    grid, fixed = _object("settings", tuning.settings), _object("fixed", tuning.fixed)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    spec = make(tuning.env)
    if spec.device is None:
        raise ValueError(f"{tuning.env} runs on the host; sbm tune needs an environment in JAX")
    given = {"frames": tuning.frames, "eval_episodes": tuning.episodes, **fixed}
    config = configure(tuning.preset, spec, given).resolved()
    environment = spec.with_protocol(config.protocol).device
    assert environment is not None
    real = {k for k, v in choices.flat(config.agent).items() if isinstance(v, float)}
    for name in grid:
        if name in choices.flat(config) and name not in real:
            raise ValueError(
                f"--settings: {name} cannot differ between lanes of one program, where only the "
                "agent's real numbers can; give it under --fixed, in a tuning of its own"
            )
    for point in points:
        override(config, point)  # refuses what is unknown, unused or out of range
    runner = DeviceRunner(
        config,
        environment,
        QAgent(config.agent, environment.observation, environment.num_actions),
    )
    seeds = range(tuning.first_seed, tuning.first_seed + tuning.seeds)
    lanes = [(point, seed) for point in points for seed in seeds]
    numbers = {name: jnp.array([p[name] for p, _ in lanes], jnp.float32) for name in grid}
    programs = {learning: _program(runner, learning) for learning in (False, True)}
    state = runner.programs["init"](jnp.array([seed for _, seed in lanes]))
    episodes, returns = np.zeros(len(lanes)), np.zeros(len(lanes))
    title = f"{tuning.preset} on {tuning.env}, {len(lanes)} lanes"
    for number in track(range(config.rounds), title, console=console):
        state = programs[config.learns(number)](numbers, *state, jnp.int32(number))
        if (number + 1) % config.log_rounds == 0 and number >= 0.9 * config.rounds:
            tally = jax.device_get(state[0].tally)
            episodes += tally.recent_episodes
            returns += tally.recent_return
    keys = jax.vmap(jax.random.key)(jnp.arange(len(lanes)))
    greedy = np.nanmean(np.asarray(runner.programs["evaluate"](state[1][-1], keys)), axis=1)
    found = []
    for i, point in enumerate(points):
        part = slice(i * tuning.seeds, (i + 1) * tuning.seeds)
        trained = returns[part] / np.maximum(episodes[part], 1)
        row = {"greedy": greedy[part].round(3).tolist(), "training": trained.round(3).tolist()}
        found.append({"setting": point, **row})
    found.sort(key=lambda row: -float(np.mean(row["training"])))
    table = Table(
        *("setting", "greedy", "training"),
        title=f"{tuning.preset} on {tuning.env}, {tuning.frames:,} frames, {tuning.fixed}",
    )
    for row in found:
        table.add_row(str(row["setting"]), _mean(row["greedy"]), _mean(row["training"]))
    console.print(table)
    tuning.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "preset": tuning.preset,
        "env": tuning.env,
        "fixed": fixed,
        "frames": tuning.frames,
        "first_seed": tuning.first_seed,
        "results": found,
        "seconds": round(time.monotonic() - began, 1),
        "provenance": provenance(),
    }
    write_json(tuning.out, content)
    return found


def _program(runner: DeviceRunner, learning: bool) -> Any:
    """A round of all lanes, whose numbers are arguments."""

    def one(values: dict[str, Any], *rest: Any) -> Any:
        return _with_numbers(runner, values)._round(*rest, learning=learning)

    donate = (1, 2, 3) if runner.config.staleness == 1 else (1, 3)
    return compiled_over_seeds(one, in_axes=(0, 0, 0, 0, None), donate=donate)


def _with_numbers(runner: DeviceRunner, values: dict[str, Any]) -> DeviceRunner:
    """The runner of a lane. Its numbers are traced, so that the config cannot check them."""
    changed = copy.copy(runner)
    agent = _unchecked(runner.config.agent, values)
    changed.agent = QAgent(agent, runner.agent.observation, runner.agent.num_actions)
    changed.learner = Learner(changed.agent, first_round=changed.config.first_learning_round)
    return changed


def _unchecked(config: Any, values: dict[str, Any]) -> Any:
    """A nested config with some numbers replaced."""
    changed = copy.copy(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            object.__setattr__(changed, field.name, _unchecked(value, values))
        elif field.name in values:
            object.__setattr__(changed, field.name, values[field.name])
    return changed


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        example = '{"learning_rate": [0.001]}'
        raise ValueError(f"--{name} must be JSON, such as {example}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"--{name} must be a JSON object, got {text}")
    return content


def _mean(values: list[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
    return f"{np.mean(values):.2f} ± {error:.2f}"
