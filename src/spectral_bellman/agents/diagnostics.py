"""What to look at when an agent does not learn: spectra, norms and errors of its features."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective, operators, posterior
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.agent import Agent, AgentState
from spectral_bellman.agents.exploration import Policy
from spectral_bellman.agents.representation import (
    Terms,
    features,
    normalise,
    raw_features,
    rewards_and_discounts,
    taken,
    variance_of,
)
from spectral_bellman.replay import Replay, Rows, Transition, rows, sample

SAMPLES = 1_024
"""Transitions that held-out errors and gaps are measured on."""


def material(agent: Agent, replay: Replay, key: RandomKey) -> tuple[Transition, Rows | None]:
    """What ``diagnose`` looks at: held-out transitions, and those that Σ is made of."""
    row_key, batch_key = jax.random.split(key, 4)[:2]
    batch = sample(replay, batch_key, (SAMPLES,))
    return batch, None if agent.config.plain else rows(replay, row_key, min(agent.config.precision_samples, 2 * SAMPLES))


def diagnose(agent: Agent, state: AgentState, policy: Policy, drawn: tuple[Transition, Rows | None], key: RandomKey) -> Terms:
    """Diagnostics of a state, one number each; of a plain head, which has no features, only those that make sense."""
    config = agent.config
    _, _, theta_key, noise_key = jax.random.split(key, 4)
    batch, selection = drawn
    # The policy is the pair (φ, θ̂) that was fitted together; the state's φ has moved on since.
    acting = features(policy.network, batch.observation, config)
    values = acting @ policy.theta
    result = {
        "q_mean": jnp.mean(values),
        "q_max": jnp.max(values),
        "action_gap": jnp.mean(jnp.max(values, axis=1) - jnp.mean(values, axis=1)),
    }
    if selection is None:
        return result
    raw = taken(raw_features(state.network, batch.observation), batch.action)
    phi = normalise(raw, config)
    result |= {
        "theta_norm": jnp.linalg.norm(policy.theta),
        "feature_norm": jnp.mean(jnp.linalg.norm(phi, axis=1)),
        "share_outside_unit_ball": jnp.mean(jnp.sum(jnp.square(raw), axis=1) > 1),
    }
    factor = agent.precision_factor(state.network, selection)
    sigma = product(factor, factor.T)
    result |= {"sigma_min_eigenvalue": posterior.min_eigenvalue(factor), "sigma_effective_rank": effective_rank(sigma)}
    for name, matrix in (("feature_cov", state.covariances.feature), ("param_cov", state.covariances.parameter)):
        result |= {f"{name}_effective_rank": effective_rank(matrix), f"{name}_min_eigenvalue": jnp.linalg.eigvalsh(matrix)[0]}
    if config.exploration in ("thompson", "ucb"):
        z = jax.random.normal(noise_key, (64, config.dimension))
        gaps = jnp.einsum("bad,md->bam", acting, product(z, policy.noise.T))
        result["ts_q_gap"] = jnp.mean(jnp.std(gaps - jnp.mean(gaps, axis=1, keepdims=True), axis=2))
        mean_phi = jnp.mean(taken(acting, batch.action), axis=0)
        result["max_uncertainty"] = jnp.linalg.norm(mean_phi @ policy.noise)
    if agent.representation is not None and agent.representation.theta_tilde is not None:
        theta = objective.sample_parameters(
            theta_key, state.target.theta, variance_of(state.target.theta, config), config.theta_samples
        )
        theta = jnp.concatenate([state.target.theta[None], theta])
        phi_next = features(state.target.network, batch.next_observation, config)
        targets = operators.one_step_targets(*rewards_and_discounts(batch, config), phi_next, theta)
        fitted = product(phi, agent.representation.theta_tilde(state.backup, theta, state.target.theta).T)
        spread = jnp.mean(jnp.square(targets - jnp.mean(targets)))
        result["backup_error"] = jnp.mean(jnp.square(fitted - targets)) / jnp.maximum(spread, 1e-12)
        result["theta_tilde_gap"] = jnp.sqrt(jnp.mean(jnp.square(fitted[:, 0] - phi @ state.theta)))
    return result


def effective_rank(matrix: Float[Array, "d d"]) -> Float[Array, ""]:
    """(Σ λ)² / Σ λ² of the eigenvalues: k for a projection of rank k."""
    return jnp.square(jnp.trace(matrix)) / jnp.maximum(jnp.sum(jnp.square(matrix)), 1e-30)
