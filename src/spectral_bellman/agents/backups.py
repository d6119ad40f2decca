"""Which Bellman operator the targets come from, and how the replay is sampled."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from spectral_bellman.agents import choices
from spectral_bellman.agents.choices import Choice, require_all
from spectral_bellman.replay import UNIFORM, Sampler, by_priority

SMALLEST_PRIORITY = 1e-6
"""An error of zero does not mean that a window is never drawn again."""


@dataclass(frozen=True)
class OperatorConfig(Choice):
    """A Bellman operator."""

    kind: ClassVar[str] = "operator"

    @property
    def steps(self) -> int:
        """Steps before the bootstrap; 0: to the end of the sequence."""
        return 1


@dataclass(frozen=True)
class OneStepOperator(OperatorConfig):
    """r + γ max_a Q(s', a)."""

    name: ClassVar[str] = "one_step"


@dataclass(frozen=True)
class NStepOperator(OperatorConfig):
    """n rewards, then the maximum, without correction for actions that are not greedy."""

    name: ClassVar[str] = "n_step"
    n_steps: int = 5
    """Rewards before the bootstrap."""

    def __post_init__(self) -> None:
        require_all(self, count=("n_steps",))

    @property
    def steps(self) -> int:
        """n."""
        return self.n_steps


@dataclass(frozen=True)
class RetraceOperator(OperatorConfig):
    """Retrace(λ) over a sequence, with traces c = λ min(1, π/μ); it needs a recurrent backbone."""

    name: ClassVar[str] = "retrace"
    trace_decay: float = 0.95
    """λ, the paper's β."""
    policy_epsilon_steps: int = 0
    """Agent steps over which the ε of the target policies π falls from 1 to 0; 0: always 0."""

    def __post_init__(self) -> None:
        require_all(self, share=("trace_decay",), not_negative=("policy_epsilon_steps",))

    @property
    def steps(self) -> int:
        """All that the sequence has."""
        return 0


@dataclass(frozen=True)
class SamplingConfig(Choice):
    """How the replay is sampled for gradient steps."""

    kind: ClassVar[str] = "sampling"

    def sampler(self) -> Sampler:
        """The functions."""
        return UNIFORM

    def priority(self, errors: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
        """The priority of items from the errors of their rows."""
        return jnp.ones(len(errors))


@dataclass(frozen=True)
class UniformSampling(SamplingConfig):
    """Every transition or sequence alike."""

    name: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class PrioritisedSampling(SamplingConfig):
    """In proportion to (η max |error| + (1 − η) mean |error|)^exponent over a sequence."""

    name: ClassVar[str] = "prioritised"
    priority_exponent: float = 0.9
    """Exponent of the errors."""
    priority_max_share: float = 0.9
    """η, the weight of the largest error of a sequence beside the mean error."""
    importance_exponent: float = 0.6
    """Exponent of the importance weights, which correct for the priorities."""

    def __post_init__(self) -> None:
        require_all(self, share=("priority_max_share", "importance_exponent", "priority_exponent"))

    def sampler(self) -> Sampler:
        """The functions."""
        return by_priority(self.importance_exponent)

    def priority(self, errors: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
        """(η max |error| + (1 − η) mean |error|)^exponent over the rows in the mask."""
        counted = jnp.where(mask, errors, 0.0)
        mean = jnp.sum(counted, axis=1) / jnp.maximum(jnp.sum(mask, axis=1, dtype=errors.dtype), 1)
        share = self.priority_max_share
        mixed = share * jnp.max(counted, axis=1) + (1 - share) * mean
        return jnp.maximum(mixed, SMALLEST_PRIORITY) ** self.priority_exponent


for _choice in (
    OneStepOperator,
    NStepOperator,
    RetraceOperator,
    UniformSampling,
    PrioritisedSampling,
):
    choices.register(_choice)
