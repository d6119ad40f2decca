"""Propagated noise: randomised least-squares value iteration on φ (Osband et al.).

Noise on every regression target, and on the prior, is carried through every backup, which makes
exploration deep: a state is worth visiting if what may lie behind it is uncertain.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Progress
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.explorations.api import (
    Evidence,
    Exploration,
    PrecisionConfig,
    Setting,
)
from spectral_bellman.agents.explorations.posterior import precision_factor


class Draws(NamedTuple):
    """K draws of parameters, as a policy carries them."""

    parameters: Float[Array, "K d"]
    generation: Int[Array, " K"]
    """Grows when a draw is replaced by a new one."""


class Kept(NamedTuple):
    """What the learner keeps of K draws."""

    keys: Array
    """The keys of each draw's noise."""
    draws: Draws


class Follower(NamedTuple):
    """The draw that each environment acts on, for an episode."""

    draw: Int[Array, " N"]
    generation: Int[Array, " N"]
    """The draw's when the episode began; −1 before."""
    parameters: Float[Array, "N d"]
    """As they were published last before the draw was replaced."""


@dataclass(frozen=True)
class Propagated(PrecisionConfig):
    """Acts greedily in φᵀw, w drawn by value iteration on noisy targets, for an episode."""

    name: ClassVar[str] = "propagated"
    any_scale: ClassVar[bool] = False
    passes: ClassVar[int] = 2
    propagated_variance: float = 0.01
    """Variance of the noise on each target."""
    propagated_iterations: int = 16
    """Backups a round; they go on from the parameters of the round before."""
    propagated_draws: int = 8
    """Draws kept; each round the oldest is replaced, and an episode takes one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(
            self,
            count=("propagated_iterations", "propagated_draws"),
            not_negative=("propagated_variance",),
        )

    def build(self, setting: Setting) -> Exploration:
        """The learner keeps the key and the parameters of each draw."""
        count, d = self.propagated_draws, setting.dimension
        deviation = self.propagated_variance**0.5

        def none() -> Draws:
            return Draws(jnp.zeros((count, d)), jnp.zeros(count, jnp.int32))

        def init_actor(num_envs: int, key: RandomKey) -> Follower:
            draw = jax.random.randint(jax.random.split(key)[1], (num_envs,), 0, count)
            return Follower(draw, jnp.full(num_envs, -1, jnp.int32), jnp.zeros((num_envs, d)))

        def follow(noise: Draws, actor: Follower) -> Follower:
            current = noise.generation[actor.draw]
            generation = jnp.where(actor.generation < 0, current, actor.generation)
            alive = (generation == current)[:, None]
            moved = jnp.where(alive, noise.parameters[actor.draw], actor.parameters)
            return Follower(actor.draw, generation, moved)

        def publish(
            kept: Kept, evidence: Evidence | None, progress: Progress, key: RandomKey
        ) -> tuple[Kept, Draws]:
            if evidence is None:
                return kept, kept.draws
            factor = precision_factor(evidence.phi, evidence.weight, self.ridge)
            oldest = progress.round // self.rounds(setting) % count
            keys = kept.keys.at[oldest].set(jax.random.split(key)[1])

            def noise_of(key: RandomKey) -> tuple[Array, Array]:
                each_key, prior_key = jax.random.split(key)
                # By slot, so that a transition keeps its noise for as long as the draw lives.
                noise = jax.vmap(
                    lambda slot: jax.random.normal(jax.random.fold_in(each_key, slot))
                )(evidence.slot)
                prior = jax.random.normal(prior_key, (d,))
                return deviation * noise, deviation * self.ridge**0.5 * prior

            noise, prior = jax.vmap(noise_of)(keys)
            parameters = propagated_parameters(
                evidence,
                noise.T,
                prior,
                factor,
                self.propagated_iterations,
                setting.largest_value,
                kept.draws.parameters,
            )
            generation = kept.draws.generation.at[oldest].add(1)
            draws = Draws(parameters, generation)
            # A copy: the state may be donated, and the policy must not share its buffers.
            return Kept(keys, draws), jax.tree.map(jnp.copy, draws)

        return Exploration(
            init=lambda key: Kept(jax.random.split(key, count), none()),
            no_noise=none,
            init_actor=init_actor,
            follow=follow,
            values=lambda theta, noise, actor, phi: jnp.einsum("nad,nd->na", phi, actor.parameters),
            epsilon=lambda agent_steps: jnp.zeros(()),
            rows=self.rows(d),
            every=self.rounds(setting),
            publish=publish,
        )


def propagated_parameters(
    evidence: Evidence,
    noise: Float[Array, "n K"],
    prior: Float[Array, "K d"],
    factor: Float[Array, "d d"],
    iterations: int,
    bound: float,
    start: Float[Array, "K d"],
) -> Float[Array, "K d"]:
    """K draws: w ← Σ⁻¹(Φᵀ(r + ξ + γ max_a Φ'w) + ζ), ``iterations`` times from ``start``.

    Args:
      evidence: the transitions.
      noise: ξ, one column a draw.
      prior: ζ.
      factor: L of Σ = λI + Φᵀ diag(weight) Φ.
      iterations: backups.
      bound: targets are clipped to ± this.
      start: w before the first backup.
    """
    phi, weight = evidence.phi, evidence.weight
    weighted = phi * weight[:, None]
    # A row that stands for w transitions has noise of variance w; one that was drawn 1/w times has
    # the same noise each time.
    scaled = phi * jnp.minimum(weight, jnp.sqrt(weight))[:, None]
    constant = prior + product(noise.T, scaled)

    def backup(_: Any, parameters: Array) -> Array:
        best = jnp.max(jnp.einsum("nad,kd->nak", evidence.phi_next, parameters), axis=1)
        targets = evidence.reward[:, None] + evidence.discount[:, None] * best
        moment = constant + product(jnp.clip(targets, -bound, bound).T, weighted)
        return jax.scipy.linalg.cho_solve((factor, True), moment.T).T

    return jax.lax.fori_loop(0, iterations, backup, start)
