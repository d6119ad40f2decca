"""The settings of an agent: its choices, and the numbers that all agents share."""

from dataclasses import dataclass
from typing import Literal

from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.explorations import ExplorationConfig, Thompson
from spectral_bellman.agents.representations import RepresentationConfig, Spectral
from spectral_bellman.agents.representations.api import AdamSolver, SolverConfig


@dataclass(frozen=True)
class AgentConfig:
    """A representation and an exploration, each with its own numbers, and what all agents share."""

    representation: RepresentationConfig = Spectral()  # noqa: RUF009 (frozen)
    """What φ learns from."""
    exploration: ExplorationConfig = Thompson()  # noqa: RUF009 (frozen)
    """How actions are chosen."""

    network: Literal["auto", "mlp", "minatar", "nature", "centred", "padded"] = "auto"
    """Torso; auto chooses by the observation. centred: nature on screens less their mean; padded:
    nature with "same" padding, as Dopamine has it."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer of the torso mlp."""
    initial_weights: Literal["normal", "uniform", "xavier"] = "normal"
    """normal: He's, and Q starts at 0 where it has outputs of its own; uniform: PyTorch's, within
    ±1/√(fan in), biases too; xavier: Dopamine's, within ±√(6/(fan in + fan out)), biases 0."""

    discount: float = 0.99
    """γ."""
    reward_clip: float = 1.0
    """Rewards are clipped to ± this before learning; 0 turns it off."""
    batch: int = 256
    """Transitions in a batch."""
    updates: int = 32
    """Gradient steps a round, all of them."""
    learning_rate: float = 1e-3
    """Learning rate of φ and of what is trained beside it."""
    head_rate: float = 1.0
    """Factor on the learning rate of φ's last layer, whose d outputs an action add up in Q."""
    adam_epsilon: float = 1e-8
    """What the optimiser adds to the root it divides by."""
    target_rounds: int = 1
    """Rounds between copies to the target network."""
    warmup_steps: int = 5_000
    """Agent steps of random actions before learning starts."""
    eval_epsilon: float = 0.001
    """ε of the greedy policy, in evaluations."""

    def __post_init__(self) -> None:
        require_all(
            self,
            count=("batch", "target_rounds"),
            not_negative=("updates", "warmup_steps", "reward_clip"),
            positive=("learning_rate", "head_rate", "adam_epsilon"),
            share=("eval_epsilon",),
        )
        require(self, "discount", 0 <= self.discount < 1, "in [0, 1)")
        featured = self.representation.has_features
        require(self, "batch", self.batch >= 2 or not featured, "2 or more where φ has features")
        if not featured and self.exploration.needs_features:
            raise ValueError(
                f"--exploration {self.exploration.name} needs features, which --representation "
                f"{self.representation.name} has not: take --representation td, or the preset "
                "dqn-ts"
            )
        solver = self.solver
        if isinstance(solver, AdamSolver) and solver.q_steps > self.updates:
            raise ValueError(
                f"--q-steps {solver.q_steps} are among the --updates {self.updates} of a round: "
                "raise --updates, or take fewer"
            )
        if isinstance(solver, AdamSolver) and not solver.q_steps and not self._starts_elsewhere:
            raise ValueError(
                "--q-steps 0 leaves θ̂ where it starts: give it steps, or --q-start backup"
            )

    @property
    def solver(self) -> SolverConfig | None:
        """How θ̂ is fitted, where the representation leaves it to a phase of its own."""
        return getattr(self.representation, "solver", None)

    @property
    def _starts_elsewhere(self) -> bool:
        return getattr(self.representation, "q_start", "last") == "backup"

    @property
    def largest_value(self) -> float:
        """R_max/(1 − γ), taking R_max = 1 where rewards are not clipped."""
        return (self.reward_clip or 1.0) / (1 - self.discount)
