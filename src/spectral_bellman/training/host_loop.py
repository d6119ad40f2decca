"""The loop for environments on the host: they step while the agent learns.

Round t is collected with the policy that round t − 2 published, for round t − 1 may still be learning; which policy acts, and what
an update may sample, depend on these numbers and never on timing. Learning is dispatched from a thread of its own: calls from one
thread run in order, and choosing an action must not wait for a round of updates.
"""

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import Actor, Agent, Policy, Timestep
from spectral_bellman.agents.diagnostics import diagnose
from spectral_bellman.environments.gym import GymEnvironments, Maker
from spectral_bellman.replay import Transition
from spectral_bellman.training import rounds
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.rounds import Collected, Learner, Tally
from spectral_bellman.training.seeds import fold_keys, over_seeds

State = tuple[Learner, Policy, Policy, Actor, Timestep]
"""Learner, the policy that acts, the policy published last, actors, and what the environments show."""


class HostLoop:
    """Trains ``config.seeds`` agents at once on ``config.num_envs`` environments each."""

    def __init__(self, config: TrainConfig, name: str, make: Maker) -> None:
        self.config, self._name, self._make = config, name, make
        self._seeds = list(range(config.first_seed, config.first_seed + config.seeds))
        self.environments = GymEnvironments(name, make, self._seeds, config.num_envs)
        self.agent = Agent(config.agent, self.environments.observation, self.environments.num_actions)
        self.programs: dict[str, Any] = {
            "init": over_seeds(self._init_one),
            "act": over_seeds(self._act_one, in_axes=(0, 0, 0, 0, None), donate=(1,)),
            "act greedily": over_seeds(lambda p, o, k: self.agent.act_greedily(p, o, config.eval_epsilon, k)[0]),
            "diagnose": over_seeds(functools.partial(diagnose, self.agent)),
        }
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._learning: Future[tuple[Learner, Policy]] | None = None
        self._shape = (config.seeds, config.num_envs)

    @property
    def state(self) -> State:
        """All there is to save, besides the environments; waits for the learning under way."""
        learner, published = self._learned()
        return learner, self._policy, published, self._actor, self._timestep

    def shapes(self) -> State:
        """The state as shapes, nothing allocated."""
        return jax.eval_shape(self.programs["init"], jnp.asarray(self._seeds))

    def init(self) -> None:
        """A state before the first round."""
        learner, self._policy, published, self._actor, _ = self.programs["init"](jnp.asarray(self._seeds))
        self._start(learner, published)
        self._timestep = Timestep(self._environments_shape(self.environments.reset()), np.ones(self._shape, bool))

    def run_round(self, number: int) -> None:
        """Collect round ``number`` while the last one is learned, then begin to learn it."""
        collected = self._collect(number)
        learner, published = self._learned()
        program = self.program(self.config.learns(number))
        # The policy that acts next is the one published before this learning began, which it must not overwrite.
        self._policy = published

        def learn() -> tuple[Learner, Policy]:
            result = program(learner, published, collected, np.int32(number))
            return jax.block_until_ready(result)

        self._learning = self._worker.submit(learn)

    def program(self, learning: bool) -> Any:
        """The compiled learning of a round."""
        name = "learn" if learning else "warm up"
        if name not in self.programs:
            learn = functools.partial(rounds.learn, self.agent, log_rounds=self.config.log_rounds, learning=learning)
            learner, published = self.shapes()[:2]
            program = over_seeds(learn, in_axes=(0, 0, 0, None), donate=(0,))
            shapes = (learner, published, self._collected_shapes(), jax.ShapeDtypeStruct((), jnp.int32))
            self.programs[name] = program.lower(*shapes).compile()
        return self.programs[name]

    def tally(self) -> Tally:
        """The tally of every seed, on the host."""
        return jax.device_get(self._learned()[0].tally)

    def diagnostics(self, number: int) -> dict[str, NDArray[Any]]:
        """Diagnostics of every seed."""
        learner, published = self._learned()
        return jax.device_get(self.programs["diagnose"](learner.agent, published, learner.replay, fold_keys(self._keys, number, 2)))

    def evaluate(self, number: int) -> NDArray[Any]:
        """Returns of greedy episodes in environments of their own, (seeds, episodes); NaN for those that did not end in time."""
        config, policy = self.config, self._learned()[1]
        environments = GymEnvironments(self._name, self._make, self._seeds, config.eval_episodes, stream=1)
        shape = (config.seeds, config.eval_episodes)
        observation, returns, running = environments.reset(), np.zeros(np.prod(shape)), np.ones(np.prod(shape), bool)
        keys = fold_keys(self._keys, number, 3)
        for time in range(config.eval_max_steps):
            action = self.programs["act greedily"](
                policy, observation.reshape(*shape, *observation.shape[1:]), fold_keys(keys, time)
            )
            step = environments.step(np.asarray(action).reshape(-1), running)
            returns += np.where(running, step.reward, 0)
            running &= ~(step.terminated | step.truncated)
            observation = step.observation
            if not running.any():
                break
        environments.close()
        return np.where(running, np.nan, returns).reshape(shape)

    def extra(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state: the running episodes."""
        return {"environments": self.environments.save()}

    def restore(self, state: State, extra: dict[str, Any]) -> str | None:
        """Go on from a checkpoint; says so if an environment did not come back the same."""
        learner, self._policy, published, self._actor, saved = state
        self._start(learner, published)
        observation = self._environments_shape(self.environments.restore(extra["environments"]))
        self._timestep = Timestep(observation, np.asarray(saved.first))
        differ = int(np.sum(np.any((observation != np.asarray(saved.observation)).reshape(len(self.environments), -1), axis=1)))
        if not differ:
            return None
        return (
            f"{differ} of {len(self.environments)} environments did not come back the same from their seeds and actions: "
            f"{self._name} is not deterministic, and the run goes on inexactly"
        )

    def close(self) -> None:
        """Stop learning and close the environments."""
        self._worker.shutdown()
        self.environments.close()

    def _start(self, learner: Learner, published: Policy) -> None:
        self._learning = Future()
        self._learning.set_result((learner, published))
        self._keys = jnp.copy(learner.key)

    def _learned(self) -> tuple[Learner, Policy]:
        assert self._learning is not None
        return self._learning.result()

    def _collect(self, number: int) -> Collected:
        config, shape = self.config, (self.config.seeds, self.config.round_steps, self.config.num_envs)
        seen = self.environments.observation
        observation, following = (np.empty((*shape, *seen.shape), seen.dtype) for _ in range(2))
        action, prob = np.empty(shape, np.int32), np.empty(shape, np.float32)
        reward, discount = np.empty(shape, np.float32), np.empty(shape, np.float32)
        truncated, done = np.empty(shape, bool), np.empty(shape, bool)
        for t in range(config.round_steps):
            chosen, probs, self._actor = self.programs["act"](
                self._policy, self._actor, self._timestep, self._keys, np.array([number, t], np.int32)
            )
            action[:, t], prob[:, t] = chosen, probs
            step = self.environments.step(action[:, t].reshape(-1))
            ended = step.terminated | step.truncated
            observation[:, t], following[:, t] = self._timestep.observation, self._environments_shape(step.observation)
            reward[:, t] = step.reward.reshape(self._shape)
            discount[:, t] = 1 - step.terminated.reshape(self._shape)
            truncated[:, t] = (step.truncated & ~step.terminated).reshape(self._shape)
            done[:, t] = ended.reshape(self._shape)
            self._timestep = Timestep(self._environments_shape(step.following), done[:, t].copy())
        return Collected(Transition(observation, action, reward, discount, prob, following), truncated, done)

    def _collected_shapes(self) -> Collected:
        shape = (self.config.seeds, self.config.round_steps, self.config.num_envs)
        seen = self.environments.observation
        observation = jax.ShapeDtypeStruct((*shape, *seen.shape), seen.dtype)
        number, flag = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.bool_)
        action = jax.ShapeDtypeStruct(shape, jnp.int32)
        return Collected(Transition(observation, action, number, number, number, observation), flag, flag)

    def _environments_shape(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(*self._shape, *array.shape[1:])

    def _act_one(self, policy: Policy, actor: Actor, timestep: Timestep, key: RandomKey, when: jax.Array) -> tuple[Any, Any, Actor]:
        return self.agent.act(policy, actor, timestep, jax.random.fold_in(rounds.collection_key(key, when[0]), when[1]))

    def _init_one(self, seed: jax.Array) -> State:
        learner_key, actor_key = jax.random.split(jax.random.key(seed))
        config, seen = self.config, self.environments.observation
        learner, policy = rounds.init_learner(self.agent, learner_key, config.num_envs, config.replay_capacity, config.round_steps)
        timestep = Timestep(jnp.zeros((config.num_envs, *seen.shape), seen.dtype), jnp.ones(config.num_envs, bool))
        actor = self.agent.init_actor(config.num_envs, actor_key)
        return learner, policy, jax.tree.map(jnp.copy, policy), actor, timestep
