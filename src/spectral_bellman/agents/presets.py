"""The paper's rows by name, as data.

A plain name is the best setting that we have measured. Its choices are the same on every family of
environments; ``tuned`` changes its numbers there. ``sbm-dqn-ts-paper`` is the paper's table of
hyper-parameters to the letter, with choices of our own only where the paper is silent.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from spectral_bellman._names import did_you_mean
from spectral_bellman.agents import choices
from spectral_bellman.agents.config import AgentConfig

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Preset(NamedTuple):
    """A composition, and the row of the paper that it is."""

    row: str
    agent: Mapping[str, Any]
    """Its choices, and its own numbers."""
    run: Mapping[str, Any] = NOTHING
    tuned: Mapping[str, Mapping[str, Any]] = NOTHING
    """Numbers for a family of environments, by its name."""
    changed: Mapping[str, str] = NOTHING
    """What to say where the name once meant another agent, by the family's name."""


PAPER: dict[str, Any] = {
    "features": 256,
    "norm": "clip",
    "learning_rate": 3e-4,
    "q_learning_rate": 3e-4,
    "q_start": "last",
    "adam_epsilon": 1e-8,
    "batch": 256,
    "updates": 512 + 64,
    "q_steps": 64,
    "theta_variance": 1e-2,
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
}

# R2D2 rows: the choices, and numbers for environments without numbers of their own. A batch is 320
# steps, so that a million agent steps at 8 samples each are 25,000 updates.
R2D2: dict[str, Any] = {
    "backbone": "recurrent",
    "operator": "retrace",
    "sampling": "prioritised",
    "rescaling": 1e-3,
    "reward_clip": 0.0,  # the rescaling handles the size of rewards
    "discount": 0.997,
    "lstm": 128,
    "burn_in": 10,
    "trained": 20,
    "period": 10,
    "batch": 16,
    "updates": 27,
    "learning_rate": 5e-4,
    "adam_epsilon": 1e-4,
    "gradient_clip": 40.0,
}
_SBM_R2D2: dict[str, Any] = {**R2D2, "representation": "spectral", "q_steps": 3}
# A large batch needs a GPU; 10M frames are 20,000 updates.
_R2D2_ATARI: dict[str, Any] = {
    "lstm": 256,
    "torso_precision": "bfloat16",
    "trained": 30,
    "period": 15,
    "batch": 32,
    "updates": 36,
    "learning_rate": 1e-4,
    # R2D2's 1e-3 goes with a loss that is summed over 80 steps; here it is their mean.
    "adam_epsilon": 1e-5,
}
_SBM_R2D2_ATARI: dict[str, Any] = {**_R2D2_ATARI, "q_steps": 4}
# Episodes of a few steps: short sequences, so that little of a batch is padding.
_R2D2_MEMORY: dict[str, Any] = {
    "lstm": 32,
    "burn_in": 4,
    "trained": 8,
    "period": 4,
    "batch": 32,
    "updates": 16,
    "learning_rate": 1e-3,
}
# Chosen on 200k frames of hidden Breakout and Space Invaders, for r2d2 and for sbm-r2d2 alike.
_R2D2_MINATAR: dict[str, Any] = {"learning_rate": 1e-3, "adam_epsilon": 1e-8}
_R2D2_TUNED = {"atari": _R2D2_ATARI, "memory": _R2D2_MEMORY, "minatar": _R2D2_MINATAR}
_SBM_R2D2_TUNED = {
    "atari": _SBM_R2D2_ATARI,
    "memory": {**_R2D2_MEMORY, "q_steps": 8},
    "minatar": _R2D2_MINATAR,
}

