"""Training: actors, the learner, runs from their first round to their summary, and evaluation."""

from spectral_bellman.training.runner import Result, resume, train

__all__ = ["Result", "resume", "train"]
