"""Propagated noise: randomised least-squares value iteration on φ (Osband et al.).

Noise on every regression target, and on the prior, is carried through every backup, which makes
exploration deep: a state is worth visiting if what may lie behind it is uncertain.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman._arrays import RandomKey, product, returned_again
from spectral_bellman.agents.api import Progress
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.explorations.api import (
    Exploration,
    ExplorationContext,
    PrecisionConfig,
    ReplayFeatures,
)
from spectral_bellman.agents.explorations.posterior import precision_factor


class Draws(NamedTuple):
    """K draws of parameters, as a policy carries them."""

    parameters: Float[Array, "K d"]
    generation: Int[Array, " K"]
    """Grows when a draw is replaced by a new one."""


class LearnerState(NamedTuple):
    """The learner's state of K draws."""

    keys: Array
    """The keys of each draw's noise."""
    draws: Draws


class EpisodeDraw(NamedTuple):
    """The draw that each environment acts on, for an episode."""

    draw: Int[Array, " N"]
    generation: Int[Array, " N"]
    """The generation of the draw when the episode began; −1 until the first step."""
    parameters: Float[Array, "N d"]
    """The newest published parameters of the draw. They stay once the draw has been replaced."""


@dataclass(frozen=True)
class Propagated(PrecisionConfig):
    """Acts greedily in φᵀw, w drawn by value iteration on noisy targets, for an episode."""

    name: ClassVar[str] = "propagated"
    any_scale: ClassVar[bool] = False
    passes: ClassVar[int] = 2
    propagated_variance: float = 0.01
    """Variance of the noise on each target."""
    propagated_iterations: int = 16
    """Backups at each rebuilding of Σ; they go on from the last parameters."""
    propagated_draws: int = 8
    """K, the number of draws. At each rebuilding of Σ the oldest is replaced; an episode acts on
    one of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_all(
            self,
            count=("propagated_iterations", "propagated_draws"),
            not_negative=("propagated_variance",),
        )

    def build(self, context: ExplorationContext) -> Exploration:
        """The learner keeps the key and the parameters of each draw."""
        count, d = self.propagated_draws, context.dimension
        deviation = self.propagated_variance**0.5

        def none() -> Draws:
            return Draws(jnp.zeros((count, d)), jnp.zeros(count, jnp.int32))

        def init_actor(num_envs: int, key: RandomKey) -> EpisodeDraw:
            draw = jax.random.randint(jax.random.split(key)[1], (num_envs,), 0, count)
            return EpisodeDraw(draw, jnp.full(num_envs, -1, jnp.int32), jnp.zeros((num_envs, d)))

        def update_actor(noise: Draws, actor: EpisodeDraw) -> EpisodeDraw:
            current = noise.generation[actor.draw]
            generation = jnp.where(actor.generation < 0, current, actor.generation)
            alive = (generation == current)[:, None]
            moved = jnp.where(alive, noise.parameters[actor.draw], actor.parameters)
            return EpisodeDraw(actor.draw, generation, moved)

        def publish(
            state: LearnerState, replay: ReplayFeatures | None, progress: Progress, key: RandomKey
        ) -> tuple[LearnerState, Draws]:
            if replay is None:
                return state, returned_again(state.draws, progress.round >= 0)
            factor = precision_factor(replay.phi, replay.weight, self.ridge)
            oldest = progress.round // self.rounds(context) % count
            keys = state.keys.at[oldest].set(jax.random.split(key)[1])

            def noise_of(key: RandomKey) -> tuple[Array, Array]:
                each_key, prior_key = jax.random.split(key)
                # By slot, so that a transition keeps its noise for as long as the draw lives.
                noise = jax.vmap(
                    lambda slot: jax.random.normal(jax.random.fold_in(each_key, slot))
                )(replay.slot)
                prior = jax.random.normal(prior_key, (d,))
                return deviation * noise, deviation * self.ridge**0.5 * prior

            noise, prior = jax.vmap(noise_of)(keys)
            parameters = propagated_parameters(
                replay,
                noise.T,
                prior,
                factor,
                self.propagated_iterations,
                context.largest_value,
                state.draws.parameters,
            )
            generation = state.draws.generation.at[oldest].add(1)
            draws = Draws(parameters, generation)
            return LearnerState(keys, draws), returned_again(draws, progress.round >= 0)

        return Exploration(
            init=lambda key: LearnerState(jax.random.split(key, count), none()),
            init_noise=none,
            init_actor=init_actor,
            update_actor=update_actor,
            values=lambda theta, noise, actor, phi: jnp.einsum("nad,nd->na", phi, actor.parameters),
            epsilon=lambda agent_steps: jnp.zeros(()),
            rows=self.rows(d),
            distinct=self.precision_distinct,
            every=self.rounds(context),
            publish=publish,
        )


def propagated_parameters(
    replay: ReplayFeatures,
    noise: Float[Array, "n K"],
    prior: Float[Array, "K d"],
    factor: Float[Array, "d d"],
    iterations: int,
    bound: float,
    start: Float[Array, "K d"],
) -> Float[Array, "K d"]:
    """K draws: w ← Σ⁻¹(Φᵀ W (r + ξ + γ max_a Φ'w) + ζ), ``iterations`` times from ``start``.

    W is the diagonal matrix of the rows' weights.

    Args:
      replay: the transitions.
      noise: ξ, one column a draw.
      prior: ζ.
      factor: L of Σ = λI + Φᵀ W Φ.
      iterations: backups.
      bound: targets are clipped to ± this.
      start: w before the first backup.
    """
    phi, weight = replay.phi, replay.weight
    weighted = phi * weight[:, None]
    # A row of weight ≥ 1 stands for so many transitions: their independent noises add up to one of
    # variance weight. A row of weight < 1 was drawn about 1/weight times, always with the same
    # noise: the copies add up to one noise.
    scaled = phi * jnp.minimum(weight, jnp.sqrt(weight))[:, None]
    constant = prior + product(noise.T, scaled)

    def backup(_: Any, parameters: Array) -> Array:
        best = jnp.max(jnp.einsum("nad,kd->nak", replay.phi_next, parameters), axis=1)
        targets = replay.reward[:, None] + replay.discount[:, None] * best
        moment = constant + product(jnp.clip(targets, -bound, bound).T, weighted)
        return jax.scipy.linalg.cho_solve((factor, True), moment.T).T

    return jax.lax.fori_loop(0, iterations, backup, start)
