"""Fixtures of this folder: the precision under test, and rlax as an oracle."""

import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType

import jax
import pytest


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """The dtype of a test's inputs; x64 is on for the whole test where it has to be."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax; what its own imports warn about is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("rlax")
