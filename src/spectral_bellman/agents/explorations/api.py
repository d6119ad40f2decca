"""An exploration: one way to choose actions from φᵀθ̂, as a record of functions.

The learner publishes the ``noise`` of a policy, which all environments share: nothing for ε-greedy,
√σ L⁻ᵀ for Thompson sampling and UCB, drawn parameters for propagated noise. The actor state belongs
to one environment, often for an episode: z for Thompson sampling, or the draw of parameters that
the environment acts on for propagated noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import choices
from spectral_bellman.agents.api import Progress, Terms
from spectral_bellman.agents.choices import Choice, require_all

ROWS_PER_FEATURE = 50


class ReplayFeatures(NamedTuple):
    """Features of n rows of the replay. Each row stands for ``weight`` transitions."""

    phi: Float[Array, "n d"]
    """φ(s, a) with the features that are published."""
    phi_next: Float[Array, "n A d"]
    """φ(s', ·)."""
    reward: Float[Array, " n"]
    discount: Float[Array, " n"]
    """γ, or 0 where the episode terminated. With n-step targets, reward and discount span n steps,
    and s' is the state after them."""
    weight: Float[Array, " n"]
    """0 where the row is padding: ignore such rows."""
    slot: Int[Array, " n"]
    """The row's place in the replay. It does not change while the replay holds the row; later a new
    row has the same place."""


class ExplorationContext(NamedTuple):
    """What an exploration may know of the agent that uses it."""

    dimension: int
    """d."""
    discount: float
    """γ."""
    warmup_steps: int
    round_items: int
    """Rows in all gradient steps of a round."""
    largest_value: float
    """R_max/(1 − γ), with R_max = 1 where rewards are not clipped."""


class Exploration(NamedTuple):
    """One way to explore."""

    init_noise: Callable[[], Any]
    """The noise of a policy that has seen nothing."""
    init_actor: Callable[[int, RandomKey], Any]
    """(N, key) -> the actor state of N environments at the start, leaves (N, …)."""
    update_actor: Callable[[Any, Any], Any]
    """(noise, actor) -> the actor state for this step, which is kept for the next step. Called at
    every step before ``values``; ``noise`` changes when a new policy is published."""
    values: Callable[[Array, Any, Any, Float[Array, "N A d"]], Float[Array, "N A"]]
    """(θ̂, noise, actor, φ) -> values; each environment takes the action with the largest value."""
    epsilon: Callable[[Int[Array, ""]], Float[Array, ""]]
    """Agent steps -> ε of the policy."""
    begin_episode: Callable[[Any, RandomKey], Any] | None = None
    """(actor, key) -> the actor state for a new episode. None: ``init_actor`` again."""
    own_epsilon: Callable[[Any], Float[Array, "..."]] = lambda actor: jnp.zeros(())
    """actor -> ε of each environment, which acts with the larger of this and the policy's ε."""
    rows: int = 0
    """Rows of the replay that ``publish`` needs; 0 where it needs none."""
    distinct: int = 0
    """If positive, equal transitions among the rows are one row, and ``publish`` gets so many."""
    every: int = 1
    """k: ``publish`` gets rows in every k-th round, and None in the other rounds."""
    init: Callable[[RandomKey], Any] = lambda key: ()
    """key -> the learner's state of the exploration."""
    publish: Callable[[Any, Any, Progress, RandomKey], tuple[Any, Any]] | None = None
    """(state, replay features or None, progress, key) -> the learner's new state, the policy's
    noise. None: every policy has ``init_noise()``."""
    diagnose: Callable[[Any, Array, Array, Array, RandomKey], Terms] = lambda *_: {}
    """(noise, φ (B, A, d), φ of the actions taken (B, d), mask (B,), key) -> diagnostics. The mask
    is False where a row is padding."""


@dataclass(frozen=True)
class ExplorationConfig(Choice):
    """The settings of an exploration."""

    kind: ClassVar[str] = "exploration"
    needs_features: ClassVar[bool] = False
    """Whether it uses φ other than through Q = φᵀθ̂."""
    any_scale: ClassVar[bool] = True
    """Whether it works with value rescaling, where φᵀθ̂ is f(Q): it must not compute backups from
    rewards."""

    def build(self, context: ExplorationContext) -> Exploration:
        """The functions."""
        raise NotImplementedError(f"{type(self).__name__} needs a method build")

    @classmethod
    def register(cls) -> None:
        """Make it known by its name."""
        choices.register(cls)


@dataclass(frozen=True)
class PrecisionConfig(ExplorationConfig):
    """An exploration by the precision matrix Σ = λI + Σ_D φφᵀ.

    Estimated from n random rows, λ_min(Σ) is about (1 − √(d/n))² times its true value. The default
    is therefore n = 50 d. With ``precision_rounds`` 0, Σ is rebuilt as often as costs at most a
    quarter of the learning.
    """

    needs_features: ClassVar[bool] = True
    passes: ClassVar[int] = 1
    """Forward passes for each row that Σ is built from."""
    ridge: float = 0.1
    """λ of Σ."""
    precision_samples: int = 0
    """Transitions that Σ is built from, scaled up to all; the whole replay if it holds no more.
    0: 50 for each feature."""
    precision_distinct: int = 0
    """Where transitions repeat: equal ones are one row that counts as many times, and Σ is built
    from at most so many. 0: every transition is a row."""
    precision_rounds: int = 0
    """k: Σ is rebuilt in every k-th round. 0: as often as possible, as long as Σ costs at most a
    quarter of the learning."""

    def __post_init__(self) -> None:
        require_all(
            self,
            not_negative=("precision_samples", "precision_distinct", "precision_rounds"),
            positive=("ridge",),
        )

    def rows(self, dimension: int) -> int:
        """Transitions that Σ is built from."""
        return self.precision_samples or ROWS_PER_FEATURE * dimension

    def rounds(self, context: ExplorationContext) -> int:
        """k: Σ is rebuilt in every k-th round.

        A row costs one forward pass, or two where s' is read too. A transition that is learned
        from costs about four: a forward pass, a backward pass (two more), and the target network's
        forward pass.
        """
        affordable = max(context.round_items, 1)  # passes: a quarter of four for each item
        passes = self.passes * (self.precision_distinct or self.rows(context.dimension))
        return self.precision_rounds or -(-passes // affordable)


def choose(
    values: Float[Array, "N A"], epsilon: Float[Array, "..."], key: RandomKey
) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """ε-greedy actions, and the probabilities that they were chosen with.

    Ties are broken at random: else an agent that has seen no reward repeats one action for ever.
    """
    count, actions = values.shape
    uniform_key, action_key, tie_key = jax.random.split(key, 3)
    best = values == jnp.max(values, axis=1, keepdims=True)
    ties = jnp.where(best, jax.random.uniform(tie_key, values.shape), -1.0)
    greedy = jnp.argmax(ties, axis=1).astype(jnp.int32)
    uniform = jax.random.randint(action_key, (count,), 0, actions)
    action = jnp.where(jax.random.uniform(uniform_key, (count,)) < epsilon, uniform, greedy)
    share = jnp.where(best, 1 / jnp.sum(best, axis=1, keepdims=True, dtype=jnp.float32), 0.0)
    chosen = jnp.take_along_axis(share, action[:, None], axis=1)[:, 0]
    return action, epsilon / actions + (1 - epsilon) * chosen
