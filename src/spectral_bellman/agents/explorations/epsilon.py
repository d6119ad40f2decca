"""ε-greedy actions in φᵀθ̂."""

from dataclasses import dataclass
from typing import ClassVar

from spectral_bellman.agents import schedules
from spectral_bellman.agents.choices import require_all
from spectral_bellman.agents.explorations.api import Exploration, ExplorationConfig, Setting


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

    def build(self, setting: Setting) -> Exploration:
        """No noise, and a schedule for ε."""
        return Exploration(
            no_noise=lambda: (),
            init_actor=lambda num_envs, key: (),
            follow=lambda noise, actor: actor,
            values=lambda theta, noise, actor, phi: phi @ theta,
            epsilon=lambda agent_steps: schedules.linear(
                agent_steps,
                setting.warmup_steps,
                self.epsilon_steps,
                self.epsilon_start,
                self.epsilon_end,
            ),
        )
