"""Networks by the names of their torsos."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.networks.features import MLP, FeatureNetwork, MinAtarCNN, NatureCNN
from spectral_bellman.networks.impala import ImpalaResNet


def torso_for(observation: jax.ShapeDtypeStruct, *, recurrent: bool = False) -> str:
    """The torso that suits an observation: "centred" or "impala" for screens, "minatar", "mlp"."""
    shape = observation.shape
    if len(shape) == 3 and observation.dtype == jnp.uint8 and min(shape[1:]) >= 36:
        return "impala" if recurrent else "centred"
    if len(shape) == 3 and observation.dtype == jnp.bool_ and shape[:2] == (10, 10):
        return "minatar"
    return "mlp"


def torso_of(
    kind: str,
    hidden: tuple[int, ...],
    observation: jax.ShapeDtypeStruct,
    key: RandomKey,
    *,
    recurrent: bool = False,
) -> tuple[Callable[[Array], Array], int]:
    """The torso ``kind`` and its width; "auto" chooses the torso with ``torso_for``."""
    shape = observation.shape
    kind = torso_for(observation, recurrent=recurrent) if kind == "auto" else kind
    if kind != "mlp" and len(shape) != 3:
        raise ValueError(
            f"network {kind!r} reads images, but observations have shape {shape}; use --network mlp"
        )
    if kind == "minatar":
        return MinAtarCNN(shape, key), 128
    if kind == "impala":
        return ImpalaResNet(shape, key), 256
    if kind in ("nature", "centred", "padded"):
        torso = NatureCNN(shape, key, centred=kind == "centred", padded=kind == "padded")
        return torso, 512
    return MLP(shape, hidden, key), hidden[-1] if hidden else math.prod(shape)


def feature_network(
    kind: str,
    hidden: tuple[int, ...],
    observation: jax.ShapeDtypeStruct,
    actions: int,
    d: int,
    key: RandomKey,
) -> FeatureNetwork:
    """φ with |A|×d outputs on the torso ``kind``."""
    torso_key, head_key = jax.random.split(key)
    torso, width = torso_of(kind, hidden, observation, torso_key)
    return FeatureNetwork(torso, width, actions, d, head_key)
