"""Programs for tests: compiled with little optimisation, which takes half of the time."""

from collections.abc import Callable
from typing import Any

import jax

OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick(function: Callable[..., Any], **settings: Any) -> Any:
    """``jax.jit`` for programs that run for milliseconds."""
    return jax.jit(function, compiler_options=OPTIONS, **settings)
