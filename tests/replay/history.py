"""Random episodes in a ring, and beside it what a Python list remembers of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.replay import (
    Ring,
    Rollout,
    add,
    init_ring,
    interrupt,
    prioritised,
    rows,
    sample,
)

EXTRAS = {
    "prob": jax.ShapeDtypeStruct((), jnp.float32),
    "carry": (jax.ShapeDtypeStruct((2,), jnp.float32),),
}
VECTOR = jax.ShapeDtypeStruct((2,), jnp.float32)
FRAME = jax.ShapeDtypeStruct((2, 3), jnp.uint8)

# Compiled once for all tests.
store = jax.jit(add, static_argnames="start")
leave = jax.jit(interrupt)
starts_of = jax.jit(lambda window, ring: window.starts(ring), static_argnums=0)
take_of = jax.jit(lambda window, *given: window.take(*given), static_argnums=0)
sample_jitted = jax.jit(sample, static_argnums=(1, 3))
rows_jitted = jax.jit(rows, static_argnums=(1, 3))
prioritised_jitted = jax.jit(prioritised, static_argnums=(1, 4))


class Step(NamedTuple):
    """A step as it was played. ``episode`` and ``time`` say which one it is."""

    observation: np.ndarray
    """With its stack of frames."""
    next_observation: np.ndarray
    action: int
    reward: float
    discount: float
    extras: Any
    truncated: bool
    env: int
    episode: int
    time: int

    @property
    def ends(self) -> bool:
        return self.truncated or self.discount == 0


class History:
    """Plays N environments with random episodes, fills a ring, and knows what is in each slot."""

    def __init__(
        self,
        seed: int,
        num_envs: int = 3,
        capacity: int = 60,
        round_steps: int = 4,
        *,
        ending: float = 0.1,
        truncation: float = 0.1,
        stack: int = 0,
    ) -> None:
        self.rng, self.num_envs, self.stack = np.random.default_rng(seed), num_envs, stack
        self.ending, self.truncation = ending, truncation
        self.spec = FRAME if stack else VECTOR
        self.ring: Ring = init_ring(self.spec, EXTRAS, num_envs, capacity, round_steps, stack)
        self.steps: list[Step] = []
        self.slots: list[list[Step | None]] = [[] for _ in range(num_envs)]
        """All slots that each environment ever wrote; None for a slot without a step."""
        self._episode = [[self._picture()] for _ in range(num_envs)]
        """The pictures of the episode under way."""
        self._number = list(range(num_envs))

    def play(self, rounds: int, steps: int = 4) -> "History":
        for _ in range(rounds):
            self._round(steps)
        return self

    def leave(self, *envs: int) -> "History":
        """Give up the episodes under way in some environments: they are cut where they stand."""
        which = [env in envs for env in range(self.num_envs)]
        self.ring = leave(self.ring, jnp.array(which))
        for env in envs:
            if self.slots[env] and (last := self.slots[env][-1]) is not None and not last.ends:
                cut = last._replace(truncated=True)
                place = next(i for i, step in enumerate(self.steps) if step is last)
                self.slots[env][-1] = self.steps[place] = cut
            self.slots[env].append(None)
            self._episode[env] = [self._picture()]
            self._number[env] += self.num_envs
        return self

    def step(self, env: int, slot: int) -> Step | None:
        """The step in a slot that can be sampled, found from the list alone."""
        slots, capacity = self.slots[env], self.ring.capacity
        numbers = range(len(slots))[-(capacity - 1 - max(self.stack - 1, 0)) :]
        found = [slots[number] for number in numbers if number % capacity == slot]
        return found[0] if found else None

    def held(self) -> list[tuple[int, int, Step]]:
        """(environment, slot, step) of everything that can be sampled."""
        pairs = [(env, slot) for env in range(self.num_envs) for slot in range(self.ring.capacity)]
        return [(*pair, step) for pair in pairs if (step := self.step(*pair)) is not None]

    def _picture(self) -> np.ndarray:
        if self.stack:
            return self.rng.integers(1, 256, self.spec.shape).astype(np.uint8)
        return self.rng.normal(size=self.spec.shape).astype(np.float32)

    def _seen(self, env: int) -> np.ndarray:
        pictures = self._episode[env]
        if not self.stack:
            return pictures[-1]
        blank = [np.zeros_like(pictures[0])] * self.stack
        return np.stack([*blank, *pictures][-self.stack :])

    def _round(self, length: int) -> None:
        rows = []
        for _ in range(length):
            for env in range(self.num_envs):
                rows.append(self._one(env))
        leaves = [np.stack(x).reshape(length, self.num_envs, *x[0].shape) for x in _columns(rows)]
        rollout = jax.tree.unflatten(jax.tree.structure(rows[0]), leaves)
        # Two groups of environments, one after the other.
        for start, stop in ((0, 1), (1, self.num_envs)):
            part = jax.tree.map(lambda leaf, a=start, b=stop: leaf[:, a:b], rollout)
            self.ring = store(self.ring, part, start=start)

    def _one(self, env: int) -> Rollout:
        rng, pictures = self.rng, self._episode[env]
        frame, first, observation = pictures[-1], len(pictures) == 1, self._seen(env)
        draw = rng.random()
        truncated = draw < self.truncation
        discount = 0.0 if self.truncation <= draw < self.truncation + self.ending else 1.0
        carry = rng.normal(size=2).astype(np.float32)
        extras = {"prob": np.float32(rng.random()), "carry": (carry,)}
        action, reward = int(rng.integers(1, 100)), np.float32(rng.normal())
        pictures.append(self._picture())
        step = Step(
            observation=observation,
            next_observation=self._seen(env),
            action=action,
            reward=float(reward),
            discount=discount,
            extras=extras,
            truncated=truncated,
            env=env,
            episode=self._number[env],
            time=len(pictures) - 2,
        )
        self.steps.append(step)
        self.slots[env] += [step, None] if truncated else [step]
        last = pictures[-1]
        if step.ends:
            self._episode[env] = [self._picture()]
            self._number[env] += self.num_envs
        return Rollout(
            observation=frame,
            action=np.int32(action),
            reward=reward,
            discount=np.float32(discount),
            first=np.bool_(first),
            truncated=np.bool_(truncated),
            last_observation=last,
            extras=extras,
        )


def _columns(rows: list[Rollout]) -> list[list[Any]]:
    return [[np.asarray(x) for x in leaf] for leaf in zip(*map(jax.tree.leaves, rows), strict=True)]
