"""Networks: modules of equinox, arrays in, arrays out, no batch axis."""

from spectral_bellman.networks.theta_tilde import ResidualParameters

__all__ = ["ResidualParameters"]
