"""Equal transitions of a replay as one row, which counts as many times."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman._arrays import product
from spectral_bellman.replay.ring import Ring
from spectral_bellman.replay.windows import Transition, Window

NUMBERS = 2
"""Random numbers that stand for an observation: two that differ share both once in 10¹⁴ pairs."""


def distinct(
    ring: Ring,
    window: Window,
    env: Int[Array, " n"],
    slot: Int[Array, " n"],
    weight: Float[Array, " n"],
    limit: int,
) -> tuple[Transition, Float[Array, " limit"], Int[Array, " limit"]]:
    """Transitions that differ, what each counts, and the number of the one that stands for each.

    Transitions are equal if observations, action and discount are. Their reward is the mean; of
    their extras, and of what follows a terminal step, nothing is compared. If more than ``limit``
    differ, a random choice of them counts for all. Rows beyond the last have weight 0.

    Args:
      ring: the replay.
      window: transitions.
      env: where each begins.
      slot: where each begins.
      weight: how much each counts; 0: not at all.
      limit: the most transitions that come back.
    """
    short = window.take(_numbered(ring), env, slot)
    if not isinstance(short, Transition):
        raise TypeError("equal transitions can be merged, and sequences cannot")
    alive = short.discount.reshape(len(env), -1)[:, -1] != 0
    after = jax.tree.map(
        lambda x: jnp.where(alive.reshape(-1, *(1,) * (x.ndim - 1)), x, 0), short.next_observation
    )
    compared = (*short._replace(reward=None, extras=None, next_observation=after),)
    columns = [column for x in jax.tree.leaves(compared) for column in x.reshape(len(env), -1).T]
    order = jnp.lexsort([*columns, weight <= 0])  # the last is the first key: what counts is first
    ordered = [column[order] for column in columns]
    changes = [column[1:] != column[:-1] for column in ordered]
    begins = jnp.append(False, jnp.any(jnp.stack(changes), axis=0))
    group = jnp.cumsum(begins, dtype=jnp.int32)
    group = jnp.where(weight[order] > 0, group, limit)  # out of range, and left out of the sums

    def total(values: Array) -> Array:
        weighted = weight.reshape(-1, *(1,) * (values.ndim - 1)) * values
        return jax.ops.segment_sum(weighted[order], group, limit)

    count = total(jnp.ones(len(env)))
    # The first of each group, so that it stands for the group for as long as the ring holds it.
    stands = jnp.minimum(jax.ops.segment_min(order, group, limit), len(env) - 1)
    items = window.take(ring, env[stands], slot[stands])
    size = jnp.maximum(count, 1e-12).reshape(-1, *(1,) * (items.reward.ndim - 1))
    items = items._replace(reward=total(short.reward) / size)
    share = jnp.sum(weight) / jnp.maximum(jnp.sum(count), 1e-12)
    return items, count * share, stands


def _numbered(ring: Ring) -> Ring:
    """The ring with a few random numbers in place of each observation."""

    def numbers(number: int, leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0] * leaf.shape[1], -1).astype(jnp.float32)
        key = jax.random.fold_in(jax.random.key(0), number)
        random = jax.random.normal(key, (flat.shape[1], NUMBERS))
        return product(flat, random).reshape(*leaf.shape[:2], NUMBERS)

    leaves, structure = jax.tree.flatten(ring.observation)
    made: Any = [numbers(number, leaf) for number, leaf in enumerate(leaves)]
    observation = jax.tree.unflatten(structure, made)
    return Ring(observation, ring.steps, ring.age, ring.valid, ring.written, ring.stack)
