"""φ closed under the Bellman operator over sampled θ: the spectral loss, and the naive MSE."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.representations.api import (
    AdamSolver,
    Backup,
    Batch,
    FittedConfig,
    Problem,
    Representation,
    SingleNetwork,
    adam,
)
from spectral_bellman.networks import ResidualParameters
from spectral_bellman.objective import Covariances


class Prepared(NamedTuple):
    """What a gradient step of the loss over ν(θ) needs."""

    theta: Array
    """(M, d), draws from ν(θ) = N(θ⁻, σ_rep² I)."""
    targets: Array
    """(R, M), TQ_θ(s, a)."""
    priority_target: tuple[Array, Array] | None
    """θ⁻ and TQ_θ⁻(s, a) (R,), where the replay is sampled by priorities."""


@dataclass(frozen=True)
class ClosureConfig(FittedConfig):
    """φ(s, a)ᵀθ̃(θ) = TQ_θ(s, a) for θ drawn from ν, and θ̂ fitted to φ by a phase of its own."""

    theta_samples: int = 64
    """M, draws of θ in a gradient step."""
    theta_variance: float = 1e-2
    """σ_rep², the variance of ν."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, count=("theta_samples",), not_negative=("theta_variance",))

    def closure(self, problem: Problem, loss: Callable[..., Any]) -> Representation:
        """The representation with a loss (batch, θ̃, targets, Λ) -> loss, (Λ, terms)."""
        d = self.features

        def draw(key: RandomKey, theta: Array) -> Array:
            return objective.sample_parameters(
                key, theta, self.theta_variance * jnp.ones(()), self.theta_samples
            )

        def prepare(
            backup: Backup, theta_tilde: ResidualParameters, _: Any, key: RandomKey
        ) -> Prepared:
            # φ learns TQ_θ with the parameters θ̃(θ): these choose in double Q-learning.
            def targets(theta: Array) -> Array:
                return backup.values(theta, jax.vmap(theta_tilde)(theta))

            theta, mean = draw(key, backup.target.theta), backup.target.theta
            if not problem.priorities:
                return Prepared(theta, targets(theta), None)
            both = targets(jnp.concatenate([theta, mean[None]]))
            return Prepared(theta, both[:, :-1], (mean, both[:, -1]))

        def loss_of(
            batch: Batch, theta_tilde: ResidualParameters, covariances: Covariances, given: Prepared
        ) -> tuple[Array, tuple[Covariances, Terms, Array | None]]:
            value, (covariances, terms) = loss(
                batch, jax.vmap(theta_tilde)(given.theta), given.targets, covariances
            )
            errors = None
            if given.priority_target is not None:
                mean, targets = given.priority_target
                errors = jnp.abs(batch.phi @ theta_tilde(mean) - targets)
            return value, (covariances, terms, errors)

        return Representation(
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
                if isinstance(self.solver, AdamSolver) and self.solver.q_start == "backup"
                else None
            ),
            theta_tilde=lambda theta_tilde, theta, _: jax.vmap(theta_tilde)(theta),
            theta_draws=draw,
            covariances=lambda kept: kept,
        )


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

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The spectral loss with its moving averages and orthogonality."""

        def loss(batch: Batch, theta_tilde: Array, targets: Array, cov: Covariances) -> Any:
            return objective.representation_loss(
                batch.phi,
                theta_tilde,
                targets,
                cov,
                alpha=self.alpha,
                feature_orthogonality=self.feature_orthogonality,
                param_orthogonality=self.param_orthogonality,
                sample_weight=batch.weight,
                group=batch.group,
            )

        return self.closure(problem, loss)


@dataclass(frozen=True)
class MSE(ClosureConfig):
    """The naive objective: the mean squared Bellman error over ν(θ) (section 3.1)."""

    name: ClassVar[str] = "mse"

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The mean over the grid of states and θ."""

        def loss(batch: Batch, theta_tilde: Array, targets: Array, cov: Covariances) -> Any:
            return objective.representation_loss(
                batch.phi, theta_tilde, targets, cov, mse=True, sample_weight=batch.weight
            )

        return self.closure(problem, loss)
