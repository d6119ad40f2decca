"""The residual torso of IMPALA (Espeholt et al. 2018), which R2D2 agents read screens with."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from spectral_bellman._arrays import RandomKey
from spectral_bellman.networks.features import started

SECTIONS = (16, 32, 32)
"""Filters of each section."""
NARROW = 32
"""Images with fewer channels leave a GPU's tensor cores nearly empty."""
PIXELS = tuple(itertools.product(range(3), range(3)))
"""The pixels of a window, row by row."""


class Convolution(eqx.Module):
    """A 3×3 convolution that keeps the size, with its weights as a dense layer on patches."""

    layer: eqx.nn.Linear

    def __init__(self, channels: int, filters: int, key: RandomKey) -> None:
        self.layer = started(eqx.nn.Linear(9 * channels, filters, key=key), key)

    def __call__(self, x: Float[Array, "h w c"], *, blocks: bool = False) -> Float[Array, "h w f"]:
        """The image of f channels; with ``blocks``, both images are of blocks (``in_blocks``)."""
        return self.without_bias(x, blocks=blocks) + (
            jnp.tile(self.bias, 4) if blocks else self.bias
        )

    def without_bias(self, x: Float[Array, "h w c"], *, blocks: bool) -> Float[Array, "h w f"]:
        """XLA's convolution: the patches of a batch of sequences would fill the memory."""
        kernel = self.layer.weight.T.reshape(3, 3, x.shape[-1] // (4 if blocks else 1), -1)
        kernel = _kernel_of_blocks(kernel) if blocks else kernel
        numbers = ("NHWC", "HWIO", "NHWC")
        (result,) = jax.lax.conv_general_dilated(
            x[None], kernel, (1, 1), "SAME", dimension_numbers=numbers
        )
        return result

    @property
    def bias(self) -> Float[Array, "1 1 f"]:
        """One for each filter."""
        assert self.layer.bias is not None
        return self.layer.bias[None, None]


class Section(eqx.Module):
    """A convolution, a maximum over 3×3 pixels at every second one, and two residual blocks."""

    first: Convolution
    residual: tuple[tuple[Convolution, Convolution], ...]

    def __init__(self, channels: int, filters: int, key: RandomKey) -> None:
        keys = jax.random.split(key, 5)
        self.first = Convolution(channels, filters, keys[0])
        self.residual = tuple(
            (Convolution(filters, filters, a), Convolution(filters, filters, b))
            for a, b in ((keys[1], keys[2]), (keys[3], keys[4]))
        )

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "r s f"]:
        """Half the height and width."""
        return jax.lax.platform_dependent(
            self, x, cuda=Section.in_blocks_where_narrow, default=Section.in_pixels
        )

    def in_pixels(self, x: Float[Array, "h w c"]) -> Float[Array, "r s f"]:
        """As it is defined.

        The first bias is added after the maximum, which changes no value. Its gradient is then a
        sum over a quarter of the pixels.
        """
        return self._refined(max_pool(self.first.without_bias(x, blocks=False)) + self.first.bias)

    def in_blocks_where_narrow(self, x: Float[Array, "h w c"]) -> Float[Array, "r s f"]:
        """The same, images with few channels as blocks of 2×2 pixels with four times as many.

        This takes four times the multiplications, and on a GPU half of the time: tensor cores
        are nearly empty where channels are few.
        """
        if _narrow(x):
            largest = _block_maximum(self.first.without_bias(in_blocks(x), blocks=True))
        else:
            largest = max_pool(self.first.without_bias(x, blocks=False))
        pooled = largest + self.first.bias
        if not _narrow(pooled):
            return self._refined(pooled)
        return _out_of_blocks(self._refined(in_blocks(pooled), blocks=True))

    def _refined(self, x: Float[Array, "h w c"], *, blocks: bool = False) -> Float[Array, "h w c"]:
        for first, second in self.residual:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x), blocks=blocks)), blocks=blocks)
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


def _narrow(x: Float[Array, "h w c"]) -> bool:
    height, width, channels = x.shape
    return channels < NARROW and height % 2 == width % 2 == 0


