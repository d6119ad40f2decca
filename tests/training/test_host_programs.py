"""The programs of the host runner."""

import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.environments import make
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build

SMALL = {"lstm": 4, "hidden": (4,), "updates": 1, "batch": 2}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_ladder_of_epsilon_runs_over_all_environments_of_all_groups(groups):
    spec = make("gym/CartPole-v1")
    config = configure("r2d2", spec, {"num_envs": 8, "groups": groups, **SMALL})
    runners = build(config.resolved(), spec)
    actors = runners.runners[0]._compiler.init(jnp.int32(0)).actors
    runners.close()
    assert len(actors) == groups
    rungs = np.concatenate([part.agent.exploration for part in actors])
    np.testing.assert_allclose(rungs, 0.4 ** (1 + np.arange(8)), rtol=1e-5)
