"""What φ learns from. Each way is a file of its own, and a line here."""

from spectral_bellman.agents.representations.api import Representation, RepresentationConfig, Target
from spectral_bellman.agents.representations.bellman import MSE, Spectral
from spectral_bellman.agents.representations.linear import Linear
from spectral_bellman.agents.representations.pvn import PVN
from spectral_bellman.agents.representations.td import TD, Plain

for _choice in (Plain, TD, MSE, Spectral, Linear, PVN):
    _choice.register()

__all__ = [
    "MSE",
    "PVN",
    "TD",
    "Linear",
    "Plain",
    "Representation",
    "RepresentationConfig",
    "Spectral",
    "Target",
]
