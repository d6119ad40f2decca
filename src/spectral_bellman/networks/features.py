"""φ(s, ·): torsos that read an observation, and the head with |A|×d outputs.

Modules have no batch axis, and all their leaves are arrays.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from spectral_bellman._arrays import RandomKey

N = TypeVar("N", bound=eqx.Module)
"""A network."""


def started(layer: eqx.nn.Linear, key: RandomKey) -> eqx.nn.Linear:
    """The layer with He's normal weights and zero bias.

    Features of different states then start out different, also for one-hot observations.
    """
    assert layer.bias is not None
    fan_in = math.prod(layer.weight.shape[1:])
    weight = jax.random.normal(key, layer.weight.shape) * math.sqrt(2 / fan_in)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros_like(layer.bias)))


class FeatureNetwork(eqx.Module):
    """φ(s, ·) = head(torso(s)), before any norm."""

    torso: Callable[[Array], Array]
    head: eqx.nn.Linear
    actions: int = eqx.field(static=True)

    def __init__(
        self, torso: Callable[[Array], Array], width: int, actions: int, d: int, key: RandomKey
    ) -> None:
        self.torso, self.actions = torso, actions
        self.head = started(eqx.nn.Linear(width, actions * d, key=key), key)

    def __call__(self, observation: Array) -> Float[Array, "A d"]:
        """φ(s, a) of every action."""
        return self.head(self.torso(observation)).reshape(self.actions, -1)


def uniform_weights(network: N, key: RandomKey) -> N:
    """The network with weights and biases uniform within ±1/√(fan in), PyTorch's default."""
    parts, structure = jax.tree.flatten(
        network, is_leaf=lambda part: isinstance(part, eqx.nn.Linear)
    )

    def drawn(layer: eqx.nn.Linear, key: RandomKey) -> eqx.nn.Linear:
        bound = math.prod(layer.weight.shape[1:]) ** -0.5
        leaves, inside = jax.tree.flatten(layer)
        keys = jax.random.split(key, len(leaves))
        draws = [
            jax.random.uniform(k, x.shape, x.dtype, -bound, bound)
            for k, x in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(inside, draws)

    return jax.tree.unflatten(
        structure,
        [drawn(*both) for both in zip(parts, jax.random.split(key, len(parts)), strict=True)],
    )


def xavier_weights(network: N, key: RandomKey) -> N:
    """The network with Xavier's uniform weights and zero biases, Dopamine's initialisation.

    Weights lie within ±√(6 / (fan in + fan out)). The fan out of a convolution is its number of
    filters times their area, as in Flax.
    """
    parts, structure = jax.tree.flatten(
        network, is_leaf=lambda part: isinstance(part, eqx.nn.Linear)
    )
    # Convolutions are dense layers on patches here, so their weights do not show the filter area in
    # the fan out. The convolutions of a torso come first in the tree.
    areas: list[int] = getattr(getattr(network, "torso", None), "areas", [])

    def drawn(layer: eqx.nn.Linear, area: int, key: RandomKey) -> eqx.nn.Linear:
        assert layer.bias is not None
        fan_out, fan_in = layer.weight.shape
        bound = math.sqrt(6 / (fan_in + fan_out * area))
        weight = jax.random.uniform(key, layer.weight.shape, layer.weight.dtype, -bound, bound)
        return eqx.tree_at(
            lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros_like(layer.bias))
        )

    areas += [1] * (len(parts) - len(areas))
    keys = jax.random.split(key, len(parts))
    return jax.tree.unflatten(
        structure, [drawn(*each) for each in zip(parts, areas, keys, strict=True)]
    )


