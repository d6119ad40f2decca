"""Atari 2600 games by the protocol of Machado et al. (2018), emulated in ``AtariVectorEnv``.

The emulator gives single frames; whoever needs stacks of frames makes them. An episode that ends is
followed by the next in the same step, so that no step lies between two episodes.

The state of an emulator cannot be saved, but an emulator is deterministic given its seed and its
actions. So a run comes back from a checkpoint by seeding the emulators again and replaying their
actions. Seeding loads the ROM, which takes as long as three hundred steps and holds up all
environments that step together. Therefore the episodes of an environment form blocks: all episodes
of a block are played from one seed. At the first end of an episode after ``BLOCK_STEPS`` steps the
next block begins, with a seed made from (run seed, stream, environment, block). A checkpoint holds
the number of each block and its actions. Longer blocks are faster to train and slower to restore.
"""

import base64
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from spectral_bellman._names import flag_of
from spectral_bellman.environments.api import (
    TRAINING,
    Changes,
    EnvironmentSpec,
    Family,
    HostStep,
    RenderedStep,
    ScoreScale,
    block_seed,
)
from spectral_bellman.scores import ATARI_EXPLORE, HUMAN, RANDOM, rom_name

NEVER = 10**9

BLOCK_STEPS = 32_000
"""Agent steps after which an environment is given a new seed at the end of its episode."""

SCREEN = (210, 160)
"""Height and width of an Atari screen."""


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
    """Whether the loss of a life has value zero, as an end has; the episode goes on."""
    fire_reset: bool = False
    """Press fire at the start of an episode."""
    noop_starts: int = 0
    """Begin episodes with a random number of no-ops, fewer than this."""
    episode_frames: int = 108_000
    """Emulator frames after which an episode is cut."""

    def __post_init__(self) -> None:
        def require(name: str, holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"{flag_of(name)} must {what}, got {getattr(self, name)}")

        require("sticky_actions", 0 <= self.sticky_actions < 1, "be in [0, 1)")
        for name in ("frame_skip", "frame_stack", "episode_frames"):
            require(name, getattr(self, name) >= 1, "be at least 1")
        smallest = "be at least 36, the least that the network can read"
        require("screen_size", self.screen_size >= 36, smallest)
        require("noop_starts", self.noop_starts >= 0, "not be negative")

    def __str__(self) -> str:
        """One line with every setting."""
        pooling = ", max of the last two" if self.max_pool else ", no max-pooling"
        no = "" if self.life_loss_terminal else "no "
        noops = f"fewer than {self.noop_starts} no-ops at the start"
        parts = [
            f"sticky actions {self.sticky_actions:g}",
            f"frame skip {self.frame_skip}{pooling}",
            f"{self.screen_size}×{self.screen_size} grey, {self.frame_stack} frames",
            "all 18 actions" if self.full_actions else "minimal actions",
            f"{no}terminal at the loss of a life",
            "fire at the start" if self.fire_reset else "no fire at the start",
            noops if self.noop_starts else "no no-ops",
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
            # Where the emulator cuts an episode, it does not look at the screen again:
            # ``AtariEnvironments`` cuts it instead.
            "max_num_frames_per_episode": NEVER,
            "grayscale": True,
            "stack_num": 1,
            "reward_clipping": False,
            "episodic_life": False,
            "life_loss_info": False,
            "autoreset_mode": "SameStep",
        }
        return AtariVectorEnv(game, count, num_threads=threads, **(options | changes))


def emulator_seed(seed: int, stream: int, index: int, block: int) -> int:
    """The seed, below 2³¹, that the emulator is given for a block of episodes."""
    return block_seed(seed, stream, index, block) >> 1


