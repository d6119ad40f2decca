"""What an agent learns, acts by, and remembers of each environment."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from spectral_bellman.agents.representations.api import Target


class TrainState(NamedTuple):
    """All that learns, and the target copies."""

    network: Any
    theta: Float[Array, " d"]
    beside: Any
    """What is trained beside φ: θ̃, say."""
    kept: Any
    """What the representation carries along: Λ1 and Λ2, frozen networks."""
    target: Target
    optimiser: Any
    theta_optimiser: Any
    exploration: Any
    """What the exploration keeps."""


class Policy(NamedTuple):
    """A snapshot that acts: φ, θ̂, the noise around it, and ε."""

    network: Any
    theta: Float[Array, " d"]
    noise: Any
    epsilon: Float[Array, ""]


class Actor(NamedTuple):
    """What the agent keeps for each environment."""

    exploration: Any
    carry: Any
    """The recurrent state; () without one."""
