"""What a few gradient steps do to features of Atari's screens, with the screens as they are and less their mean.

Random play fills a replay; sbm-dqn and dqn take gradient steps on it. Measured on screens of the same play:

- the share of the last hidden layer's units that are zero on all of them;
- the share of φ's second moment that differs from state to state, 0 where φ(s, a) is the same for every s;
- how far one gradient step moves the differences between actions, Q(s, a) − mean over a, with ‖θ̂‖ = 10 as after a million frames.

    python benchmarks/screens.py
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console

from spectral_bellman.agents.agent import Agent, AgentState
from spectral_bellman.agents.presets import preset_settings
from spectral_bellman.agents.representation import features
from spectral_bellman.analysis.provenance import provenance, write_json
from spectral_bellman.environments.atari import AtariEnvironments, AtariProtocol
from spectral_bellman.replay import Replay, Transition, init_replay, sample
from spectral_bellman.replay.transitions import add


@dataclass(frozen=True)
class Benchmark:
    """Collapse of features, and the size of a step."""

    game: str = "boxing"
    """Its ROM."""
    envs: int = 16
    """Environments of random play."""
    steps: int = 800
    """Agent steps of each."""
    gradient_steps: int = 96
    """On φ, of batches of ``batch``."""
    batch: int = 64
    """Transitions in one."""
    theta_norm: float = 10.0
    """Of θ̂ where the size of a step is measured."""
    out: Path = Path("out/screens.json")
    """Where the figures go."""


def played(config: Benchmark) -> tuple[Replay, int]:
    """A replay of random play, and the number of actions."""
    environments = AtariEnvironments(config.game, AtariProtocol(), 0, range(config.envs), os.cpu_count() or 1)
    random = np.random.default_rng(0)
    frame, first, rows = environments.reset(), np.ones(config.envs, bool), []
    for _ in range(config.steps):
        action = random.integers(environments.num_actions, size=config.envs)
        step = environments.step(action)
        discount = 1 - step.terminated.astype(np.float32)
        row = Transition(frame, action, step.reward, discount, np.ones(config.envs, np.float32), step.observation)
        rows.append((row, step.truncated, first))
        frame, first = step.following, step.first
    environments.close()
    steps, truncated, begun = jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), *rows)
    replay = init_replay(environments.observation, config.envs, 2 * config.envs * config.steps, config.steps, environments.stack)
    return add(replay, steps, truncated, begun), environments.num_actions


def measured(
    config: Benchmark, replay: Replay, actions: int, preset: str, network: Literal["nature", "centred"]
) -> dict[str, float]:
    """The figures of one agent."""
    agent_config = preset_settings(preset, "atari")[1]
    phi_steps = config.gradient_steps - agent_config.q_steps * (agent_config.representation == "td")
    agent_config = dataclasses.replace(agent_config, network=network, batch=config.batch, representation_steps=phi_steps)
    agent = Agent(agent_config, jax.ShapeDtypeStruct((replay.stack, *replay.observation.shape[2:]), jnp.uint8), actions)
    stage = agent.stages(1)[0 if agent_config.representation == "td" else 1]
    screens = sample(replay, jax.random.key(1), (256,)).observation

    def one_step(state: AgentState, replay: Replay, key: Any) -> AgentState:
        return stage.run(state, stage.draw(replay, key), key)[0]

    def differences(state: AgentState) -> Any:
        values = features(state.network, screens, agent_config) @ state.theta
        return values - jnp.mean(values, axis=1, keepdims=True)

    def shares(state: AgentState) -> tuple[Any, Any]:
        phi = features(state.network, screens, agent_config)
        shared = jnp.sum(jnp.square(jnp.mean(phi, axis=0)))
        dead = jnp.mean(jnp.max(jax.vmap(state.network.torso)(screens), axis=0) <= 0)
        return dead, 1 - shared / jnp.mean(jnp.sum(jnp.square(phi), axis=(1, 2)))

    state = agent.init(jax.random.key(0))
    if not agent_config.plain:
        direction = jax.random.normal(jax.random.key(2), state.theta.shape)
        theta = config.theta_norm * direction / jnp.linalg.norm(direction)
        state = state._replace(theta=theta, target=state.target._replace(theta=theta))
    step, look = jax.jit(one_step), jax.jit(differences)
    seen = []
    for i, key in enumerate(jax.random.split(jax.random.key(3), config.gradient_steps)):
        state = step(state, replay, key)
        if config.gradient_steps - i <= 24:
            seen.append(np.asarray(look(state)))
    moved = np.sqrt(np.mean(np.square(np.diff(seen, axis=0)), axis=(1, 2)))
    dead, by_state = jax.jit(shares)(state)
    figures = {"dead units": float(dead), "a step moves the differences between actions by": float(np.median(moved))}
    return figures if agent_config.plain else figures | {"share of φ that differs by state": float(by_state)}


def main(config: Benchmark) -> None:
    """Measure, print and keep."""
    console = Console()
    with console.status(f"{config.envs * config.steps:,} steps of random play"):
        replay, actions = played(config)
    figures = {}
    networks: tuple[Literal["nature", "centred"], ...] = ("nature", "centred")
    for preset in ("sbm-dqn", "dqn"):
        for network in networks:
            name = f"{preset}, {network}"
            with console.status(name):
                figures[name] = measured(config, replay, actions, preset, network)
            shown = "; ".join(f"{what} {value:.4f}" for what, value in figures[name].items())
            console.print(f"{name}: {shown}", highlight=False, soft_wrap=True)
    config.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(config.out, {**figures, "provenance": provenance()})
    console.print(str(config.out))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