_FADING_MINATAR = {"noise_anneal_steps": 100_000}
# MinAtar: numbers for presets with a learned θ̃, and for the linear ones.
_CLOSURE_MINATAR = {"learning_rate": 2.5e-3, "theta_variance": 0.1, "q_start": "backup"}
_CLOSURE_TS_MINATAR = {**_CLOSURE_MINATAR, **_FADING_MINATAR}
_PVN_MINATAR = {"learning_rate": 4e-3, "q_learning_rate": 1e-2}
_LINEAR_MINATAR = {
    "features": 32,
    "updates": 16,
    "learning_rate": 2e-3,
    "head_rate": 0.3,
    "theta_variance": 0.03,
    "spread": 3.0,
}
# Values are smaller on Atari than on MinAtar, and so are the weights beside their error.
_LINEAR_ATARI = {"features": 32, "updates": 128, "theta_variance": 3e-3, "spread": 0.3}
_MOVED = {
    family: (
        "{preset} is now the paper's spectral loss over sampled θ on every environment; what it "
        f"was on {title} before version 0.2 is {{linear}}"
    )
    for family, title in (("minatar", "MinAtar"), ("atari", "Atari"))
}


def _moved(preset: str, linear: str) -> dict[str, str]:
    return {family: text.format(preset=preset, linear=linear) for family, text in _MOVED.items()}


