import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.networks import ResidualParameters


def test_it_starts_as_the_identity_and_can_learn() -> None:
    network = ResidualParameters(5, jax.random.key(0))
    theta = jnp.arange(5.0)
    np.testing.assert_array_equal(network(theta), theta)
    gradient = jax.grad(lambda n: n(theta).sum())(network)
    assert jnp.abs(gradient.layers[-1].weight).max() > 0


def test_its_shape_is_that_of_the_paper() -> None:
    network = ResidualParameters(5, jax.random.key(0))
    assert [layer.weight.shape for layer in network.layers] == [(10, 5), (10, 10), (5, 10)]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(network))
