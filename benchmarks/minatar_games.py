"""Check pgx's MinAtar against the authors' MinAtar: the same scripted player in both.

The script needs ``pip install --no-deps MinAtar``.

    python benchmarks/minatar_games.py

The player goes for the nearest gold and avoids enemies in Asterix, and goes up in Freeway. In the
other games it takes a random action for every four frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.minatar import GAMES, MinAtar

MOVES = ((0, 0), (0, -1), (-1, 0), (0, 1), (1, 0))
"""Rows and columns that nothing, left, up, right and down go."""


@dataclass(frozen=True)
class Comparison:
    """Episodes in both."""

    episodes: int = 400
    """Of each game."""
    at_once: int = 50
    """Games of pgx's side by side."""
    out: Path = Path("results/minatar-games/games.json")
    """Where the figures go."""


def play(game: str, screen: np.ndarray[Any, Any], time: int, rng: np.random.Generator) -> int:
    """The scripted player's action; one in twenty is random."""
    if rng.random() < 0.05:
        return int(rng.integers(6))
    if game == "freeway":
        return 2
    if game != "asterix":
        return int(np.random.default_rng(time // 4).integers(6))
    places = [np.argwhere(screen[:, :, channel]) for channel in range(4)]
    row, column = places[0][0]

    def worth(move: tuple[int, int]) -> float:
        y, x = np.clip(row + move[0], 1, 8), np.clip(column + move[1], 0, 9)
        danger = sum(10 / (1 + abs(ex - x)) for ey, ex in places[1] if ey == y and abs(ex - x) <= 2)
        gold = min((abs(gy - y) + abs(gx - x) for gy, gx in places[3]), default=6 + abs(x - 5) / 2)
        return -float(danger + gold / 2)

    return int(np.argmax([worth(move) for move in MOVES]))


def in_theirs(game: str, episodes: int, rng: np.random.Generator) -> list[tuple[float, int]]:
    """Return and length of each episode in the authors' game."""
    try:
        from minatar.environment import Environment  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise SystemExit(
            "the authors' games are not installed: pip install --no-deps MinAtar"
        ) from error

    env, found = Environment(game), []
    env.seed(1)
    for _ in track(range(episodes), f"{game}, the authors'"):
        env.reset()
        total, time, done = 0.0, 0, False
        while not done and time < 5_000:
            reward, done = env.act(play(game, env.state(), time, rng))
            total, time = total + reward, time + 1
        found.append((total, time))
    return found


def in_ours(
    game: str, episodes: int, at_once: int, rng: np.random.Generator
) -> list[tuple[float, int]]:
    """The same in pgx's."""
    env, found, key = MinAtar(game), list[tuple[float, int]](), jax.random.key(0)
    reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    for _ in track(range(-(-episodes // at_once)), f"{game}, pgx's"):
        key, reset_key = jax.random.split(key)
        state, screen = reset(jax.random.split(reset_key, at_once))
        total, length, alive = np.zeros(at_once), np.zeros(at_once, int), np.ones(at_once, bool)
        while alive.any():
            screens, time = np.asarray(screen), int(length.max())
            actions = [play(game, screens[i], time, rng) if alive[i] else 0 for i in range(at_once)]
            key, step_key = jax.random.split(key)
            state, after = step(state, jnp.asarray(actions), jax.random.split(step_key, at_once))
            screen = after.observation
            total, length = total + alive * np.asarray(after.reward), length + alive
            alive &= ~np.asarray(after.terminated | after.truncated)
        found += zip(total.tolist(), length.tolist(), strict=True)
    return found[:episodes]


def main(config: Comparison) -> None:
    """Play, print and keep."""
    console, rows = Console(), dict[str, dict[str, Any]]()
    players: dict[str, Callable[[str], list[tuple[float, int]]]] = {
        "the authors'": lambda game: in_theirs(game, config.episodes, np.random.default_rng(0)),
        "pgx's": lambda game: in_ours(
            game, config.episodes, config.at_once, np.random.default_rng(0)
        ),
    }
    for game in GAMES:
        rows[game] = {}
        for name, player in players.items():
            played = np.asarray(player(game), float)
            mean, error = played.mean(axis=0), played.std(axis=0, ddof=1) / np.sqrt(len(played))
            rows[game][name] = {
                what: {"mean": round(mean[i], 3), "standard error": round(error[i], 3)}
                for i, what in enumerate(("return", "length"))
            }
            console.print(
                f"{game}, {name}: return {mean[0]:.2f} ± {error[0]:.2f}, "
                f"length {mean[1]:.0f} ± {error[1]:.0f}"
            )
    config.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(config.out, {"episodes": config.episodes, "games": rows, "provenance": provenance()})


if __name__ == "__main__":
    main(tyro.cli(Comparison))
