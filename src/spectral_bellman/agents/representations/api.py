"""A representation: one way to learn φ, as a record of functions with settings of its own.

A representation sees rows: R steps of the replay, one per transition or several per sequence. The
backbone of the agent computes φ of the rows, and the operator computes their targets. Shapes: R
rows, M sampled θ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective
from spectral_bellman._arrays import RandomKey, known
from spectral_bellman.agents import choices, optimisers
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import Choice, require_all
from spectral_bellman.agents.features import unit


class Target(NamedTuple):
    """Copies that do not change from one policy to the next: φ⁻ and θ⁻, fitted together."""

    network: Any
    theta: Float[Array, " d"]
    beside: Any
    """A copy of what is trained beside φ, where targets need one."""
    epsilon: Float[Array, ""]
    """ε of the target policies of Retrace."""


class Backup(NamedTuple):
    """The Bellman operator on R rows, with φ⁻ of the target network."""

    values: Callable[[Float[Array, "M d"], Float[Array, "M d"]], Float[Array, "R M"]]
    """(θ, chooser) -> the targets of φ⁻ᵀθ. With double Q-learning, φᵀ chooser chooses the actions
    at the next steps, φ being the network that learns; otherwise ``chooser`` is not read."""
    target: Target
    phi_next: Float[Array, "R A d"]
    """φ⁻(s', ·) after the steps of each row."""
    discount: Float[Array, " R"]
    """The discount of φ⁻(s', ·): a power of γ, or 0 where the episode terminated."""
    following: Float[Array, "R A d"]
    """φ⁻ one step after each row."""
    following_discount: Float[Array, " R"]
    observation: Any
    """s of each row, (R, …)."""

    def of(self, theta: Float[Array, " d"], chooser: Float[Array, " d"]) -> Float[Array, " R"]:
        """The targets of one θ."""
        return self.values(theta[None], chooser[None])[:, 0]


class Batch(NamedTuple):
    """The rows that a gradient step learns from."""

    phi: Float[Array, "R d"]
    """φ(s, a)."""
    weight: Float[Array, " R"] | None = None
    """How much each row counts; None: all the same."""
    group: int = 1
    """Consecutive rows that come from one sequence, and are not independent."""

    def mean(self, values: Float[Array, " R"]) -> Float[Array, ""]:
        """The weighted mean over rows."""
        if self.weight is None:
            return jnp.mean(values)
        return jnp.sum(self.weight * values) / jnp.maximum(jnp.sum(self.weight), 1e-12)


class Problem(NamedTuple):
    """What a representation may know of the agent that uses it."""

    observation: jax.ShapeDtypeStruct
    num_actions: int
    discount: float
    """γ."""
    reward_clip: float
    learning_rate: float
    head_rate: float
    adam_epsilon: float
    rescaling: float
    """ε of the value rescaling f; 0: none."""
    double: bool
    """Double Q-learning."""
    priorities: bool
    """Whether the replay is sampled by priorities, which losses then return."""
    following: bool
    """Whether the representation looks at the observation after one step."""

    def clipped(self, reward: Array) -> Array:
        """The reward that is learned from."""
        clip = self.reward_clip
        return jnp.clip(reward, -clip, clip) if clip else reward

    @property
    def transform(self) -> float | None:
        """The ε of f for the operators, or None."""
        return None if known(self.rescaling) == 0 else self.rescaling


SingleNetwork = Callable[[int, int, RandomKey], Any]
"""(actions, d, key) -> a network of one observation, with actions × d outputs."""


class Representation(NamedTuple):
    """One way to learn φ."""

    dimension: int
    """d."""
    init: Callable[[RandomKey, Array], tuple[Any, Any]]
    """(key, θ) -> (beside, kept): what is trained beside φ (θ̃, say), and what is carried along."""
    init_theta: Callable[[RandomKey], Float[Array, " d"]]
    normalise: Callable[[Array], Array]
    """What comes out of the network -> φ."""
    prepare: Callable[[Backup, Any, Any, RandomKey], Any]
    """(backup, beside, kept, key) -> what the loss needs. ``beside`` chooses actions in double
    Q-learning; otherwise targets do not depend on it."""
    loss: Callable[[Batch, Any, Any, Any], tuple[Array, tuple[Any, Terms, Array | None]]]
    """(batch, beside, kept, prepared) -> loss, (kept, terms, errors of the rows (R,) or None).

    The errors become priorities.
    """
    optimiser: Any
    """For the pair (φ, beside)."""
    theta_of: Callable[[Any], Float[Array, " d"]] | None = None
    """beside -> θ̂, where it is learned with φ or fixed; None where it has its own phase."""
    solver: "SolverConfig | None" = None
    """How θ̂ is fitted, where it has a phase of its own."""
    start_theta: Callable[[Any, Array], Array] | None = None
    """(beside, θ⁻) -> where the fit of θ̂ starts, if not at the last θ̂."""
    target_of: Callable[[Any], Any] = lambda beside: ()
    """What of ``beside`` the target has a copy of."""
    zero_q_head: bool = False
    """Whether the first feature of each action is Q, which starts at 0 with the normal weights."""
    theta_tilde: Callable[[Any, Array, Array], Array] | None = None
    """(beside, θ (M, d), θ⁻) -> θ̃(θ), where there is one; for diagnostics."""
    theta_draws: Callable[[RandomKey, Array], Array] | None = None
    """(key, θ⁻) -> M draws of θ from ν, where there is one; for diagnostics."""
    covariances: Callable[[Any], objective.Covariances] | None = None
    """kept -> Λ1 and Λ2, where there are some; for diagnostics."""


@dataclass(frozen=True)
class RepresentationConfig(Choice):
    """The settings of a representation."""

    kind: ClassVar[str] = "representation"
    one_step_values: ClassVar[bool] = False
    """Whether its loss is about plain values and targets without traces."""
    needs_following: ClassVar[bool] = False
    """Whether its targets look at the observation after one step, whatever the operator."""

    @property
    def has_features(self) -> bool:
        """Whether there are features that Σ can be built from."""
        return True

    def build(self, problem: Problem, single: SingleNetwork) -> Representation:
        """The functions. ``single`` makes networks of one observation."""
        raise NotImplementedError(f"{type(self).__name__} needs a method build")

    @classmethod
    def register(cls) -> None:
        """Make it known by its name."""
        choices.register(cls)


@dataclass(frozen=True)
class SolverConfig(Choice):
    """How θ̂ is fitted to φ by a phase of its own."""

    kind: ClassVar[str] = "q_solver"


@dataclass(frozen=True)
class AdamSolver(SolverConfig):
    """θ̂ by gradient steps."""

    name: ClassVar[str] = "adam"
    q_steps: int = 4
    """Gradient steps on θ a round, of the ``updates``."""
    q_learning_rate: float = 3e-3
    """Learning rate of θ."""
    q_start: Literal["last", "backup"] = "last"
    """Where the fit of θ̂ starts: at the last θ̂, or at θ̃(θ⁻), which φ was learned with."""

    def __post_init__(self) -> None:
        require_all(self, not_negative=("q_steps",), positive=("q_learning_rate",))


@dataclass(frozen=True)
class LeastSquares(SolverConfig):
    """θ̂ by ridge regression on the replay, in closed form."""

    name: ClassVar[str] = "least_squares"
    q_ridge: float = 0.1
    """Ridge of the regression."""
    q_rows: int = 2_048
    """Transitions in the regression; all that the replay holds if there are no more."""

    def __post_init__(self) -> None:
        require_all(self, count=("q_rows",), positive=("q_ridge",))


choices.register(AdamSolver)
choices.register(LeastSquares)


@dataclass(frozen=True)
class FeatureConfig(RepresentationConfig):
    """A representation whose features have a norm."""

    features: int = 128
    """d, dimension of φ(s, a)."""
    norm: Literal["unit", "clip"] = "unit"
    """unit: φ/‖φ‖; clip: the paper's φ·min(1, 1/‖φ‖)."""

    def __post_init__(self) -> None:
        require_all(self, count=("features",))

    def normalise(self, phi: Array) -> Array:
        """φ with the norm that the settings name."""
        return objective.clip_norm(phi) if self.norm == "clip" else unit(phi)


@dataclass(frozen=True)
class FittedConfig(FeatureConfig):
    """A representation whose θ̂ is fitted to φ by a phase of its own."""

    solver: SolverConfig = AdamSolver()
    """How θ̂ is fitted."""


def adam(problem: Problem) -> Any:
    """Adam with the agent's numbers, for φ and what is trained beside it."""
    return optimisers.adam(problem.learning_rate, problem.adam_epsilon, problem.head_rate)


def first_feature(dimension: int) -> Float[Array, " d"]:
    """e₁, the parameters of the first feature."""
    return jnp.zeros(dimension).at[0].set(1.0)
