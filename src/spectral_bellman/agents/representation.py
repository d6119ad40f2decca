"""What φ learns from: the losses of the paper's rows, each as two functions.

``prepare`` computes what is fixed while a phase lasts, targets above all, for many gradient steps at once: the target network
does not move, so nothing is gained by computing them step by step, and much is lost on a GPU. ``loss`` is what one step
differentiates. Shapes: S steps of B transitions, M sampled θ.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman import objective, operators
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.networks import FeatureNetwork, ResidualParameters, feature_network
from spectral_bellman.objective import Covariances
from spectral_bellman.replay import Transition

Terms = dict[str, Array]

OBSERVATION_BYTES = 32 * 2**20
"""What the observations of a batch may need as floats; larger ones are taken in parts."""


class Target(NamedTuple):
    """Copies that stand still from one policy to the next: φ⁻ and θ⁻, which were fitted together, and PVN's w⁻."""

    network: FeatureNetwork
    theta: Float[Array, " d"]
    backup: Any


class Representation(NamedTuple):
    """One way to learn φ."""

    init: Callable[[RandomKey], tuple[Any, Any]]
    """key -> (backup, frozen): what is trained beside φ (θ̃, say), and what is drawn once and kept."""
    prepare: Callable[[Target, Any, Transition, RandomKey], Any]
    """(target, frozen, batches (S, B, …), key) -> a pytree with leading axis S."""
    loss: Callable[[FeatureNetwork, Any, Transition, Any, Covariances], tuple[Array, tuple[Covariances, Terms]]]
    """(φ, backup, batch, prepared, Λ) -> loss, (Λ, terms)."""
    theta_tilde: Callable[[Any, Array, Array], Array] | None = None
    """(backup, θ (M, d), θ⁻) -> θ̃(θ), where there is one."""


def features(network: FeatureNetwork, observations: Array, config: AgentConfig) -> Float[Array, "B A d"]:
    """φ(s, ·) of a batch, its norm taken care of."""
    return normalise(raw_features(network, observations), config)


def features_taken(network: FeatureNetwork, batch: Transition, config: AgentConfig) -> Float[Array, "B d"]:
    """φ(s, a) of a batch."""
    return normalise(taken(raw_features(network, batch.observation), batch.action), config)


def raw_features(network: FeatureNetwork, observations: Array) -> Array:
    """The network on a batch, in parts where the observations as floats would need much memory."""
    rows = max(1, OBSERVATION_BYTES // (4 * math.prod(observations.shape[1:])))
    return jax.vmap(network)(observations) if len(observations) <= rows else jax.lax.map(network, observations, batch_size=rows)


def normalise(phi: Array, config: AgentConfig) -> Array:
    """What comes out of the network, with the norm that the config names."""
    if config.plain or config.norm == "none":
        return phi
    if config.norm == "clip":
        return objective.clip_norm(phi)
    if config.norm == "value":
        return jnp.concatenate([phi[..., :1], _unit(phi[..., 1:])], axis=-1)
    return _unit(phi)


def _unit(phi: Array) -> Array:
    """objective.unit_norm without its guard against overflow, which a network that learns does not need and a GPU feels."""
    return phi * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(phi), axis=-1, keepdims=True), 1e-24))


def taken(phi: Float[Array, "B A d"], action: Int[Array, " B"]) -> Float[Array, "B d"]:
    """Of every action's row, that of the action taken; a masked sum, whose gradient needs no scatter."""
    mask = jax.nn.one_hot(action, phi.shape[1], dtype=phi.dtype)
    return jnp.sum(phi * mask[:, :, None], axis=1)


def rewards_and_discounts(batch: Transition, config: AgentConfig) -> tuple[Array, Array]:
    """r clipped, and γ, or 0 where the episode terminated."""
    reward = jnp.clip(batch.reward, -config.reward_clip, config.reward_clip) if config.reward_clip else batch.reward
    return reward, config.discount * batch.discount


def q_targets(target: Target, batch: Transition, config: AgentConfig) -> Float[Array, " B"]:
    """r + γ max_a' φ⁻(s', a')ᵀθ⁻."""
    values = features(target.network, batch.next_observation, config) @ target.theta
    return jax.vmap(operators.one_step)(*rewards_and_discounts(batch, config), values)


def variance_of(theta: Float[Array, " d"], config: AgentConfig) -> Float[Array, ""]:
    """σ_rep² of ν around θ."""
    return config.theta_variance * (jnp.mean(jnp.square(theta)) if config.relative_variance else jnp.ones(()))


