"""Numbers that change with the agent steps taken."""

import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.schedules import linear, warm_up


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, 0.8), (100, 0.8), (125, 0.625), (200, 0.1), (10**6, 0.1)]
)
def test_a_line_from_start_to_end(steps, expected):
    np.testing.assert_allclose(linear(jnp.asarray(steps), 100, 100, 0.8, 0.1), expected, rtol=1e-6)


def test_a_schedule_of_no_length_jumps():
    assert [float(linear(jnp.asarray(n), 5, 0, 1.0, 0.25)) for n in (5, 6)] == [1, 0.25]


def test_actions_are_random_in_the_warm_up_only():
    found = [float(warm_up(jnp.asarray(n), 100, jnp.asarray(0.3))) for n in (0, 99, 100, 101)]
    np.testing.assert_allclose(found, [1, 1, 0.3, 0.3], rtol=1e-6)
