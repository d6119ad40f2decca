"""The paper's rows by name, and the settings that suit a family of environments. Presets are data.

A plain name is the setting we use; where it leaves the paper, ``docs/agents.md`` says why. ``sbm-dqn-ts-paper`` is the paper's
table of hyper-parameters to the letter, and design choices of our own only where it is silent.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from spectral_bellman._names import did_you_mean
from spectral_bellman.agents.config import AgentConfig


class Preset(NamedTuple):
    """A composition, and the row of the paper it is."""

    row: str
    agent: Mapping[str, Any]
    run: Mapping[str, Any] = MappingProxyType({})


class Family(NamedTuple):
    """What suits a family of environments."""

    run: Mapping[str, Any]
    agent: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """What suits some presets better, by name."""


PAPER: dict[str, Any] = {
    "features": 256,
    "norm": "clip",
    "learning_rate": 3e-4,
    "q_learning_rate": 3e-4,
    "q_start": "last",
    "adam_epsilon": 1e-8,
    "batch": 256,
    "representation_steps": 512,
    "q_steps": 64,
    "theta_variance": 1e-2,
    "relative_variance": False,
    "ridge": 0.1,
    "alpha": 0.1,
    "noise_scale": 1.0,
    "noise_anneal_steps": 0,
    "reward_clip": 1.0,
    "discount": 0.99,
    # Where the paper is silent:
    "theta_samples": 64,
    "feature_orthogonality": 1.0,
    "param_orthogonality": 1e-3,
    "warmup_steps": 20_000,
    "epsilon_steps": 250_000,
}

PRESETS = {
    "dqn": Preset("DQN", {"representation": "td", "exploration": "epsilon"}),
    "dqn-ts": Preset("Features from DQN loss", {"representation": "td", "exploration": "thompson"}),
    "mse-dqn-ts": Preset(
        "Features from naive MSE", {"representation": "mse", "exploration": "thompson", "feature_orthogonality": 0.0}
    ),
    "sbm-dqn-ts-no-orth": Preset(
        "SBM without orthogonality", {"representation": "spectral", "exploration": "thompson", "feature_orthogonality": 0.0}
    ),
    "pvn-dqn": Preset("Online PVN (ε-greedy)", {"representation": "pvn", "exploration": "epsilon"}),
    "pvn-dqn-ts": Preset("Online PVN (TS)", {"representation": "pvn", "exploration": "thompson"}),
    "sbm-dqn": Preset("SBM + DQN (ε-greedy)", {"representation": "spectral", "exploration": "epsilon"}),
    "sbm-dqn-ts": Preset("SBM + DQN (TS)", {"representation": "spectral", "exploration": "thompson"}),
    "sbm-dqn-ts-paper": Preset(
        "SBM + DQN (TS), hyper-parameters to the letter",
        {"representation": "spectral", "exploration": "thompson", **PAPER},
        {"num_envs": 128, "round_steps": 16, "replay_capacity": 1_000_000},
    ),
    # Not in the paper: to check DQN against what others have published.
    "dqn-minatar": Preset(
        "– (DQN of the MinAtar authors)",
        {
            "representation": "td",
            "exploration": "epsilon",
            "batch": 32,
            "representation_steps": 768,  # with the q_steps, a step for every frame
            "q_steps": 256,
            "optimiser": "rmsprop",
            "learning_rate": 2.5e-4,
            "adam_epsilon": 0.02,  # for 0.01, as the square of the error is not halved here
            "epsilon_end": 0.1,
            "epsilon_steps": 100_000,
            "warmup_steps": 5_000,
        },
        {"num_envs": 128, "round_steps": 8, "replay_capacity": 100_000},  # a target lasts 1,024 frames, for 1,000
    ),
    "dqn-dopamine": Preset(
        "– (DQN of Dopamine)",
        {
            "network": "nature",
            "representation": "td",
            "exploration": "epsilon",
            "batch": 256,  # for 8 of 32: the learning rate times √8, Adam's ε by it
            "representation_steps": 96,
            "q_steps": 32,
            "learning_rate": 1.8e-4,
            "adam_epsilon": 5e-5,
            "target_rounds": 2,  # 8,192 agent steps, for 8,000
            "epsilon_end": 0.01,
            "epsilon_steps": 250_000,
            "warmup_steps": 20_000,
        },
        {"num_envs": 256, "round_steps": 16, "replay_capacity": 1_000_000},
    ),
}

# On MinAtar: those who learn θ̃.
_CLOSED: dict[str, Any] = {"learning_rate": 2.5e-3, "theta_variance": 0.5, "q_start": "backup"}
# Those whose first feature is Q: θ̂ need not be fitted, and φ has all the steps.
_Q_FIRST: dict[str, Any] = {"norm": "value", "representation": "averaged", "features": 32, "q_steps": 0}
_Q_FIRST_MINATAR: dict[str, Any] = {
    **_Q_FIRST,
    "representation_steps": 16,
    "learning_rate": 2e-3,
    "head_rate": 0.3,
    "theta_variance": 0.03,
    "feature_orthogonality": 3.0,
    "noise_anneal_steps": 100_000,
}
# Values are smaller here, and so is what stands beside their error. Thompson sampling sees a spread basis: σ_exp alone is felt.
_Q_FIRST_ATARI: dict[str, Any] = {
    **_Q_FIRST,
    "representation_steps": 128,
    "theta_variance": 3e-3,
    "feature_orthogonality": 0.3,
    "noise_scale": 1.0,
}

FAMILIES = {
    "minatar": Family(
        {"num_envs": 128, "round_steps": 8, "replay_capacity": 100_000},
        # Few, large steps: a GPU takes as long for a batch of 256; 12 steps on φ beat 4 and 8 of the same 16 at 500k frames.
        {
            "batch": 512,
            "representation_steps": 12,
            "q_steps": 4,
            "adam_epsilon": 1e-4,  # better than 1e-8 for dqn, chosen like what follows on Breakout and Asterix alone
        },
        {
            "dqn": {"learning_rate": 2e-3, "head_rate": 0.3},
            "mse-dqn-ts": _CLOSED,
            "sbm-dqn-ts-no-orth": _CLOSED,
            "sbm-dqn": _Q_FIRST_MINATAR,
            "sbm-dqn-ts": _Q_FIRST_MINATAR,
        },
    ),
    "deep_sea": Family(
        {"num_envs": 1},
        {
            "ridge": 0.01,
            "batch": 128,
            "representation_steps": 8,
            "q_steps": 2,
            "warmup_steps": 0,
            "epsilon_steps": 1_000,
            "reward_clip": 0.0,
            "learning_rate": 1e-4,
            "propagated_draws": 1,
        },
    ),
    "atari": Family(
        {
            "num_envs": 256,
            "groups": 2,
            "round_steps": 16,
            "dispatch_steps": 4,
            "replay_capacity": 1_000_000,
            "frames": 10_000_000,
            "eval_max_steps": 27_000,
        },
        {
            "features": 256,
            "batch": 256,
            "representation_steps": 96,
            "q_steps": 32,
            "warmup_steps": 20_000,
            "epsilon_steps": 250_000,
            "learning_rate": 2.5e-4,  # of dqn on Boxing better than 1e-4 and 5e-4
            "theta_variance": 1e-4,
            # With unit norm σ_exp alone moves Q by a seventh of what actions differ by: all act greedily from early on.
            "noise_scale": 100.0,
            "noise_anneal_steps": 250_000,
        },
        {"sbm-dqn": _Q_FIRST_ATARI, "sbm-dqn-ts": _Q_FIRST_ATARI},
    ),
    "gym": Family(
        {"num_envs": 64, "round_steps": 4, "replay_capacity": 10_000, "frames": 100_000},
        {
            "hidden": (120, 84),
            "batch": 128,
            "representation_steps": 12,
            "q_steps": 4,
            "learning_rate": 5e-4,
            "warmup_steps": 1_000,
            "epsilon_steps": 10_000,
            "epsilon_end": 0.1,
            "reward_clip": 0.0,
        },
    ),
    "jax": Family(
        {"num_envs": 16, "round_steps": 8, "replay_capacity": 20_000, "frames": 100_000},
        {"hidden": (64, 64), "reward_clip": 0.0},
    ),
}


def preset_settings(preset: str, family: str) -> tuple[dict[str, Any], AgentConfig]:
    """The run's settings and the agent's, for a preset on a family of environments."""
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS, cutoff=0.4) or "sbm presets lists them"
        raise ValueError(f"there is no preset {preset!r}; {hint}")
    run, agent, better = FAMILIES[family]
    _, agent_changes, run_changes = PRESETS[preset]
    return {**run, **run_changes}, dataclasses.replace(AgentConfig(), **{**agent, **agent_changes, **better.get(preset, {})})