class AtariEnvironments:
    """The environments ``indices`` of a run's seed, stepped together by ``threads`` threads."""

    def __init__(
        self,
        game: str,
        protocol: AtariProtocol,
        seed: int,
        indices: Sequence[int],
        threads: int,
        stream: int = TRAINING,
    ) -> None:
        self.protocol = protocol
        self._emulators: Any = protocol.emulators(game, len(indices), threads)
        self.observation = jax.ShapeDtypeStruct((protocol.screen_size,) * 2, np.uint8)
        self.stack = protocol.frame_stack
        self.num_actions = int(self._emulators.single_action_space.n)
        self._seeds = [(seed, stream, index) for index in indices]
        self._blocks = np.zeros(len(indices), int)
        self._actions = [bytearray() for _ in indices]
        self._lives = np.zeros(len(indices), np.int32)
        self._frames = np.zeros(len(indices), int)

    def __len__(self) -> int:
        return len(self._seeds)

    def reset(self, block: int = 0) -> NDArray[np.uint8]:
        """Begin the first episode of a block in each environment."""
        self._blocks[:] = block
        return self._begin(np.ones(len(self), bool))

    def step(
        self, actions: NDArray[np.integer[Any]], running: NDArray[np.bool_] | None = None
    ) -> HostStep:
        """One agent step of each, whether or not it is ``running``: the emulators go together."""
        for history, action in zip(self._actions, actions.tolist(), strict=True):
            history.append(action)
        observation, reward, over, cut, life_lost, next_observation = self._advance(actions)
        first = over | cut
        if first.any():
            long = np.array([len(history) >= BLOCK_STEPS for history in self._actions])
            if (renewed := first & long).any():
                self._blocks += renewed
                next_observation = self._begin(renewed)
        terminated, truncated = over | life_lost, cut & ~life_lost
        return HostStep(observation, reward, terminated, truncated, next_observation, first)

    def send(self, actions: NDArray[np.integer[Any]]) -> None:
        """Start a step of the emulators, without the bookkeeping of ``step``."""
        self._emulators.send(np.asarray(actions, np.int32))

    def recv(self) -> None:
        """Wait until that step has ended."""
        self._emulators.recv()

    def _advance(self, actions: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], ...]:
        """A step of the emulators, in which episodes that are long enough are cut.

        Returns s_t, the reward, over, cut, whether a life was lost, and the next observation.
        """
        frames, reward, over, _, info = self._emulators.step(np.asarray(actions, np.int32))
        observation = next_observation = frames[:, 0]
        if over.any():
            observation = np.where(over[:, None, None], info["final_obs"][:, 0], next_observation)
        life_lost = (info["lives"] < self._lives) & ~over & self.protocol.life_loss_terminal
        self._frames = np.where(over, 0, self._frames + self.protocol.frame_skip)
        self._lives = info["lives"]
        cut = self._frames >= self.protocol.episode_frames
        if cut.any():
            frames, info = self._emulators.reset(options={"reset_mask": cut})
            next_observation, self._lives = frames[:, 0], info["lives"]
            self._frames = np.where(cut, 0, self._frames)
        return observation, reward.astype(np.float32), over, cut, life_lost, next_observation

    def save(self) -> list[dict[str, Any]]:
        """The block of each environment and its actions so far."""
        return [
            {
                "block": int(block),
                "actions": base64.b85encode(zlib.compress(bytes(history), 1)).decode(),
            }
            for block, history in zip(self._blocks, self._actions, strict=True)
        ]

    def restore(
        self, saved: list[dict[str, Any]], progress: Callable[[float], None] = lambda _: None
    ) -> NDArray[np.uint8]:
        """Bring every environment back by its seed and its actions; the frames then."""
        self._blocks = np.array([item["block"] for item in saved])
        histories = [
            bytearray(zlib.decompress(base64.b85decode(item["actions"]))) for item in saved
        ]
        # All end together, so those with fewer actions begin later; the steps that the emulators
        # take before that do not matter.
        longest = max(len(history) for history in histories)
        starts = np.array([longest - len(history) for history in histories])
        frames = self._begin(np.ones(len(self), bool))
        for time in range(longest):
            if time and (starts == time).any():
                self._begin(starts == time)
            actions = [
                history[time - start] if time >= start else 0
                for history, start in zip(histories, starts, strict=True)
            ]
            frames = self._advance(np.array(actions, np.int32))[-1]
            progress(1 / longest)
        if (starts == longest).any():
            frames = self._begin(starts == longest)
        self._actions = histories
        return frames

    def close(self) -> None:
        """Stop the threads."""
        self._emulators = None

    def _begin(self, which: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Seed some environments for the block they are in; the frames of all."""
        chosen = np.flatnonzero(which)
        seeds = np.array([emulator_seed(*self._seeds[i], int(self._blocks[i])) for i in chosen])
        for i in chosen:
            self._actions[i] = bytearray()
        frames, info = self._emulators.reset(seed=seeds, options={"reset_mask": which})
        self._lives, self._frames = info["lives"], np.where(which, 0, self._frames)
        return frames[:, 0]


def make(name: str) -> EnvironmentSpec:
    """The game of a name; spelling, case and punctuation as ``scores.rom_name`` takes them."""
    game = rom_name(name)
    return EnvironmentSpec(
        f"atari/{game}",
        FAMILY.name,
        opener=functools.partial(_open, game),
        replayer=functools.partial(_replay, game),
        protocol=FAMILY.protocol,
    )


def _open(
    game: str,
    protocol: AtariProtocol,
    seed: int,
    indices: Sequence[int],
    stream: int,
    threads: int,
) -> AtariEnvironments:
    return AtariEnvironments(game, protocol, seed, indices, threads, stream)


def _replay(
    game: str,
    protocol: AtariProtocol,
    seed: int,
    index: int,
    stream: int,
    block: int,
    actions: Sequence[int],
) -> Iterator[RenderedStep]:
    """An emulator with the same seed, in colour and at full size."""
    height, width = SCREEN
    emulator = protocol.emulators(game, 1, 1, grayscale=False, img_height=height, img_width=width)
    frames, _ = emulator.reset(seed=np.array([emulator_seed(seed, stream, index, block)]))
    yield RenderedStep(frames[0, 0], 0.0)
    for action in actions:
        frames, reward, over, _, info = emulator.step(np.array([action], np.int32))
        shown = info["final_obs"] if over[0] else frames
        yield RenderedStep(shown[0, 0], float(reward[0]))


def machine(backend: str, run: Mapping[str, Any], agent: Mapping[str, Any]) -> Changes:
    """On a CPU: fewer emulators and shorter rounds, at as many samples per agent step.

    A CPU computes faster in float32.
    """
    if backend != "cpu":
        return {}, {}
    num_envs = round_steps = 16
    steps, q_steps = run["num_envs"] * run["round_steps"] // num_envs, agent.get("q_steps", 0)
    # The shortest rounds that divide the steps, the gradient steps for θ̂ and the others evenly.
    whole = math.gcd(steps, agent["updates"] - q_steps, q_steps)
    rounds = max(n for n in range(1, steps // round_steps + 1) if whole % n == 0)
    changes: dict[str, Any] = {
        "updates": agent["updates"] // rounds,
        "q_steps": q_steps // rounds,
        "target_rounds": agent.get("target_rounds", 1) * rounds,
    }
    if "torso_precision" in agent:
        changes["torso_precision"] = "float32"
    return {"num_envs": num_envs, "round_steps": steps // rounds}, changes


def _human_scores(name: str) -> tuple[float, float] | None:
    game = name.partition("/")[2]
    return (RANDOM[game], HUMAN[game]) if game in HUMAN else None


FAMILY = Family(
    name="atari",
    title="Atari",
    patterns={
        "atari/GAME": "Atari 2600: the paper's 55 games and every other ROM of ale-py, "
        "e.g. atari/pong, atari/MontezumaRevenge"
    },
    run={
        "num_envs": 256,
        "groups": 2,
        "round_steps": 16,
        "dispatch_steps": 4,
        "replay_capacity": 1_000_000,
        "frames": 10_000_000,
        "eval_max_steps": 27_000,
        "staleness": 2,
    },
    agent={
        "features": 256,
        "batch": 256,
        "updates": 128,
        "q_steps": 32,
        "warmup_steps": 20_000,
        "epsilon_steps": 250_000,
        # For dqn on Boxing this is better than 1e-4 and 5e-4.
        "learning_rate": 2.5e-4,
        "theta_variance": 1e-4,
        # With unit norm, σ_exp alone moves Q by a seventh of the difference between actions: all
        # agents would act greedily from early on.
        "noise_scale": 100.0,
        "noise_anneal_steps": 250_000,
    },
    make=make,
    machine=machine,
    protocol=AtariProtocol(),
    frame_unit="frames (4 per agent step)",
    frames_per_second=60.0,
    film="mp4",
    steps_beside_python=True,
    score_scale=ScoreScale(
        "human-normalised score",
        _human_scores,
        ends=("random", "human"),
        subsets={"with sparse rewards": tuple(f"atari/{game}" for game in ATARI_EXPLORE)},
    ),
)
