"""``sbm evaluate``: greedy episodes of a checkpoint, and films of them."""

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import imageio.v3 as iio
import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.disk.run_folder import EVALUATION as FILE
from spectral_bellman.environments.api import EVALUATION, EnvironmentSpec
from spectral_bellman.environments.catalogue import FAMILIES, make
from spectral_bellman.training.config import TrainConfig, read_config
from spectral_bellman.training.device_runner import DeviceRunner
from spectral_bellman.training.evaluate import Played, begin, play_step
from spectral_bellman.training.programs import fold_keys
from spectral_bellman.training.progress import say
from spectral_bellman.training.runner import build
from spectral_bellman.training.saving import load_policies

FIRST_BLOCK = 2**30
"""Blocks of episodes from here on are none of a training: no episode is one that was seen."""
MAX_PICTURES = 1_000
"""Of a film of an environment on the device."""

Picture = NDArray[np.uint8]


def evaluate(
    folder: Path,
    episodes: int,
    name: str | None,
    video: bool,
    console: Console,
    env: Any = None,
) -> dict[str, Any]:
    """Play ``episodes`` greedy episodes with every seed of a run; write what they returned."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    config = dataclasses.replace(read_config(folder), eval_episodes=episodes)
    spec = make(config.env if env is None else env)
    if video:
        spec.check_can_render()
    runners = build(config, spec)
    path, info = load_policies(folder, runners, name, console)
    number = FIRST_BLOCK + info["round"]
    played: list[Played] = []
    with console.status(f"playing {episodes} episodes with each of {config.seeds} seeds"):
        if runners.host:
            played = [runner.play(number, episodes) for runner in runners.runners]
            returns = np.stack([one.returns for one in played])
        else:
            runners.start_evaluation(number, episodes)
            returns = np.stack([row for _, _, row in runners.evaluated()])
    result = {
        "checkpoint": path.name,
        "frames": info["round"] * config.round_frames,
        "episodes": episodes,
        "epsilon": config.agent.eval_epsilon,
        "returns": {
            str(config.first_seed + i): [None if np.isnan(x) else float(x) for x in row]
            for i, row in enumerate(returns)
        },
        "provenance": provenance(),
    }
    write_json(folder / FILE, result)
    console.print(_table(config, returns))
    if video:
        for what, i in _best_and_median(returns[0]).items():
            target = folder / f"episode-{path.name}-{what}.{FAMILIES[spec.family].film}"
            with console.status(f"filming the {what} episode"):
                if runners.host:
                    pictures = _host_pictures(target, spec, config, number, i, played[0])
                else:
                    pictures = _device_pictures(runners.runners[0], spec, number, i)
                count = _film(target, pictures, spec)
            say(console, f"{target}: return {returns[0][i]:g}, {count:,} pictures")
    runners.close()
    return result


def _table(config: TrainConfig, returns: NDArray[Any]) -> Table:
    columns = ("seed", "mean", "median", "lowest", "highest", "unfinished")
    epsilon = config.agent.eval_epsilon
    table = Table(*columns, title=f"{config.preset} on {config.env}, greedy, ε = {epsilon}")
    for i, row in enumerate(returns):
        ended = row[~np.isnan(row)]
        shown = ["–"] * 4
        if len(ended):
            shown = [f"{f(ended):.4g}" for f in (np.mean, np.median, np.min, np.max)]
        table.add_row(str(config.first_seed + i), *shown, str(int(np.sum(np.isnan(row)))))
    return table


def _best_and_median(returns: NDArray[Any]) -> dict[str, int]:
    """Which episodes to show; those that did not end come last."""
    order = np.argsort(np.where(np.isnan(returns), -np.inf, returns), kind="stable")
    best, median = int(order[-1]), int(order[len(order) // 2])
    return {"best": best} if best == median else {"best": best, "median": median}


def _film(target: Path, pictures: Iterator[Picture], spec: EnvironmentSpec) -> int:
    """Write a film; the number of its pictures."""
    rate = FAMILIES[spec.family].frames_per_second / spec.frame_skip
    if target.suffix == ".gif":
        shown = list(pictures)
        iio.imwrite(target, shown, duration=1000 / rate, loop=0)
        return len(shown)
    count = 0
    film: Any
    with (
        # JAX warns of any fork; this one begins with exec.
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),
        imageio.get_writer(
            target, fps=rate, codec="libx264", quality=8, macro_block_size=2
        ) as film,
    ):
        for picture in pictures:
            film.append_data(picture)
            count += 1
    return count


def _host_pictures(
    target: Path, spec: EnvironmentSpec, config: TrainConfig, number: int, i: int, played: Played
) -> Iterator[Picture]:
    """An evaluated episode played again by its seed and actions."""
    total = 0.0
    shown = spec.with_protocol(config.protocol)
    actions = [int(action) for action in played.actions[i]]
    for picture, reward in shown.replay(config.first_seed, i, EVALUATION, number, actions):
        total += reward
        yield picture
    before = played.returns[i]
    if not np.isnan(before) and not np.isclose(total, before, rtol=1e-4, atol=1e-4):
        raise ValueError(
            f"{target}: the episode was played with a return of {before:g} and came back with "
            f"{total:g}: the environment is not deterministic"
        )


def _device_pictures(
    runner: DeviceRunner, spec: EnvironmentSpec, number: int, i: int
) -> Iterator[Picture]:
    """An evaluated episode of the first seed played again, with the same keys."""
    assert runner.state is not None
    policy, environment = runner.newest_policy(), runner.environment
    key = fold_keys(runner.state.learner.key, number, 3)[0]
    episodes = runner.config.eval_episodes
    playing = jax.jit(lambda key: begin(runner.agent, environment, key, episodes))(key)
    step = jax.jit(lambda playing: play_step(runner.agent, environment, policy, key, playing))
    render = jax.jit(lambda states: spec.render(jax.tree.map(lambda x: x[i], states)))
    yield np.asarray(render(playing.environments))
    for _ in range(min(MAX_PICTURES, runner.config.eval_max_steps)):
        playing = step(playing)
        yield np.asarray(render(playing.environments))
        if not playing.running[i]:
            return
