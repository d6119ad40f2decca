"""Who acts: the policy, a published snapshot, and the actor, what belongs to one environment.

A policy is made once a round, right after θ̂ was fitted, and fixed until the next. What differs between the kinds of exploration is
``Policy.noise``: nothing for ε-greedy, √σ L⁻ᵀ for Thompson sampling and UCB, the drawn parameters for propagated noise.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman import posterior
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.config import AgentConfig


class Timestep(NamedTuple):
    """What N environments show: s_t, and whether it begins an episode."""

    observation: Any
    first: Any
    """(N,) booleans."""


class Policy(NamedTuple):
    """A snapshot that acts: φ, θ̂, the noise around it, and ε."""

    network: Any
    theta: Float[Array, " d"]
    noise: Array
    epsilon: Float[Array, ""]


class Actor(NamedTuple):
    """What belongs to an environment for the length of an episode."""

    z: Float[Array, "N d"]
    """The standard normal that θ_TS is recomputed from whenever the policy moves."""
    draw: Int[Array, " N"]
    """propagated: which draw of the parameters it follows."""


def init_actor(config: AgentConfig, num_envs: int, key: RandomKey) -> Actor:
    """An actor before its first episode."""
    width = config.dimension if config.exploration == "thompson" else 0
    z_key, draw_key = jax.random.split(key)
    draw = jax.random.randint(draw_key, (num_envs,), 0, config.propagated_draws)
    return Actor(jax.random.normal(z_key, (num_envs, width)), draw)


def no_noise(config: AgentConfig) -> Array:
    """``Policy.noise`` before anything was learned: θ is θ̂."""
    d = config.dimension
    shapes = {"epsilon": (0,), "thompson": (d, d), "ucb": (d, d), "propagated": (config.propagated_draws, d)}
    return jnp.zeros(shapes[config.exploration])


def begin_episodes(actor: Actor, first: Bool[Array, " N"], config: AgentConfig, key: RandomKey) -> Actor:
    """Draw anew for the environments whose episode begins."""
    fresh = init_actor(config, len(first), key)
    return Actor(jnp.where(first[:, None], fresh.z, actor.z), jnp.where(first, fresh.draw, actor.draw))


def action_values(policy: Policy, actor: Actor, phi: Float[Array, "N A d"], config: AgentConfig) -> Float[Array, "N A"]:
    """The values that each environment is greedy in."""
    if config.exploration == "thompson":
        noise = product(actor.z, policy.noise.T)
        if config.noise_bound:
            noise = posterior.bound_noise(noise, config.largest_value)
        return jnp.einsum("nad,nd->na", phi, policy.theta[None] + noise)
    if config.exploration == "propagated":
        return jnp.einsum("nad,nd->na", phi, policy.noise[actor.draw])
    values = phi @ policy.theta
    return values + jnp.linalg.norm(phi @ policy.noise, axis=-1) if config.exploration == "ucb" else values


def choose(values: Float[Array, "N A"], epsilon: Float[Array, ""], key: RandomKey) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """ε-greedy actions, and the probabilities they were chosen with.

    Among equal values chance decides: one who has seen no reward yet would otherwise do the same for ever, and see none.
    """
    count, actions = values.shape
    uniform_key, action_key, tie_key = jax.random.split(key, 3)
    best = values == jnp.max(values, axis=1, keepdims=True)
    greedy = jnp.argmax(jnp.where(best, jax.random.uniform(tie_key, values.shape), -1.0), axis=1).astype(jnp.int32)
    uniform = jax.random.randint(action_key, (count,), 0, actions)
    action = jnp.where(jax.random.uniform(uniform_key, (count,)) < epsilon, uniform, greedy)
    share = jnp.where(best, 1 / jnp.sum(best, axis=1, keepdims=True, dtype=jnp.float32), 0.0)
    return action, epsilon / actions + (1 - epsilon) * jnp.take_along_axis(share, action[:, None], axis=1)[:, 0]


def epsilon_at(agent_steps: Int[Array, ""], config: AgentConfig) -> Float[Array, ""]:
    """ε by the number of agent steps taken: 1 in the warm-up, then the schedule, or 0 for those who explore by noise."""
    if config.exploration == "epsilon":
        share = (agent_steps.astype(jnp.float32) - config.warmup_steps) / max(config.epsilon_steps, 1)
        after = config.epsilon_start + jnp.clip(share, 0, 1) * (config.epsilon_end - config.epsilon_start)
    else:
        after = jnp.zeros(())
    return jnp.where(agent_steps < config.warmup_steps, 1.0, after)


def noise_factor(agent_steps: Int[Array, ""], config: AgentConfig) -> Array | float:
    """The factor on σ_exp by the number of agent steps taken."""
    if not config.noise_anneal_steps:
        return config.noise_scale
    share = (agent_steps.astype(jnp.float32) - config.warmup_steps) / config.noise_anneal_steps
    return config.noise_scale * (1 - jnp.clip(share, 0, 1))


def posterior_noise(factor: Float[Array, "d d"], scale: Float[Array, ""]) -> Float[Array, "d d"]:
    """√σ L⁻ᵀ, so that θ_TS − θ̂ is its product with z, and √(σ φᵀΣ⁻¹φ) the norm of φᵀ times it."""
    identity = jnp.eye(len(factor))
    return posterior.thompson_parameters(identity, jnp.zeros(len(factor)), factor, scale).T


def propagated_parameters(
    phi: Float[Array, "n d"],
    phi_next: Float[Array, "n A d"],
    rewards: Float[Array, " n"],
    discounts: Float[Array, " n"],
    weight: Float[Array, " n"],
    noise: Float[Array, "n K"],
    prior: Float[Array, "K d"],
    factor: Float[Array, "d d"],
    iterations: int,
    bound: float,
) -> Float[Array, "K d"]:
    """K draws of randomised least-squares value iteration: w ← Σ⁻¹(Φᵀ(r + ξ + γ max_a Φ'w) + ζ), ``iterations`` times from zero.

    Noise on the targets, and on the prior, is carried through every backup, which makes exploration deep: a state is worth visiting
    if what may lie behind it is uncertain.

    Args:
      phi: φ(s, a) of n transitions.
      phi_next: φ(s', ·).
      rewards: r.
      discounts: γ, or 0 where the episode ended.
      weight: how many transitions each stands for.
      noise: ξ, one column a draw.
      prior: ζ.
      factor: L of Σ = λI + Φᵀ diag(weight) Φ.
      iterations: a horizon's worth.
      bound: targets are clipped to ± this.
    """
    weighted = phi * weight[:, None]
    # A transition that stands for w has noise of variance w; one drawn 1/w times carries the same noise each time.
    constant = prior + product(noise.T, phi * jnp.minimum(weight, jnp.sqrt(weight))[:, None])

    def backup(_: Array, parameters: Array) -> Array:
        best = jnp.max(jnp.einsum("nad,kd->nak", phi_next, parameters), axis=1)
        targets = jnp.clip(rewards[:, None] + discounts[:, None] * best, -bound, bound)
        moment = constant + product(targets.T, weighted)
        return jax.scipy.linalg.cho_solve((factor, True), moment.T).T

    return jax.lax.fori_loop(0, iterations, backup, jnp.zeros_like(prior))
