"""θ̃(θ), the parameters after a Bellman backup, as a network of the parameters before it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman._arrays import RandomKey


class ResidualParameters(eqx.Module):
    """θ̃(θ) = θ + Δ(θ) (appendix E.2), Δ an MLP d → 2d → 2d → d; its last layer starts at zero, so θ̃ starts as the identity."""

    delta: eqx.nn.MLP

    def __init__(self, d: int, key: RandomKey) -> None:
        mlp = eqx.nn.MLP(d, d, width_size=2 * d, depth=2, activation=jax.nn.relu, key=key)
        self.delta = eqx.tree_at(lambda m: (m.layers[-1].weight, m.layers[-1].bias), mlp, replace_fn=jnp.zeros_like)

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """One θ; ``jax.vmap`` for many."""
        return theta + self.delta(theta)
