"""Acting in environments on the device: T steps of N environments, as one traced function."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Timestep, first_timestep
from spectral_bellman.environments.api import Environment
from spectral_bellman.replay import Rollout

ENVIRONMENT = 2**30
"""What keys of environments are folded with; groups of actors have the numbers below."""


class DeviceActorState(NamedTuple):
    """Where the environments of a seed stand."""

    agent: Any
    """The agent's actor state."""
    environments: Any
    timestep: Timestep


def init_actor_state(
    agent: Agent[Any, Any, Any], environment: Environment, key: RandomKey, num_envs: int
) -> DeviceActorState:
    """Environments that have just been reset."""
    actor_key, reset_key = actor_keys(key)
    states, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, num_envs))
    return DeviceActorState(
        agent.init_actor(num_envs, actor_key), states, first_timestep(observation)
    )


def collect(
    agent: Agent[Any, Any, Any],
    environment: Environment,
    policy: Any,
    state: DeviceActorState,
    key: RandomKey,
    steps: int,
) -> tuple[DeviceActorState, Rollout, Bool[Array, "T N"]]:
    """``steps`` steps of each environment, and where episodes ended.

    An episode that ends is followed by the next.
    """
    num_envs = len(state.timestep.first)

    def one(state: DeviceActorState, time: Array) -> tuple[DeviceActorState, tuple[Rollout, Array]]:
        act_key, environment_key = acting_keys(key, time)
        step_key, reset_key = jax.random.split(environment_key)
        observation, first, _, _ = state.timestep
        action, extras, actor = agent.act(policy, state.agent, state.timestep, act_key)
        step_keys = jax.random.split(step_key, num_envs)
        environments, step = jax.vmap(environment.step)(state.environments, action, step_keys)
        done = step.terminated | step.truncated
        fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, num_envs))
        environments, next_observation = jax.tree.map(
            lambda new, old: select(done, new, old), fresh, (environments, step.observation)
        )
        timestep = Timestep(
            next_observation,
            done,
            jnp.where(done, 0, step.reward),
            jnp.where(done, 0, action),
        )
        rollout = Rollout(
            observation=observation,
            action=action,
            reward=step.reward,
            discount=1 - step.terminated.astype(jnp.float32),
            first=first,
            truncated=step.truncated & ~step.terminated,
            last_observation=step.observation,
            extras=extras,
        )
        return DeviceActorState(actor, environments, timestep), (rollout, done)

    state, (rollout, done) = jax.lax.scan(one, state, jnp.arange(steps))
    return state, rollout, done


def select(mask: Bool[Array, " N"], new: Array, old: Array) -> Array:
    """``new`` for the environments in the mask, ``old`` for the others."""
    if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        return jnp.where(mask, new, old)
    return jnp.where(mask.reshape(mask.shape + (1,) * (old.ndim - 1)), new, old)


def actor_keys(key: RandomKey, group: int = 0) -> tuple[RandomKey, RandomKey]:
    """The key of a group's actor state, and the key of its environments' first reset."""
    return jax.random.fold_in(key, group), jax.random.fold_in(key, ENVIRONMENT)


def acting_keys(key: RandomKey, time: Array, group: Array | int = 0) -> tuple[RandomKey, RandomKey]:
    """The keys for choosing the actions of a group at a time of a round, and for stepping.

    Runners on the device and on the host use the same keys, so that they do the same.
    """
    key = jax.random.fold_in(key, time)
    return jax.random.fold_in(key, group), jax.random.fold_in(key, ENVIRONMENT)


def collection_key(key: RandomKey, round_number: Int[Array, ""]) -> RandomKey:
    """The key for acting and stepping in a round, from the key of the seed."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), 0)


def learning_key(key: RandomKey, round_number: Int[Array, ""]) -> RandomKey:
    """The key for learning in a round, from the key of the seed."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), 1)
