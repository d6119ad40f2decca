"""How φ is computed: from one observation, or from the history of an episode."""

from spectral_bellman.agents.backbones.api import Backbone, BackboneConfig, View
from spectral_bellman.agents.backbones.feed_forward import FeedForward
from spectral_bellman.agents.backbones.recurrent import Recurrent

for _choice in (FeedForward, Recurrent):
    _choice.register()

__all__ = ["Backbone", "BackboneConfig", "FeedForward", "Recurrent", "View"]
