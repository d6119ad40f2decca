"""φ of batches: the network on many observations, the rows of the actions taken, and norms."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman.networks import FeatureNetwork

OBSERVATION_BYTES = 32 * 2**20
"""What the observations of a batch may need as floats; larger batches are taken in parts."""


def raw_features(network: FeatureNetwork, observations: Array) -> Float[Array, "B A d"]:
    """The network on a batch, in parts where the observations as floats would need much memory."""
    rows = max(1, OBSERVATION_BYTES // (4 * math.prod(observations.shape[1:])))
    if len(observations) <= rows:
        return jax.vmap(network)(observations)
    return jax.lax.map(network, observations, batch_size=rows)


def taken(phi: Float[Array, "B A d"], action: Int[Array, " B"]) -> Float[Array, "B d"]:
    """The row of the action taken, by a masked sum, whose gradient needs no scatter."""
    mask = jax.nn.one_hot(action, phi.shape[1], dtype=phi.dtype)
    return jnp.sum(phi * mask[:, :, None], axis=1)


def unit(phi: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """φ/‖φ‖.

    Without the guard against overflow of ``objective.unit_norm``, which a network that learns does
    not need, and which costs time on a GPU.
    """
    squared = jnp.sum(jnp.square(phi), axis=-1, keepdims=True)
    return phi * jax.lax.rsqrt(jnp.maximum(squared, 1e-24))
