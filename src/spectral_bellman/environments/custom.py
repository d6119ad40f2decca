"""JAX environments that a user gives as objects: the defaults for them."""

from collections.abc import Collection, Mapping
from typing import Any

from spectral_bellman.environments import deep_sea
from spectral_bellman.environments.api import Changes, Environment, EnvironmentSpec, Family


def adopt(environment: Any) -> EnvironmentSpec | None:
    """Any object with the ``Environment`` protocol, under the name of its class."""
    if not isinstance(environment, Environment):
        return None
    return EnvironmentSpec(type(environment).__name__, FAMILY.name, device=environment)


def suited(
    spec: EnvironmentSpec, run: Mapping[str, Any], agent: Mapping[str, Any], chosen: Collection[str]
) -> Changes:
    """A DeepSea that is given as an object needs the settings of its size, as a named one does."""
    if isinstance(spec.device, deep_sea.DeepSea):
        return deep_sea.suited(spec, run, agent, chosen)
    return {}, {}


FAMILY = Family(
    name="jax",
    title="JAX",
    run={
        "num_envs": 16,
        "round_steps": 8,
        "replay_capacity": 20_000,
        "frames": 100_000,
        "staleness": 1,
    },
    agent={"hidden": (64, 64), "reward_clip": 0.0},
    adopt=adopt,
    suited=suited,
)
