"""First-order closure beside Q: features ψ that predict themselves and the reward."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents import optimisers
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
    first_feature,
)

MEMORY = 0.99
"""Of the running means."""


class Prepared(NamedTuple):
    """What a gradient step needs."""

    targets: Array
    """(R,), TQ(s, a)."""
    reward: Array
    """(R,), the part of TQ that is no value."""
    psi_next: Array
    """(R, d − 1), γ Σ_a π(a|s') ψ⁻(s', a)."""


class Scales(NamedTuple):
    """Running means of squares."""

    q: Float[Array, ""]
    """Of Q."""
    value: Float[Array, ""]
    """Of the gradient of the value loss on φ."""
    prediction: Float[Array, ""]
    """Of the gradient of the prediction loss on φ."""


@dataclass(frozen=True)
class Predictive(RepresentationConfig):
    """At Q = TQ, γP^πQ = Q − r. So span{Q, ψ} is closed to first order if r and γP^πψ lie in it:

        (Q − TQ)² + β [‖Jᵀφ̄ − γ Σ_a π(a|s') ψ⁻(s', a)‖² + (wᵀφ̄ − r)²] + spread ‖E[ψψᵀ]‖²,

    φ̄ = (Q/rms(Q), ψ), Q without a gradient, ‖ψ(s, a)‖ = 1. β gives the prediction a fixed share of
    the gradient on φ.
    """

    name: ClassVar[str] = "predictive"
    one_step_values: ClassVar[bool] = True
    features: int = 32
    """d, dimension of φ(s, a); the first is Q."""
    theta_samples: int = 64
    """M, draws that π is averaged over."""
    theta_variance: float = 1e-2
    """σ², the variance of the draws, Q having an rms of 1."""
    prediction_share: float = 0.2
    """Norm of the gradient of the prediction on φ, over the norm of the gradient of the value."""
    predictor_rate: float = 5.0
    """Learning rate of J and w, over φ's."""
    spread: float = 0.3
    """Weight of the square of E[ψψᵀ]."""

    def __post_init__(self) -> None:
        require(self, "features", self.features >= 2, "2 or more: Q and others")
        require_all(
            self,
            count=("theta_samples",),
            not_negative=("theta_variance", "spread", "prediction_share"),
            positive=("predictor_rate",),
        )

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """θ̂ = e₁ needs no fit; J and w are trained beside φ."""
        d = self.features

        def normalise(phi: Array) -> Array:
            return jnp.concatenate([phi[..., :1], unit(phi[..., 1:])], axis=-1)

        def scaled(phi: Array, scales: Scales) -> Array:
            return jnp.concatenate([phi[..., :1] / jnp.sqrt(scales.q), phi[..., 1:]], axis=-1)

        def prepare(backup: Backup, _: Any, scales: Scales, key: RandomKey) -> Prepared:
            theta = objective.sample_parameters(
                key, first_feature(d), self.theta_variance * jnp.ones(()), self.theta_samples
            )
            after = scaled(backup.phi_next, scales)
            greedy = jnp.argmax(jnp.einsum("bad,md->bma", after, theta), axis=2)
            share = jnp.mean(jax.nn.one_hot(greedy, after.shape[1]), axis=1)
            nothing = jnp.zeros(d)
            return Prepared(
                backup.of(backup.target.theta, first_feature(d)),
                backup.of(nothing, first_feature(d)),
                backup.discount[:, None] * jnp.einsum("ba,bad->bd", share, after[..., 1:]),
            )

        def loss(
            batch: Batch, predictor: Float[Array, "d d"], scales: Scales, given: Prepared
        ) -> tuple[Array, tuple[Scales, Terms, Array]]:
            def value_of(phi: Array) -> Array:
                return batch.mean(jnp.square(phi[:, 0] - given.targets))

            def prediction_of(phi: Array) -> Array:
                seen = scaled(phi, scales)
                seen = seen.at[:, 0].set(jax.lax.stop_gradient(seen[:, 0]))
                wanted = jnp.concatenate([given.reward[:, None], given.psi_next], axis=1)
                errors = jnp.square(product(seen, predictor) - wanted)
                return batch.mean(jnp.sum(errors, axis=1))

            def squared(of: Any) -> Array:
                return jnp.sum(jnp.square(jax.grad(of)(jax.lax.stop_gradient(batch.phi))))

            phi = batch.phi
            new = Scales(
                batch.mean(jnp.square(jax.lax.stop_gradient(phi[:, 0]))),
                squared(value_of),
                jax.lax.stop_gradient(squared(prediction_of)),
            )
            scales = jax.tree.map(lambda old, x: MEMORY * old + (1 - MEMORY) * x, scales, new)
            ratio = scales.value / jnp.maximum(scales.prediction, 1e-12)
            beta = self.prediction_share * jnp.sqrt(ratio)
            cov = objective.update_covariance(jnp.zeros((d, d)), phi, 1.0, batch.weight)
            terms = {
                "value": value_of(phi),
                "prediction": prediction_of(phi),
                "spread": jnp.sum(jnp.square(cov[1:, 1:])),
                "beta": beta,
            }
            total = terms["value"] + beta * terms["prediction"] + self.spread * terms["spread"]
            return total, (scales, terms, jnp.abs(phi[:, 0] - given.targets))

        return Representation(
            dimension=d,
            init=lambda key, theta: (jnp.eye(d), Scales(*jnp.ones((3,)))),
            init_theta=lambda key: first_feature(d),
            normalise=normalise,
            prepare=prepare,
            loss=loss,
            optimiser=optimisers.beside(
                optimisers.adam(problem.learning_rate, problem.adam_epsilon, problem.head_rate),
                optimisers.adam(problem.learning_rate * self.predictor_rate, problem.adam_epsilon),
            ),
            theta_of=lambda _: first_feature(d),
            zero_q_head=True,
        )
