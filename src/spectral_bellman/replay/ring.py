"""The storage of a replay: a ring of steps for each environment, on the device.

Each observation is stored once. The slot after a step holds the step's true next observation: the
observation of the next step, or, where the episode was truncated, the last observation of the
episode, on a slot that is never sampled. A terminal step has discount 0. Its next observation does
not matter and costs no slot.

Observations, actions and extras may be pytrees of arrays.

A ring with ``stack`` > 0 stores one frame per slot. The observation of the last ``stack`` frames is
made when it is sampled. Frames from before the episode are zeros in it.

``windows`` says what is read from a ring, and ``sampling`` how it is drawn.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

DISCRETE = jax.ShapeDtypeStruct((), jnp.int32)
"""The action of an environment with numbered actions."""
WRAP = 2**30
"""``Ring.written`` loses a multiple of C when it reaches this, and never overflows."""


class Rollout(NamedTuple):
    """T steps of N environments: arrays of JAX or of NumPy, (T, N, …)."""

    observation: Any
    """A single frame where the ring stacks frames."""
    action: Any
    reward: Any
    discount: Any
    """0 where the episode terminated, else 1. The agent multiplies by its γ."""
    first: Any
    """Whether the observation begins an episode."""
    truncated: Any
    """Whether the episode was cut after the step without having terminated."""
    last_observation: Any
    """The true observation after the step. Read after truncated steps and after the last."""
    extras: Any
    """A pytree that the agent chooses, such as {behaviour probability, recurrent state}."""


class Stored(NamedTuple):
    """What a ring stores of a step besides its observation: leaves (N, C, …)."""

    action: Any
    reward: Any
    discount: Any
    extras: Any


class Ring(eqx.Module):
    """N rings of C slots. Slot ``head`` holds the current observation, and gets the next step."""

    observation: Any
    """Leaves (N, C, …), single frames where ``stack`` > 0."""
    steps: Stored
    age: Int[Array, "N C"]
    """How many steps of the episode came before the slot's observation."""
    valid: Bool[Array, "N C"]
    """Whether the slot holds a step, and not only an observation."""
    written: Int[Array, " N"]
    """Slots written since the beginning, less a multiple of C once this has reached ``WRAP``."""
    stack: int = eqx.field(static=True)
    """Frames in an observation; 0 where a slot holds the whole observation."""

    @property
    def capacity(self) -> int:
        """C, the slots per environment."""
        return self.valid.shape[-1]

    @property
    def first(self) -> Bool[Array, "N C"]:
        """Whether the slot's observation begins an episode."""
        return self.age == 0

    @property
    def head(self) -> Int[Array, " N"]:
        """The slot that the next step goes to."""
        return self.written % self.capacity

    @property
    def size(self) -> Int[Array, " N"]:
        """Slots before the head that can be sampled; older ones serve the oldest stack."""
        return jnp.minimum(self.written, self.capacity - 1 - max(self.stack - 1, 0))

    @property
    def back(self) -> Int[Array, "N C"]:
        """How far each slot lies before the newest step: 0 for the newest, C - 1 for the head."""
        return (self.head[:, None] - 1 - jnp.arange(self.capacity)[None]) % self.capacity

    @property
    def held(self) -> Bool[Array, "N C"]:
        """Whether the slot holds a step that can be sampled."""
        return self.valid & (self.back < self.size[:, None])


