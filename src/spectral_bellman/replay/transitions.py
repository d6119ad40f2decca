"""A uniform replay of transitions that lives on the device and holds each observation once.

Every environment has a ring of its own. The slot after a transition always holds its true next observation: the next transition's
own observation, or, where the episode was truncated, the last observation on a slot that is never sampled. A terminal transition
has discount 0, so what follows it does not matter and costs no slot.
"""

from typing import Any, NamedTuple

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


class Replay(NamedTuple):
    """N rings of C slots; ``head`` is the slot that the next transition goes to, which holds the current observation."""

    observation: Array
    action: Int[Array, "N C"]
    reward: Float[Array, "N C"]
    discount: Float[Array, "N C"]
    behaviour_prob: Float[Array, "N C"]
    whole: Bool[Array, "N C"]
    """Whether the slot holds a transition, and not only an observation."""
    head: Int[Array, " N"]
    size: Int[Array, " N"]
    """Slots before the head that are filled."""


def init_replay(observation: jax.ShapeDtypeStruct, num_envs: int, capacity: int, round_steps: int) -> Replay:
    """An empty replay of at least ``capacity`` transitions over all environments together."""
    slots = -(-capacity // num_envs) + 1
    if slots < 2 * round_steps + 2:
        raise ValueError(
            f"a replay of {capacity:,} transitions is {slots - 1:,} for each of {num_envs} environments, too few for rounds of "
            f"{round_steps} steps: raise --replay-capacity to {num_envs * (2 * round_steps + 1):,} or more"
        )
    shape = (num_envs, slots)
    return Replay(
        observation=jnp.zeros((*shape, *observation.shape), observation.dtype),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.zeros(shape),
        discount=jnp.zeros(shape),
        behaviour_prob=jnp.zeros(shape),
        whole=jnp.zeros(shape, bool),
        head=jnp.zeros(num_envs, jnp.int32),
        size=jnp.zeros(num_envs, jnp.int32),
    )


def add(replay: Replay, steps: Transition, truncated: Bool[Array, "T N"]) -> Replay:
    """Append T steps of N environments; leaves of ``steps`` are (T, N, …)."""
    length, num_envs = truncated.shape
    slots = replay.whole.shape[1]
    advance = 1 + truncated.astype(jnp.int32)
    offset = jnp.cumsum(advance, axis=0)
    slot = (replay.head[None, :] + offset - advance) % slots
    envs = jnp.broadcast_to(jnp.arange(num_envs), slot.shape)
    # Where a next observation must be kept: after a truncated step, and after the last one. Other rows go past the end, each to a
    # place of its own: indices that are known to differ need no order, and can be written at once.
    keep = truncated.at[-1].set(True)
    after = jnp.where(keep, (slot + 1) % slots, slots + jnp.arange(length)[:, None])

    def put(ring: Array, values: Array, slot: Array = slot) -> Array:
        return ring.at[envs, slot].set(values.astype(ring.dtype), mode="drop", unique_indices=True)

    return Replay(
        observation=put(put(replay.observation, steps.observation), steps.next_observation, after),
        action=put(replay.action, steps.action),
        reward=put(replay.reward, steps.reward),
        discount=put(replay.discount, steps.discount),
        behaviour_prob=put(replay.behaviour_prob, steps.behaviour_prob),
        whole=put(put(replay.whole, jnp.ones_like(truncated)), jnp.zeros_like(truncated), after),
        head=(replay.head + offset[-1]) % slots,
        size=jnp.minimum(replay.size + offset[-1], slots - 1),
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
        weight = replay.whole[env, slot].astype(jnp.float32)
    else:
        env, slot = _draw(replay, key, (limit,))
        weight = jnp.full(limit, count(replay) / limit)
    return Rows(_take(replay, env, slot), weight, env * slots + slot)


def count(replay: Replay) -> Float[Array, ""]:
    """How many transitions are held."""
    return jnp.sum(replay.whole).astype(jnp.float32)


def _draw(replay: Replay, key: RandomKey, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Environment and slot of uniform draws; a slot that only holds a last observation is drawn again."""
    num_envs, slots = replay.whole.shape
    env_key, slot_key = jax.random.split(key)
    env = jax.random.randint(env_key, (REDRAWS, *shape), 0, num_envs)
    size = replay.size[env]
    back = (jax.random.uniform(slot_key, env.shape) * size.astype(jnp.float32)).astype(jnp.int32)
    slot = (replay.head[env] - 1 - jnp.minimum(back, size - 1)) % slots
    whole = replay.whole[env, slot]
    first = jnp.argmax(whole, axis=0, keepdims=True)
    env, slot = (jnp.take_along_axis(x, first, axis=0)[0] for x in (env, slot))
    # No whole slot among the draws: its neighbours are, the last step before it and the first after.
    before = (slot - 1) % slots
    neighbour = jnp.where(replay.whole[env, before], before, (slot + 1) % slots)
    return env, jnp.where(jnp.any(whole, axis=0), slot, neighbour)


def _take(replay: Replay, env: Array, slot: Array) -> Transition:
    return Transition(
        observation=replay.observation[env, slot],
        action=replay.action[env, slot],
        reward=replay.reward[env, slot],
        discount=replay.discount[env, slot],
        behaviour_prob=replay.behaviour_prob[env, slot],
        next_observation=replay.observation[env, (slot + 1) % replay.whole.shape[1]],
    )
