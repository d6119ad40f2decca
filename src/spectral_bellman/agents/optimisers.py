"""Optimisers: Adam, and what some published agents use instead."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from spectral_bellman._arrays import Scalar, known


def adam(learning_rate: Scalar, epsilon: Scalar, head_rate: Scalar | None = None) -> Any:
    """Adam; ``head_rate`` multiplies its steps on the head of φ, which then is what it is for."""
    plain = optax.adam(learning_rate, eps=epsilon)
    return plain if head_rate is None else _slower_head(plain, head_rate)


def centred_rmsprop(learning_rate: Scalar, epsilon: Scalar, head_rate: Scalar | None = None) -> Any:
    """A gradient over its own standard deviation, with a memory of 0.95: MinAtar's authors'.

    optax's is NaN where rounding makes the variance of equal gradients negative.
    """
    memory = 0.95

    def init(parameters: Any) -> tuple[Any, Any]:
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return zeros, jax.tree.map(jnp.zeros_like, parameters)

    def update(gradient: Any, state: tuple[Any, Any], _: Any = None) -> tuple[Any, tuple[Any, Any]]:
        mean = jax.tree.map(lambda m, g: memory * m + (1 - memory) * g, state[0], gradient)
        square = jax.tree.map(
            lambda s, g: memory * s + (1 - memory) * jnp.square(g), state[1], gradient
        )

        def step(g: Array, m: Array, s: Array) -> Array:
            return -learning_rate * g / (jnp.sqrt(jnp.maximum(s - jnp.square(m), 0)) + epsilon)

        return jax.tree.map(step, gradient, mean, square), (mean, square)

    plain = optax.GradientTransformation(init, update)
    return plain if head_rate is None else _slower_head(plain, head_rate)


NOTHING = optax.GradientTransformation(
    lambda _: (), lambda gradient, state, _=None: (gradient, state)
)
"""For a tree without leaves."""


def beside(first: Any, second: Any) -> optax.GradientTransformation:
    """Two optimisers for a pair of trees."""

    def init(parameters: tuple[Any, Any]) -> tuple[Any, Any]:
        return first.init(parameters[0]), second.init(parameters[1])

    def update(gradient: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        both = [
            each.update(g, s) for each, g, s in zip((first, second), gradient, state, strict=True)
        ]
        return tuple(step for step, _ in both), tuple(state for _, state in both)

    return optax.GradientTransformation(init, update)


def descend(optimiser: Any, gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
    """The parameters after a step, and the state of the optimiser."""
    # optax counts its steps in integers and multiplies them with floats.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(parameters, updates), state


def clip_gradient(gradient: Any, largest: Scalar) -> Any:
    """The gradient, scaled down to the norm ``largest`` where it is longer; 0: never."""
    if known(largest) == 0:
        return gradient
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(gradient)))
    return jax.tree.map(
        lambda x: x * jnp.minimum(1.0, largest / jnp.maximum(norm, 1e-12)), gradient
    )


def _slower_head(optimiser: Any, rate: Scalar) -> optax.GradientTransformation:
    def head(x: Any) -> Any:
        return (x if hasattr(x, "head") else x[0]).head

    def update(gradient: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        updates, state = optimiser.update(gradient, state)
        slowed = jax.tree.map(lambda x: rate * x, head(updates))
        return eqx.tree_at(head, updates, slowed), state

    return optax.GradientTransformation(optimiser.init, update)
