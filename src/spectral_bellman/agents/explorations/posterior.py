"""Thompson sampling and UCB on one precision matrix Σ (section 3.5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import posterior
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents import schedules
from spectral_bellman.agents.api import Progress, Terms
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.explorations.api import (
    Exploration,
    ExplorationContext,
    PrecisionConfig,
    ReplayFeatures,
)


@dataclass(frozen=True)
class NoiseConfig(PrecisionConfig):
    """Gaussian noise with covariance σ Σ⁻¹.

    σ is ``noise_scale`` · σ_exp, annealed, where σ_exp = λ_min(Σ)/(d(1 − γ)).
    """

    noise_scale: float = 1.0
    """Factor on the variance σ_exp."""
    noise_anneal_steps: int = 0
    """Agent steps over which the noise's standard deviation falls linearly to zero; 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, not_negative=("noise_scale", "noise_anneal_steps"))

    def with_noise(
        self,
        context: ExplorationContext,
        init_actor: Callable[[int, RandomKey], Any],
        values: Callable[[Array, Array, Any, Array], Array],
    ) -> Exploration:
        """An exploration whose noise is √σ L⁻ᵀ.

        The learner's state is √σ_exp L⁻ᵀ; ``noise_scale`` and the annealing apply when it is
        published.
        """
        d = context.dimension

        def publish(
            state: Array, replay: ReplayFeatures | None, progress: Progress, _: RandomKey
        ) -> tuple[Array, Array]:
            if replay is not None:
                factor = precision_factor(replay.phi, replay.weight, self.ridge)
                scale = posterior.exploration_scale_from_factor(factor, context.discount)
                state = posterior_noise(factor, scale)
            return state, self.deviation(context, progress) * state

        return Exploration(
            init=lambda key: jnp.zeros((d, d)),
            init_noise=lambda: jnp.zeros((d, d)),
            init_actor=init_actor,
            update_actor=lambda noise, actor: actor,
            values=values,
            epsilon=lambda agent_steps: jnp.zeros(()),
            rows=self.rows(d),
            distinct=self.precision_distinct,
            every=self.rounds(context),
            publish=publish,
            diagnose=_diagnose,
        )

    def deviation(self, context: ExplorationContext, progress: Progress) -> Array | float:
        """The factor on √σ_exp by the number of agent steps taken."""
        start = self.noise_scale**0.5
        if not self.noise_anneal_steps:
            return start
        steps, begin = self.noise_anneal_steps, context.warmup_steps
        return schedules.linear(progress.agent_steps, begin, steps, start, 0.0)


@dataclass(frozen=True)
class Thompson(NoiseConfig):
    """Acts greedily in φᵀθ_TS, θ_TS = θ̂ + √σ L⁻ᵀz, with z drawn once an episode."""

    name: ClassVar[str] = "thompson"
    noise_bound: bool = False
    """Bound ‖θ_TS − θ̂‖ by R_max/(1 − γ)."""

    def build(self, context: ExplorationContext) -> Exploration:
        """Each environment keeps its z. θ_TS is computed from z and the policy at every step."""

        def init_actor(num_envs: int, key: RandomKey) -> Array:
            return jax.random.normal(jax.random.split(key)[0], (num_envs, context.dimension))

        def values(theta: Array, noise: Array, z: Array, phi: Array) -> Array:
            moved = product(z, noise.T)
            if self.noise_bound:
                moved = posterior.bound_noise(moved, context.largest_value)
            return jnp.einsum("nad,nd->na", phi, theta[None] + moved)

        return self.with_noise(context, init_actor, values)


@dataclass(frozen=True)
class UCB(NoiseConfig):
    """Acts greedily in φᵀθ̂ plus its standard deviation √(σ φᵀΣ⁻¹φ)."""

    name: ClassVar[str] = "ucb"

    def build(self, context: ExplorationContext) -> Exploration:
        """Nothing is drawn."""

        def values(theta: Array, noise: Array, actor: Any, phi: Array) -> Array:
            return phi @ theta + jnp.linalg.norm(phi @ noise, axis=-1)

        return self.with_noise(context, lambda num_envs, key: (), values)


def precision_factor(
    phi: Float[Array, "n d"], weight: Float[Array, " n"], ridge: float
) -> Float[Array, "d d"]:
    """L of Σ = λI + Σ_n w_n φ_n φ_nᵀ."""
    scatter = posterior.init_scatter(phi.shape[1])
    scatter = posterior.add_scatter(scatter, phi * jnp.sqrt(weight)[:, None])
    return posterior.factor_scatter(scatter, ridge)


def posterior_noise(factor: Float[Array, "d d"], scale: Float[Array, ""]) -> Float[Array, "d d"]:
    """√σ L⁻ᵀ: times z it is θ_TS − θ̂, and φᵀ times it has the norm √(σ φᵀΣ⁻¹φ)."""
    identity, mean = jnp.eye(len(factor)), jnp.zeros(len(factor))
    return posterior.thompson_parameters(identity, mean, factor, scale).T


def _diagnose(noise: Array, acting: Array, phi: Array, mask: Array, key: RandomKey) -> Terms:
    share = mask.astype(jnp.float32) / jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
    z = jax.random.normal(key, (64, len(noise)))
    gaps = jnp.einsum("bad,md->bam", acting, product(z, noise.T))
    spread = jnp.std(gaps - jnp.mean(gaps, axis=1, keepdims=True), axis=2)
    return {
        "ts_q_gap": share @ jnp.mean(spread, axis=1),
        "max_uncertainty": jnp.linalg.norm(share @ phi @ noise),
    }
