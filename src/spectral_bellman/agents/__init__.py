"""The agents: one composition of four choices, presets for the paper's rows."""

from spectral_bellman.agents.agent import Agent, AgentState
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.exploration import Actor, Policy, Timestep

__all__ = ["Actor", "Agent", "AgentConfig", "AgentState", "Policy", "Timestep"]
