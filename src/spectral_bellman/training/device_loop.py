"""The loop for environments written in JAX: a round is one compiled call, vmapped over seeds, its state donated."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import Agent, AgentState, Policy
from spectral_bellman.agents.diagnostics import diagnose, material
from spectral_bellman.environments.base import Environment
from spectral_bellman.replay import Replay, init_replay
from spectral_bellman.training import rounds
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.rounds import Learner, Scene, Tally
from spectral_bellman.training.seeds import fold_keys, over_seeds

State = tuple[Learner, Policy, Scene]


class DeviceLoop:
    """Trains ``config.seeds`` agents at once; ``state`` is all there is to save."""

    def __init__(self, config: TrainConfig, environment: Environment) -> None:
        self.config, self.environment = config, environment
        self.agent = Agent(config.agent, environment.observation, environment.num_actions)
        self.state: State | None = None
        self._evaluated: list[tuple[int, NDArray[Any]]] = []
        self.programs: dict[str, Any] = {
            "init": over_seeds(self._init_one),
            "diagnose": over_seeds(self._diagnose_one),
            "evaluate": over_seeds(self._evaluate_one),
        }

    def shapes(self) -> State:
        """The state as shapes, nothing allocated."""
        return jax.eval_shape(jax.vmap(self._init_one), self._seeds())

    def prepare(self) -> None:
        """Compile all programs at once, on as many cores as there are."""
        learner, policy, _ = self.shapes()
        lowered = {
            "init": self.programs["init"].lower(self._seeds()),
            "learn": self._lowered(learning=True),
            "diagnose": self.programs["diagnose"].lower(learner.agent, policy, learner.replay, learner.key),
            "evaluate": self.programs["evaluate"].lower(policy, learner.key),
        }
        if not self.config.learns(0):
            lowered["warm up"] = self._lowered(learning=False)
        with ThreadPoolExecutor(len(lowered)) as pool:
            self.programs.update(zip(lowered, pool.map(lambda program: program.compile(), lowered.values()), strict=True))

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
            self.programs[name] = self._lowered(learning).compile()
        return self.programs[name]

    def tally(self) -> Tally:
        """The tally of every seed, on the host."""
        assert self.state is not None
        return jax.device_get(self.state[0].tally)

    def diagnostics(self, number: int) -> dict[str, NDArray[Any]]:
        """Diagnostics of every seed."""
        assert self.state is not None
        learner, policy, _ = self.state
        return jax.device_get(self.programs["diagnose"](learner.agent, policy, learner.replay, fold_keys(learner.key, number, 2)))

    def start_evaluation(self, number: int) -> None:
        """Greedy episodes with the policy published last."""
        assert self.state is not None
        learner, policy, _ = self.state
        self._evaluated.append((number, np.asarray(self.programs["evaluate"](policy, fold_keys(learner.key, number, 3)))))

    def evaluated(self, wait: bool = False) -> list[tuple[int, NDArray[Any]]]:
        """(number, returns (seeds, episodes)) of evaluations since the last call; NaN for episodes that did not end in time."""
        ended, self._evaluated = self._evaluated, []
        return ended

    def extra(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state: nothing."""
        return {}

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        self.state = state

    def working(self) -> int:
        """Bytes that the compiled round needs besides the state; compiles it."""
        return rounds.working_bytes(self.program(True))

    def close(self) -> None:
        """Nothing to close."""

    def _lowered(self, learning: bool) -> Any:
        program = over_seeds(functools.partial(self._round, learning=learning), in_axes=(0, 0, 0, None), donate=(0, 1, 2))
        return program.lower(*self.shapes(), jax.ShapeDtypeStruct((), jnp.int32))

    def _seeds(self) -> jax.Array:
        return jnp.arange(self.config.first_seed, self.config.first_seed + self.config.seeds)

    def _init_one(self, seed: jax.Array) -> State:
        learner_key, scene_key = jax.random.split(jax.random.key(seed))
        config = self.config
        learner, policy = rounds.init_learner(self.agent, learner_key, config.num_envs)
        replay = init_replay(self.environment.observation, config.num_envs, config.replay_capacity, config.round_steps)
        return learner._replace(replay=replay), policy, rounds.init_scene(self.agent, self.environment, scene_key, config.num_envs)

    def _diagnose_one(self, state: AgentState, policy: Policy, replay: Replay, key: RandomKey) -> dict[str, jax.Array]:
        return diagnose(self.agent, state, policy, material(self.agent, replay, key), key)

    def _round(self, learner: Learner, policy: Policy, scene: Scene, number: jax.Array, *, learning: bool) -> State:
        key = rounds.collection_key(learner.key, number)
        scene, collected = rounds.collect(self.agent, self.environment, policy, scene, key, self.config.round_steps)
        learner, policy = rounds.learn(
            self.agent, learner, policy, collected, number, log_rounds=self.config.log_rounds, learning=learning
        )
        return learner, policy, scene

    def _evaluate_one(self, policy: Policy, key: RandomKey) -> jax.Array:
        config, environment = self.config, self.environment
        count = config.eval_episodes
        reset_key, run_key = jax.random.split(key)
        states, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, count))

        def unfinished(carry: Any) -> jax.Array:
            time, _, _, _, running = carry
            return jnp.any(running) & (time < config.eval_max_steps)

        def step(carry: Any) -> Any:
            time, states, observation, returns, running = carry
            act_key, step_key = jax.random.split(jax.random.fold_in(run_key, time))
            action, _ = self.agent.act_greedily(policy, observation, config.eval_epsilon, act_key)
            states, result = jax.vmap(environment.step)(states, action, jax.random.split(step_key, count))
            returns = returns + jnp.where(running, result.reward, 0)
            return time + 1, states, result.observation, returns, running & ~(result.terminated | result.truncated)

        start = (jnp.int32(0), states, observation, jnp.zeros(count), jnp.ones(count, bool))
        _, _, _, returns, running = jax.lax.while_loop(unfinished, step, start)
        return jnp.where(running, jnp.nan, returns)
