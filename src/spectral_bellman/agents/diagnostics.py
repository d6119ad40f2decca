"""What to look at when an agent does not learn: spectra, norms and errors of its features."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import posterior
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.explorations.posterior import precision_factor
from spectral_bellman.agents.features import taken
from spectral_bellman.replay import Rows

if TYPE_CHECKING:
    from spectral_bellman.agents.q_agent import QAgent
    from spectral_bellman.agents.state import Policy, TrainState

ITEMS = 1_024
"""Steps that held-out errors and gaps are measured on."""
ROWS = 2 * ITEMS
"""Steps of the replay that Σ is built from where the exploration builds no Σ."""
RIDGE = 0.1
"""λ of Σ for an agent that does not explore by Σ."""


def diagnose(
    agent: "QAgent",
    state: "TrainState",
    policy: "Policy",
    items: Any,
    rows: Rows | None,
    key: RandomKey,
) -> Terms:
    """Diagnostics of a state, one number each; of plain DQN only those that need no features."""
    part, backbone = agent.representation, agent.backbone
    _, _, theta_key, noise_key = jax.random.split(key, 4)
    mask = backbone.mask(items).ravel()
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)

    def mean(values: Array) -> Array:
        """The mean over rows that are not padding."""
        return jnp.sum(jnp.where(mask, values, 0.0)) / count

    # The policy is the pair (φ, θ̂) that was fitted together; the state's φ may have moved on.
    seen = backbone.view(policy.network, items)
    acting = part.normalise(seen.phi)
    values = acting @ policy.theta
    largest = jnp.max(values, axis=1)
    result = {
        "q_mean": mean(jnp.mean(values, axis=1)),
        "q_max": jnp.max(jnp.where(mask, largest, -jnp.inf)),
        "action_gap": mean(largest - jnp.mean(values, axis=1)),
    }
    target = state.target
    result |= backbone.diagnose(part.normalise, target, state.network, items)
    if rows is None:
        return result
    raw = backbone.taken(state.network, items)
    phi = part.normalise(raw)
    result |= {
        "theta_norm": jnp.linalg.norm(policy.theta),
        "feature_norm": mean(jnp.linalg.norm(phi, axis=1)),
        "share_outside_unit_ball": mean((jnp.sum(jnp.square(raw), axis=1) > 1).astype(jnp.float32)),
    }
    ridge = getattr(agent.config.exploration, "ridge", RIDGE)
    phi_held = agent.features_taken(state.network, rows.items)
    factor = precision_factor(phi_held, agent.row_weights(rows), ridge)
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
        policy.noise, acting, taken(acting, seen.action), mask, noise_key
    )
    if part.theta_tilde is not None and part.theta_draws is not None:
        theta = part.theta_draws(theta_key, target.theta)
        theta = jnp.concatenate([target.theta[None], theta])
        after = part.theta_tilde(state.beside, theta, target.theta)
        backup = backbone.backup(part.normalise, target, state.network, items)
        targets, fitted = backup.values(theta, after), product(phi, after.T)
        centre = mean(jnp.mean(targets, axis=1))
        spread = mean(jnp.mean(jnp.square(targets - centre), axis=1))
        error = mean(jnp.mean(jnp.square(fitted - targets), axis=1))
        result["backup_error"] = error / jnp.maximum(spread, 1e-12)
        gap = mean(jnp.square(fitted[:, 0] - phi @ state.theta))
        result["theta_tilde_gap"] = jnp.sqrt(gap)
    return result


def effective_rank(matrix: Float[Array, "d d"]) -> Float[Array, ""]:
    """(Σ λ)² / Σ λ² of the eigenvalues: k for a projection of rank k."""
    return jnp.square(jnp.trace(matrix)) / jnp.maximum(jnp.sum(jnp.square(matrix)), 1e-30)
