"""Online PVN (section 4): features that predict how often random indicators fire."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import require_all
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
from spectral_bellman.networks import FeatureNetwork
from spectral_bellman.objective import Covariances


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
    """(R, K), outputs of the random networks."""
    future: Array
    """(R, K), γ times the mean over actions of the target's ψ_k(s', a)."""


@dataclass(frozen=True)
class PVN(FittedConfig):
    """ψ_k(s, a) = φ(s, a)ᵀw_k predicts how often indicator k fires under random actions."""

    name: ClassVar[str] = "pvn"
    needs_following: ClassVar[bool] = True
    pvn_networks: int = 10
    """Frozen random networks."""
    pvn_outputs: int = 10
    """Indicators of each network; the product of the two is the number of tasks."""
    pvn_quantile: float = 0.01
    """Share of states on which an indicator fires."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, count=("pvn_networks", "pvn_outputs"), share=("pvn_quantile",))
        if isinstance(self.solver, AdamSolver) and self.solver.q_start == "backup":
            raise ValueError(
                "--q-start backup starts at θ̃(θ⁻), which --representation pvn has not: take "
                "--q-start last"
            )

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The squared error of ψ, and quantile regression for the biases."""
        tasks, d = self.pvn_networks * self.pvn_outputs, self.features

        def init(key: RandomKey, _: Array) -> tuple[Indicators, Kept]:
            weights_key, *keys = jax.random.split(key, 1 + self.pvn_networks)
            weights = jax.random.normal(weights_key, (tasks, d)) / jnp.sqrt(d)
            networks = eqx.filter_vmap(lambda key: single(1, self.pvn_outputs, key))(
                jnp.stack(keys)
            )
            covariances = objective.init_covariances(d)
            return Indicators(weights, jnp.zeros(tasks)), Kept(networks, covariances)

        def outputs(networks: FeatureNetwork, observation: Array) -> Array:
            return eqx.filter_vmap(lambda network: network(observation))(networks).ravel()

        def prepare(backup: Backup, _: Any, kept: Kept, __: RandomKey) -> Prepared:
            mean = jnp.mean(backup.following, axis=1)
            return Prepared(
                jax.vmap(outputs, (None, 0))(kept.networks, backup.observation),
                backup.following_discount[:, None] * product(mean, backup.target.beside.weights.T),
            )

        def loss(
            batch: Batch, indicators: Indicators, kept: Kept, prepared: Prepared
        ) -> tuple[Array, tuple[Kept, Terms, Array]]:
            excess = prepared.output + indicators.bias[None]
            targets = (excess > 0).astype(batch.phi.dtype) + prepared.future
            quantile = 1 - self.pvn_quantile
            error = product(batch.phi, indicators.weights.T) - targets
            pinball = jnp.maximum(quantile * excess, (quantile - 1) * excess)
            terms = {
                "pvn": batch.mean(jnp.mean(jnp.square(error), axis=1)),
                "quantile": batch.mean(jnp.mean(pinball, axis=1)),
            }
            cov = objective.update_covariance(
                kept.covariances.feature, batch.phi, 1.0, batch.weight
            )
            covariances = Covariances(cov, kept.covariances.parameter, jnp.ones((), bool))
            total = terms["pvn"] + terms["quantile"]
            kept = kept._replace(covariances=covariances)
            return total, (kept, terms, jnp.mean(jnp.abs(error), axis=1))

        return Representation(
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
