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
    Evidence,
    Exploration,
    PrecisionConfig,
    Setting,
)


@dataclass(frozen=True)
class NoiseConfig(PrecisionConfig):
    """Noise of variance σ_exp = λ_min(Σ)/(d(1 − γ)) along Σ⁻¹."""

    noise_scale: float = 1.0
    """Factor on the variance σ_exp."""
    noise_anneal_steps: int = 0
    """Agent steps over which the noise's standard deviation falls linearly to zero; 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(self, not_negative=("noise_scale", "noise_anneal_steps"))

    def record(
        self,
        setting: Setting,
        init_actor: Callable[[int, RandomKey], Any],
        values: Callable[[Array, Array, Any, Array], Array],
    ) -> Exploration:
        """An exploration with √σ L⁻ᵀ for its noise. The learner keeps it before it is scaled."""
        d = setting.dimension

        def publish(
            kept: Array, evidence: Evidence | None, progress: Progress, _: RandomKey
        ) -> tuple[Array, Array]:
            if evidence is not None:
                factor = precision_factor(evidence.phi, evidence.weight, self.ridge)
                scale = posterior.exploration_scale_from_factor(factor, setting.discount)
                kept = posterior_noise(factor, scale)
            return kept, self.deviation(setting, progress) * kept

        return Exploration(
            init=lambda key: jnp.zeros((d, d)),
            no_noise=lambda: jnp.zeros((d, d)),
            init_actor=init_actor,
            follow=lambda noise, actor: actor,
            values=values,
            epsilon=lambda agent_steps: jnp.zeros(()),
            rows=self.rows(d),
            every=self.rounds(setting),
            publish=publish,
            diagnose=_diagnose,
        )

    def deviation(self, setting: Setting, progress: Progress) -> Array | float:
        """The factor on √σ_exp by the number of agent steps taken."""
        start = self.noise_scale**0.5
        if not self.noise_anneal_steps:
            return start
        steps, begin = self.noise_anneal_steps, setting.warmup_steps
        return schedules.linear(progress.agent_steps, begin, steps, start, 0.0)


@dataclass(frozen=True)
class Thompson(NoiseConfig):
    """Acts greedily in φᵀθ_TS, θ_TS = θ̂ + √σ L⁻ᵀz, with z drawn once an episode."""

    name: ClassVar[str] = "thompson"
    noise_bound: bool = False
    """Bound ‖θ_TS − θ̂‖ by R_max/(1 − γ)."""

    def build(self, setting: Setting) -> Exploration:
        """z for an actor; θ_TS follows the policy when it moves."""

        def init_actor(num_envs: int, key: RandomKey) -> Array:
            return jax.random.normal(jax.random.split(key)[0], (num_envs, setting.dimension))

        def values(theta: Array, noise: Array, z: Array, phi: Array) -> Array:
            moved = product(z, noise.T)
            if self.noise_bound:
                moved = posterior.bound_noise(moved, setting.largest_value)
            return jnp.einsum("nad,nd->na", phi, theta[None] + moved)

        return self.record(setting, init_actor, values)


@dataclass(frozen=True)
class UCB(NoiseConfig):
    """Acts greedily in φᵀθ̂ plus its standard deviation √(σ φᵀΣ⁻¹φ)."""

    name: ClassVar[str] = "ucb"

    def build(self, setting: Setting) -> Exploration:
        """Nothing is drawn."""

        def values(theta: Array, noise: Array, actor: Any, phi: Array) -> Array:
            return phi @ theta + jnp.linalg.norm(phi @ noise, axis=-1)

        return self.record(setting, lambda num_envs, key: (), values)


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


def _diagnose(noise: Array, acting: Array, phi: Array, key: RandomKey) -> Terms:
    z = jax.random.normal(key, (64, len(noise)))
    gaps = jnp.einsum("bad,md->bam", acting, product(z, noise.T))
    spread = jnp.std(gaps - jnp.mean(gaps, axis=1, keepdims=True), axis=2)
    return {
        "ts_q_gap": jnp.mean(spread),
        "max_uncertainty": jnp.linalg.norm(jnp.mean(phi, axis=0) @ noise),
    }
