"""The agents: one composition of a few choices, and presets for the paper's rows."""

from spectral_bellman.agents.api import Agent, Phase, Progress, Timestep
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.agents.state import Actor, Policy, TrainState

__all__ = [
    "Actor",
    "Agent",
    "AgentConfig",
    "Phase",
    "Policy",
    "Progress",
    "QAgent",
    "Timestep",
    "TrainState",
]
