"""An actor on the host: a group of environments with a thread of its own.

While one group chooses actions, the others step. What a group sees stays on the device: single
frames are sent once, stacked there for acting, and kept in a buffer until the round ends.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Timestep
from spectral_bellman.environments.api import VectorEnvironment
from spectral_bellman.replay import Rollout, push_frame
from spectral_bellman.training.device_runner import LearnerState
from spectral_bellman.training.policies import Policies
from spectral_bellman.training.rollout import acting_keys, collection_key


class HostActorState(NamedTuple):
    """Where a group of n environments stands."""

    agent: Any
    """The agent's actor state."""
    stack: Any
    """(n, stack, …): observations without the newest frame; empty without stacks."""
    frame: Any
    """(n, …): the newest frame."""
    first: Any
    """(n,): whether it begins an episode."""
    reward: Any
    """(n,): the reward that came with it."""
    action: Any
    """(n,): the last action."""


class HostState(NamedTuple):
    """All there is to save, besides the environments and the replay, which is None here."""

    learner: LearnerState
    policies: tuple[Any, ...]
    """The last ``staleness`` policies; the oldest acts in the next round."""
    evaluating: Any
    """The policy that an evaluation under way began with."""
    actors: tuple[HostActorState, ...]


class Buffer(NamedTuple):
    """A round of a group as the device has seen it, (T, n, …)."""

    frame: Array
    first: Array
    action: Array
    extras: Any


class Part(NamedTuple):
    """A round of a group."""

    buffer: Any
    """``Buffer``; None where only what the environments answered is wanted."""
    frame: Any
    """(n, …): the frames after the last step."""
    last: Any
    """(T, n, …): the last frames of episodes that were cut."""
    reward: Any
    discount: Any
    truncated: Any
    done: Any

    def answers(self) -> "Part":
        """The part without frames: what the environments answered."""
        return self._replace(buffer=None, frame=None, last=None)


class HostActor:
    """Steps a group of environments for a round at a time, in a thread of its own."""

    def __init__(
        self,
        group: int,
        environments: VectorEnvironment,
        round_steps: int,
        blank: Array,
        act: Callable[..., Any],
        new_buffer: Callable[[], Buffer],
    ) -> None:
        """``act`` and ``new_buffer`` are compiled; ``blank``: for rounds without a cut episode."""
        self.environments = environments
        self._group, self._round_steps, self._blank = group, round_steps, blank
        self._act, self._new_buffer = act, new_buffer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"environments-{group}")
        self.state: HostActorState | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function in the actor's thread."""
        return self._thread.submit(function, *arguments)

    def collect_later(self, number: int, policy: Callable[[], Any], key: Array) -> Future[Part]:
        """Round ``number``, as soon as the thread is free and ``policy()`` is there."""
        return self.submit(self.collect, number, policy, key)

    def collect(self, number: int, policy_of: Callable[[], Any], key: Array) -> Part:
        """Round ``number``, in the thread of the caller."""
        policy = policy_of()
        assert self.state is not None
        state, buffer = self.state, self._new_buffer()
        agent, stack, frame, first, previous_reward, action = state
        shape = (self._round_steps, len(first))
        reward, discount = np.empty(shape, np.float32), np.empty(shape, np.float32)
        truncated, done = np.empty(shape, bool), np.empty(shape, bool)
        last: Any = self._blank
        for t in range(self._round_steps):
            when = np.array([number, t, self._group], np.int32)
            agent, stack, buffer, action = self._act(
                policy, agent, stack, buffer, frame, first, previous_reward, action, key, when
            )
            step = self.environments.step(np.asarray(action))
            reward[t], discount[t] = step.reward, 1 - step.terminated
            truncated[t], done[t] = step.truncated, step.first
            if step.truncated.any():
                if last is self._blank:
                    last = np.zeros(self._blank.shape, self._blank.dtype)
                last[t] = step.observation
            frame, first, previous_reward = step.next_observation, step.first, step.reward
        self.state = HostActorState(agent, stack, frame, first, previous_reward, action)
        return Part(buffer, frame, last, reward, discount, truncated, done)

    def close(self) -> None:
        """Stop the thread and close the environments."""
        self._thread.shutdown(cancel_futures=True)
        self.environments.close()


class Lockstep:
    """Rounds of all actors together. Which policy acts in a round depends on its number alone."""

    def __init__(self, actors: list[HostActor], policies: Policies, key: Array) -> None:
        self._actors, self._policies, self._key = actors, policies, key
        self._rounds: dict[int, list[Future[Part]]] = {}

    @property
    def idle(self) -> bool:
        """Whether no round is under way."""
        return not self._rounds

    def take(self, number: int, ahead: bool) -> tuple[Part, ...]:
        """A round, in the order of the groups; ``ahead``: the next begins."""
        self._begin(number)
        if ahead:
            self._begin(number + 1)
        return tuple(future.result() for future in self._rounds.pop(number))

    def _begin(self, number: int) -> None:
        if number not in self._rounds:
            self._policies.expect(number - self._policies.staleness)
            self._rounds[number] = [
                actor.collect_later(number, lambda: self._policies.acting(number), self._key)
                for actor in self._actors
            ]

    def stop(self) -> None:
        """Wait for what is under way; no policy will come any more."""
        for parts in self._rounds.values():
            for part in parts:
                part.cancel()
                with contextlib.suppress(BaseException):
                    part.exception()


def act_and_write(
    agent: Agent[Any, Any, Any],
    policy: Any,
    actor: Any,
    stack: Array,
    buffer: Buffer,
    frame: Array,
    first: Array,
    reward: Array,
    previous_action: Array,
    key: RandomKey,
    when: Array,
) -> tuple[Any, Array, Buffer, Array]:
    """Choose the actions of a group and write them down; ``when`` is round, time and group."""
    key, _ = acting_keys(collection_key(key, when[0]), when[1], when[2])
    timestep, stack = timestep_of(stack, frame, first, reward, previous_action)
    action, extras, actor = agent.act(policy, actor, timestep, key)
    written = Buffer(frame, first, action, extras)
    buffer = jax.tree.map(lambda rows, row: rows.at[when[1]].set(row), buffer, written)
    return actor, stack, buffer, action


def timestep_of(
    stack: Array, frame: Array, first: Array, reward: Array, previous_action: Array
) -> tuple[Timestep, Array]:
    """What the agent is shown, and the stack of frames after it."""
    stacked = stack.size > 0
    stack = push_frame(stack, frame, first) if stacked else stack
    return Timestep(
        stack if stacked else frame,
        first,
        jnp.where(first, 0, reward),
        jnp.where(first, 0, previous_action),
    ), stack


def rollout_of(part: Part) -> Rollout:
    """A round of a group as the replay stores it."""
    after = jnp.concatenate([part.buffer.frame[1:], part.frame[None]])
    cut = part.truncated.reshape(*part.truncated.shape, *(1,) * (after.ndim - 2))
    return Rollout(
        observation=part.buffer.frame,
        action=part.buffer.action,
        reward=part.reward,
        discount=part.discount,
        first=part.buffer.first,
        truncated=part.truncated,
        last_observation=jnp.where(cut, part.last, after),
        extras=part.buffer.extras,
    )
