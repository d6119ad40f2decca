"""The examples run, and their agents learn."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("sbm", [False, True])
def test_your_own_agent_learns_the_corridor(sbm: bool) -> None:
    with jax.numpy_dtype_promotion("standard"):  # as a user has it, and as optax needs it
        example = runpy.run_path(str(EXAMPLES / "your_own_agent.py"))
        returns, start_value = example["train"](sbm=sbm, steps=2000)
    best = example["OPTIMUM"]
    assert np.mean(returns[:5]) < 0.5 * best, "it starts out not knowing"
    assert np.mean(returns[-20:]) > 0.9 * best
    assert start_value == pytest.approx(best, rel=0.05)