PRESETS = {
    "dqn": Preset(
        "DQN",
        {"representation": "plain", "exploration": "epsilon"},
        tuned={"minatar": {"learning_rate": 2e-3, "head_rate": 0.3}},
    ),
    "dqn-ts": Preset(
        "Features from DQN loss",
        {"representation": "td", "exploration": "thompson"},
        tuned={"minatar": {"learning_rate": 2.5e-3, "noise_scale": 0.1, **_FADING_MINATAR}},
    ),
    "mse-dqn-ts": Preset(
        "Features from naive MSE",
        {"representation": "mse", "exploration": "thompson"},
        tuned={"minatar": {**_CLOSURE_TS_MINATAR, "noise_scale": 0.1}},
    ),
    "sbm-dqn-ts-no-orth": Preset(
        "SBM without orthogonality",
        {
            "representation": "spectral",
            "exploration": "thompson",
            "feature_orthogonality": 0.0,
            "param_orthogonality": 0.0,
        },
        tuned={"minatar": _CLOSURE_TS_MINATAR},
    ),
    "pvn-dqn": Preset(
        "Online PVN (ε-greedy)",
        {"representation": "pvn", "exploration": "epsilon"},
        tuned={"minatar": _PVN_MINATAR},
    ),
    "pvn-dqn-ts": Preset(
        "Online PVN (TS)",
        {"representation": "pvn", "exploration": "thompson"},
        tuned={"minatar": {**_PVN_MINATAR, **_FADING_MINATAR}},
    ),
    "sbm-dqn": Preset(
        "SBM + DQN (ε-greedy)",
        {"representation": "spectral", "exploration": "epsilon"},
        tuned={"minatar": _CLOSURE_MINATAR},
        changed=_moved("sbm-dqn", "sbm-linear-dqn"),
    ),
    "sbm-dqn-ts": Preset(
        "SBM + DQN (TS)",
        {"representation": "spectral", "exploration": "thompson"},
        tuned={"minatar": _CLOSURE_TS_MINATAR},
        changed=_moved("sbm-dqn-ts", "sbm-linear-dqn-ts"),
    ),
    "sbm-linear-dqn": Preset(
        "– (first-order SBM beside Q, ε-greedy)",
        {"representation": "linear", "exploration": "epsilon"},
        tuned={"minatar": _LINEAR_MINATAR, "atari": _LINEAR_ATARI},
    ),
    "sbm-linear-dqn-ts": Preset(
        "– (first-order SBM beside Q, TS)",
        {"representation": "linear", "exploration": "thompson"},
        tuned={
            "minatar": {**_LINEAR_MINATAR, **_FADING_MINATAR},
            # The features are spread evenly: σ_exp alone is felt.
            "atari": {**_LINEAR_ATARI, "noise_scale": 1.0},
        },
    ),
    "sbm-dqn-ts-paper": Preset(
        "SBM + DQN (TS), hyper-parameters to the letter",
        {"representation": "spectral", "exploration": "thompson", **PAPER},
        {"num_envs": 128, "round_steps": 16, "replay_capacity": 1_000_000},
    ),
    "r2d2": Preset(
        "R2D2",
        {**R2D2, "representation": "plain", "exploration": "ladder"},
        tuned=_R2D2_TUNED,
    ),
    "sbm-r2d2": Preset(
        "SBM + R2D2 (ε-greedy)",
        {**_SBM_R2D2, "exploration": "ladder"},
        tuned=_SBM_R2D2_TUNED,
    ),
    "sbm-r2d2-ts": Preset(
        "SBM + R2D2 (TS)",
        {**_SBM_R2D2, "exploration": "thompson"},
        tuned={**_SBM_R2D2_TUNED, "minatar": {**_R2D2_MINATAR, **_FADING_MINATAR}},
    ),
    "sbm-r2d2-ts-paper": Preset(
        "SBM + R2D2 (TS), hyper-parameters to the letter",
        {
            **_SBM_R2D2,
            "exploration": "thompson",
            **PAPER,
            "discount": 0.997,
            "batch": 64,
            "burn_in": 40,
            "trained": 80,
            "trace_decay": 0.95,
            "reward_clip": 0.0,
            # Where the paper is silent, as R2D2 has it:
            "period": 40,
            "lstm": 512,
            "core_inputs": "torso",
            "head_hidden": (512,),
            "adam_epsilon": 1e-3,
            "policy_epsilon_steps": 250_000,
            "target_rounds": 4,  # 2,304 updates, for 2,500
        },
        {"num_envs": 128, "round_steps": 16, "replay_capacity": 1_000_000},
    ),
    # Not in the paper: to check DQN against what others have published.
    "dqn-minatar": Preset(
        "– (DQN of the MinAtar authors)",
        {
            "representation": "plain",
            "exploration": "epsilon",
            "batch": 32,
            "updates": 1_024,  # one for every frame
            "optimiser": "rmsprop",
            "learning_rate": 2.5e-4,
            "adam_epsilon": 0.02,  # for 0.01, as the square of the error is not halved here
            "reward_clip": 0.0,  # Seaquest pays up to 10
            "epsilon_end": 0.1,
            "epsilon_steps": 100_000,
            "warmup_steps": 5_000,
        },
        # A target lasts 1,024 frames, for 1,000.
        {"num_envs": 128, "round_steps": 8, "replay_capacity": 100_000},
        changed={
            "minatar": "dqn-minatar now learns from unclipped rewards, as the MinAtar authors' DQN "
            "does; before version 0.2 they were clipped to ±1"
        },
    ),
    "dqn-dopamine": Preset(
        "– (DQN of Dopamine)",
        {
            "network": "padded",
            "initial_weights": "xavier",
            "representation": "plain",
            "exploration": "epsilon",
            "batch": 32,
            "updates": 512,  # one for every 4 agent steps
            "learning_rate": 6.25e-5,
            "adam_epsilon": 1.5e-4,
            "target_rounds": 4,  # 8,192 agent steps, for 8,000
            "epsilon_end": 0.01,
            "epsilon_steps": 250_000,
            "warmup_steps": 20_000,
        },
        # Fewer environments than other presets have: episodes of older policies count less.
        {"num_envs": 128, "round_steps": 16, "dispatch_steps": 32, "replay_capacity": 1_000_000},
        changed={
            "atari": "dqn-dopamine now has Dopamine's network, Xavier weights, batches of 32 and "
            "128 environments; before version 0.2 it had the network nature, normal weights, "
            "batches of 256 and 256 environments"
        },
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of a name; a misspelt one is answered with the nearest."""
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, cutoff=0.4) or "sbm presets lists them"
        raise ValueError(f"there is no preset {name!r}; {hint}")
    return PRESETS[name]


def agent_config(
    preset: str, family: str, chosen: Mapping[str, Any], *suiting: Mapping[str, Any]
) -> AgentConfig:
    """The settings of a preset on a family of environments.

    Args:
      preset: its name.
      family: the name of the family, for the numbers that are tuned to it.
      chosen: other choices than the preset's, such as {"exploration": "ucb"}.
      suiting: settings that suit the environment, of which the agent takes those that it uses.
    """
    found = find_preset(preset)
    kinds = {k: v for k, v in found.agent.items() if k in choices.KINDS}
    config = choices.override(AgentConfig(), {**kinds, **chosen})
    own = {**found.agent, **found.tuned.get(family, {})}
    for settings in (*suiting, {k: v for k, v in own.items() if k not in choices.KINDS}):
        config = choices.suited(config, settings)
    return config
