"""Online PVN (section 4): features that predict how often random indicators fire."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.features import raw_features
from spectral_bellman.agents.representations.api import (
    FittedConfig,
    Problem,
    Representation,
    Target,
    adam,
)
from spectral_bellman.networks import FeatureNetwork
from spectral_bellman.objective import Covariances
from spectral_bellman.replay import Transition


class Indicators(NamedTuple):
    """The tasks that are trained: w_k, and the bias that fixes how often indicator k fires."""

    weights: Float[Array, "K d"]
    bias: Float[Array, " K"]


class Kept(NamedTuple):
    """What is carried along."""

    networks: FeatureNetwork
    """The frozen random networks."""
    covariances: Covariances


class Prepared(NamedTuple):
    """What a gradient step needs."""

    output: Array
    """(B, K), outputs of the random networks."""
    future: Array
    """(B, K), γ times the mean over actions of the target's ψ_k(s', a)."""


@dataclass(frozen=True)
class PVN(FittedConfig):
    """ψ_k(s, a) = φ(s, a)ᵀw_k predicts how often indicator k fires under random actions."""

    name: ClassVar[str] = "pvn"
    pvn_networks: int = 10
    """Frozen random networks."""
    pvn_outputs: int = 10
    """Indicators of each network; the product of the two is the number of tasks."""
    pvn_quantile: float = 0.01
    """Share of states on which an indicator fires."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, count=("pvn_networks", "pvn_outputs"), share=("pvn_quantile",))

    def build(self, problem: Problem) -> Representation:
        """The squared error of ψ, and quantile regression for the biases."""
        tasks, d = self.pvn_networks * self.pvn_outputs, self.features

        def init(key: RandomKey, _: Array) -> tuple[Indicators, Kept]:
            weights_key, *keys = jax.random.split(key, 1 + self.pvn_networks)
            weights = jax.random.normal(weights_key, (tasks, d)) / jnp.sqrt(d)
            networks = eqx.filter_vmap(
                lambda key: problem.random_network(1, self.pvn_outputs, key)
            )(jnp.stack(keys))
            covariances = objective.init_covariances(d)
            return Indicators(weights, jnp.zeros(tasks)), Kept(networks, covariances)

        def outputs(networks: FeatureNetwork, observation: Array) -> Array:
            return eqx.filter_vmap(lambda network: network(observation))(networks).ravel()

        def prepare(target: Target, kept: Kept, batches: Transition, _: RandomKey) -> Prepared:
            def one(batch: Transition) -> Prepared:
                phi_next = self.normalise(raw_features(target.network, batch.next_observation))
                discount = problem.rewards_and_discounts(batch)[1]
                mean = jnp.mean(phi_next, axis=1)
                return Prepared(
                    jax.vmap(outputs, (None, 0))(kept.networks, batch.observation),
                    discount[:, None] * product(mean, target.beside.weights.T),
                )

            return jax.vmap(one)(batches)

        def loss(
            network: FeatureNetwork,
            indicators: Indicators,
            kept: Kept,
            batch: Transition,
            prepared: Prepared,
        ) -> tuple[Array, tuple[Kept, Terms, None]]:
            phi = representation.features_taken(network, batch)
            excess = prepared.output + indicators.bias[None]
            targets = (excess > 0).astype(phi.dtype) + prepared.future
            quantile = 1 - self.pvn_quantile
            error = product(phi, indicators.weights.T) - targets
            terms = {
                "pvn": jnp.mean(jnp.square(error)),
                "quantile": jnp.mean(jnp.maximum(quantile * excess, (quantile - 1) * excess)),
            }
            cov = objective.update_covariance(kept.covariances.feature, phi, 1.0)
            covariances = Covariances(cov, kept.covariances.parameter, jnp.ones((), bool))
            total = terms["pvn"] + terms["quantile"]
            return total, (kept._replace(covariances=covariances), terms, None)

        representation = Representation(
            dimension=d,
            init=init,
            init_theta=lambda key: jnp.zeros(d),
            normalise=self.normalise,
            prepare=prepare,
            loss=loss,
            optimiser=adam(problem),
            solver=self.solver,
            target_of=lambda indicators: indicators,
            covariances=lambda kept: kept.covariances,
        )
        return representation
