import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.networks import ResidualParameters


def test_it_starts_as_the_identity_and_can_learn() -> None:
    network = ResidualParameters(5, jax.random.key(0))
    theta = jnp.arange(5.0)
    np.testing.assert_array_equal(network(theta), theta)
    gradient = jax.grad(lambda n: n(theta).sum())(network)
    assert jnp.abs(gradient.layers[-1].weight).max() > 0


def test_it_is_a_residual_of_two_hidden_layers() -> None:
    network = ResidualParameters(3, jax.random.key(0))
    network = jax.tree.map(
        lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape), network
    )
    theta = np.array([1.0, -2.0, 3.0], np.float32)
    hidden = theta
    for layer in network.layers[:2]:
        hidden = np.maximum(np.asarray(layer.weight) @ hidden + np.asarray(layer.bias), 0)
    expected = (
        theta + np.asarray(network.layers[2].weight) @ hidden + np.asarray(network.layers[2].bias)
    )
    np.testing.assert_allclose(network(jnp.asarray(theta)), expected, rtol=1e-5)


def test_many_at_once_need_vmap() -> None:
    with pytest.raises(
        ValueError, match=r"theta must have shape \(5,\), got \(4,\); use jax.vmap for many"
    ):
        ResidualParameters(5, jax.random.key(0))(jnp.ones(4))


def test_its_shape_is_that_of_the_paper() -> None:
    network = ResidualParameters(5, jax.random.key(0))
    assert [layer.weight.shape for layer in network.layers] == [(10, 5), (10, 10), (5, 10)]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(network))
