"""ε-greedy actions in φᵀθ̂: one ε for all environments, or a ladder of them."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import schedules
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.explorations.api import (
    Exploration,
    ExplorationConfig,
    ExplorationContext,
)


@dataclass(frozen=True)
class Epsilon(ExplorationConfig):
    """A random action with probability ε, else the best one."""

    name: ClassVar[str] = "epsilon"
    epsilon_start: float = 1.0
    """ε after the warm-up."""
    epsilon_end: float = 0.01
    """ε at the end of the schedule."""
    epsilon_steps: int = 100_000
    """Agent steps over which ε falls linearly."""

    def __post_init__(self) -> None:
        require_all(self, share=("epsilon_start", "epsilon_end"), not_negative=("epsilon_steps",))

    def build(self, context: ExplorationContext) -> Exploration:
        """No noise, and a schedule for ε."""
        return Exploration(
            init_noise=lambda: (),
            init_actor=lambda num_envs, key: (),
            update_actor=lambda noise, actor: actor,
            values=lambda theta, noise, actor, phi: phi @ theta,
            epsilon=lambda agent_steps: schedules.linear(
                agent_steps,
                context.warmup_steps,
                self.epsilon_steps,
                self.epsilon_start,
                self.epsilon_end,
            ),
        )


@dataclass(frozen=True)
class Ladder(ExplorationConfig):
    """ε-greedy with an ε for each environment: ε_i = base^(1 + power · i/(N − 1)), i < N."""

    name: ClassVar[str] = "ladder"
    ladder_base: float = 0.4
    """The largest ε of the ladder."""
    ladder_power: float = 7.0
    """The smallest ε is base^(1 + power)."""
    ladder_single: float = 0.01
    """ε where there is only one environment."""

    def __post_init__(self) -> None:
        require_all(self, share=("ladder_base", "ladder_single"), not_negative=("ladder_power",))

    def build(self, context: ExplorationContext) -> Exploration:
        """No noise. An environment has its ε for ever; the policy's ε is 0 after the warm-up."""

        def init_actor(num_envs: int, key: RandomKey) -> Array:
            if num_envs == 1:
                return jnp.full(1, self.ladder_single)
            rung = jnp.arange(num_envs, dtype=jnp.float32) / (num_envs - 1)
            return self.ladder_base ** (1 + self.ladder_power * rung)

        return Exploration(
            init_noise=lambda: (),
            init_actor=init_actor,
            update_actor=lambda noise, actor: actor,
            values=lambda theta, noise, actor, phi: phi @ theta,
            epsilon=lambda agent_steps: jnp.zeros(()),
            begin_episode=lambda actor, key: actor,
            own_epsilon=lambda actor: actor,
        )
