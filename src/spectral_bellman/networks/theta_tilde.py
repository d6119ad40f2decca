"""θ̃(θ), the parameters after a Bellman backup, as a network of the parameters θ before it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman._arrays import RandomKey


class ResidualParameters(eqx.Module):
    """θ̃(θ) = θ + Δ(θ) (appendix E.2), where Δ is an MLP d → 2d → 2d → d.

    The last layer starts at zero, so θ̃ starts as the identity. All leaves are arrays, so
    ``jax.grad``, ``jax.jit`` and optax take the module directly.
    """

    layers: tuple[eqx.nn.Linear, eqx.nn.Linear, eqx.nn.Linear]

    def __init__(self, d: int, key: RandomKey) -> None:
        keys = jax.random.split(key, 3)
        last = eqx.nn.Linear(2 * d, d, key=keys[2])
        last = eqx.tree_at(
            lambda layer: (layer.weight, layer.bias), last, replace_fn=jnp.zeros_like
        )
        self.layers = (
            eqx.nn.Linear(d, 2 * d, key=keys[0]),
            eqx.nn.Linear(2 * d, 2 * d, key=keys[1]),
            last,
        )

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """One θ; ``jax.vmap`` for many."""
        first, second, last = self.layers
        if theta.shape != (first.in_features,):
            raise ValueError(
                f"ResidualParameters: theta must have shape ({first.in_features},), "
                f"got {theta.shape}; use jax.vmap for many"
            )
        return theta + last(jax.nn.relu(second(jax.nn.relu(first(theta)))))
