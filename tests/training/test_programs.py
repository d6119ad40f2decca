"""What XLA asks of our programs. Run these once on a GPU too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman._arrays import returned_again
from spectral_bellman.training.programs import (
    array_bytes,
    compiled_over_seeds,
    fold_keys,
    largest_divisor,
    lowered,
    working_bytes,
)


def test_seeds_are_mapped_and_what_is_donated_comes_back_right():
    """Several arguments of one shape are donated: each result must take its own place."""

    def step(a, b, unused, scale):
        return a * scale + 1, b * scale - 1, unused

    program = compiled_over_seeds(step, in_axes=(0, 0, 0, None), donate=(0, 1, 2))
    a, b, unused = (jnp.full((3, 5), value, jnp.float32) for value in (1.0, 10.0, 100.0))
    for _ in range(4):
        a, b, unused = program(a, b, unused, jnp.float32(2))
    np.testing.assert_array_equal(a, np.full((3, 5), 31.0))
    np.testing.assert_array_equal(b, np.full((3, 5), 145.0))
    np.testing.assert_array_equal(unused, np.full((3, 5), 100.0))


def test_an_argument_that_nothing_reads_keeps_its_place():
    program = lowered(
        lambda unread, state: (state + 1,),
        (1,),
        (jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32)),
    ).compile()
    np.testing.assert_array_equal(program(jnp.zeros(2), jnp.ones(2))[0], [2, 2])


def test_what_is_returned_more_than_once_is_right_in_each_place():
    """State, target and policy may share one θ̂, which is donated (jax issue 39625)."""

    def publish(state, target, count):
        theta = state + 1
        target = jnp.where(count >= 0, theta, target)
        return theta, target, returned_again(theta, count >= 0)

    program = compiled_over_seeds(publish, in_axes=(0, 0, None), donate=(0, 1))
    state, target = jnp.zeros((4, 8)), jnp.zeros((4, 8))
    for number in range(1, 6):
        state, target, policy = program(state, target, jnp.int32(number))
        for result in (state, target, policy):
            np.testing.assert_array_equal(result, np.full((4, 8), number))


def test_keys_are_folded_one_number_after_the_other():
    keys = jax.random.split(jax.random.key(0), 3)
    folded = fold_keys(keys, 7, jnp.int32(2))
    for key, mine in zip(keys, folded, strict=True):
        expected = jax.random.fold_in(jax.random.fold_in(key, 7), 2)
        assert jax.random.key_data(mine).tolist() == jax.random.key_data(expected).tolist()


@pytest.mark.parametrize(
    ("number", "bound", "divisor"), [(12, 5, 4), (12, 100, 12), (7, 6, 1), (8, 0, 1), (0, 3, 1)]
)
def test_the_largest_divisor(number, bound, divisor):
    assert largest_divisor(number, bound) == divisor


def test_bytes_of_trees_and_programs():
    shapes = (jax.ShapeDtypeStruct((3, 4), jnp.float32), {"x": jnp.zeros(5, bool)})
    assert array_bytes(shapes) == 3 * 4 * 4 + 5
    program = jax.jit(lambda x: jnp.outer(x, x)).lower(jnp.zeros(512)).compile()
    assert 512 * 512 * 4 <= working_bytes(program) < 2 * 512 * 512 * 4
