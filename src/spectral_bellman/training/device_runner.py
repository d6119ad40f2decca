"""Training on environments in JAX: a round is one compiled call, vmapped over seeds."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Progress
from spectral_bellman.environments.api import Environment
from spectral_bellman.replay import Ring, Rollout, init_ring
from spectral_bellman.training import tally as tallies
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.evaluate import device_returns
from spectral_bellman.training.learner import Learner, Learning, extras_of
from spectral_bellman.training.programs import compiled_over_seeds, fold_keys, working_bytes
from spectral_bellman.training.rollout import (
    DeviceActorState,
    collect,
    collection_key,
    init_actor_state,
    learning_key,
)
from spectral_bellman.training.tally import Tally


class LearnerState(NamedTuple):
    """What learns and remembers."""

    agent: Any
    """The agent's train state."""
    priorities: Any
    """What the agent's sampler keeps beside the replay."""
    replay: Any
    """A ``Ring``; None where it is kept apart."""
    tally: Tally
    key: Array
    """The key of the seed; every random number of round t comes from it and t."""


class DeviceState(NamedTuple):
    """All there is to save."""

    learner: LearnerState
    policies: tuple[Any, ...]
    """The last ``staleness`` policies; the oldest acts in the next round."""
    actor: DeviceActorState


class DeviceRunner:
    """Trains ``config.seeds`` agents at once; ``state`` is all there is to save."""

    background = False

    def __init__(
        self, config: TrainConfig, environment: Environment, agent: Agent[Any, Any, Any]
    ) -> None:
        self.config, self.environment, self.agent = config, environment, agent
        self.learner = Learner(agent, first_round=config.first_learning_round)
        self.state: DeviceState | None = None
        self._evaluated: list[tuple[int, NDArray[Any]]] = []
        self.programs: dict[str, Any] = {
            "init": compiled_over_seeds(self._init_one),
            "diagnose": compiled_over_seeds(self._diagnose_one),
            "evaluate": compiled_over_seeds(self._evaluate_one),
        }

    def shapes(self) -> DeviceState:
        """The state as shapes, nothing allocated."""
        return jax.eval_shape(jax.vmap(self._init_one), self._seeds())

    def prepare(self) -> None:
        """Compile all programs at once, on as many cores as there are."""
        learner, policies, _ = self.shapes()
        given = (learner.agent, policies[-1], learner.replay, learner.key)
        lowered = {
            "init": self.programs["init"].lower(self._seeds()),
            "learn": self._lowered(learning=True),
            "diagnose": self.programs["diagnose"].lower(*given),
            "evaluate": self.programs["evaluate"].lower(policies[-1], learner.key),
        }
        if not self.config.learns(0):
            lowered["warm up"] = self._lowered(learning=False)
        with ThreadPoolExecutor(len(lowered)) as pool:
            compiled = pool.map(lambda program: program.compile(), lowered.values())
            self.programs.update(zip(lowered, compiled, strict=True))

    def init(self) -> None:
        """A state before the first round."""
        self.state = self.programs["init"](self._seeds())

    def run_round(self, number: int, *, ahead: bool = False) -> None:
        """Round ``number``, dispatched; the result is there when somebody looks."""
        assert self.state is not None
        self.state = self.program(self.config.learns(number))(*self.state, jnp.int32(number))

    def program(self, learning: bool) -> Any:
        """The compiled round."""
        name = "learn" if learning else "warm up"
        if name not in self.programs:
            self.programs[name] = self._lowered(learning=learning).compile()
        return self.programs[name]

    def tally(self) -> Tally:
        """The tally of every seed, on the host."""
        assert self.state is not None
        return jax.device_get(self.state.learner.tally)

    def diagnostics(self, number: int) -> dict[str, NDArray[Any]]:
        """Diagnostics of every seed."""
        assert self.state is not None
        learner, policies, _ = self.state
        keys = fold_keys(learner.key, number, 2)
        return jax.device_get(
            self.programs["diagnose"](learner.agent, policies[-1], learner.replay, keys)
        )

    def start_evaluation(self, number: int, episodes: int) -> None:
        """Greedy episodes with the policy published last, ``eval_episodes`` at a time."""
        assert self.state is not None
        policy, key = self.state.policies[-1], self.state.learner.key
        parts = []
        for part in range(-(-episodes // self.config.eval_episodes)):
            keys = fold_keys(key, number, 3) if part == 0 else fold_keys(key, number, 3, part)
            parts.append(np.asarray(self.programs["evaluate"](policy, keys)))
        self._evaluated.append((number, np.concatenate(parts, axis=1)[:, :episodes]))

    def evaluated(self, wait: bool = False) -> list[tuple[int, NDArray[Any]]]:
        """(number, returns (seeds, episodes)) of evaluations since the last call.

        NaN stands for episodes that did not end in time.
        """
        ended, self._evaluated = self._evaluated, []
        return ended

    def extra(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state: nothing."""
        return {}

    def restore(self, state: DeviceState) -> None:
        """Go on from a checkpoint."""
        self.state = state

    def newest_policy(self) -> Any:
        """The policy of the first seed that was published last."""
        assert self.state is not None
        return jax.tree.map(lambda x: x[0], self.state.policies[-1])

    def working(self) -> int:
        """Bytes that the compiled round needs besides the state; compiles it."""
        return working_bytes(self.program(True))

    def close(self) -> None:
        """Nothing to close."""

    def _lowered(self, learning: bool) -> Any:
        program = compiled_over_seeds(
            functools.partial(self._round, learning=learning),
            in_axes=(0, 0, 0, None),
            # With several policies each comes back in the place of another: see ``programs``.
            donate=(0, 1, 2) if self.config.staleness == 1 else (0, 2),
        )
        return program.lower(*self.shapes(), jax.ShapeDtypeStruct((), jnp.int32))

    def _seeds(self) -> Array:
        first = self.config.first_seed
        return jnp.arange(first, first + self.config.seeds)

    def _init_one(self, seed: Array) -> DeviceState:
        config, agent = self.config, self.agent
        learner_key, actor_key = jax.random.split(jax.random.key(seed))
        ring = init_ring(
            agent.observation,
            extras_of(agent),
            config.num_envs,
            config.replay_capacity,
            config.round_steps,
        )
        learner, policies = init_learner(self.learner, config, ring, learner_key)
        actor = init_actor_state(agent, self.environment, actor_key, config.num_envs)
        return DeviceState(learner._replace(replay=ring), policies, actor)

    def _diagnose_one(
        self, state: Any, policy: Any, ring: Ring, key: RandomKey
    ) -> dict[str, Array]:
        items, rows = self.learner.held_out(ring, key)
        return self.agent.diagnose(state, policy, items, rows, key)

    def _evaluate_one(self, policy: Any, key: RandomKey) -> Array:
        config = self.config
        return device_returns(
            self.agent, self.environment, policy, key, config.eval_episodes, config.eval_max_steps
        )

    def _round(
        self,
        learner: LearnerState,
        policies: tuple[Any, ...],
        actor: DeviceActorState,
        number: Int[Array, ""],
        *,
        learning: bool,
    ) -> DeviceState:
        config, key = self.config, collection_key(learner.key, number)
        actor, rollout, done = collect(
            self.agent, self.environment, policies[0], actor, key, config.round_steps
        )
        learner, policy = learn_round(
            self.learner,
            learner,
            policies[-1],
            rollout,
            done,
            number,
            log_rounds=config.log_rounds,
            learning=learning,
        )
        return DeviceState(learner, (*policies[1:], policy), actor)


def init_learner(
    learner: Learner, config: TrainConfig, ring: Ring, key: RandomKey
) -> tuple[LearnerState, tuple[Any, ...]]:
    """A learner's state without its empty replay, and the policies that act in the first rounds."""
    agent_key, run_key = jax.random.split(key)
    state = learner.agent.init(agent_key)
    tally = tallies.init_tally(config.num_envs, learner.terms())
    policies = tuple(learner.agent.init_policy(state) for _ in range(config.staleness))
    return LearnerState(state, learner.init_priorities(ring), None, tally, run_key), policies


def learn_round(
    learner: Learner,
    state: LearnerState,
    policy: Any,
    rollout: Rollout,
    done: Array,
    number: Int[Array, ""],
    *,
    log_rounds: int,
    learning: bool,
) -> tuple[LearnerState, Any]:
    """Store a round and count its episodes; after the warm-up, learn and publish a policy."""
    tally = tallies.reset_recent(state.tally, number % log_rounds == 0)
    tally = tallies.count_episodes(tally, rollout.reward, done)
    ring, priorities = learner.store(state.replay, state.priorities, rollout)
    learned = Learning(state.agent, priorities)
    if learning:
        progress = Progress((number + 1) * done.size, number)
        key = learning_key(state.key, number)
        learned, policy, terms = learner.learn(learned, ring, progress, key)
        means = {name: jnp.mean(values) for name, values in terms.items()}
        tally = tallies.count_terms(tally, means, number)
    return LearnerState(*learned, ring, tally, state.key), policy
