"""IMPALA's torso against sums over explicit windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.networks import ImpalaResNet, torso_for, torso_of
from spectral_bellman.networks.impala import Convolution, Section, max_pool


def windows(image: np.ndarray, fill: float) -> np.ndarray:
    """(h, w, 3, 3, c): the 3×3 pixels around each pixel."""
    padded = np.pad(image, [(1, 1), (1, 1), (0, 0)], constant_values=fill)
    height, width, _ = image.shape
    return np.stack([[padded[i : i + 3, j : j + 3] for j in range(width)] for i in range(height)])


def test_a_convolution_is_a_product_with_the_patch_around_each_pixel():
    layer = Convolution(2, 5, jax.random.key(0))
    layer = jax.tree.map(lambda x: x + 0.1, layer)  # biases that are not 0
    image = np.random.default_rng(0).normal(size=(6, 7, 2)).astype(np.float32)
    patches = windows(image, 0.0).reshape(6, 7, -1)
    expected = patches @ np.asarray(layer.layer.weight).T + np.asarray(layer.layer.bias)
    np.testing.assert_allclose(layer(jnp.asarray(image)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(84, 84), (11, 7), (5, 6), (1, 2)])
def test_the_maximum_is_over_three_by_three_pixels_at_every_second_one(size):
    image = np.random.default_rng(1).normal(size=(*size, 3)).astype(np.float32)
    expected = jax.lax.reduce_window(
        jnp.asarray(image), -jnp.inf, jax.lax.max, (3, 3, 1), (2, 2, 1), "SAME"
    )
    np.testing.assert_array_equal(max_pool(jnp.asarray(image)), expected)


def reduced(x: jax.Array) -> jax.Array:
    """The maximum as XLA has it."""
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (3, 3, 1), (2, 2, 1), "SAME")


@pytest.mark.parametrize("size", [(8, 6), (11, 7), (5, 6), (1, 2)])
def test_the_gradient_of_the_maximum_goes_to_the_largest_pixel(size):
    image = jnp.asarray(np.random.default_rng(1).normal(size=(*size, 3)), jnp.float32)
    weight = jnp.asarray(np.random.default_rng(2).normal(size=reduced(image).shape), jnp.float32)

    def of(pool):
        return jax.grad(lambda x: jnp.sum(weight * pool(x)))(image)

    np.testing.assert_allclose(of(max_pool), of(reduced), rtol=1e-6, atol=1e-7)


def test_of_equal_pixels_the_first_has_the_gradient():
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.ones((4, 4, 1)))
    first = np.zeros((4, 4, 1))
    first[::2, ::2] = 1
    np.testing.assert_array_equal(gradient, first)


@pytest.mark.parametrize("way", [Section.in_pixels, Section.in_blocks_where_narrow])
@pytest.mark.parametrize(
    ("size", "channels", "filters"), [((8, 12), 4, 6), ((12, 6), 8, 32), ((11, 7), 4, 6)]
)
def test_a_section_is_its_definition_and_so_is_its_gradient(size, channels, filters, way):
    section = jax.tree.map(lambda x: x + 0.1, Section(channels, filters, jax.random.key(0)))
    image = jnp.asarray(np.random.default_rng(1).normal(size=(*size, channels)), jnp.float32)

    def defined(section, x):
        x = reduced(section.first(x))
        for first, second in section.residual:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x))))
        return x

    def loss(both, way):
        return jnp.mean(way(*both) ** 2)

    expected = jax.value_and_grad(loss)((section, image), defined)
    found = jax.value_and_grad(loss)((section, image), way)
    for mine, its in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-3 * float(jnp.abs(its).max()))


def test_the_torso_reads_screens_of_bytes():
    screen = jax.ShapeDtypeStruct((4, 84, 84), jnp.uint8)
    assert torso_for(screen, recurrent=True) == "impala"
    assert torso_for(screen) == "centred"
    torso, width = torso_of("auto", (), screen, jax.random.key(0), recurrent=True)
    assert isinstance(torso, ImpalaResNet)
    assert width == torso.dense.out_features == 256
    assert torso.dense.in_features == 11 * 11 * 32
    assert len(torso.areas) == 15
    small = ImpalaResNet((2, 36, 36), jax.random.key(1))
    image = jnp.asarray(np.random.default_rng(2).integers(0, 256, (2, 36, 36)), jnp.uint8)
    x = jnp.moveaxis(image, 0, -1).astype(jnp.float32) / 255
    for section in small.sections:
        x = max_pool(section.first(x))
        for first, second in section.residual:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x))))
    expected = jax.nn.relu(small.dense(jax.nn.relu(x).ravel()))
    assert expected.max() > 0
    np.testing.assert_allclose(small(image), expected, rtol=1e-4, atol=1e-4)
