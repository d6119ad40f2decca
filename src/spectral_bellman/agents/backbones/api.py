"""A backbone: how φ is computed while acting, and on what the replay holds.

It turns items of the replay into rows: a transition is one row, a sequence is several. What learns
from rows (``representations``) does not know where they come from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import choices
from spectral_bellman.agents.api import Terms, Timestep
from spectral_bellman.agents.backups import OperatorConfig
from spectral_bellman.agents.choices import Choice
from spectral_bellman.agents.representations.api import Backup, Problem, Target
from spectral_bellman.replay import Window


class Torso(NamedTuple):
    """The settings of a network that reads one observation."""

    kind: str
    hidden: tuple[int, ...]


class View(NamedTuple):
    """Items as a network sees them, in rows: R = B · T."""

    phi: Float[Array, "R A d"]
    """φ(s, ·)."""
    phi_next: Float[Array, "R A d"]
    """φ(s', ·) after the steps of each row."""
    action: Int[Array, " R"]
    reward: Float[Array, " R"]
    """The discounted sum of the rewards on the way to s'."""
    discount: Float[Array, " R"]
    """The discount of φ(s', ·), or 0 where the episode terminated."""
    mask: Bool[Array, " R"]
    """False for padding."""


class Backbone(NamedTuple):
    """How φ is computed. Networks give φ before any norm; ``norm`` is applied by who asks."""

    window: Window
    """What a gradient step learns from."""
    rows: int
    """T, rows of an item."""
    network: Callable[[int, int, RandomKey], Any]
    """(actions, d, key) -> the network of φ."""
    single: Callable[[int, int, RandomKey], Any]
    """(actions, d, key) -> a network of one observation."""
    init_carry: Callable[[int], Any]
    """N -> the recurrent state of N environments; () without one."""
    step: Callable[[Any, Any, Timestep], tuple[Float[Array, "N A d"], Any]]
    """(network, carry, timestep) -> φ, the carry after it. The caller resets the carry where an
    episode begins."""
    taken: Callable[[Any, Any], Float[Array, "R d"]]
    """(network, items) -> φ(s, a) of the actions taken."""
    view: Callable[[Any, Any], View]
    """(network, items) -> everything that a network sees of the items."""
    backup: Callable[[Callable[[Array], Array], Target, Any, Any], Backup]
    """(norm, target, network that learns, items) -> the Bellman operator on the rows."""
    mask: Callable[[Any], Bool[Array, "B T"]]
    """Which rows of the items are steps, and not padding."""
    padded: bool
    """Whether there may be padding."""
    diagnose: Callable[[Callable[[Array], Array], Target, Any, Any], Terms] = lambda *_: {}
    """(norm, target, network, items) -> diagnostics."""


@dataclass(frozen=True)
class BackboneConfig(Choice):
    """The settings of a backbone."""

    kind: ClassVar[str] = "backbone"

    @property
    def rows(self) -> int:
        """T, rows of an item."""
        return 1

    def operators(self) -> tuple[str, ...]:
        """The names of the operators that it can compute."""
        raise NotImplementedError(f"{type(self).__name__} needs a method operators")

    def build(
        self,
        problem: Problem,
        operator: OperatorConfig,
        torso: Torso,
    ) -> Backbone:
        """The functions."""
        raise NotImplementedError(f"{type(self).__name__} needs a method build")

    @classmethod
    def register(cls) -> None:
        """Make it known by its name."""
        choices.register(cls)


def in_rows(x: Any) -> Any:
    """(B, T, …) -> (B · T, …), for every leaf of a tree."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
