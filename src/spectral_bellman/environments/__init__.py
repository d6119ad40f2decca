"""Environments by name: ``deep_sea/N``, ``minatar/GAME``, ``atari/GAME``, ``gym/ID``, or an object of the user's."""

from typing import Any, NamedTuple

import gymnasium

from spectral_bellman._names import did_you_mean
from spectral_bellman.environments.base import Environment, Step
from spectral_bellman.environments.deep_sea import DeepSea
from spectral_bellman.environments.gym import GymEnvironments, Maker, maker
from spectral_bellman.environments.minatar import GAMES, MinAtar
from spectral_bellman.scores import rom_name

__all__ = ["DeepSea", "Environment", "GymEnvironments", "Made", "MinAtar", "Step", "available", "make"]


class Made(NamedTuple):
    """An environment ready for a loop: one in JAX, or, for the host, a function that makes copies or the name of a game."""

    name: str
    family: str
    """What default settings go by: deep_sea, minatar, atari, gym, or jax for an object of the user's."""
    device: Environment | None
    host: Maker | None
    game: str | None = None
    """Atari: the name of the ROM."""


def available() -> dict[str, str]:
    """The names that ``make`` knows, with a line about each."""
    return {
        "deep_sea/N": "bsuite's hard exploration: N steps down a grid, one treasure; deep_sea_stochastic/N slips, rewards noisy",
        **{f"minatar/{game}": "MinAtar, six actions, sticky 0.1; needs the extra minatar" for game in GAMES},
        "atari/GAME": "Atari 2600: the paper's 55 games and every other ROM of ale-py, e.g. atari/pong, atari/MontezumaRevenge",
        "gym/ID": "any Gymnasium environment with Discrete actions and Box observations, e.g. gym/CartPole-v1",
    }


def make(environment: Any) -> Made:
    """The environment a user named or gave: a name, an object of the ``Environment`` protocol, a ``gymnasium.Env`` or its maker."""
    if isinstance(environment, str):
        return _named(environment)
    if isinstance(environment, Environment):
        return Made(type(environment).__name__, "jax", environment, None)
    if isinstance(environment, gymnasium.Env) or callable(environment):
        name = getattr(environment, "__name__", None) or type(environment).__name__
        return Made(name, "gym", None, maker(environment))
    raise TypeError(
        f"an environment is a name ({', '.join(available())}), an object with the Environment protocol, a gymnasium.Env, or a "
        f"function that makes one; got {type(environment).__name__}"
    )


def _named(name: str) -> Made:
    family, _, rest = name.partition("/")
    if family in ("deep_sea", "deep_sea_stochastic"):
        if not rest.isdigit():
            raise ValueError(f"environment {name!r}: deep_sea needs a size, e.g. deep_sea/10")
        return Made(name, "deep_sea", DeepSea(int(rest), stochastic=family == "deep_sea_stochastic"), None)
    if family == "minatar":
        if rest not in GAMES:
            raise ValueError(f"environment {name!r} does not exist{_nearest(name, [f'minatar/{game}' for game in GAMES])}")
        return Made(name, "minatar", MinAtar(rest), None)
    if family == "atari":
        game = rom_name(name)
        return Made(f"atari/{game}", "atari", None, None, game)
    if family == "gym" and rest:
        try:
            gymnasium.spec(rest)
        except gymnasium.error.Error as error:
            raise ValueError(f"environment {name!r}: {error}{_nearest(rest, list(gymnasium.registry))}") from error
        return Made(name, "gym", None, maker(rest))
    known = [*available(), *(f"gym/{name}" for name in gymnasium.registry)]
    raise ValueError(f"environment {name!r} does not exist{_nearest(name, known)}; sbm envs lists them")


def _nearest(name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known)
    return f"; {hint}" if hint else ""
