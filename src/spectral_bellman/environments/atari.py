"""Atari 2600 games by the protocol of Machado et al. (2018), emulated in ``AtariVectorEnv``'s threads.

The emulator gives single frames; stacks of them are made where they are used. An episode that ends is followed by the next in the
same step, so that there is no step between two episodes.

To come back from a checkpoint, environments are given their seed again and replay their actions: the emulators' state cannot be
saved, but they are deterministic given both. Seeding loads the ROM, which takes as long as three hundred steps and holds up those
that step together. So the episodes of an environment form stretches: a new seed, made from (run seed, stream, environment,
stretch), is given at the first end of an episode after ``STRETCH`` steps, and what a checkpoint holds is the number of each stretch
and its actions. Longer stretches are faster to train and slower to come back to.
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from spectral_bellman.environments.gym import HostStep

NEVER = 10**9

STRETCH = 32_000
"""Agent steps after which an environment is given a new seed at the end of its episode."""


@dataclass(frozen=True)
class AtariProtocol:
    """How a game is played. The defaults are the paper's; every departure is one flag."""

    sticky_actions: float = 0.25
    """Probability that the emulator repeats its last action, frame by frame."""
    frame_skip: int = 4
    """Emulator frames in an agent step."""
    frame_stack: int = 4
    """Frames in an observation; before an episode's first frame they are zero."""
    max_pool: bool = True
    """Whether an observation is the maximum over the last two frames of its step."""
    screen_size: int = 84
    """Height and width of a frame, in grey."""
    full_actions: bool = False
    """All 18 actions instead of the game's own."""
    life_loss_terminal: bool = False
    """Whether nothing is expected after the loss of a life; the episode goes on."""
    fire_reset: bool = False
    """Press fire at the start of an episode."""
    noop_starts: int = 0
    """Begin episodes with a random number of no-ops, fewer than this."""
    episode_frames: int = 108_000
    """Emulator frames after which an episode is cut."""

    def __post_init__(self) -> None:
        if not 0 <= self.sticky_actions < 1:
            raise ValueError(f"--sticky-actions must be in [0, 1), got {self.sticky_actions}")
        for name in ("frame_skip", "frame_stack", "episode_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.screen_size < 36:
            raise ValueError(f"--screen-size must be at least 36, which the network reads, got {self.screen_size}")
        if self.noop_starts < 0:
            raise ValueError(f"--noop-starts must not be negative, got {self.noop_starts}")

    def __str__(self) -> str:
        """One line that says it all."""
        parts = [
            f"sticky actions {self.sticky_actions:g}",
            f"frame skip {self.frame_skip}" + (", max of the last two" if self.max_pool else ", no max-pooling"),
            f"{self.screen_size}×{self.screen_size} grey, {self.frame_stack} frames",
            "all 18 actions" if self.full_actions else "minimal actions",
            "terminal at the loss of a life" if self.life_loss_terminal else "no terminal at the loss of a life",
            "fire at the start" if self.fire_reset else "no fire at the start",
            f"fewer than {self.noop_starts} no-ops at the start" if self.noop_starts else "no no-ops",
            f"{self.episode_frames:,} frames an episode",
            "rewards as they are",
        ]
        return "; ".join(parts)

    def emulators(self, game: str, count: int, threads: int, **changes: Any) -> Any:
        """``count`` emulators of a game on ``threads`` threads: an ``AtariVectorEnv``."""
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
        options: dict[str, Any] = {
            "repeat_action_probability": self.sticky_actions,
            "frameskip": self.frame_skip,
            "maxpool": self.max_pool,
            "img_height": self.screen_size,
            "img_width": self.screen_size,
            "full_action_space": self.full_actions,
            "use_fire_reset": self.fire_reset,
            "noop_max": self.noop_starts,
            # Where the emulator cuts an episode, it does not look at the screen again: ``AtariEnvironments`` cuts it instead.
            "max_num_frames_per_episode": NEVER,
            "grayscale": True,
            "stack_num": 1,
            "reward_clipping": False,
            "episodic_life": False,
            "life_loss_info": False,
            "autoreset_mode": "SameStep",
        }
        return AtariVectorEnv(game, count, num_threads=threads, **(options | changes))


def seed_of(seed: int, stream: int, index: int, stretch: int) -> int:
    """The emulator's seed for a stretch of an environment's episodes."""
    return int(np.random.SeedSequence([seed, stream, index, stretch]).generate_state(1)[0] >> 1)


class AtariEnvironments:
    """Some environments of a run's seed, stepped together; each with seeds of its own."""

    def __init__(
        self, game: str, protocol: AtariProtocol, seed: int, indices: Sequence[int], threads: int, stream: int = 0
    ) -> None:
        """``stream`` sets seeds apart: 0 for training, 1 for evaluation."""
        self.protocol = protocol
        self.emulators: Any = protocol.emulators(game, len(indices), threads)
        self.observation = jax.ShapeDtypeStruct((protocol.screen_size,) * 2, np.uint8)
        self.stack = protocol.frame_stack
        self.num_actions = int(self.emulators.single_action_space.n)
        self._seeds = [(seed, stream, index) for index in indices]
        self._stretches = np.zeros(len(indices), int)
        self._actions = [bytearray() for _ in indices]
        self._lives = np.zeros(len(indices), np.int32)
        self._frames = np.zeros(len(indices), int)

    def __len__(self) -> int:
        return len(self._seeds)

    def reset(self, stretch: int = 0) -> NDArray[np.uint8]:
        """Begin the first episode of a stretch in each."""
        self._stretches[:] = stretch
        return self._begin(np.ones(len(self), bool))

    def step(self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None) -> HostStep:
        """One agent step of each, running or not: the emulators go together; an episode that ends is followed by the next."""
        for history, action in zip(self._actions, actions.tolist(), strict=True):
            history.append(action)
        observation, reward, over, cut, lost, following = self._advance(actions)
        first = over | cut
        worn = first & np.array([len(history) >= STRETCH for history in self._actions]) if first.any() else first
        if worn.any():
            self._stretches += worn
            following = self._begin(worn)
        return HostStep(observation, reward, over | lost, cut & ~lost, following, first)

    def _advance(self, actions: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], ...]:
        """A step of the emulators, the episodes that are long enough cut: s_t, reward, over, cut, life lost, what comes after."""
        frames, reward, over, _, info = self.emulators.step(np.asarray(actions, np.int32))
        observation = following = frames[:, 0]
        if over.any():
            observation = np.where(over[:, None, None], info["final_obs"][:, 0], following)
        lost = (info["lives"] < self._lives) & ~over & self.protocol.life_loss_terminal
        self._frames = np.where(over, 0, self._frames + self.protocol.frame_skip)
        self._lives = info["lives"]
        cut = self._frames >= self.protocol.episode_frames
        if cut.any():
            frames, info = self.emulators.reset(options={"reset_mask": cut})
            following, self._lives, self._frames = frames[:, 0], info["lives"], np.where(cut, 0, self._frames)
        return observation, reward.astype(np.float32), over, cut, lost, following

    def save(self) -> list[dict[str, Any]]:
        """What ``restore`` needs: the stretch of each environment and its actions so far."""
        return [
            {"stretch": int(stretch), "actions": base64.b85encode(zlib.compress(bytes(history), 1)).decode()}
            for stretch, history in zip(self._stretches, self._actions, strict=True)
        ]

    def restore(self, saved: list[dict[str, Any]], progress: Callable[[float], None] = lambda _: None) -> NDArray[np.uint8]:
        """Bring every environment back by its seed and its actions; the frames they show then."""
        self._stretches = np.array([item["stretch"] for item in saved])
        histories = [bytearray(zlib.decompress(base64.b85decode(item["actions"]))) for item in saved]
        # All end together, so those with fewer actions begin later; until then they do nothing that counts.
        longest = max(len(history) for history in histories)
        starts = np.array([longest - len(history) for history in histories])
        frames = self._begin(np.ones(len(self), bool))
        for time in range(longest):
            if time and (starts == time).any():
                self._begin(starts == time)
            step = [history[time - start] if time >= start else 0 for history, start in zip(histories, starts, strict=True)]
            frames = self._advance(np.array(step, np.int32))[-1]
            progress(1 / longest)
        if (starts == longest).any():
            frames = self._begin(starts == longest)
        self._actions = histories
        return frames

    def close(self) -> None:
        """Stop the threads."""
        self.emulators = None

    def _begin(self, which: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """A new seed for some environments; the frames of all."""
        chosen = np.flatnonzero(which)
        seeds = np.array([seed_of(*self._seeds[i], int(self._stretches[i])) for i in chosen])
        for i in chosen:
            self._actions[i] = bytearray()
        frames, info = self.emulators.reset(seed=seeds, options={"reset_mask": which})
        self._lives, self._frames = info["lives"], np.where(which, 0, self._frames)
        return frames[:, 0]
