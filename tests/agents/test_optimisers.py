"""Optimisers against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_bellman.agents.optimisers import NOTHING, adam, beside, centred_rmsprop, descend

from .matrices import WEIGHT, floats, linear
from .quick import quick


def test_rmsprop_is_centred_and_adds_its_epsilon_to_the_root():
    optimiser = centred_rmsprop(0.1, 0.02)
    state = optimiser.init(jnp.zeros(2))
    square, mean = np.zeros(2), np.zeros(2)
    for gradient in np.asarray([[1.0, -0.01], [0.5, 0.02], [-2.0, 0.0]]):
        update, state = optimiser.update(floats(gradient), state)
        square, mean = 0.95 * square + 0.05 * gradient**2, 0.95 * mean + 0.05 * gradient
        expected = -0.1 * gradient / (np.sqrt(square - mean**2) + 0.02)
        np.testing.assert_allclose(update, expected, rtol=1e-4)


def test_rmsprop_survives_gradients_that_do_not_change():
    """Their variance is 0, and in single precision as often less."""
    optimiser = centred_rmsprop(0.1, 0.02)
    gradient = jnp.linspace(0.1, 3, 1_000)
    step = quick(lambda state: optimiser.update(gradient, state)[::-1])
    state = optimiser.init(gradient)
    for _ in range(600):
        state, update = step(state)
    np.testing.assert_allclose(update, -5 * np.asarray(gradient), rtol=0.3)


def test_adam_adds_its_epsilon_to_the_root():
    optimiser = adam(0.1, 0.5)
    state, gradient = optimiser.init(jnp.zeros(3)), np.asarray([2.0, -1.0, 0.1])
    update, _ = descend(optimiser, floats(gradient), state, jnp.zeros(3))
    np.testing.assert_allclose(update, -0.1 * gradient / (np.abs(gradient) + 0.5), rtol=1e-4)


@pytest.mark.parametrize("build", [adam, centred_rmsprop])
@pytest.mark.parametrize("alone", [True, False])
def test_the_head_is_slower_by_its_rate_and_nothing_else_is(build, alone):
    network = jax.tree.map(jnp.zeros_like, linear(WEIGHT))
    trained = network if alone else (network, jnp.zeros(2))
    gradient = jax.tree.map(jnp.ones_like, trained)
    full, less = (
        descend(optimiser, gradient, optimiser.init(trained), trained)[0]
        for optimiser in (build(0.01, 1e-4), build(0.01, 1e-4, 0.25))
    )
    if not alone:
        np.testing.assert_array_equal(less[1], full[1])
        full, less = full[0], less[0]
    np.testing.assert_allclose(less.head.weight, 0.25 * full.head.weight, rtol=1e-6)
    assert np.abs(full.head.weight).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, less.torso, full.torso)


def test_two_optimisers_side_by_side_are_each_as_alone():
    first, second = optax.sgd(0.5), optax.adam(0.1)
    parameters = (jnp.ones(2), {"x": jnp.zeros(3)})
    both = beside(first, second)
    state = both.init(parameters)
    gradient = (jnp.full(2, 2.0), {"x": jnp.asarray([1.0, -3.0, 2.0])})
    for _ in range(2):
        parameters, state = descend(both, gradient, state, parameters)
    np.testing.assert_allclose(parameters[0], [-1, -1])
    np.testing.assert_allclose(parameters[1]["x"], [-0.2, 0.2, -0.2], rtol=1e-4)


def test_nothing_is_an_optimiser_too():
    both = beside(optax.sgd(0.5), NOTHING)
    parameters, _ = descend(
        both, (jnp.ones(1), ()), both.init((jnp.ones(1), ())), (jnp.ones(1), ())
    )
    np.testing.assert_allclose(parameters[0], [0.5])
    assert parameters[1] == ()
