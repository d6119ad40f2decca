"""Networks as equinox modules: one observation or one θ in, arrays out, no batch axis."""

from spectral_bellman.networks.building import feature_network, torso_for, torso_of
from spectral_bellman.networks.features import (
    MLP,
    FeatureNetwork,
    MinAtarCNN,
    NatureCNN,
    uniform_weights,
    xavier_weights,
)
from spectral_bellman.networks.impala import ImpalaResNet
from spectral_bellman.networks.recurrent import RecurrentNetwork
from spectral_bellman.networks.theta_tilde import ResidualParameters

__all__ = [
    "MLP",
    "FeatureNetwork",
    "ImpalaResNet",
    "MinAtarCNN",
    "NatureCNN",
    "RecurrentNetwork",
    "ResidualParameters",
    "feature_network",
    "torso_for",
    "torso_of",
    "uniform_weights",
    "xavier_weights",
]
