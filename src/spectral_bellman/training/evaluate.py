"""Evaluation of a checkpoint: greedy episodes, seeded apart from training, and films of them."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import imageio.v3 as iio
import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments import Made, make
from spectral_bellman.environments.atari import AtariProtocol, seed_of
from spectral_bellman.environments.gym import GymEnvironments, maker
from spectral_bellman.training.config import TrainConfig, read_config
from spectral_bellman.training.host_loop import Evaluation
from spectral_bellman.training.logs import say
from spectral_bellman.training.run import build, load_policies
from spectral_bellman.training.seeds import Seeds

FRAMES_PER_SECOND = 15
MAX_PICTURES = 1_000
SCREEN = (210, 160)
"""Height and width of an Atari screen."""


def evaluate(folder: Path, episodes: int, name: str | None, video: bool, console: Console, env: Any = None) -> dict[str, Any]:
    """Play ``episodes`` greedy episodes with every seed of a run; write and return their returns."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    config = dataclasses.replace(read_config(folder), eval_episodes=episodes)
    made = make(config.env if env is None else env)
    loop = build(config, made)
    path, info = load_policies(folder, loop, name, console)
    # A number no round of training has, so that no episode is one that was seen.
    number = 2**30 + info["round"]
    with console.status(f"playing {episodes} episodes with each of {config.seeds} seeds"):
        if loop.host:
            played = [part.evaluate(number) for part in loop.loops]
            returns = np.stack([evaluation.returns for evaluation in played])
        else:
            loop.start_evaluation(number)
            returns = np.stack([row for _, _, row in loop.evaluated()])
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
    if video and made.game is not None:
        for what, i in _best_and_median(returns[0]).items():
            target = folder / f"episode-{path.name}-{what}.mp4"
            with console.status(f"playing the {what} episode again, in colour"):
                count = _film(target, made.game, config, number, i, played[0])
            say(console, f"{target}: return {returns[0][i]:g}, {count:,} pictures")
    elif video:
        pictures = _device_pictures(loop, made) if made.device is not None else _host_pictures(loop, config, made)
        target = folder / f"episode-{path.name}.gif"
        iio.imwrite(target, pictures, duration=1000 / FRAMES_PER_SECOND, loop=0)
        say(console, f"{target}: {len(pictures)} pictures")
    loop.close()
    return result


def _best_and_median(returns: NDArray[Any]) -> dict[str, int]:
    """Which episodes to show; those that did not end come last."""
    order = np.argsort(np.where(np.isnan(returns), -np.inf, returns), kind="stable")
    return {"best": int(order[-1]), "median": int(order[len(order) // 2])}


def _film(target: Path, game: str, config: TrainConfig, number: int, i: int, played: Evaluation) -> int:
    """Play an evaluated episode again by its seed and actions, in colour and at full size, and write it as a film; its pictures."""
    protocol = config.atari or AtariProtocol()
    emulator = protocol.emulators(game, 1, 1, grayscale=False, img_height=SCREEN[0], img_width=SCREEN[1])
    picture, _ = emulator.reset(seed=np.array([seed_of(config.first_seed, 1, i, number)]))
    total, actions = 0.0, played.actions[i]
    rate = 60 / protocol.frame_skip
    film: Any
    with (
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # JAX's, of any fork; this one begins with exec
        imageio.get_writer(target, fps=rate, codec="libx264", quality=8, macro_block_size=2) as film,
    ):
        film.append_data(picture[0, 0])
        for action in actions[:-1]:
            picture, reward, _, _, _ = emulator.step(np.array([action], np.int32))
            total += float(reward[0])
            film.append_data(picture[0, 0])
        picture, reward, over, _, info = emulator.step(np.array([actions[-1]], np.int32))
        total += float(reward[0])
        film.append_data((info["final_obs"] if over[0] else picture)[0, 0])
    if not np.isnan(played.returns[i]) and total != played.returns[i]:
        raise ValueError(f"{target}: the episode was played with a return of {played.returns[i]:g} and came back with {total:g}")
    return len(actions) + 1


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
    policy, key = loop.loops[0].state.published, jax.random.key(2**31 - 1)
    act = jax.jit(lambda o, t: loop.agent.act_greedily(policy, o, config.eval_epsilon, jax.random.fold_in(key, t))[0])
    observation, pictures = environments.reset(), [environments.render()]
    for time in range(MAX_PICTURES):
        step = environments.step(np.asarray(act(observation, time)))
        observation = step.observation
        pictures.append(environments.render())
        if step.first[0]:
            break
    environments.close()
    return pictures
