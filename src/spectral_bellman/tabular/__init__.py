"""The exact case: finite MDPs, where every expectation of the paper is a sum. NumPy and float64.

``mdp`` holds the decision processes and the Bellman operators, and ``power`` Algorithm 1.
``features`` holds the outer loop, where TQ changes with the features, and Algorithm 2. ``ibe``
computes the inherent Bellman error, and ``figures`` plots the results.
"""

from spectral_bellman.tabular.features import (
    Round,
    laplacian_features,
    random_features,
    spectral_features,
    spectral_q_iteration,
)
from spectral_bellman.tabular.ibe import best_fit, inherent_bellman_error, value_bound
from spectral_bellman.tabular.mdp import (
    MDP,
    aggregated_mdp,
    bellman_backup,
    chain_mdp,
    deep_sea_mdp,
    h_step_backup,
    low_rank_mdp,
    optimal_q,
    random_mdp,
)
from spectral_bellman.tabular.power import power_method, power_step

__all__ = [
    "MDP",
    "Round",
    "aggregated_mdp",
    "bellman_backup",
    "best_fit",
    "chain_mdp",
    "deep_sea_mdp",
    "h_step_backup",
    "inherent_bellman_error",
    "laplacian_features",
    "low_rank_mdp",
    "optimal_q",
    "power_method",
    "power_step",
    "random_features",
    "random_mdp",
    "spectral_features",
    "spectral_q_iteration",
    "value_bound",
]
