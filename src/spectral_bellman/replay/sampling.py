"""How windows are drawn from a ring: uniformly, all of them, or in proportion to priorities."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey, Scalar
from spectral_bellman.replay.distinct import distinct
from spectral_bellman.replay.ring import Ring, count
from spectral_bellman.replay.windows import OneStep, Window

REDRAWS = 3
"""Draws of a slot before a neighbour is taken."""
WIDTH = 128
"""Children of a node in a tree of sums."""


class Index(NamedTuple):
    """Where a window begins. It names the window until the ring overwrites the slot."""

    env: Int[Array, "..."]
    slot: Int[Array, "..."]


class Sample(NamedTuple):
    """Items with any leading axes (…), and how much each counts."""

    items: Any
    weight: Float[Array, "..."]
    index: Index  # type: ignore[assignment]  # the field hides tuple.index


class Rows(NamedTuple):
    """Items that stand for all windows of a ring, each counted ``weight`` times."""

    items: Any
    weight: Float[Array, " n"]
    slot: Int[Array, " n"]
    """A number that belongs to the item, the same in every round until the ring overwrites it."""
    steps: Float[Array, ""]
    """Steps that the ring holds. Windows of several steps may overlap."""


class Priorities(NamedTuple):
    """What windows are drawn in proportion to."""

    value: Float[Array, "N C"]
    """At the slots at which windows begin. Other slots are not read."""
    maximum: Float[Array, ""]
    """The highest priority so far, which new steps get."""


def sample(ring: Ring, window: Window, key: RandomKey, shape: tuple[int, ...]) -> Sample:
    """Windows drawn uniformly, with replacement, each of weight 1. The ring must hold a window."""
    index = _draw_uniformly(ring, window, key, shape)
    return Sample(window.take(ring, *index), jnp.ones(shape), index)


def rows(ring: Ring, window: Window, key: RandomKey, limit: int, most_distinct: int = 0) -> Rows:
    """All windows if the ring has at most ``limit`` slots, else ``limit`` uniform draws.

    Each draw is weighted by (windows held) / limit. In the first case there is a row for every
    slot, with weight 0 where no window begins. With ``most_distinct``, equal transitions are one
    row, and there are so many rows.
    """
    num_envs, slots = ring.valid.shape
    starts = window.starts(ring)
    if num_envs * slots <= limit:
        index = Index(*(leaf.ravel() for leaf in jnp.indices((num_envs, slots), dtype=jnp.int32)))
        weight = starts.ravel().astype(jnp.float32)
    else:
        index = _draw_uniformly(ring, window, key, (limit,))
        weight = jnp.full(limit, jnp.sum(starts).astype(jnp.float32) / limit)
    slot = index.env * slots + index.slot
    if most_distinct:
        items, weight, stands = distinct(ring, window, *index, weight, most_distinct)
        return Rows(items, weight, slot[stands], count(ring))
    return Rows(window.take(ring, *index), weight, slot, count(ring))


class Sampler(NamedTuple):
    """A way to draw what gradient steps learn from; ``P`` is what it keeps beside the ring."""

    init: Callable[[Ring], Any]
    """Empty ring -> P."""
    admit: Callable[[Any, Ring, Int[Array, " N"]], Any]
    """(P, ring with new steps, its head before them) -> P."""
    draw: Callable[[Ring, Window, Any, RandomKey, tuple[int, ...]], Sample]
    """(ring, window, P, key, shape) -> sample."""
    update: Callable[[Any, Index, Float[Array, "..."]], Any]
    """(P, index, new priorities) -> P."""
    by_priority: bool
    """Whether each gradient step changes what the next step draws."""


UNIFORM = Sampler(
    init=lambda ring: (),
    admit=lambda kept, ring, head: kept,
    draw=lambda ring, window, kept, key, shape: sample(ring, window, key, shape),
    update=lambda kept, index, value: kept,
    by_priority=False,
)
"""Uniform draws, which need no priorities."""


def by_priority(importance: float) -> Sampler:
    """Draws in proportion to priorities, with importance weights to the power ``importance``."""
    return Sampler(
        init=init_priorities,
        admit=admit,
        draw=lambda ring, window, kept, key, shape: prioritised(
            ring, window, kept, key, shape, importance
        ),
        update=update_priorities,
        by_priority=True,
    )


def init_priorities(ring: Ring) -> Priorities:
    """The priorities of an empty ring. New steps get 1 until a higher priority is known."""
    return Priorities(jnp.zeros(ring.valid.shape), jnp.ones(()))


def admit(priorities: Priorities, ring: Ring, head: Int[Array, " N"]) -> Priorities:
    """The priorities after ``add``: steps that are new in ``ring`` get the highest priority so far.

    Args:
      priorities: before the steps were added.
      ring: with the new steps.
      head: ``ring.head`` before they were added.
    """
    advance = (ring.head - head) % ring.capacity
    return priorities._replace(
        value=jnp.where(ring.back < advance[:, None], priorities.maximum, priorities.value)
    )


def prioritised(
    ring: Ring,
    window: Window,
    priorities: Priorities,
    key: RandomKey,
    shape: tuple[int, ...],
    importance: Scalar,
) -> Sample:
    """Windows drawn with replacement, in proportion to their priorities, which must not all be 0.

    With priorities p_i of the n windows held, and β = ``importance``:

        P(i) = p_i / Σ_j p_j,    w_i = (n P(i))^-β / mean((n P)^-β over the last axis of ``shape``).

    The caller raises errors to their exponent before ``update_priorities``. The weights of a batch
    have mean 1, so that weighted means over a batch keep their scale; with β = 1 they estimate
    means over uniform draws. The sums are computed from all priorities at every call, so they never
    drift.
    """
    starts = window.starts(ring)
    value = jnp.where(starts, priorities.value, jnp.zeros((), priorities.value.dtype))
    index = _draw_proportionally(value, key, shape)
    mean = jnp.sum(value) / jnp.sum(starts).astype(value.dtype)
    weight = (mean / value[index.env, index.slot]) ** importance
    axis = -1 if shape else None
    weight = weight / jnp.mean(weight, axis=axis, keepdims=True)
    return Sample(window.take(ring, *index), weight, index)


def update_priorities(
    priorities: Priorities, index: Index, value: Float[Array, "..."]
) -> Priorities:
    """The priorities with new values at ``index``; the highest counts where an index occurs twice.

    Update before the next ``add``: afterwards an index may name a newer step.
    """
    # First 0, then the maximum: the order in which a device writes equal indices has no effect.
    place = (index.env, index.slot)
    value_after = priorities.value.at[place].set(0).at[place].max(value)
    return Priorities(value_after, jnp.maximum(priorities.maximum, jnp.max(value)))


def _draw_uniformly(ring: Ring, window: Window, key: RandomKey, shape: tuple[int, ...]) -> Index:
    if isinstance(window, OneStep):  # nearly every slot is a start, and none needs to be looked for
        return _draw_steps(ring, key, shape)
    return _draw_proportionally(window.starts(ring).astype(jnp.float32), key, shape)


def _draw_steps(ring: Ring, key: RandomKey, shape: tuple[int, ...]) -> Index:
    """A uniform environment and a uniform step in it.

    A slot that only holds a last observation is drawn again.
    """
    num_envs, slots = ring.valid.shape
    env_key, slot_key = jax.random.split(key)
    env = jax.random.randint(env_key, (REDRAWS, *shape), 0, num_envs)
    size, head = ring.size[env], ring.head[env]
    back = (jax.random.uniform(slot_key, env.shape) * size.astype(jnp.float32)).astype(jnp.int32)
    slot = (head - 1 - jnp.minimum(back, size - 1)) % slots
    valid = ring.valid[env, slot]
    drawn = jnp.argmax(valid, axis=0, keepdims=True)
    env, slot = (jnp.take_along_axis(x, drawn, axis=0)[0] for x in (env, slot))
    # Where no draw is a step, the neighbours of the first draw are.
    before = (slot - 1) % slots
    neighbour = jnp.where(ring.valid[env, before], before, (slot + 1) % slots)
    return Index(env, jnp.where(jnp.any(valid, axis=0), slot, neighbour))


def _draw_proportionally(
    weight: Float[Array, "N C"], key: RandomKey, shape: tuple[int, ...]
) -> Index:
    """Slots drawn in proportion to their weights, never one of weight 0.

    A draw walks down a tree of sums with a new random number at each level. Every sum has ``WIDTH``
    terms, and every choice is exact to 1e-7 of its sum. A single random number for a whole draw
    would have too few bits to tell a million slots apart.
    """
    levels = []
    node = weight.ravel()
    while len(node) > WIDTH:
        levels.append(jnp.pad(node, (0, -len(node) % WIDTH)).reshape(-1, WIDTH))
        node = jnp.sum(levels[-1], axis=1)
    levels.append(node[None])
    drawn = jnp.zeros(shape, jnp.int32)
    for level, level_key in zip(reversed(levels), jax.random.split(key, len(levels)), strict=True):
        children = level[drawn]
        drawn = drawn * WIDTH + _child(children, jax.random.uniform(level_key, shape))
    return Index(*jnp.divmod(drawn, weight.shape[1]))


def _child(weight: Float[Array, "... k"], uniform: Float[Array, "..."]) -> Int[Array, "..."]:
    """The child whose share of the sum holds the uniform number, never one of weight 0."""
    reached = jnp.cumsum(weight, axis=-1)
    beyond: Bool[Array, "... k"] = (reached > uniform[..., None] * reached[..., -1:]) & (weight > 0)
    # Parallel sums round: it can happen that none is beyond.
    child = jnp.where(
        jnp.any(beyond, axis=-1), jnp.argmax(beyond, axis=-1), jnp.argmax(weight, axis=-1)
    )
    return child.astype(jnp.int32)
