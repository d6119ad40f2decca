"""φ closed under the Bellman operator over sampled θ: the spectral loss, and the naive MSE."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman import objective, operators
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.features import raw_features
from spectral_bellman.agents.representations.api import (
    FittedConfig,
    Problem,
    Representation,
    Target,
    adam,
)
from spectral_bellman.networks import FeatureNetwork, ResidualParameters
from spectral_bellman.objective import Covariances
from spectral_bellman.replay import Transition


class Prepared(NamedTuple):
    """What a gradient step of the loss over ν(θ) needs."""

    theta: Array
    """(M, d), draws from ν(θ) = N(θ⁻, σ_rep² I)."""
    targets: Array
    """(B, M), TQ_θ(s, a)."""


@dataclass(frozen=True)
class ClosureConfig(FittedConfig):
    """φ(s, a)ᵀθ̃(θ) = TQ_θ(s, a) for θ drawn from ν, and θ̂ fitted to φ by a phase of its own."""

    theta_samples: int = 64
    """M, draws of θ in a gradient step."""
    theta_variance: float = 1e-2
    """σ_rep², the variance of ν."""
    q_start: Literal["last", "backup"] = "last"
    """Where the fit of θ̂ starts: at the last θ̂, or at θ̃(θ⁻), which φ was learned with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, count=("theta_samples",), not_negative=("theta_variance",))

    def closure(self, problem: Problem, loss: Callable[..., Any]) -> Representation:
        """The representation with a loss (φ, θ̃, targets, Λ) -> loss, (Λ, terms)."""
        d = self.features

        def draw(key: RandomKey, theta: Array) -> Array:
            return objective.sample_parameters(
                key, theta, self.theta_variance * jnp.ones(()), self.theta_samples
            )

        def prepare(target: Target, _: Any, batches: Transition, key: RandomKey) -> Prepared:
            def one(batch: Transition, key: RandomKey) -> Prepared:
                theta = draw(key, target.theta)
                reward, discount = problem.rewards_and_discounts(batch)
                phi_next = self.normalise(raw_features(target.network, batch.next_observation))
                return Prepared(
                    theta, operators.one_step_targets(reward, discount, phi_next, theta)
                )

            return jax.vmap(one)(batches, jax.random.split(key, len(batches.action)))

        def loss_of(
            network: FeatureNetwork,
            theta_tilde: ResidualParameters,
            covariances: Covariances,
            batch: Transition,
            prepared: Prepared,
        ) -> tuple[Array, tuple[Covariances, Terms, None]]:
            phi = representation.features_taken(network, batch)
            value, (covariances, terms) = loss(
                phi, jax.vmap(theta_tilde)(prepared.theta), prepared.targets, covariances
            )
            return value, (covariances, terms, None)

        representation = Representation(
            dimension=d,
            init=lambda key, theta: (
                ResidualParameters(d, key),
                objective.init_covariances(d),
            ),
            init_theta=lambda key: jnp.zeros(d),
            normalise=self.normalise,
            prepare=prepare,
            loss=loss_of,
            optimiser=adam(problem),
            solver=self.solver,
            start_theta=(
                (lambda theta_tilde, theta: theta_tilde(theta))
                if self.q_start == "backup"
                else None
            ),
            theta_tilde=lambda theta_tilde, theta, _: jax.vmap(theta_tilde)(theta),
            theta_draws=draw,
            covariances=lambda kept: kept,
        )
        return representation


@dataclass(frozen=True)
class Spectral(ClosureConfig):
    """The paper's spectral loss, a step of power iteration (section 3.3)."""

    name: ClassVar[str] = "spectral"
    alpha: float = 1.0
    """Weight of the new batch in Λ1 and Λ2, moving averages; at 1 the gradient is Bellman MSE's."""
    feature_orthogonality: float = 0.03
    """Weight of the orthogonality of φ."""
    param_orthogonality: float = 0.0
    """Weight of the orthogonality of θ̃; it grows like ‖θ̂‖⁴."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, share=("alpha",))
        for name in ("feature_orthogonality", "param_orthogonality"):
            require(self, name, getattr(self, name) >= 0, "0 or more")

    def build(self, problem: Problem) -> Representation:
        """The spectral loss with its moving averages and orthogonality."""

        def loss(phi: Array, theta_tilde: Array, targets: Array, cov: Covariances) -> Any:
            return objective.representation_loss(
                phi,
                theta_tilde,
                targets,
                cov,
                alpha=self.alpha,
                feature_orthogonality=self.feature_orthogonality,
                param_orthogonality=self.param_orthogonality,
            )

        return self.closure(problem, loss)


@dataclass(frozen=True)
class MSE(ClosureConfig):
    """The naive objective: the mean squared Bellman error over ν(θ) (section 3.1)."""

    name: ClassVar[str] = "mse"

    def build(self, problem: Problem) -> Representation:
        """The mean over the grid of states and θ."""

        def loss(phi: Array, theta_tilde: Array, targets: Array, cov: Covariances) -> Any:
            return objective.representation_loss(phi, theta_tilde, targets, cov, mse=True)

        return self.closure(problem, loss)
