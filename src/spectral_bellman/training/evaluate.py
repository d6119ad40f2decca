"""Greedy episodes: one player for environments on the device, one for environments on the host.

Both act by ``agent.act(..., greedy=True)``. Evaluation during training, ``sbm evaluate`` and films
use them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Timestep, first_timestep
from spectral_bellman.environments.api import Environment, VectorEnvironment


class Playing(NamedTuple):
    """Greedy episodes on the device that are under way."""

    time: Array
    environments: Any
    actor: Any
    timestep: Timestep
    returns: Array
    running: Array


class Played(NamedTuple):
    """Greedy episodes on the host."""

    number: int
    """The block of episodes: what their seeds come from."""
    returns: NDArray[Any]
    """(episodes,), NaN for those that did not end in time."""
    actions: list[NDArray[np.int32]]
    """All actions of each episode."""


def begin(
    agent: Agent[Any, Any, Any], environment: Environment, key: RandomKey, episodes: int
) -> Playing:
    """Episodes on the device that have just begun."""
    reset_key, run_key = jax.random.split(key)
    states, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))
    return Playing(
        time=jnp.int32(0),
        environments=states,
        actor=agent.init_actor(episodes, run_key),
        timestep=first_timestep(observation),
        returns=jnp.zeros(episodes),
        running=jnp.ones(episodes, bool),
    )


def play_step(
    agent: Agent[Any, Any, Any],
    environment: Environment,
    policy: Any,
    key: RandomKey,
    playing: Playing,
) -> Playing:
    """One step of all episodes; those that are over are stepped on, and not counted."""
    time, states, actor, timestep, returns, running = playing
    _, run_key = jax.random.split(key)
    act_key, step_key = jax.random.split(jax.random.fold_in(run_key, time))
    action, _, actor = agent.act(policy, actor, timestep, act_key, greedy=True)
    states, step = jax.vmap(environment.step)(
        states, action, jax.random.split(step_key, len(running))
    )
    returns = returns + jnp.where(running, step.reward, 0)
    done = step.terminated | step.truncated
    timestep = Timestep(step.observation, jnp.zeros_like(running), step.reward, action)
    return Playing(time + 1, states, actor, timestep, returns, running & ~done)


def device_returns(
    agent: Agent[Any, Any, Any],
    environment: Environment,
    policy: Any,
    key: RandomKey,
    episodes: int,
    max_steps: int,
) -> Array:
    """Returns (episodes,) of greedy episodes; NaN for those that did not end in time."""

    def unfinished(playing: Playing) -> Array:
        return jnp.any(playing.running) & (playing.time < max_steps)

    def step(playing: Playing) -> Playing:
        return play_step(agent, environment, policy, key, playing)

    played = jax.lax.while_loop(unfinished, step, begin(agent, environment, key, episodes))
    return jnp.where(played.running, jnp.nan, played.returns)


GreedyAct = Callable[[Any, Array, Any, Any, Any, Array, Any], tuple[Any, Array, Array]]
"""(actor, stack, frame, first, reward, previous action, time) -> actor, stack, action."""


def play_on_host(
    act: GreedyAct,
    environments: VectorEnvironment,
    actor: Any,
    stack: Array,
    number: int,
    max_steps: int,
) -> Played:
    """Greedy episodes of all environments, which begin block ``number``."""
    count = len(environments)
    returns, running = np.zeros(count), np.ones(count, bool)
    lengths = np.zeros(count, int)
    frame, first = environments.reset(number), np.ones(count, bool)
    reward, action = np.zeros(count, np.float32), jnp.zeros(count, jnp.int32)
    chosen: list[NDArray[np.int32]] = []
    for time in range(max_steps):
        actor, stack, action = act(actor, stack, frame, first, reward, action, np.int32(time))
        chosen.append(np.asarray(action))
        step = environments.step(chosen[-1], running)
        returns += np.where(running, step.reward, 0)
        lengths += running
        running &= ~step.first
        frame, first, reward = (
            step.next_observation,
            step.first,
            np.where(step.first, 0, step.reward),
        )
        if not running.any():
            break
    actions = np.stack(chosen)
    return Played(
        number,
        np.where(running, np.nan, returns),
        [actions[:length, i] for i, length in enumerate(lengths)],
    )
