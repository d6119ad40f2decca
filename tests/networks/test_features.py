"""The torsos against explicit convolutions and products; the choice of a torso; initial weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.networks import feature_network, torso_for
from spectral_bellman.networks.features import (
    MLP,
    NATURE,
    FeatureNetwork,
    MinAtarCNN,
    NatureCNN,
    convolve,
    started,
    xavier_weights,
)

KEY = jax.random.key(0)


def with_biases(network):
    """The network with random biases: zero biases would hide a bias that the code leaves out."""
    is_layer = lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.Conv2d)  # noqa: E731

    def shift(layer):
        bias = 0.3 * jax.random.normal(jax.random.key(layer.bias.size), layer.bias.shape)
        return eqx.tree_at(lambda x: x.bias, layer, bias)

    return jax.tree.map(shift, network, is_leaf=is_layer)


def filters_of(weight, size, stride):
    """Filters of shape (filters, size, size, channels), from patches of stride×stride blocks."""
    blocks = size // stride
    return (
        weight.reshape(len(weight), blocks, blocks, stride, stride, -1)
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(len(weight), size, size, -1)
    )


def described(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_minatar_torso_is_a_convolution():
    network = with_biases(MinAtarCNN((10, 10, 4), KEY, filters=5, hidden=7))
    observation = jax.random.bernoulli(jax.random.key(1), 0.3, (10, 10, 4))
    kernel = network.convolution.weight.T.reshape(3, 3, 4, 5)
    image = observation.astype(jnp.float32)[None]
    convolved = jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    hidden = np.maximum(np.asarray(convolved) + np.asarray(network.convolution.bias), 0).ravel()
    expected = np.maximum(
        np.asarray(network.dense.weight) @ hidden + np.asarray(network.dense.bias), 0
    )
    assert expected.max() > 0.1
    np.testing.assert_allclose(network(observation), expected, rtol=1e-4, atol=1e-5)


def test_minatar_torso_of_another_size_has_its_own_width():
    network = jax.eval_shape(lambda key: MinAtarCNN((6, 5, 2), key, filters=3, hidden=7), KEY)
    assert network.dense.weight.shape == (7, 4 * 3 * 3)
    assert jax.eval_shape(lambda n, x: n(x), network, described((6, 5, 2), jnp.bool_)).shape == (7,)


def test_mlp_by_hand():
    network = with_biases(MLP((2, 2), (8, 6), KEY))
    observation = np.array([[1, -2], [3, 0]])
    x = np.array([1.0, -2.0, 3.0, 0.0])
    for layer in network.layers:
        x = np.maximum(np.asarray(layer.weight) @ x + np.asarray(layer.bias), 0)
    assert x.max() > 0
    np.testing.assert_allclose(network(jnp.asarray(observation)), x, rtol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_nature_torso_divides_bytes_by_255_and_convolves_by_its_strides(centred):
    network = jax.jit(
        lambda key: with_biases(NatureCNN((2, 36, 44), key, hidden=20, centred=centred))
    )(KEY)
    observation = np.random.default_rng(0).integers(0, 256, (2, 36, 44), np.uint8)
    x = np.moveaxis(np.asarray(observation, np.float32) / 255, 0, -1)
    x -= centred * x.mean()
    for layer, size, stride in zip(network.convolutions, (8, 4, 3), (4, 2, 1), strict=True):
        seen = np.lib.stride_tricks.sliding_window_view(x, (size, size), (0, 1))[::stride, ::stride]
        product = np.einsum(
            "hwikl,okli->hwo", seen, filters_of(np.asarray(layer.weight), size, stride)
        )
        x = np.maximum(product + np.asarray(layer.bias), 0)
    assert x.shape == (1, 2, 64)
    expected = np.maximum(
        np.asarray(network.dense.weight) @ x.ravel() + np.asarray(network.dense.bias), 0
    )
    assert expected.max() > 0.1
    found = jax.jit(lambda n, x: n(x))(network, jnp.asarray(observation))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(84, 84), (37, 46)])
def test_padded_torso_is_a_same_convolution(height, width):
    shape = (2, height, width)
    network = jax.jit(lambda key: with_biases(NatureCNN(shape, key, hidden=20, padded=True)))(KEY)
    observation = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    x = jnp.moveaxis(jnp.asarray(observation, jnp.float32) / 255, 0, -1)
    for layer, (_, size, stride) in zip(network.convolutions, NATURE, strict=True):
        kernel = jnp.moveaxis(filters_of(layer.weight, size, stride), 0, -1)
        layout = ("NHWC", "HWIO", "NHWC")
        convolved = jax.lax.conv_general_dilated(
            x[None], kernel, (stride, stride), "SAME", dimension_numbers=layout
        )[0]
        x = jax.nn.relu(convolved + layer.bias[None, None])
    assert x.shape == (-(-height // 8), -(-width // 8), 64)
    expected = np.maximum(network.dense.weight @ x.ravel() + network.dense.bias, 0)
    assert expected.max() > 0.1
    found = jax.jit(lambda n, x: n(x))(network, jnp.asarray(observation))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_padded_network_of_atari_has_the_width_of_dopamine():
    seen = described((4, 84, 84), jnp.uint8)
    network = jax.eval_shape(lambda key: feature_network("padded", (), seen, 3, 5, key), KEY)
    assert network.torso.padded
    assert not network.torso.centred
    assert network.torso.dense.weight.shape == (512, 11 * 11 * 64)
    assert jax.eval_shape(lambda n, x: n(x), network, seen).shape == (3, 5)


def test_nature_torso_of_atari_has_the_width_of_the_paper():
    network = jax.eval_shape(lambda key: NatureCNN((4, 84, 84), key), KEY)
    assert [layer.weight.shape for layer in network.convolutions] == [
        (32, 4 * 8 * 8),
        (64, 32 * 4 * 4),
        (64, 64 * 3 * 3),
    ]
    assert network.dense.weight.shape == (512, 3136)


@pytest.mark.parametrize(
    ("shape", "dtype", "torso"),
    [
        ((4, 84, 84), jnp.uint8, "centred"),
        ((4, 36, 36), jnp.uint8, "centred"),
        ((4, 35, 84), jnp.uint8, "mlp"),
        ((4, 84, 84), jnp.float32, "mlp"),
        ((10, 10, 7), jnp.bool_, "minatar"),
        ((10, 9, 7), jnp.bool_, "mlp"),
        ((10, 10, 7), jnp.float32, "mlp"),
        ((10, 10), jnp.bool_, "mlp"),
        ((4,), jnp.float32, "mlp"),
    ],
)
def test_the_torso_is_chosen_by_the_observation(shape, dtype, torso):
    assert torso_for(described(shape, dtype)) == torso


def test_auto_is_the_torso_that_was_chosen():
    for shape, dtype, kind in (
        ((4, 84, 84), jnp.uint8, NatureCNN),
        ((10, 10, 4), jnp.bool_, MinAtarCNN),
        ((3,), jnp.float32, MLP),
    ):
        seen = described(shape, dtype)
        network = jax.eval_shape(
            lambda key, seen=seen: feature_network("auto", (8,), seen, 3, 5, key), KEY
        )
        assert isinstance(network.torso, kind)
        assert network.head.weight.shape == (15, {NatureCNN: 512, MinAtarCNN: 128, MLP: 8}[kind])
        phi = jax.eval_shape(lambda n, x: n(x), network, described(shape, dtype))
        assert phi.shape == (3, 5)


@pytest.mark.parametrize("kind", ["minatar", "nature", "centred", "padded"])
def test_images_are_asked_for_with_the_cure(kind):
    with pytest.raises(ValueError, match=rf"network '{kind}' reads images.*\(4,\).*--network mlp"):
        feature_network(kind, (8,), described((4,), jnp.float32), 2, 3, KEY)


def test_the_head_gives_each_action_its_own_rows():
    network = with_biases(feature_network("mlp", (), described((3,), jnp.float32), 2, 4, KEY))
    observation = np.array([0.5, -1.0, 2.0], np.float32)
    flat = np.asarray(network.head.weight) @ observation + np.asarray(network.head.bias)
    np.testing.assert_allclose(network(jnp.asarray(observation)), [flat[:4], flat[4:]], rtol=1e-5)


def test_weights_start_with_the_variance_of_he_and_no_bias():
    layer = started(eqx.nn.Linear(300, 80, key=KEY), KEY)
    np.testing.assert_array_equal(layer.bias, np.zeros_like(layer.bias))
    weight = np.asarray(layer.weight)
    wanted = 2 / 300
    deviation = np.sqrt(2 / weight.size)  # relative, of the sample variance
    assert abs(weight.var() / wanted - 1) < 5 * deviation
    assert abs(weight.mean()) < 5 * np.sqrt(wanted / weight.size)
    # normal, not uniform: a uniform draw of this variance ends at 1.7 deviations
    assert np.abs(weight).max() > 3 * np.sqrt(wanted)


def xavier_layers(torso, width):
    network = with_biases(FeatureNetwork(torso, width, 3, 8, KEY))
    network = jax.jit(xavier_weights)(network, jax.random.key(1))
    is_layer = lambda x: isinstance(x, eqx.nn.Linear)  # noqa: E731
    return jax.tree.leaves(network, is_leaf=is_layer)


def fans_of(channels, filters, size):
    return channels * size * size, filters * size * size


@pytest.mark.parametrize(
    ("torso", "width", "fans"),
    [
        (lambda: MLP((6, 10), (50, 40), KEY), 40, [(60, 50), (50, 40), (40, 24)]),
        (
            lambda: MinAtarCNN((10, 10, 4), KEY),
            128,
            [fans_of(4, 16, 3), (8 * 8 * 16, 128), (128, 24)],
        ),
        (
            lambda: NatureCNN((2, 36, 44), KEY, hidden=20),
            20,
            [
                fans_of(2, 32, 8),
                fans_of(32, 64, 4),
                fans_of(64, 64, 3),
                (1 * 2 * 64, 20),
                (20, 24),
            ],
        ),
    ],
    ids=["mlp", "minatar", "nature"],
)
def test_xavier_weights_fill_their_range_and_biases_are_zero(torso, width, fans):
    layers = xavier_layers(torso(), width)
    for layer, (fan_in, fan_out) in zip(layers, fans, strict=True):
        assert layer.weight.shape[1] == fan_in
        bound = np.sqrt(6 / (fan_in + fan_out))
        weight = np.asarray(layer.weight)
        # The last 1% of the range at one end is empty with probability 0.99ⁿ, for n ≥ 480 draws.
        assert 0.98 * bound < weight.max() <= bound
        assert -bound <= weight.min() < -0.98 * bound
        # A uniform draw has variance bound²/3; the relative error of its estimate is √(4/(5n)).
        assert abs(weight.var() / (bound**2 / 3) - 1) < 5 * np.sqrt(0.8 / weight.size)
        assert abs(weight.mean()) < 5 * bound / np.sqrt(3 * weight.size)
        np.testing.assert_array_equal(layer.bias, np.zeros_like(layer.bias))


def test_xavier_weights_of_equal_layers_are_drawn_apart():
    first, second, head = xavier_layers(MLP((24,), (24, 24), KEY), 24)
    for one, other in ((first, second), (first, head), (second, head)):
        assert one.weight.shape == other.weight.shape
        correlation = np.corrcoef(np.ravel(one.weight), np.ravel(other.weight))[0, 1]
        assert abs(correlation) < 0.25


def test_layers_of_a_network_are_drawn_apart():
    network = feature_network("mlp", (6, 6), described((6,), jnp.float32), 1, 6, KEY)
    weights = [np.asarray(layer.weight) for layer in (*network.torso.layers, network.head)]
    for i in range(3):
        for j in range(i):
            assert abs(np.corrcoef(weights[i].ravel(), weights[j].ravel())[0, 1]) < 0.6


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.uint8])
@pytest.mark.parametrize(
    ("size", "stride", "height", "width"), [(8, 4, 84, 84), (4, 2, 21, 18), (3, 1, 9, 7)]
)
def test_a_convolution_is_a_product_of_patches(size, stride, height, width, dtype):
    layer = with_biases(started(eqx.nn.Linear(3 * size * size, 5, key=KEY), KEY))
    x = jax.random.randint(jax.random.key(0), (height, width, 3), 0, 256).astype(dtype)
    kernel = jnp.moveaxis(filters_of(layer.weight, size, stride), 0, -1)
    image = x[None].astype(jnp.float32) / (255 if dtype == jnp.uint8 else 1)
    expected = jax.lax.conv_general_dilated(
        image, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = convolve(layer, x, size, stride)
    np.testing.assert_allclose(
        found - layer.bias[None, None],
        expected[0],
        rtol=1e-4,
        atol=1e-4 * float(jnp.abs(expected).max()),
    )
