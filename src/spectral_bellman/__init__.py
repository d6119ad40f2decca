"""The Spectral Bellman Method: features closed under the Bellman operator, and exploration on their covariance.

The method itself is three modules of pure functions, ``objective``, ``operators`` and ``posterior``; the exact case, where
every expectation is a sum, is ``tabular``. ``train`` and ``resume`` run the paper's agents.
"""

from spectral_bellman import objective, operators, posterior, tabular
from spectral_bellman.training import resume, train

__all__ = ["objective", "operators", "posterior", "resume", "tabular", "train"]
__version__ = "0.1.0"
