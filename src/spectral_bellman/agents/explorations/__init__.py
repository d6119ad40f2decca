"""How an agent explores. Each way is a file of its own, and a line here."""

from spectral_bellman.agents.explorations.api import Exploration, ExplorationConfig, ReplayFeatures
from spectral_bellman.agents.explorations.epsilon import Epsilon, Ladder
from spectral_bellman.agents.explorations.posterior import UCB, Thompson
from spectral_bellman.agents.explorations.propagated import Propagated

for _choice in (Epsilon, Ladder, Thompson, UCB, Propagated):
    _choice.register()

__all__ = [
    "UCB",
    "Epsilon",
    "Exploration",
    "ExplorationConfig",
    "Ladder",
    "Propagated",
    "ReplayFeatures",
    "Thompson",
]
