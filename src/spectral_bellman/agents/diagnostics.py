"""What to look at when an agent does not learn: spectra, norms and errors of its features."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import operators, posterior
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.explorations.posterior import precision_factor
from spectral_bellman.agents.features import raw_features, taken
from spectral_bellman.replay import Rows, Transition

if TYPE_CHECKING:
    from spectral_bellman.agents.q_agent import Policy, QAgent, TrainState

ITEMS = 1_024
"""Transitions that held-out errors and gaps are measured on."""
ROWS = 2 * ITEMS
"""Rows of the replay that Σ is built from for its diagnostics, at most."""
RIDGE = 0.1
"""λ of Σ for an agent that does not explore by Σ."""


def diagnose(
    agent: "QAgent",
    state: "TrainState",
    policy: "Policy",
    items: Transition,
    rows: Rows | None,
    key: RandomKey,
) -> Terms:
    """Diagnostics of a state, one number each; of plain DQN only those that need no features."""
    part = agent.representation
    _, _, theta_key, noise_key = jax.random.split(key, 4)
    # The policy is the pair (φ, θ̂) that was fitted together; the state's φ may have moved on.
    acting = part.features(policy.network, items.observation)
    values = acting @ policy.theta
    result = {
        "q_mean": jnp.mean(values),
        "q_max": jnp.max(values),
        "action_gap": jnp.mean(jnp.max(values, axis=1) - jnp.mean(values, axis=1)),
    }
    if rows is None:
        return result
    raw = taken(raw_features(state.network, items.observation), items.action)
    phi = part.normalise(raw)
    result |= {
        "theta_norm": jnp.linalg.norm(policy.theta),
        "feature_norm": jnp.mean(jnp.linalg.norm(phi, axis=1)),
        "share_outside_unit_ball": jnp.mean(jnp.sum(jnp.square(raw), axis=1) > 1),
    }
    ridge = getattr(agent.config.exploration, "ridge", RIDGE)
    factor = precision_factor(part.features_taken(state.network, rows.items), rows.weight, ridge)
    result |= {
        "sigma_min_eigenvalue": posterior.min_eigenvalue(factor),
        "sigma_effective_rank": effective_rank(product(factor, factor.T)),
    }
    if part.covariances is not None:
        cov = part.covariances(state.kept)
        for name, matrix in (("feature_cov", cov.feature), ("param_cov", cov.parameter)):
            result |= {
                f"{name}_effective_rank": effective_rank(matrix),
                f"{name}_min_eigenvalue": jnp.linalg.eigvalsh(matrix)[0],
            }
    result |= agent.exploration.diagnose(
        policy.noise, acting, taken(acting, items.action), noise_key
    )
    if part.theta_tilde is not None and part.theta_draws is not None:
        theta = part.theta_draws(theta_key, state.target.theta)
        theta = jnp.concatenate([state.target.theta[None], theta])
        phi_next = part.features(state.target.network, items.next_observation)
        reward_and_discount = agent.problem.rewards_and_discounts(items)
        targets = operators.one_step_targets(*reward_and_discount, phi_next, theta)
        fitted = product(phi, part.theta_tilde(state.beside, theta, state.target.theta).T)
        spread = jnp.mean(jnp.square(targets - jnp.mean(targets)))
        error = jnp.mean(jnp.square(fitted - targets))
        result["backup_error"] = error / jnp.maximum(spread, 1e-12)
        gap = jnp.mean(jnp.square(fitted[:, 0] - phi @ state.theta))
        result["theta_tilde_gap"] = jnp.sqrt(gap)
    return result


def effective_rank(matrix: Float[Array, "d d"]) -> Float[Array, ""]:
    """(Σ λ)² / Σ λ² of the eigenvalues: k for a projection of rank k."""
    return jnp.square(jnp.trace(matrix)) / jnp.maximum(jnp.sum(jnp.square(matrix)), 1e-30)