def first_feature(config: AgentConfig) -> Float[Array, " d"]:
    """e₁, the parameters of the first feature."""
    return jnp.zeros(config.dimension).at[0].set(1.0)


def representation(config: AgentConfig, observation: jax.ShapeDtypeStruct) -> Representation | None:
    """The representation that the config names; None for td, which learns φ and θ from one loss."""
    builders = {"mse": _bellman, "spectral": _bellman, "expected": _expected, "averaged": _expected, "pvn": _pvn}
    return None if config.representation == "td" else builders[config.representation](config, observation)


def _bellman(config: AgentConfig, _: jax.ShapeDtypeStruct) -> Representation:
    """The spectral loss over ν(θ) (section 3.3), or Bellman MSE on the same grid (section 3.1)."""

    def init(key: RandomKey) -> tuple[Any, Any]:
        return ResidualParameters(config.features, key), ()

    def prepare(target: Target, _: Any, batches: Transition, key: RandomKey) -> tuple[Array, Array]:
        def one(batch: Transition, key: RandomKey) -> tuple[Array, Array]:
            theta = objective.sample_parameters(key, target.theta, variance_of(target.theta, config), config.theta_samples)
            reward, discount = rewards_and_discounts(batch, config)
            phi_next = features(target.network, batch.next_observation, config)
            return theta, operators.one_step_targets(reward, discount, phi_next, theta)

        return jax.vmap(one)(batches, jax.random.split(key, len(batches.action)))

    def loss(
        network: FeatureNetwork, backup: ResidualParameters, batch: Transition, prepared: tuple[Array, Array], cov: Covariances
    ) -> tuple[Array, tuple[Covariances, Terms]]:
        theta, targets = prepared
        return objective.representation_loss(
            features_taken(network, batch, config),
            jax.vmap(backup)(theta),
            targets,
            cov,
            alpha=config.alpha,
            feature_orthogonality=config.feature_orthogonality,
            param_orthogonality=config.param_orthogonality,
            mse=config.representation == "mse",
        )

    return Representation(init, prepare, loss, lambda backup, theta, _: jax.vmap(backup)(theta))


def _with_features(cov: Covariances, phi: Float[Array, "B d"]) -> Covariances:
    """Λ1 of the batch alone, where no average over batches is wanted."""
    return Covariances(objective.update_covariance(cov.feature, phi, 1.0), cov.parameter, jnp.ones((), bool))


class LinearBackup(NamedTuple):
    """θ̃(θ) = b + J(θ − θ̂)."""

    b: Float[Array, " d"]
    J: Float[Array, "d d"]


