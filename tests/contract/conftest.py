"""rlax as an oracle."""

import importlib
import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax, imported without the warnings of its own imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("rlax")
