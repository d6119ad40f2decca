"""Strictness for every test: annotations checked at run time, no promotion of ranks or dtypes.

Order and memory too: what many tests share is compiled once, and not kept for ever.
"""

import gc
from collections.abc import Iterator

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Stays installed: modules that a test imports later are checked too.
install_import_hook("spectral_bellman", "beartype.beartype")


SHARED_RUNS = ("test_runner.py", "test_both_runners.py")
"""Files whose tests share runs that take long to compile."""
MOST_MEMORY = 3 * 2**30
"""Bytes of a process above which compiled programs are thrown away."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with shared runs first: a second worker takes tests from the end of the list."""
    items.sort(key=lambda item: item.path.name not in SHARED_RUNS)


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Throw compiled programs away after a file if the process has grown large."""
    yield
    from spectral_bellman.training.memory import resident  # after the import hook

    if resident() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """A floating dtype, with x64 on for the test if it needs that."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
