"""The Spectral Bellman Method: features closed under the Bellman operator, and exploration on them.

The method itself is three modules of pure functions, ``objective``, ``operators`` and
``posterior``. The exact case, where every expectation is a sum, is ``tabular``. ``train`` and
``resume`` run the paper's agents; they are imported when they are first used.
"""

import importlib
from typing import Any

from spectral_bellman import objective, operators, posterior

__all__ = ["objective", "operators", "posterior", "resume", "scores", "tabular", "train"]
__version__ = "0.2.0"

_LATER = {
    "tabular": "spectral_bellman.tabular",
    "scores": "spectral_bellman.scores",
    "train": "spectral_bellman.training",
    "resume": "spectral_bellman.training",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
