"""rlax as an oracle."""

import importlib
import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax; what its own imports warn about is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("rlax")
