"""Programs for tests: compiled with little optimisation, which takes half of the time."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import pytest

OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick(function: Callable[..., Any], **settings: Any) -> Any:
    """``jax.jit`` for programs that run for milliseconds."""
    return jax.jit(function, compiler_options=OPTIONS, **settings)


def quick_and_slow(presets: Iterable[str], *rest: Any) -> list[Any]:
    """Parameters of a test that compiles each preset. `make test` leaves out those that compile
    what another does, with other numbers or with ε-greedy in place of Thompson sampling."""

    def marks(preset: str) -> Any:
        own = preset.endswith("-ts") or preset in ("dqn", "r2d2")
        return () if own else pytest.mark.slow

    return [pytest.param(preset, *rest, marks=marks(preset)) for preset in presets]
