"""Schedules: numbers that change with the agent steps taken."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def linear(
    agent_steps: Int[Array, ""], begin: int, length: int, start: float, end: float
) -> Float[Array, ""]:
    """``start`` until ``begin`` agent steps, then linearly to ``end`` over ``length`` steps."""
    share = (agent_steps.astype(jnp.float32) - begin) / max(length, 1)
    return start + jnp.clip(share, 0, 1) * (end - start)


def warm_up(agent_steps: Int[Array, ""], steps: int, after: Float[Array, ""]) -> Float[Array, ""]:
    """ε: 1 for the first ``steps`` agent steps (random actions), then ``after``."""
    return jnp.where(agent_steps < steps, 1.0, after)
