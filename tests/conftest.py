"""Strictness for every test: annotations checked at run time, no promotion of ranks or dtypes."""

from collections.abc import Iterator

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Stays installed: modules that a test imports later are checked too.
install_import_hook("spectral_bellman", "beartype.beartype")


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """A floating dtype, with x64 on for the test if it needs that."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