class MLP(eqx.Module):
    """Dense layers with ReLU on the flattened observation."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, shape: tuple[int, ...], hidden: tuple[int, ...], key: RandomKey) -> None:
        sizes = (math.prod(shape), *hidden)
        keys = jax.random.split(key, len(hidden))
        self.layers = tuple(
            started(eqx.nn.Linear(before, after, key=k), k)
            for before, after, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )

    def __call__(self, observation: Array) -> Float[Array, " h"]:
        """The last hidden layer; bytes are images and are scaled to [0, 1]."""
        dtype = self.layers[0].weight.dtype if self.layers else jnp.float32
        x = observation.astype(dtype).ravel() / (255 if observation.dtype == jnp.uint8 else 1)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


class MinAtarCNN(eqx.Module):
    """The MinAtar authors' torso: 16 filters of 3×3, then 128 units.

    The convolution is a matrix product of its 64 patches with the filters. XLA turns a convolution
    that is vmapped over seeds into a grouped convolution, which is slow on a GPU and far slower on
    a CPU. A matrix product becomes a batched matrix product.
    """

    convolution: eqx.nn.Linear
    dense: eqx.nn.Linear

    def __init__(
        self, shape: tuple[int, ...], key: RandomKey, filters: int = 16, hidden: int = 128
    ) -> None:
        height, width, channels = shape
        keys = jax.random.split(key)
        self.convolution = started(eqx.nn.Linear(9 * channels, filters, key=keys[0]), keys[0])
        self.dense = started(
            eqx.nn.Linear((height - 2) * (width - 2) * filters, hidden, key=keys[1]), keys[1]
        )

    @property
    def areas(self) -> list[int]:
        """The area of the filters of each convolution."""
        return [9]

    def __call__(self, observation: Array) -> Float[Array, " h"]:
        """The last hidden layer; the observation is (height, width, channels)."""
        seen = observation.astype(self.convolution.weight.dtype)
        x = jax.nn.relu(convolve(self.convolution, seen, 3, 1))
        return jax.nn.relu(self.dense(x.ravel()))


class NatureCNN(eqx.Module):
    """The DQN torso of Mnih et al. (2015) for 4 frames of 84×84: 3 convolutions, then 512 units.

    ``centred`` subtracts the mean of an image from the image. Otherwise the common part of all
    screens, mostly the brightness of the background, dominates the first gradient steps of all
    weights. Normed features from random weights then become the same for every screen. ``padded``
    pads the images of all convolutions with zeros ("same" padding), as Dopamine does.
    """

    convolutions: tuple[eqx.nn.Linear, ...]
    dense: eqx.nn.Linear
    centred: bool = eqx.field(static=True)
    padded: bool = eqx.field(static=True)

    def __init__(
        self,
        shape: tuple[int, ...],
        key: RandomKey,
        hidden: int = 512,
        *,
        centred: bool = False,
        padded: bool = False,
    ) -> None:
        self.centred, self.padded = centred, padded
        channels, height, width = shape
        keys = jax.random.split(key, 4)
        layers = []
        for (filters, size, stride), k in zip(NATURE, keys[:3], strict=True):
            layers.append(started(eqx.nn.Linear(channels * size * size, filters, key=k), k))
            channels = filters
            height, width = (
                -(-n // stride) if padded else (n - size) // stride + 1 for n in (height, width)
            )
        self.convolutions = tuple(layers)
        self.dense = started(eqx.nn.Linear(channels * height * width, hidden, key=keys[3]), keys[3])

    @property
    def areas(self) -> list[int]:
        """The area of the filters of each convolution."""
        return [size * size for _, size, _ in NATURE]

    def __call__(self, observation: Array) -> Float[Array, " h"]:
        """The last hidden layer; the observation is (frames, height, width) of bytes."""
        x = jnp.moveaxis(observation, 0, -1)
        for i, (layer, (_, size, stride)) in enumerate(zip(self.convolutions, NATURE, strict=True)):
            x = convolve(layer, pad_same(x, size, stride) if self.padded else x, size, stride)
            if self.centred and i == 0:
                # A convolution is linear: subtracting the mean times the sum of each filter from
                # the output equals subtracting the mean from the image.
                mean = jnp.mean(observation.astype(layer.weight.dtype)) / 255
                x -= mean * jnp.sum(layer.weight, axis=1)[None, None]
            x = jax.nn.relu(x)
        return jax.nn.relu(self.dense(x.ravel()))


NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Number of filters, filter size and stride of each convolution."""


def pad_same(
    x: Shaped[Array, "height width channels"], size: int, stride: int
) -> Shaped[Array, "h w channels"]:
    """The image with zeros around it ("same" padding): one output for every ``stride`` pixels."""
    missing = [(-(-n // stride) - 1) * stride + size - n for n in x.shape[:2]]
    return jnp.pad(x, [*((max(m, 0) // 2, max(m, 0) - max(m, 0) // 2) for m in missing), (0, 0)])


def convolve(
    layer: eqx.nn.Linear, x: Shaped[Array, "height width channels"], size: int, stride: int
) -> Float[Array, "rows columns filters"]:
    """The layer on every size×size patch of an image; bytes are scaled to [0, 1].

    XLA's own convolution is many times slower on a CPU. On a GPU it uses cuDNN, which breaks up
    CUDA graphs and need not give the same bits twice. A patch is made of (size / stride)² blocks of
    stride×stride pixels.
    """
    assert size % stride == 0
    height, width, channels = x.shape
    across = size // stride
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    tall, wide = rows - 1 + across, columns - 1 + across
    blocks = x[: tall * stride, : wide * stride].reshape(tall, stride, wide, stride, channels)
    blocks = blocks.transpose(0, 2, 1, 3, 4).reshape(tall, wide, stride * stride * channels)
    seen = [blocks[i : i + rows, j : j + columns] for i in range(across) for j in range(across)]
    if x.dtype != jnp.uint8:
        return jax.vmap(jax.vmap(layer))(jnp.concatenate(seen, axis=-1))
    # The sum goes block by block, since the float patches of a screen would be the largest arrays
    # of the network.
    assert layer.bias is not None
    parts = jnp.split(layer.weight.T / 255, len(seen))
    blocks_out = (b.astype(part.dtype) @ part for b, part in zip(seen, parts, strict=True))
    return sum(blocks_out) + layer.bias[None, None]
