"""Environments by name: ``deep_sea/N``, ``minatar/GAME``, ``atari/GAME``, ``gym/ID``; or an object.

None of these imports loads gymnasium, ale_py or pgx: that happens when an environment is made.
"""

from spectral_bellman.environments.api import (
    Environment,
    EnvironmentSpec,
    Family,
    HostStep,
    ScoreScale,
    Step,
    VectorEnvironment,
)
from spectral_bellman.environments.atari import AtariEnvironments, AtariProtocol
from spectral_bellman.environments.catalogue import (
    FAMILIES,
    available,
    family_of,
    make,
    register,
)
from spectral_bellman.environments.deep_sea import DeepSea
from spectral_bellman.environments.gym import GymEnvironments
from spectral_bellman.environments.minatar import MinAtar

__all__ = [
    "FAMILIES",
    "AtariEnvironments",
    "AtariProtocol",
    "DeepSea",
    "Environment",
    "EnvironmentSpec",
    "Family",
    "GymEnvironments",
    "HostStep",
    "MinAtar",
    "ScoreScale",
    "Step",
    "VectorEnvironment",
    "available",
    "family_of",
    "make",
    "register",
]
