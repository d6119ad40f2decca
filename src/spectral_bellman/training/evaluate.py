"""Evaluation of a checkpoint: greedy episodes, seeded apart from training, and a GIF of one."""

import dataclasses
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import Made, make
from spectral_bellman.environments.gym import GymEnvironments, maker
from spectral_bellman.training import checkpoint
from spectral_bellman.training.config import TrainConfig, read_config
from spectral_bellman.training.run import build, warn
from spectral_bellman.training.seeds import Seeds

FRAMES_PER_SECOND = 15
MAX_PICTURES = 1_000


def evaluate(folder: Path, episodes: int, name: str | None, video: bool, console: Console, env: Any = None) -> dict[str, Any]:
    """Play ``episodes`` greedy episodes with every seed of a run; write and return their returns."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    config = dataclasses.replace(read_config(folder), eval_episodes=episodes)
    made = make(config.env if env is None else env)
    loop = build(config, made)
    path, state, info = _load(folder / "checkpoints", name, loop, console)
    for problem in loop.restore(state, info["extra"]):
        warn(console, problem)
    with console.status(f"playing {episodes} episodes with each of {config.seeds} seeds"):
        # A number no round of training has, so that no episode is one that was seen.
        returns = loop.evaluate(2**30 + info["round"])
    result = {
        "checkpoint": path.name,
        "frames": info["round"] * config.round_frames,
        "episodes": episodes,
        "epsilon": config.eval_epsilon,
        "returns": {str(config.first_seed + i): [None if np.isnan(x) else float(x) for x in row] for i, row in enumerate(returns)},
        "provenance": provenance(),
    }
    write_json(folder / "evaluation.json", result)
    table = Table(
        "seed",
        "mean",
        "median",
        "lowest",
        "highest",
        "unfinished",
        title=f"{config.preset} on {config.env}, greedy, ε = {config.eval_epsilon}",
    )
    for i, row in enumerate(returns):
        ended = row[~np.isnan(row)]
        shown = [f"{f(ended):.4g}" for f in (np.mean, np.median, np.min, np.max)] if len(ended) else ["–"] * 4
        table.add_row(str(config.first_seed + i), *shown, str(int(np.sum(np.isnan(row)))))
    console.print(table)
    if video:
        pictures = _device_pictures(loop, made) if made.device is not None else _host_pictures(loop, config, made)
        target = folder / f"episode-{path.name}.gif"
        iio.imwrite(target, pictures, duration=1000 / FRAMES_PER_SECOND, loop=0)
        console.print(f"{target}: {len(pictures)} pictures", highlight=False, soft_wrap=True)
    loop.close()
    return result


def _load(folder: Path, name: str | None, loop: Seeds, console: Console) -> tuple[Path, Any, dict[str, Any]]:
    if name is None:
        return checkpoint.load_newest(folder, loop.shapes(), lambda text: warn(console, text))
    if not (folder / name).is_dir():
        raise FileNotFoundError(
            f"{folder / name} does not exist; there are {', '.join(p.name for p in checkpoint.candidates(folder))}"
        )
    return folder / name, checkpoint.load(folder / name, loop.shapes()), checkpoint.read_info(folder / name)


def _device_pictures(loop: Seeds, made: Made) -> list[NDArray[np.uint8]]:
    environment: Any = made.device
    if not hasattr(environment, "render"):
        raise ValueError(f"{made.name} cannot be shown: it has no render(state)")
    policy = jax.tree.map(lambda x: x[0], loop.loops[0].state[1])
    key = jax.random.key(2**31 - 1)
    reset, step, render = jax.jit(environment.reset), jax.jit(environment.step), jax.jit(environment.render)
    act = jax.jit(lambda o, k: loop.agent.act_greedily(policy, o[None], loop.loops[0].config.eval_epsilon, k)[0][0])
    state, observation = reset(key)
    pictures = [np.asarray(render(state))]
    for time in range(MAX_PICTURES):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, time))
        state, result = step(state, act(observation, act_key), step_key)
        observation = result.observation
        pictures.append(np.asarray(render(state)))
        if result.terminated or result.truncated:
            break
    return pictures


def _host_pictures(loop: Seeds, config: TrainConfig, made: Made) -> list[NDArray[np.uint8]]:
    if not config.env.startswith("gym/"):
        raise ValueError(f"{made.name} cannot be shown: only environments that Gymnasium knows by name can be asked for pictures")
    name = config.env.partition("/")[2]
    environments = GymEnvironments(made.name, maker(name, render_mode="rgb_array"), [config.first_seed], 1, stream=2)
    policy = loop.loops[0].state[2]
    act = loop.loops[0].programs["act greedily"]
    keys = jax.random.split(jax.random.key(2**31 - 1), len(loop.loops[0].state[4].first))
    observation, pictures = environments.reset(), [environments.render()]
    for time in range(MAX_PICTURES):
        seen = np.broadcast_to(observation[None], (len(keys), *observation.shape))
        action = act(policy, seen, jax.vmap(lambda key, t=time: jax.random.fold_in(key, t))(keys))
        step = environments.step(np.asarray(action)[0])
        observation = step.observation
        pictures.append(environments.render())
        if step.terminated[0] or step.truncated[0]:
            break
    environments.close()
    return pictures
