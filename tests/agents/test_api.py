"""What actors share: where episodes begin."""

import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.api import first_timestep, where_first


def test_what_belongs_to_an_episode_is_new_where_one_begins():
    fresh = {"a": jnp.zeros(3, jnp.int32), "b": jnp.ones((3, 2))}
    kept = {"a": jnp.asarray([5, 6, 7]), "b": jnp.full((3, 2), 9.0)}
    found = where_first(jnp.asarray([True, False, True]), fresh, kept)
    np.testing.assert_array_equal(found["a"], [0, 6, 0])
    np.testing.assert_array_equal(found["b"], [[1, 1], [9, 9], [1, 1]])
    assert where_first(jnp.asarray([True]), (), ()) == ()


def test_the_first_timestep_begins_every_episode():
    observation = jnp.ones((4, 2))
    timestep = first_timestep(observation)
    assert timestep.observation is observation
    np.testing.assert_array_equal(timestep.first, [True] * 4)
    np.testing.assert_array_equal(timestep.reward, np.zeros(4))
    np.testing.assert_array_equal(timestep.previous_action, np.zeros(4, int))