def init_ring(
    observation: Any,
    extras: Any,
    num_envs: int,
    capacity: int,
    round_steps: int,
    stack: int = 0,
    action: Any = DISCRETE,
) -> Ring:
    """An empty ring.

    Args:
      observation: a pytree of ``jax.ShapeDtypeStruct``, what a slot holds: a single frame where
        ``stack`` > 0.
      extras: a pytree of ``jax.ShapeDtypeStruct``, the extras of one step of one environment.
      num_envs: N.
      capacity: steps that the rings hold together, at least.
      round_steps: the most steps per environment of one ``add``.
      stack: frames in an observation; 0 where a slot holds the whole observation.
      action: a pytree of ``jax.ShapeDtypeStruct``, the action of one environment.
    """
    # One slot more for the current observation, and slots for the older frames of the oldest stack.
    slots = -(-capacity // num_envs) + 1 + max(stack - 1, 0)
    if slots < 2 * round_steps + 2:
        raise ValueError(
            f"a replay of {capacity:,} transitions is {-(-capacity // num_envs):,} for each of "
            f"{num_envs} environments, too few for rounds of {round_steps} steps: "
            f"raise --replay-capacity to {num_envs * (2 * round_steps + 1):,} or more"
        )

    def zeros(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((num_envs, slots, *leaf.shape), leaf.dtype)

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return Ring(
        observation=jax.tree.map(zeros, observation),
        steps=jax.tree.map(zeros, Stored(action, scalar, scalar, extras)),
        age=zeros(DISCRETE),
        valid=jnp.zeros((num_envs, slots), bool),
        written=jnp.zeros(num_envs, jnp.int32),
        stack=stack,
    )


def interrupt(ring: Ring, which: Bool[Array, " N"]) -> Ring:
    """The ring of environments that leave their episodes unfinished, as if these were truncated.

    The slot with the current observation stays for the step before it, and is never sampled.
    """
    envs = jnp.arange(len(which))
    there = jnp.where(which, ring.head, ring.capacity)
    written = ring.written + jnp.asarray(which).astype(jnp.int32)
    return eqx.tree_at(
        lambda r: (r.valid, r.written),
        ring,
        (ring.valid.at[envs, there].set(False, mode="drop"), written),
    )


def add(ring: Ring, rollout: Rollout, start: int | Int[Array, ""] = 0) -> Ring:
    """The ring after T more steps of n environments, the first of which is ``start``."""
    first, truncated = jnp.asarray(rollout.first), jnp.asarray(rollout.truncated)
    length, num_envs = truncated.shape
    slots = ring.capacity
    head = jax.lax.dynamic_slice_in_dim(ring.head, start, num_envs)
    advance = 1 + truncated.astype(jnp.int32)
    offset = jnp.cumsum(advance, axis=0)
    slot = (head[None] + offset - advance) % slots
    envs = jnp.broadcast_to(start + jnp.arange(num_envs), slot.shape)
    # A next observation is stored after a truncated step, and after the last step. Other rows go
    # past the end, each to a place of its own: indices that are known to differ need no order, and
    # can be written at once.
    keep = truncated.at[-1].set(True)
    after = jnp.where(keep, (slot + 1) % slots, slots + jnp.arange(length)[:, None])

    time = jnp.broadcast_to(jnp.arange(length)[:, None], slot.shape)
    begun = jax.lax.cummax(jnp.where(first, time, -1), axis=0)
    age = jnp.where(begun < 0, ring.age[envs[0], head][None] + time, time - begun)

    def put(leaf: Array, values: Array, slot: Array = slot) -> Array:
        return leaf.at[envs, slot].set(
            jnp.asarray(values, leaf.dtype), mode="drop", unique_indices=True
        )

    def put_shown(leaf: Array, shown: Array, last: Array) -> Array:
        return put(put(leaf, shown), last, after)

    steps = Stored(rollout.action, rollout.reward, rollout.discount, rollout.extras)
    written = ring.written.at[envs[0]].add(offset[-1], unique_indices=True)
    return Ring(
        observation=jax.tree.map(
            put_shown, ring.observation, rollout.observation, rollout.last_observation
        ),
        steps=jax.tree.map(put, ring.steps, steps),
        age=put(put(ring.age, age), age + 1, after),
        valid=put(put(ring.valid, jnp.ones_like(truncated)), jnp.zeros_like(truncated), after),
        written=jnp.where(written < WRAP, written, written - WRAP // 2 // slots * slots),
        stack=ring.stack,
    )


def count(ring: Ring) -> Float[Array, ""]:
    """How many steps can be sampled."""
    return jnp.sum(ring.held).astype(jnp.float32)


def push_frame(stack: Array, frame: Array, first: Bool[Array, " N"]) -> Array:
    """Observations (N, stack, …) after one more frame (N, …).

    Where an episode begins, the frames before it are zeros.
    """
    older = jnp.where(
        first.reshape(-1, *(1,) * (stack.ndim - 1)), jnp.zeros((), stack.dtype), stack[:, 1:]
    )
    return jnp.concatenate([older, frame[:, None]], axis=1)


def clear_older(frames: Array, first: Bool[Array, "... stack"]) -> Array:
    """Stacks of frames (…, stack, …), oldest first, with zeros for frames of earlier episodes.

    The episode of a stack is the newest frame's.
    """
    # A frame is from an older episode if a frame after it begins an episode.
    begins = first.astype(jnp.int32)
    after = jnp.flip(jnp.cumsum(jnp.flip(begins, -1), axis=-1), -1) - begins
    older = (after > 0).reshape(*first.shape, *(1,) * (frames.ndim - first.ndim))
    return jnp.where(older, jnp.zeros((), frames.dtype), frames)
