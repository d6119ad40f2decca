"""Networks as equinox modules: one observation or one θ in, arrays out, no batch axis."""

from spectral_bellman.networks.features import (
    MLP,
    FeatureNetwork,
    MinAtarCNN,
    NatureCNN,
    feature_network,
    torso_for,
    uniform_weights,
    xavier_weights,
)
from spectral_bellman.networks.theta_tilde import ResidualParameters

__all__ = [
    "MLP",
    "FeatureNetwork",
    "MinAtarCNN",
    "NatureCNN",
    "ResidualParameters",
    "feature_network",
    "torso_for",
    "uniform_weights",
    "xavier_weights",
]
