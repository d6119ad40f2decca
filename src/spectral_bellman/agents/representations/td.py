"""The DQN loss (φ(s, a)ᵀθ − r − γ max_a' φ⁻(s', a')ᵀθ⁻)², with features or as plain DQN."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import optimisers
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.representations.api import (
    Batch,
    FeatureConfig,
    Problem,
    Representation,
    RepresentationConfig,
    SingleNetwork,
    adam,
)


@dataclass(frozen=True)
class Plain(RepresentationConfig):
    """DQN's ordinary head with |A| outputs and no features: Q itself."""

    name: ClassVar[str] = "plain"
    optimiser: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, with a memory of 0.95, as the MinAtar authors have it."""

    @property
    def has_features(self) -> bool:
        """None: d = 1 and θ = 1."""
        return False

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The DQN loss on Q."""
        build = optimisers.centred_rmsprop if self.optimiser == "rmsprop" else optimisers.adam
        rates = (problem.learning_rate, problem.adam_epsilon, problem.head_rate)
        return Representation(
            dimension=1,
            init=lambda key, theta: ((), ()),
            init_theta=lambda key: jnp.ones(1),
            normalise=lambda phi: phi,
            prepare=lambda backup, *_: backup.of(jnp.ones(1), jnp.ones(1)),
            loss=lambda batch, _, kept, targets: _loss(batch, jnp.ones(1), kept, targets),
            optimiser=optimisers.beside(build(*rates), optimisers.NOTHING),
            theta_of=lambda beside: jnp.ones(1),
            zero_q_head=True,
        )


@dataclass(frozen=True)
class TD(FeatureConfig):
    """Features from the DQN loss, in φ and θ together."""

    name: ClassVar[str] = "td"
    q_learning_rate: float = 3e-3
    """Learning rate of θ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, positive=("q_learning_rate",))

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The DQN loss on φᵀθ; θ is trained beside φ with a rate of its own."""
        d = self.features

        def init_theta(key: RandomKey) -> Array:
            # θ = 0 gives φ nothing to learn from; a large θ makes Q large, slow to forget.
            return jax.random.normal(key, (d,)) / math.sqrt(d)

        return Representation(
            dimension=d,
            init=lambda key, theta: (jnp.copy(theta), ()),
            init_theta=init_theta,
            normalise=self.normalise,
            prepare=lambda backup, theta, *_: backup.of(backup.target.theta, theta),
            loss=_loss,
            optimiser=optimisers.beside(
                adam(problem), optimisers.adam(self.q_learning_rate, problem.adam_epsilon)
            ),
            theta_of=lambda theta: theta,
        )


def _loss(
    batch: Batch, theta: Array, kept: Any, targets: Array
) -> tuple[Array, tuple[Any, dict[str, Array], Array]]:
    error = batch.phi @ theta - targets
    loss = batch.mean(jnp.square(error))
    return loss, (kept, {"td": loss}, jnp.abs(error))
