"""The catalogue of environments: one entry for each family, and ``make`` for names and objects.

To add a family, write its module with a ``FAMILY`` and add that to ``FAMILIES``. To add one outside
this package, call ``register``. The modules of the families import gymnasium, ale_py and pgx only
when an environment is made.
"""

from typing import Any

from spectral_bellman.environments import atari, custom, deep_sea, gym, memory, minatar
from spectral_bellman.environments.api import EnvironmentSpec, Family, nearest

__all__ = ["FAMILIES", "Family", "available", "family_of", "make", "register"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        deep_sea.FAMILY,
        minatar.FAMILY,
        memory.FAMILY,
        atari.FAMILY,
        custom.FAMILY,
        gym.FAMILY,  # after custom: gym adopts all callables, and a JAX environment may be one
    )
}
"""Name -> family. An object of the user's belongs to the first family that adopts it."""


def register(family: Family) -> Family:
    """Add a family to the catalogue."""
    if family.name in FAMILIES:
        raise ValueError(f"there is a family {family.name!r} already")
    for prefix in family.prefixes:
        if (other := family_of(prefix)) is not None:
            raise ValueError(f"family {family.name!r}: {prefix}/ belongs to {other.name!r}")
    FAMILIES[family.name] = family
    return family


def available() -> dict[str, str]:
    """The names that ``make`` knows, with a line about each."""
    return {name: line for family in FAMILIES.values() for name, line in family.patterns.items()}


def family_of(name: str) -> Family | None:
    """The family whose environments have such names; None if there is none."""
    prefix = name.partition("/")[0]
    return next((family for family in FAMILIES.values() if prefix in family.prefixes), None)


def make(environment: Any) -> EnvironmentSpec:
    """The environment that a user named or gave.

    Args:
      environment: a name of ``available()``; an object with the ``Environment`` protocol; a
        ``gymnasium.Env``; or a function that makes one.
    """
    if isinstance(environment, str):
        family = family_of(environment)
        if family is not None and family.make is not None:
            return family.make(environment)
        known = [*available(), *(name for entry in FAMILIES.values() for name in entry.names())]
        hint = nearest(environment, known)
        raise ValueError(f"environment {environment!r} does not exist{hint}; sbm envs lists them")
    for family in FAMILIES.values():
        if (spec := family.adopt(environment)) is not None:
            return spec
    raise TypeError(
        f"an environment is a name ({', '.join(available())}), an object with the Environment "
        "protocol, a gymnasium.Env, or a function that makes one; got "
        f"{type(environment).__name__}"
    )
