"""Training: rounds, the two loops made of them, checkpoints, logs, and runs from first round to summary."""

from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.run import Broken, Result, resume, train

__all__ = ["Broken", "Result", "TrainConfig", "resume", "train"]