def _expected(config: AgentConfig, _: jax.ShapeDtypeStruct) -> Representation:
    """The expectation over ν taken beforehand: with θ = θ̂ + σε and θ̃ = b + σJε, closure under T is two conditions,

        φᵀb = TQ_θ̂   and   Jᵀφ = γ Σ_a π(a|s') φ⁻(s', a),

    fitted as (φᵀb − TQ_θ̂)² + σ²‖Jᵀφ − γ Σ_a π(a|s') φ⁻(s', a)‖²: the value, and a linear prediction of the next features beside it.

    "expected" takes π greedy in θ̂: T is linear as long as no θ of ν has another greedy action. "averaged" takes the share of ν that
    is greedy in a, so that the right side is the mean of ∇TQ_θ over ν, and Jε (by Stein's identity) the best linear
    answer to the noise of ν, however wide it is.

    Where the first feature is Q itself (norm "value") b is e₁ and stays there: any basis of the same span would do, and in this one
    the first condition is DQN's loss. The others need not hold Q then, and a constant predicts itself: they are kept apart by the
    square of E[ψψᵀ], which for ψ of unit norm is smallest where they are orthogonal and of equal size. They may hold a part of it:
    with q_start "backup" θ̂ is b, of which only the first component stays 1, and Q the first feature and what b makes of the others.
    """

    def init(_: RandomKey) -> tuple[LinearBackup, Any]:
        return LinearBackup(first_feature(config) if config.q_first else jnp.zeros(config.features), jnp.eye(config.features)), ()

    def prepare(target: Target, _: Any, batches: Transition, key: RandomKey) -> tuple[Array, Array, Array]:
        variance = variance_of(target.theta, config)

        def one(batch: Transition, key: RandomKey) -> tuple[Array, Array, Array]:
            reward, discount = rewards_and_discounts(batch, config)
            phi_next = features(target.network, batch.next_observation, config)
            values = phi_next @ target.theta
            if config.representation == "averaged":
                theta = objective.sample_parameters(key, target.theta, variance, config.theta_samples)
                greedy = jnp.argmax(jnp.einsum("bad,md->bma", phi_next, theta), axis=2)
                share = jnp.mean(jax.nn.one_hot(greedy, phi_next.shape[1]), axis=1)
                following = jnp.einsum("ba,bad->bd", share, phi_next)
            else:
                following = taken(phi_next, jnp.argmax(values, 1))
            return jax.vmap(operators.one_step)(reward, discount, values), discount[:, None] * following, variance

        return jax.vmap(one)(batches, jax.random.split(key, len(batches.action)))

    def loss(
        network: FeatureNetwork, backup: LinearBackup, batch: Transition, prepared: tuple[Array, Array, Array], cov: Covariances
    ) -> tuple[Array, tuple[Covariances, Terms]]:
        targets, following, variance = prepared
        phi = features_taken(network, batch, config)
        b = backup.b
        if config.q_first:
            b = jax.lax.stop_gradient(b) if config.q_start == "last" else b.at[0].set(1.0)
        terms = {
            "value": jnp.mean(jnp.square(phi @ b - targets)),
            "prediction": jnp.mean(jnp.sum(jnp.square(product(phi, backup.J) - following), axis=1)),
        }
        total, cov = terms["value"] + variance * terms["prediction"], _with_features(cov, phi)
        if config.q_first:
            terms["spread"] = jnp.sum(jnp.square(cov.feature[1:, 1:]))
            total += config.feature_orthogonality * terms["spread"]
        return total, (cov, terms)

    return Representation(
        init, prepare, loss, lambda backup, theta, theta_hat: backup.b[None] + product(theta - theta_hat[None], backup.J.T)
    )


class Indicators(NamedTuple):
    """PVN's tasks: w_k, and the bias that fixes how often indicator k fires."""

    weights: Float[Array, "K d"]
    bias: Float[Array, " K"]


def _pvn(config: AgentConfig, observation: jax.ShapeDtypeStruct) -> Representation:
    """Online PVN (section 4): ψ_k(s, a) = φ(s, a)ᵀw_k predicts how often random indicator k fires under random actions."""
    tasks = config.pvn_networks * config.pvn_outputs

    def init(key: RandomKey) -> tuple[Indicators, FeatureNetwork]:
        weights_key, *keys = jax.random.split(key, 1 + config.pvn_networks)
        weights = jax.random.normal(weights_key, (tasks, config.features)) / jnp.sqrt(config.features)

        def random_network(key: RandomKey) -> FeatureNetwork:
            return feature_network(config.network, config.hidden, observation, 1, config.pvn_outputs, key)

        return Indicators(weights, jnp.zeros(tasks)), eqx.filter_vmap(random_network)(jnp.stack(keys))

    def outputs(frozen: FeatureNetwork, observation: Array) -> Array:
        return eqx.filter_vmap(lambda network: network(observation))(frozen).ravel()

    def prepare(target: Target, frozen: FeatureNetwork, batches: Transition, _: RandomKey) -> tuple[Array, Array]:
        def one(batch: Transition) -> tuple[Array, Array]:
            mean = jnp.mean(features(target.network, batch.next_observation, config), axis=1)
            discount = rewards_and_discounts(batch, config)[1]
            return jax.vmap(outputs, (None, 0))(frozen, batch.observation), discount[:, None] * product(
                mean, target.backup.weights.T
            )

        return jax.vmap(one)(batches)

    def loss(
        network: FeatureNetwork, backup: Indicators, batch: Transition, prepared: tuple[Array, Array], cov: Covariances
    ) -> tuple[Array, tuple[Covariances, Terms]]:
        output, following = prepared
        phi = features_taken(network, batch, config)
        excess = output + backup.bias[None]
        targets = (excess > 0).astype(phi.dtype) + following
        quantile = 1 - config.pvn_quantile
        terms = {
            "pvn": jnp.mean(jnp.square(product(phi, backup.weights.T) - targets)),
            "quantile": jnp.mean(jnp.maximum(quantile * excess, (quantile - 1) * excess)),
        }
        return terms["pvn"] + terms["quantile"], (_with_features(cov, phi), terms)

    return Representation(init, prepare, loss)
