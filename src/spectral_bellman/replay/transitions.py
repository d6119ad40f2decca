"""A uniform replay of transitions that lives on the device and holds each observation once.

Every environment has a ring of its own. The slot after a transition always holds its true next observation: the next transition's
own observation, or, where the episode was truncated, the last observation on a slot that is never sampled. A terminal transition
has discount 0, so what follows it does not matter and costs no slot.

A replay of frames (``stack`` > 0) holds one frame a slot, and makes the observation of the last ``stack`` frames when it is
sampled: frames from before the episode began are zeros.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey

REDRAWS = 3


class Transition(NamedTuple):
    """s_tm1, a_tm1, r_t, discount_t, s_t: arrays of JAX, or of NumPy on the way to it, with any leading axes."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    """0 where the episode terminated, else 1: the agent multiplies by its γ."""
    behaviour_prob: Any
    next_observation: Any


class Replay(eqx.Module):
    """N rings of C slots: slot ``written % C`` is where the next transition goes, and holds the current observation."""

    observation: Array
    """(N, C, …), a single frame where ``stack`` > 0."""
    first: Bool[Array, "N C"]
    """Whether the slot's observation begins an episode."""
    action: Int[Array, "N C"]
    reward: Float[Array, "N C"]
    discount: Float[Array, "N C"]
    behaviour_prob: Float[Array, "N C"]
    whole: Bool[Array, "N C"]
    """Whether the slot holds a transition, and not only an observation."""
    written: Int[Array, " N"]
    """Slots written since the beginning."""
    stack: int = eqx.field(static=True)
    """Frames in an observation; 0 where a slot holds the observation itself."""

    @property
    def head(self) -> Int[Array, " N"]:
        """The slot that the next transition goes to."""
        return self.written % self.whole.shape[1]

    @property
    def size(self) -> Int[Array, " N"]:
        """Slots before the head that can be sampled: all but those that the stack of the oldest reaches back to."""
        return jnp.minimum(self.written, self.whole.shape[1] - 1 - max(self.stack - 1, 0))


