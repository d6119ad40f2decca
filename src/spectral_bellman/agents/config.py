"""The settings of an agent: four choices and their numbers."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AgentConfig:
    """Four choices (network, representation, exploration; the operator is one-step) and their numbers."""

    # The network φ(s, ·).
    network: Literal["auto", "mlp", "minatar", "nature", "centred", "padded"] = "auto"
    """Torso; auto chooses by the observation. centred: nature on screens less their mean; padded: nature with "same" padding, as
    Dopamine has it."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer; mlp only."""
    initial_weights: Literal["normal", "uniform", "xavier"] = "normal"
    """normal: He's, and where Q has outputs of its own it starts at 0; uniform: within ±1/√(fan in), biases and Q's too, as PyTorch
    has it; xavier: uniform within ±√(6/(fan in + fan out)), biases zero, as Dopamine has it."""
    features: int = 128
    """d, dimension of φ(s, a). dqn has |A| plain outputs instead."""
    norm: Literal["unit", "clip", "none", "value"] = "unit"
    """unit: φ/‖φ‖; clip: the paper's φ·min(1, 1/‖φ‖); value: the first feature is free and starts out as Q, the others have unit
    norm together."""

    # The four choices.
    representation: Literal["td", "mse", "spectral", "expected", "averaged", "pvn"] = "spectral"
    """What φ learns from. td: the DQN loss; mse: Bellman MSE over ν(θ); spectral: the paper's loss; expected: its form without
    sampling noise, with the greedy actions of θ̂; averaged: with those of ν; pvn: random indicators."""
    exploration: Literal["epsilon", "thompson", "ucb", "propagated"] = "thompson"
    """epsilon: ε-greedy; thompson and ucb: on the precision matrix Σ; propagated: noise on every regression target, carried
    through the backups."""
    q_solver: Literal["adam", "least_squares"] = "adam"
    """How θ̂ is found: gradient steps, or ridge regression on the replay."""

    # Learning; all counts are per round.
    discount: float = 0.99
    """γ."""
    reward_clip: float = 1.0
    """Rewards are clipped to ± this before learning; 0 turns it off."""
    batch: int = 256
    """Transitions in a batch."""
    representation_steps: int = 28
    """Gradient steps on φ a round; 0 leaves φ as it was drawn. td takes these and the q_steps on one loss."""
    q_steps: int = 4
    """Gradient steps on θ a round."""
    optimiser: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, with a memory of 0.95, as the MinAtar authors have it."""
    learning_rate: float = 1e-3
    """Of φ and θ̃."""
    head_rate: float = 1.0
    """Factor on the learning rate of φ's last layer: d outputs an action move Q further than one does."""
    q_learning_rate: float = 3e-3
    """Of θ."""
    q_start: Literal["last", "backup"] = "last"
    """Where the fit of θ̂ starts: at the last θ̂, or at θ̃(θ⁻), which φ was learned with (td and pvn have none). With norm value,
    expected or averaged, last leaves θ̃(θ⁻) at e₁, and backup lets the other features add to Q."""
    adam_epsilon: float = 1e-8
    """What the optimiser adds to the root it divides by."""
    target_rounds: int = 1
    """Rounds between copies to the target network."""

    # Representation: ν(θ) = N(θ̂, variance·I), and the loss over it.
    theta_samples: int = 64
    """M, draws of θ in a gradient step."""
    theta_variance: float = 1e-2
    """σ_rep², a variance."""
    relative_variance: bool = False
    """Take σ_rep² in units of θ̂'s mean square ‖θ̂‖²/d instead of 1: then the scale of the values does not matter."""
    alpha: float = 1.0
    """Weight of the new batch in the moving averages Λ1 and Λ2; 1 makes the gradient that of Bellman MSE."""
    feature_orthogonality: float = 0.03
    """Weight of the orthogonality of φ; of expected and averaged with norm value, of the spread of all features but the first."""
    param_orthogonality: float = 0.0
    """Weight of the orthogonality of θ̃; it grows like ‖θ̂‖⁴."""
    pvn_networks: int = 10
    """PVN: frozen random networks."""
    pvn_outputs: int = 10
    """PVN: indicators of each network; their product is the number of tasks."""
    pvn_quantile: float = 0.01
    """PVN: share of states on which an indicator fires."""

    # Exploration.
    warmup_steps: int = 5_000
    """Agent steps of random actions before learning starts."""
    epsilon_start: float = 1.0
    """ε after the warm-up; exploration epsilon only, the others act greedily in what they drew."""
    epsilon_end: float = 0.01
    """ε at the end of the schedule."""
    epsilon_steps: int = 100_000
    """Agent steps over which ε falls linearly."""
    ridge: float = 0.1
    """λ of Σ = λI + Σ φφᵀ."""
    precision_samples: int = 2_048
    """Σ is built from the whole replay if it has no more transitions than this, else from so many draws, scaled up."""
    noise_scale: float = 1.0
    """Factor on the exploration variance σ_exp = λ_min(Σ)/(d(1 − γ))."""
    noise_anneal_steps: int = 0
    """Agent steps over which the factor falls linearly to zero; 0 never."""
    noise_bound: bool = False
    """Bound ‖θ_TS − θ̂‖ by R_max/(1 − γ)."""
    propagated_variance: float = 0.01
    """propagated: variance of the noise on each target."""
    propagated_iterations: int = 16
    """propagated: backups in a draw, a horizon's worth."""
    propagated_draws: int = 8
    """propagated: draws kept; each round the oldest is drawn anew, and an episode takes one and keeps it."""
    value_bound: float = 0.0
    """propagated: targets are clipped to ± this; 0 means R_max/(1 − γ)."""

    def __post_init__(self) -> None:
        counts = ("features", "batch", "target_rounds", "theta_samples", "pvn_networks", "pvn_outputs", "precision_samples")
        for name in (*counts, "propagated_iterations", "propagated_draws"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("representation_steps", "q_steps", "warmup_steps", "epsilon_steps", "noise_anneal_steps"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        for name in ("learning_rate", "head_rate", "q_learning_rate", "ridge"):
            self._require(name, getattr(self, name) > 0, "positive")
        for name in ("reward_clip", "theta_variance", "noise_scale", "propagated_variance", "value_bound"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        for name in ("alpha", "epsilon_start", "epsilon_end", "pvn_quantile"):
            self._require(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        self._require("features", self.features >= 2 or self.norm != "value", "2 or more with --norm value: Q and others")
        self._require("discount", 0 <= self.discount < 1, "in [0, 1)")
        self._require("batch", self.batch >= 2 or self.representation == "td", "2 or more where φ is learned apart")
        stays = self.norm == "value" and self.representation in ("expected", "averaged")
        starts = stays or (self.q_start == "backup" and self.representation != "pvn")
        if not (starts or self.q_steps or self.q_solver == "least_squares" or self.representation == "td"):
            raise ValueError("--q-steps 0 leaves θ̂ where it starts: give it steps, or --q-start backup where φ is learned with a θ̃")
        if self.representation == "td" and self.q_solver != "adam":
            raise ValueError("--q-solver least_squares fits θ̂ apart from φ, which --representation td does not: choose one of them")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"--{name.replace('_', '-')} must be {what}, got {getattr(self, name)}")

    @property
    def plain(self) -> bool:
        """Whether the head has |A| plain outputs: nobody needs features."""
        return self.representation == "td" and self.exploration == "epsilon"

    @property
    def q_first(self) -> bool:
        """Whether θ̂ starts at e₁, so that the first feature is Q."""
        return self.plain or self.norm == "value"

    @property
    def dimension(self) -> int:
        """d; a plain head is d = 1 with θ = 1."""
        return 1 if self.plain else self.features

    @property
    def largest_value(self) -> float:
        """R_max/(1 − γ), taking R_max = 1 where rewards are not clipped."""
        return (self.reward_clip or 1.0) / (1 - self.discount)

    @property
    def updates(self) -> int:
        """Gradient steps a round, both phases together."""
        return self.representation_steps + (self.q_steps if self.q_solver == "adam" or self.representation == "td" else 0)
