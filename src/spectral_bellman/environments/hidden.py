"""Games that hide some of their frames: tasks that need memory, or several frames at once."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from spectral_bellman._arrays import RandomKey
from spectral_bellman.environments.api import Environment, Step


@dataclass(frozen=True)
class HiddenFrames:
    """How frames are hidden and stacked."""

    hidden_frames: float = 0.5
    """Probability that a frame is blank, drawn anew for every frame."""
    frame_stack: int = 1
    """Frames in an observation; before an episode's first frame they are blank."""

    def __post_init__(self) -> None:
        if not 0 <= self.hidden_frames < 1:
            raise ValueError(f"--hidden-frames must be in [0, 1), got {self.hidden_frames}")
        if self.frame_stack < 1:
            raise ValueError(f"--frame-stack must be at least 1, got {self.frame_stack}")

    def __str__(self) -> str:
        """One line with every setting."""
        return f"{self.hidden_frames:.0%} of the frames hidden, {self.frame_stack} per observation"

    @property
    def frame_skip(self) -> int:
        """Frames in an agent step."""
        return 1


class HiddenState(NamedTuple):
    """A game, and the older frames of the newest observation."""

    game: Any
    older: Array
    """(10, 10, channels · (frame_stack − 1))"""


@dataclass(frozen=True)
class Hidden:
    """A game whose frames are blank at random, as in Hausknecht and Stone (2015).

    Only the observation changes: the game goes on behind a blank frame. An observation is the last
    ``frame_stack`` frames, oldest first, along the last axis.
    """

    game: Environment
    protocol: HiddenFrames = HiddenFrames()

    @property
    def num_actions(self) -> int:
        """The game's."""
        return self.game.num_actions

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Frames along the last axis."""
        frame = self.game.observation
        channels = frame.shape[-1] * self.protocol.frame_stack
        return jax.ShapeDtypeStruct((*frame.shape[:-1], channels), frame.dtype)

    def reset(self, key: RandomKey) -> tuple[HiddenState, Array]:
        """A new game, with blank frames before it."""
        game_key, hide_key = jax.random.split(key)
        game, frame = self.game.reset(game_key)
        shape = self.observation
        channels = shape.shape[-1] - frame.shape[-1]
        blank = jnp.zeros((*shape.shape[:-1], channels), shape.dtype)
        return self._after(game, blank, frame, hide_key)

    def step(
        self, state: HiddenState, action: Int[Array, ""], key: RandomKey
    ) -> tuple[HiddenState, Step]:
        """One step of the game."""
        game_key, hide_key = jax.random.split(key)
        game, step = self.game.step(state.game, action, game_key)
        after, observation = self._after(game, state.older, step.observation, hide_key)
        return after, step._replace(observation=observation)

    def render(self, state: HiddenState) -> UInt8[Array, "height width 3"]:
        """The game itself, with nothing hidden."""
        game: Any = self.game
        return game.render(state.game)

    def _after(
        self, game: Any, older: Array, frame: Array, key: RandomKey
    ) -> tuple[HiddenState, Array]:
        hidden = jax.random.bernoulli(key, self.protocol.hidden_frames)
        shown = jnp.where(hidden, jnp.zeros_like(frame), frame)
        observation = jnp.concatenate([older, shown], axis=-1)
        return HiddenState(game, observation[..., frame.shape[-1] :]), observation
