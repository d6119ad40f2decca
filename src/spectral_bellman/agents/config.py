"""The settings of an agent: its choices, and the numbers that all agents share."""

from dataclasses import dataclass
from typing import Literal

from spectral_bellman.agents.backbones import BackboneConfig, FeedForward
from spectral_bellman.agents.backups import (
    OneStepOperator,
    OperatorConfig,
    SamplingConfig,
    UniformSampling,
)
from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.explorations import ExplorationConfig, Thompson
from spectral_bellman.agents.representations import RepresentationConfig, Spectral
from spectral_bellman.agents.representations.api import AdamSolver, LeastSquares, SolverConfig


@dataclass(frozen=True)
class AgentConfig:
    """The choices of an agent, each with its own numbers, and what all agents share."""

    backbone: BackboneConfig = FeedForward()  # noqa: RUF009 (frozen)
    """What φ is computed from."""
    operator: OperatorConfig = OneStepOperator()  # noqa: RUF009 (frozen)
    """The Bellman operator of the targets."""
    representation: RepresentationConfig = Spectral()  # noqa: RUF009 (frozen)
    """What φ learns from."""
    exploration: ExplorationConfig = Thompson()  # noqa: RUF009 (frozen)
    """How actions are chosen."""
    sampling: SamplingConfig = UniformSampling()  # noqa: RUF009 (frozen)
    """How the replay is sampled for gradient steps."""

    network: Literal["auto", "mlp", "minatar", "nature", "centred", "padded", "impala"] = "auto"
    """Torso; auto chooses by the observation and the backbone. centred: nature on screens with
    their mean subtracted; padded: nature with "same" padding, as in Dopamine; impala: IMPALA's
    residual network."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer of the torso mlp."""
    initial_weights: Literal["normal", "uniform", "xavier"] = "normal"
    """normal: He initialisation, and outputs that are Q itself start at 0; uniform: PyTorch's,
    within ±1/√(fan in), biases too; xavier: Dopamine's, within ±√(6/(fan in + fan out)), biases 0.
    An LSTM starts uniform within ±1/√(units) with the first."""

    discount: float = 0.99
    """γ."""
    reward_clip: float = 1.0
    """Rewards are clipped to ± this before learning; 0 turns it off."""
    rescaling: float = 0.0
    """ε of the value rescaling f(x) = sign(x)(√(|x| + 1) − 1) + εx: targets are f(backup of
    f⁻¹(Q)). 0: no rescaling. With rescaling, Q, θ̂ and the noise are in the scale of f."""
    double: bool = False
    """Double Q-learning: the learning network chooses the action, the target network rates it."""
    batch: int = 256
    """Transitions in a batch, or sequences."""
    updates: int = 32
    """Gradient steps a round, all of them."""
    learning_rate: float = 1e-3
    """Learning rate of φ and of what is trained beside it. 0, a control: φ stays random."""
    head_rate: float = 1.0
    """Factor on the learning rate of φ's last layer: Q is a sum over its d outputs per action."""
    adam_epsilon: float = 1e-8
    """ε in the denominator of the optimiser."""
    gradient_clip: float = 0.0
    """Gradients are scaled down to this norm; 0: never."""
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
            not_negative=(
                *("updates", "learning_rate", "warmup_steps", "reward_clip", "rescaling"),
                "gradient_clip",
            ),
            positive=("head_rate", "adam_epsilon"),
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
        self._check_operator()
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

    def _check_operator(self) -> None:
        """Refuse combinations that have no meaning, and say what has."""
        backbone, name = self.backbone, self.operator.name
        if name not in backbone.operators():
            raise ValueError(
                f"--operator {name} needs sequences: take --backbone recurrent, or one of "
                f"{', '.join(backbone.operators())}"
            )
        limits = self.representation.one_step_values
        if limits and (name == "retrace" or self.rescaling):
            raise ValueError(
                f"--representation {self.representation.name} predicts features in plain values: "
                "take --operator one_step or n_step, and --rescaling 0"
            )
        if self.rescaling and not self.exploration.any_scale:
            raise ValueError(
                f"--exploration {self.exploration.name} backs up plain values: take --rescaling 0"
            )
        if self.rescaling and getattr(self.exploration, "noise_bound", False):
            raise ValueError(
                "--noise-bound bounds the noise by R_max/(1 − γ), which is no bound on rescaled "
                "values: take --no-noise-bound, or --rescaling 0"
            )
        merged = getattr(self.exploration, "precision_distinct", 0)
        if merged and self.backbone.rows > 1:
            raise ValueError(
                "--precision-distinct merges equal transitions, and --backbone "
                f"{self.backbone.name} learns from sequences: leave it at 0"
            )
        if self.backbone.rows > 1 and isinstance(self.solver, LeastSquares):
            raise ValueError(
                "--q-solver least_squares regresses on transitions: take --q-solver adam with "
                f"--backbone {backbone.name}"
            )

    @property
    def rows(self) -> int:
        """Steps in a batch that are learned from."""
        return self.batch * self.backbone.rows

    @property
    def window_steps(self) -> int:
        """Steps of an environment that must be stored before there is a window to learn from."""
        return max(self.backbone.rows, self.operator.steps)

    @property
    def solver(self) -> SolverConfig | None:
        """How θ̂ is fitted, where the representation leaves it to a phase of its own."""
        return getattr(self.representation, "solver", None)

    @property
    def _starts_elsewhere(self) -> bool:
        return getattr(self.solver, "q_start", "last") == "backup"

    @property
    def largest_value(self) -> float:
        """R_max/(1 − γ), taking R_max = 1 where rewards are not clipped."""
        return (self.reward_clip or 1.0) / (1 - self.discount)
