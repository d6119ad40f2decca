"""First-order SBM beside Q: Q is the first feature, the others predict themselves."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.features import unit
from spectral_bellman.agents.representations.api import (
    Backup,
    Batch,
    Problem,
    Representation,
    RepresentationConfig,
    SingleNetwork,
    adam,
    first_feature,
)
from spectral_bellman.objective import Covariances


class Prepared(NamedTuple):
    """What a gradient step needs."""

    targets: Array
    """(R,), TQ_θ̂(s, a)."""
    phi_next: Array
    """(R, d), γ Σ_a π(a|s') φ⁻(s', a)."""


@dataclass(frozen=True)
class Linear(RepresentationConfig):
    """First-order SBM beside Q. With θ = θ̂ + σε and θ̃(θ) = b + σJε, closure under T is

        φᵀb = TQ_θ̂   and   Jᵀφ = γ Σ_a π(a|s') φ⁻(s', a),

    where π(a|s') is the share of ν(θ) that is greedy in a: the right side is the mean of ∇TQ_θ over
    ν, and Jε (by Stein's identity) the best linear answer to the noise of ν. The first feature is Q
    itself, so that b = θ̂ = e₁ stays as it is and the first condition is DQN's loss; the others, ψ,
    have unit norm together and are kept apart by the square of E[ψψᵀ], which is smallest where they
    are orthogonal and of equal size. The loss is

        (Q − TQ_θ̂)² + σ² ‖Jᵀφ − γ Σ_a π(a|s') φ⁻(s', a)‖² + spread ‖E[ψψᵀ]‖².
    """

    name: ClassVar[str] = "linear"
    one_step_values: ClassVar[bool] = True
    features: int = 32
    """d, dimension of φ(s, a); the first is Q."""
    theta_samples: int = 64
    """M, draws of θ that π is averaged over."""
    theta_variance: float = 1e-2
    """σ², the variance of ν, and the weight of the prediction."""
    spread: float = 0.3
    """Weight of the square of E[ψψᵀ]."""

    def __post_init__(self) -> None:
        require(self, "features", self.features >= 2, "2 or more: Q and others")
        require_all(self, count=("theta_samples",), not_negative=("theta_variance", "spread"))

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """θ̂ = e₁ needs no fit; J is trained beside φ."""
        d = self.features

        def normalise(phi: Array) -> Array:
            return jnp.concatenate([phi[..., :1], unit(phi[..., 1:])], axis=-1)

        def draw(key: RandomKey, theta: Array) -> Array:
            return objective.sample_parameters(
                key, theta, self.theta_variance * jnp.ones(()), self.theta_samples
            )

        def prepare(backup: Backup, _: Any, __: Any, key: RandomKey) -> Prepared:
            phi_next, theta_hat = backup.phi_next, first_feature(d)
            theta = draw(key, backup.target.theta)
            greedy = jnp.argmax(jnp.einsum("bad,md->bma", phi_next, theta), axis=2)
            share = jnp.mean(jax.nn.one_hot(greedy, phi_next.shape[1]), axis=1)
            return Prepared(
                backup.of(backup.target.theta, theta_hat),
                backup.discount[:, None] * jnp.einsum("ba,bad->bd", share, phi_next),
            )

        def loss(
            batch: Batch,
            jacobian: Float[Array, "d d"],
            covariances: Covariances,
            prepared: Prepared,
        ) -> tuple[Array, tuple[Covariances, Terms, Array]]:
            phi = batch.phi
            error = phi @ first_feature(d) - prepared.targets
            cov = objective.update_covariance(covariances.feature, phi, 1.0, batch.weight)
            prediction = product(phi, jacobian) - prepared.phi_next
            terms = {
                "value": batch.mean(jnp.square(error)),
                "prediction": batch.mean(jnp.sum(jnp.square(prediction), axis=1)),
                "spread": jnp.sum(jnp.square(cov[1:, 1:])),
            }
            total = terms["value"] + self.theta_variance * terms["prediction"]
            total += self.spread * terms["spread"]
            started = Covariances(cov, covariances.parameter, jnp.ones((), bool))
            return total, (started, terms, jnp.abs(error))

        return Representation(
            dimension=d,
            init=lambda key, theta: (jnp.eye(d), objective.init_covariances(d)),
            init_theta=lambda key: first_feature(d),
            normalise=normalise,
            prepare=prepare,
            loss=loss,
            optimiser=adam(problem),
            theta_of=lambda _: first_feature(d),
            zero_q_head=True,
            theta_tilde=lambda jacobian, theta, theta_hat: (
                first_feature(d)[None] + product(theta - theta_hat[None], jacobian.T)
            ),
            theta_draws=draw,
            covariances=lambda kept: kept,
        )