def in_blocks(x: Shaped[Array, "h w c"]) -> Shaped[Array, "r s b"]:
    """Blocks of 2×2 pixels as pixels of 4c channels."""
    height, width, channels = x.shape
    rows, columns = height // 2, width // 2
    blocks = x.reshape(rows, 2, columns, 2, channels).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(rows, columns, 4 * channels)


def _out_of_blocks(x: Shaped[Array, "r s b"]) -> Shaped[Array, "h w c"]:
    """The inverse of ``in_blocks``."""
    rows, columns, channels = x.shape
    pixels = x.reshape(rows, columns, 2, 2, channels // 4).transpose(0, 2, 1, 3, 4)
    return pixels.reshape(2 * rows, 2 * columns, channels // 4)


def _kernel_of_blocks(kernel: Float[Array, "3 3 c f"]) -> Float[Array, "3 3 b g"]:
    """The kernel that does to blocks of 2×2 pixels what ``kernel`` does to pixels."""
    channels, filters = kernel.shape[2:]
    # Pixels (p, q) of a block see pixels -1 to 1 around them, among the -2 to 3 of three blocks.
    apart = [
        jnp.pad(kernel, ((p + 1, 2 - p), (q + 1, 2 - q), (0, 0), (0, 0)))
        for p in (0, 1)
        for q in (0, 1)
    ]
    blocks = jnp.stack(apart, axis=3).reshape(3, 2, 3, 2, channels, 4 * filters)
    return blocks.transpose(0, 2, 1, 3, 4, 5).reshape(3, 3, 4 * channels, 4 * filters)


def max_pool(x: Float[Array, "h w c"]) -> Float[Array, "r s c"]:
    """The maximum over 3×3 pixels around every second one ("same" padding)."""
    # "Same" padding begins with a row of padding if the number of rows is odd.
    sides = [(n % 2, 0) for n in x.shape[:2]]
    return _block_maximum(in_blocks(jnp.pad(x, [*sides, (0, 0)], constant_values=-jnp.inf)))


@jax.custom_vjp
def _block_maximum(blocks: Float[Array, "r s b"]) -> Float[Array, "r s c"]:
    """The maximum over each block, and the row and the column that follow it.

    The gradient goes to the first of equal pixels. It needs the number of this pixel alone, while
    XLA's own gradients of a maximum keep the images, and are slow everywhere.
    """
    return _first_largest(blocks)[0]


def _first_largest(blocks: Float[Array, "r s b"]) -> tuple[Array, Array]:
    """The maximum and the number of the pixel that has it, of the 3×3 from each block on."""
    rows, columns, channels = blocks.shape
    pixels = blocks.reshape(rows, columns, 2, 2, channels // 4)
    padded = jnp.pad(pixels, ((0, 1), (0, 1), (0, 0), (0, 0), (0, 0)), constant_values=-jnp.inf)
    best, number = pixels[:, :, 0, 0], jnp.zeros((rows, columns, channels // 4), jnp.uint8)
    for i, j in PIXELS[1:]:
        down, right = i // 2, j // 2
        pixel = padded[down : down + rows, right : right + columns, i % 2, j % 2]
        larger = pixel > best
        best = jnp.where(larger, pixel, best)
        number = jnp.where(larger, jnp.uint8(3 * i + j), number)
    return best, number


def _block_gradient(number: Array, gradient: Array) -> tuple[Array]:
    rows, columns, _ = gradient.shape
    parts = {(p, q): jnp.zeros_like(gradient) for p in (0, 1) for q in (0, 1)}
    for i, j in PIXELS:
        own = jnp.where(number == 3 * i + j, gradient, jnp.zeros((), gradient.dtype))
        shifted = jnp.pad(own, ((i // 2, 0), (j // 2, 0), (0, 0)))[:rows, :columns]
        parts[i % 2, j % 2] += shifted
    return (jnp.concatenate(list(parts.values()), axis=-1),)


_block_maximum.defvjp(_first_largest, _block_gradient)
