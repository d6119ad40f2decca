"""A representation: one way to learn φ, as a record of functions with settings of its own.

Shapes: S gradient steps of B transitions, M sampled θ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman import objective, operators
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import choices, optimisers
from spectral_bellman.agents.api import Terms
from spectral_bellman.agents.choices import Choice, require_all
from spectral_bellman.agents.features import raw_features, taken, unit
from spectral_bellman.networks import FeatureNetwork
from spectral_bellman.replay import Transition


class Target(NamedTuple):
    """Copies that stand still from one policy to the next: φ⁻ and θ⁻, fitted together."""

    network: FeatureNetwork
    theta: Float[Array, " d"]
    beside: Any
    """A copy of what is trained beside φ, where targets need one."""


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
    random_network: Callable[[int, int, RandomKey], FeatureNetwork]
    """(actions, d, key) -> a network like φ's, with other numbers of outputs."""

    def rewards_and_discounts(self, batch: Transition) -> tuple[Array, Array]:
        """r clipped, and γ, or 0 where the episode terminated."""
        clip = self.reward_clip
        reward = jnp.clip(batch.reward, -clip, clip) if clip else batch.reward
        return reward, self.discount * batch.discount


class Representation(NamedTuple):
    """One way to learn φ."""

    dimension: int
    """d."""
    init: Callable[[RandomKey, Array], tuple[Any, Any]]
    """(key, θ) -> (beside, kept): what is trained beside φ (θ̃, say), and what is carried along."""
    init_theta: Callable[[RandomKey], Float[Array, " d"]]
    normalise: Callable[[Array], Array]
    """What comes out of the network -> φ."""
    prepare: Callable[[Target, Any, Transition, RandomKey], Any]
    """(target, kept, batches (S, B, …), key) -> what the loss needs, with leading axis S.

    The target does not move in a phase: many steps are prepared at once, as a GPU wants it.
    """
    loss: Callable[
        [FeatureNetwork, Any, Any, Transition, Any], tuple[Array, tuple[Any, Terms, Any]]
    ]
    """(φ, beside, kept, batch, prepared) -> loss, (kept, terms, priorities or None)."""
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

    def features(self, network: FeatureNetwork, observations: Array) -> Float[Array, "B A d"]:
        """φ(s, ·) of a batch."""
        return self.normalise(raw_features(network, observations))

    def features_taken(self, network: FeatureNetwork, batch: Transition) -> Float[Array, "B d"]:
        """φ(s, a) of a batch."""
        return self.normalise(taken(raw_features(network, batch.observation), batch.action))


@dataclass(frozen=True)
class RepresentationConfig(Choice):
    """The settings of a representation."""

    kind: ClassVar[str] = "representation"

    @property
    def has_features(self) -> bool:
        """Whether there are features that Σ can be built from."""
        return True

    def build(self, problem: Problem) -> Representation:
        """The functions."""
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


def q_targets(
    form: Callable[[Array], Array], problem: Problem, target: Target, batch: Transition
) -> Float[Array, " B"]:
    """r + γ max_a' φ⁻(s', a')ᵀθ⁻."""
    values = form(raw_features(target.network, batch.next_observation)) @ target.theta
    return jax.vmap(operators.one_step)(*problem.rewards_and_discounts(batch), values)


def first_feature(dimension: int) -> Float[Array, " d"]:
    """e₁, the parameters of the first feature."""
    return jnp.zeros(dimension).at[0].set(1.0)
