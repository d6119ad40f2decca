"""MinAtar (Young and Tian 2019) as pgx has it in JAX.

The five games have sticky actions, and all six actions each. As "minatar_hidden/GAME" a game hides
some of its frames.
"""

import colorsys
import contextlib
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8

from spectral_bellman._arrays import RandomKey
from spectral_bellman.environments.api import EnvironmentSpec, Family, ScoreScale, Step, nearest
from spectral_bellman.environments.hidden import Hidden, HiddenFrames
from spectral_bellman.scores import MINATAR

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtarState(NamedTuple):
    """A game and how long it has lasted."""

    game: Any
    """The state of pgx, without the fields that no game reads: those are None."""
    time: Int[Array, ""]
    """The number of steps taken."""


@dataclass(frozen=True)
class MinAtar:
    """A game of MinAtar, cut after ``max_steps``.

    With probability 0.1 the last action is taken again instead of the given one. The observation is
    (10, 10, channels), with one channel for each kind of object. An end by the rules of the game is
    ``terminated``; the 2501 steps of freeway's clock are such an end.
    """

    game: str
    max_steps: int = 5_000
    _pgx: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.game not in GAMES:
            raise ValueError(
                f"MinAtar: there is no game {self.game!r}; choose one of {', '.join(GAMES)}"
            )
        if self.max_steps < 1:
            raise ValueError(
                f"MinAtar: max_steps is {self.max_steps}; an episode takes at least 1 step"
            )
        # The module makes arrays when it is imported. They must not be traced if that happens
        # inside jit.
        with jax.ensure_compile_time_eval(), _lenient():
            try:
                module = importlib.import_module(f"pgx.minatar.{self.game}")
            except ModuleNotFoundError as error:
                raise ImportError(
                    "MinAtar needs pgx, which is not installed: "
                    "pip install 'spectral_bellman[minatar]'"
                ) from error
            name = "MinAtar" + self.game.title().replace("_", "")
            # The class itself, because pgx.make takes neither option.
            game = getattr(module, name)(use_minimal_action_set=False, sticky_action_prob=0.1)
        object.__setattr__(self, "_pgx", game)

    @property
    def num_actions(self) -> int:
        """Nothing, left, up, right, down, fire."""
        return 6

    @functools.cached_property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The screen, true where there is an object of the channel's kind."""
        shape = jax.eval_shape(lambda: self.reset(jax.random.key(0))[1])
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype)

    def reset(self, key: RandomKey) -> tuple[MinAtarState, Bool[Array, "10 10 channels"]]:
        """A new game."""
        with _lenient():
            game = self._pgx._init(key)
        return MinAtarState(_bare(game), jnp.zeros((), jnp.int32)), self._observe(game)

    def step(
        self, state: MinAtarState, action: Int[Array, ""], key: RandomKey
    ) -> tuple[MinAtarState, Step]:
        """One frame: up to the end of a game, the ``step`` of pgx with the same keys."""
        # Not pgx's ``step`` itself, which also stops games that are over (a select over the whole
        # state under vmap) and punishes illegal actions. Here the caller resets, and every action
        # is legal.
        with _lenient():
            game = self._pgx._step(state.game, action.astype(jnp.int32), key)
        time = state.time + 1
        truncated = (time >= self.max_steps) & ~game.terminated
        step = Step(self._observe(game), game.rewards[0], game.terminated, truncated)
        return MinAtarState(_bare(game), time), step

    def render(self, state: MinAtarState) -> UInt8[Array, "160 160 3"]:
        """One colour per channel; the lowest channel is on top. Channel 0, the player, is white."""
        screen = self._observe(state.game)
        others = screen.shape[-1] - 1
        hues = [colorsys.hsv_to_rgb(i / others, 0.7, 0.95) for i in range(others)]
        colours = jnp.array([(1.0, 1.0, 1.0), *hues, (0.0, 0.0, 0.0)]) * 255
        empty = ~screen.any(axis=-1, keepdims=True)
        lowest = jnp.concatenate([screen, empty], axis=-1).argmax(axis=-1)
        image = colours.astype(jnp.uint8)[lowest]
        return image.repeat(16, axis=0).repeat(16, axis=1)

    def _observe(self, game: Any) -> Bool[Array, "10 10 channels"]:
        with _lenient():
            return self._pgx._observe(game, None)


def _bare(game: Any) -> Any:
    """The state without the fields that games write and never read: loops need not carry them."""
    unread = (
        "current_player",
        "observation",
        "rewards",
        "terminated",
        "truncated",
        "legal_action_mask",
        "_step_count",
    )
    return game.replace(**dict.fromkeys(unread))


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    """Let pgx promote dtypes and ranks, which the caller may have forbidden."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.enable_x64(False),  # where pgx would mix up integers
    ):
        yield


def make(name: str) -> EnvironmentSpec:
    """The game of "minatar/GAME" or "minatar_hidden/GAME"."""
    prefix, _, game = name.partition("/")
    if game not in GAMES:
        known = [f"{prefix}/{game}" for prefix in FAMILY.prefixes for game in GAMES]
        raise ValueError(f"environment {name!r} does not exist{nearest(name, known)}")
    device = MinAtar(game)
    spec = EnvironmentSpec(name, FAMILY.name, device=device)
    if prefix == "minatar":
        return spec
    played = functools.partial(Hidden, device)
    return replace(spec, played=played).with_protocol(FAMILY.protocol)


def _bounds(name: str) -> tuple[float, float] | None:
    one, zero = MINATAR.get(name.partition("/")[2], (None, None))
    return None if one is None or zero is None else (zero, one)


FAMILY = Family(
    name="minatar",
    title="MinAtar",
    patterns={
        **{
            f"minatar/{game}": "MinAtar, six actions, sticky 0.1; needs the extra minatar"
            for game in GAMES
        },
        "minatar_hidden/GAME": "a game of MinAtar, of whose frames a share is hidden at random",
    },
    run={"num_envs": 128, "round_steps": 8, "replay_capacity": 100_000, "staleness": 1},
    # A GPU takes as long for a batch of 256 as for 512: so few steps with large batches.
    agent={
        "batch": 512,
        "updates": 16,
        "q_steps": 4,  # at 500k frames better than 12 and 8
        # For dqn better than 1e-8; chosen on Breakout and Asterix alone.
        "adam_epsilon": 1e-4,
    },
    make=make,
    names=lambda: [f"minatar_hidden/{game}" for game in GAMES],
    protocol=HiddenFrames(),
    score_scale=ScoreScale("normalised score", _bounds),
)
