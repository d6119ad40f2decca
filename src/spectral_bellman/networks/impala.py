"""The residual torso of IMPALA (Espeholt et al. 2018), which R2D2 agents read screens with."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_bellman._arrays import RandomKey
from spectral_bellman.networks.features import started

SECTIONS = (16, 32, 32)
"""Filters of each section."""


class Convolution(eqx.Module):
    """A 3×3 convolution that keeps the size, with its weights as a dense layer on patches."""

    layer: eqx.nn.Linear

    def __init__(self, channels: int, filters: int, key: RandomKey) -> None:
        self.layer = started(eqx.nn.Linear(9 * channels, filters, key=key), key)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w f"]:
        """XLA's convolution: the patches of a batch of sequences would fill the memory."""
        weight = self.layer.weight.T.reshape(3, 3, x.shape[-1], -1)
        result = jax.lax.conv_general_dilated(
            x[None], weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        assert self.layer.bias is not None
        return result[0] + self.layer.bias[None, None]


class Section(eqx.Module):
    """A convolution, a maximum over 3×3 pixels at every second one, and two residual blocks."""

    first: Convolution
    blocks: tuple[tuple[Convolution, Convolution], ...]

    def __init__(self, channels: int, filters: int, key: RandomKey) -> None:
        keys = jax.random.split(key, 5)
        self.first = Convolution(channels, filters, keys[0])
        self.blocks = tuple(
            (Convolution(filters, filters, a), Convolution(filters, filters, b))
            for a, b in ((keys[1], keys[2]), (keys[3], keys[4]))
        )

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "r s f"]:
        """Half the height and width."""
        x = max_pool(self.first(x))
        for first, second in self.blocks:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x))))
        return x


class ImpalaResNet(eqx.Module):
    """Three sections of 16, 32 and 32 filters, and 256 units; frames come first."""

    sections: tuple[Section, ...]
    dense: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], key: RandomKey, hidden: int = 256) -> None:
        channels, height, width = shape
        keys = jax.random.split(key, len(SECTIONS) + 1)
        sections = []
        for filters, k in zip(SECTIONS, keys[:-1], strict=True):
            sections.append(Section(channels, filters, k))
            channels, height, width = filters, -(-height // 2), -(-width // 2)
        self.sections = tuple(sections)
        self.dense = started(
            eqx.nn.Linear(channels * height * width, hidden, key=keys[-1]), keys[-1]
        )

    @property
    def areas(self) -> list[int]:
        """The area of the filters of each convolution."""
        return [9] * (5 * len(self.sections))

    def __call__(self, observation: Array) -> Float[Array, " h"]:
        """The last hidden layer; the observation is (frames, height, width) of bytes."""
        x = jnp.moveaxis(observation, 0, -1).astype(self.dense.weight.dtype) / 255
        for section in self.sections:
            x = section(x)
        return jax.nn.relu(self.dense(jax.nn.relu(x).ravel()))


def max_pool(x: Float[Array, "h w c"]) -> Float[Array, "r s c"]:
    """The maximum over 3×3 pixels around every second one ("same" padding).

    As a maximum of nine images: the gradient of XLA's window reduction is slow everywhere.
    """
    height, width, _ = x.shape
    rows, columns = -(-height // 2), -(-width // 2)
    missing = [max((n - 1) * 2 + 3 - m, 0) for n, m in ((rows, height), (columns, width))]
    sides = [(m // 2, m - m // 2) for m in missing]
    padded = jnp.pad(x, [*sides, (0, 0)], constant_values=-jnp.inf)
    shifted = [
        padded[i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    return functools.reduce(jnp.maximum, shifted)