def init_replay(frame: jax.ShapeDtypeStruct, num_envs: int, capacity: int, round_steps: int, stack: int = 0) -> Replay:
    """An empty replay of at least ``capacity`` transitions over all environments together; ``frame`` is what a slot holds."""
    # One slot more for the current observation, and those before the oldest transition that its stack reaches back to.
    slots = -(-capacity // num_envs) + 1 + max(stack - 1, 0)
    if slots < 2 * round_steps + 2:
        raise ValueError(
            f"a replay of {capacity:,} transitions is {-(-capacity // num_envs):,} for each of {num_envs} environments, too few "
            f"for rounds of {round_steps} steps: raise --replay-capacity to {num_envs * (2 * round_steps + 1):,} or more"
        )
    shape = (num_envs, slots)
    return Replay(
        observation=jnp.zeros((*shape, *frame.shape), frame.dtype),
        first=jnp.zeros(shape, bool),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.zeros(shape),
        discount=jnp.zeros(shape),
        behaviour_prob=jnp.zeros(shape),
        whole=jnp.zeros(shape, bool),
        written=jnp.zeros(num_envs, jnp.int32),
        stack=stack,
    )


def add(replay: Replay, steps: Transition, truncated: Bool[Array, "T n"], first: Bool[Array, "T n"], start: int = 0) -> Replay:
    """Append T steps of n environments, whose observations are single frames where the replay stacks them.

    Args:
      replay: where to.
      steps: leaves are (T, n, …).
      truncated: the episode was cut after the step.
      first: the step's observation begins an episode.
      start: the first of these environments; the others follow it.
    """
    length, num_envs = truncated.shape
    slots = replay.whole.shape[1]
    advance = 1 + truncated.astype(jnp.int32)
    offset = jnp.cumsum(advance, axis=0)
    slot = (replay.head[None, start : start + num_envs] + offset - advance) % slots
    envs = jnp.broadcast_to(jnp.arange(start, start + num_envs), slot.shape)
    # Where a next observation must be kept: after a truncated step, and after the last one. Other rows go past the end, each to a
    # place of its own: indices that are known to differ need no order, and can be written at once.
    keep = truncated.at[-1].set(True)
    after = jnp.where(keep, (slot + 1) % slots, slots + jnp.arange(length)[:, None])

    def put(ring: Array, values: Array, slot: Array = slot) -> Array:
        return ring.at[envs, slot].set(values.astype(ring.dtype), mode="drop", unique_indices=True)

    return Replay(
        observation=put(put(replay.observation, steps.observation), steps.next_observation, after),
        first=put(put(replay.first, first), jnp.zeros_like(first), after),
        action=put(replay.action, steps.action),
        reward=put(replay.reward, steps.reward),
        discount=put(replay.discount, steps.discount),
        behaviour_prob=put(replay.behaviour_prob, steps.behaviour_prob),
        whole=put(put(replay.whole, jnp.ones_like(truncated)), jnp.zeros_like(truncated), after),
        written=replay.written.at[start : start + num_envs].add(offset[-1]),
        stack=replay.stack,
    )


def sample(replay: Replay, key: RandomKey, shape: tuple[int, ...]) -> Transition:
    """Transitions drawn uniformly, with replacement."""
    return _take(replay, *_draw(replay, key, shape))


class Rows(NamedTuple):
    """Transitions that stand for the whole replay, each counted ``weight`` times."""

    transitions: Transition
    weight: Float[Array, " n"]
    slot: Int[Array, " n"]
    """A number that belongs to the transition, the same in every round until it is overwritten."""


def rows(replay: Replay, key: RandomKey, limit: int) -> Rows:
    """The whole replay if it has at most ``limit`` slots, else ``limit`` uniform draws weighted by (transitions held) / limit."""
    num_envs, slots = replay.whole.shape
    if num_envs * slots <= limit:
        env, slot = (index.ravel() for index in jnp.indices((num_envs, slots), dtype=jnp.int32))
        weight = _held(replay).ravel().astype(jnp.float32)
    else:
        env, slot = _draw(replay, key, (limit,))
        weight = jnp.full(limit, count(replay) / limit)
    return Rows(_take(replay, env, slot), weight, env * slots + slot)


def count(replay: Replay) -> Float[Array, ""]:
    """How many transitions are held."""
    return jnp.sum(_held(replay)).astype(jnp.float32)


def _held(replay: Replay) -> Bool[Array, "N C"]:
    """The slots that can be sampled."""
    slots = replay.whole.shape[1]
    back = (replay.head[:, None] - 1 - jnp.arange(slots)[None]) % slots
    return replay.whole & (back < replay.size[:, None])


def _draw(replay: Replay, key: RandomKey, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Environment and slot of uniform draws; a slot that only holds a last observation is drawn again."""
    num_envs, slots = replay.whole.shape
    env_key, slot_key = jax.random.split(key)
    env = jax.random.randint(env_key, (REDRAWS, *shape), 0, num_envs)
    size, head = replay.size[env], replay.head[env]
    back = (jax.random.uniform(slot_key, env.shape) * size.astype(jnp.float32)).astype(jnp.int32)
    slot = (head - 1 - jnp.minimum(back, size - 1)) % slots
    whole = replay.whole[env, slot]
    first = jnp.argmax(whole, axis=0, keepdims=True)
    env, slot = (jnp.take_along_axis(x, first, axis=0)[0] for x in (env, slot))
    # No whole slot among the draws: its neighbours are, the last step before it and the first after.
    before = (slot - 1) % slots
    neighbour = jnp.where(replay.whole[env, before], before, (slot + 1) % slots)
    return env, jnp.where(jnp.any(whole, axis=0), slot, neighbour)


def _take(replay: Replay, env: Array, slot: Array) -> Transition:
    slots = replay.whole.shape[1]
    if replay.stack:
        # s and s' share all frames but two: the frames before the slot, its own, and the next.
        offsets = jnp.arange(1 - replay.stack, 2).reshape(*(1,) * slot.ndim, -1)
        back = (slot[..., None] + offsets) % slots
        frames = replay.observation[env[..., None], back]
        first = replay.first[env[..., None], back]
        observation = _blank_before(frames[..., :-1, :, :], first[..., :-1])
        following = _blank_before(frames[..., 1:, :, :], first[..., 1:])
    else:
        observation, following = replay.observation[env, slot], replay.observation[env, (slot + 1) % slots]
    return Transition(
        observation=observation,
        action=replay.action[env, slot],
        reward=replay.reward[env, slot],
        discount=replay.discount[env, slot],
        behaviour_prob=replay.behaviour_prob[env, slot],
        next_observation=following,
    )


def _blank_before(frames: Array, first: Bool[Array, "... stack"]) -> Array:
    """Frames, oldest first, with zeros for those from before the newest frame's episode."""
    # A frame is of an older episode if one of those after it begins an episode.
    first = first.astype(jnp.int32)
    after = jnp.flip(jnp.cumsum(jnp.flip(first, -1), axis=-1), -1) - first
    return jnp.where((after > 0)[..., None, None], jnp.zeros((), frames.dtype), frames)


def push_frame(stack: Array, frame: Array, first: Bool[Array, " N"]) -> Array:
    """Observations (N, stack, …) after one more frame (N, …); where an episode begins, the frames before it are zeros."""
    older = jnp.where(first.reshape(-1, *(1,) * (stack.ndim - 1)), jnp.zeros((), stack.dtype), stack[:, 1:])
    return jnp.concatenate([older, frame[:, None]], axis=1)
