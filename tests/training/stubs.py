"""Agents and environments of a few lines, with answers that are known by hand."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.api import Phase
from spectral_bellman.environments.api import HostStep, Step
from spectral_bellman.replay import UNIFORM, OneStep


class Place(NamedTuple):
    position: Any
    time: Any


class Corridor:
    """Action 1 goes right and earns 1; action 0 stays and earns 1/4.

    An episode terminates at position 2, and is cut after 5 steps. Nothing is drawn.
    """

    num_actions = 2
    observation = jax.ShapeDtypeStruct((2,), jnp.float32)

    def reset(self, key):
        place = Place(jnp.int32(0), jnp.int32(0))
        return place, self.observe(place)

    def step(self, place, action, key):
        after = Place(place.position + action, place.time + 1)
        reward = jnp.where(action == 1, 1.0, 0.25).astype(jnp.float32)
        terminated = after.position >= 2
        return after, Step(self.observe(after), reward, terminated, (after.time >= 5) & ~terminated)

    def observe(self, place):
        return jnp.stack([place.position, place.time]).astype(jnp.float32)


class Dice:
    """Each episode is one step, whose reward is drawn at the reset."""

    num_actions = 2
    observation = jax.ShapeDtypeStruct((1,), jnp.float32)

    def reset(self, key):
        drawn = jax.random.uniform(key, (1,))
        return drawn, drawn

    def step(self, drawn, action, key):
        return drawn, Step(drawn, drawn[0], jnp.array(True), jnp.array(False))


class Hosted:
    """A deterministic environment in JAX as a ``VectorEnvironment``."""

    stack = 0

    def __init__(self, environment, size: int) -> None:
        self.environment, self.size = environment, size
        self.observation, self.num_actions = environment.observation, environment.num_actions
        self._keys = jax.random.split(jax.random.key(0), size)
        self._reset = jax.jit(lambda: jax.vmap(environment.reset)(self._keys))
        self._step = jax.jit(
            lambda states, action: jax.vmap(environment.step)(states, action, self._keys)
        )

    def __len__(self) -> int:
        return self.size

    def reset(self, block: int = 0) -> np.ndarray:
        self.states, observation = self._reset()
        return np.asarray(observation)

    def step(self, actions, running=None) -> HostStep:
        self.states, step = self._step(self.states, jnp.asarray(actions))
        fresh, observation = self._reset()
        first = np.asarray(step.terminated | step.truncated)
        self.states, after = jax.tree.map(
            lambda new, old: jnp.where(first.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
            (fresh, observation),
            (self.states, step.observation),
        )
        return HostStep(*map(np.asarray, (*step, after, first)))

    def save(self) -> list[dict]:
        raise NotImplementedError

    def restore(self, saved, progress):
        raise NotImplementedError

    def close(self) -> None: ...


class Log(NamedTuple):
    """What a ``Scribe`` has done, as numbers in their order."""

    entries: Any
    count: Any
    total: Any
    """A whole number made of all that was seen and drawn: equal numbers mean equal draws."""

    def write(self, entry) -> "Log":
        entries = self.entries.at[self.count].set(entry)
        return self._replace(entries=entries, count=self.count + 1)


PREPARE, UPDATE, FINISH, PUBLISH, PUBLISH_ROWS = 100, 200, 300, 400, 500


def phase(number: int, steps: int, priority=None, **settings) -> Phase:
    """A phase that writes down its updates; ``prepare`` returns no state, and cannot.

    It computes with whole numbers, which no compiler rounds in another way. ``priority`` is
    sample -> the new priorities of its items.
    """

    def prepare(state, samples, key):
        # Every step remembers what the state was when its chunk was prepared.
        drawn = jax.random.randint(key, (samples.items.reward.shape[0],), 0, 1_000)
        return jnp.full(drawn.shape, state.count), drawn

    def update(state, sample, prepared):
        seen, drawn = prepared
        value = jnp.sum((64 * sample.items.reward).astype(jnp.int32)) + drawn
        state = state._replace(total=(3 * state.total + value) % 65_521)
        terms = {f"term {number}": value, f"seen {number}": seen}
        terms = {name: x.astype(jnp.float32) for name, x in terms.items()}
        return state.write(UPDATE + number), terms, priority and priority(sample)

    def finish(state):
        return state.write(FINISH + number)

    return Phase(steps, prepare, update, finish, batch=4, **settings)


class Scribe:
    """Its policy is the number of the round that published it, which every step keeps."""

    num_actions = 2
    window = OneStep()
    publish_rows, publish_distinct, publish_every = 0, 0, 1
    diagnostic_items, diagnostic_rows = 1_024, 0

    def __init__(self, observation, before=(), after=(), sampler=UNIFORM) -> None:
        self.observation, self._phases = observation, (list(before), list(after))
        self.sampler = sampler

    def init(self, key):
        return Log(jnp.zeros(256, jnp.int32), jnp.int32(0), jnp.int32(0))

    def init_actor(self, num_envs, key):
        return jnp.zeros(num_envs)

    def init_policy(self, state):
        return jnp.int32(-1)

    def act(self, policy, actor, timestep, key, *, greedy=False):
        """Changes its mind from version to version and from place to place, and draws nothing."""
        shown = jnp.sum(timestep.observation.reshape(len(timestep.first), -1), axis=1)
        mixed = shown.astype(jnp.int32) + policy + timestep.previous_action
        extras = {"version": jnp.full(mixed.shape, policy), "reward before": timestep.reward}
        return mixed % 2, extras, actor + 1

    def phases(self):
        return self._phases

    def publish(self, state, rows, progress, key):
        state = state.write(PUBLISH if rows is None else PUBLISH_ROWS)
        return state, jnp.asarray(progress.round, jnp.int32)

    def diagnose(self, state, policy, items, rows, key):
        return {"reward": jnp.mean(items.reward)}
