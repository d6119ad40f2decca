"""Training on environments on the host: they step while the agent learns. One seed.

Round t acts on the policy that round t − staleness published; with 2, environments step while
round t − 1 is still learned from. Which policy acts and what an update may sample depend on these
numbers, never on timing. Learning is sent to the device in short pieces, few of which wait there: a
device works in order, and choosing an action must not wait for a whole round of updates.
"""

import collections
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from spectral_bellman.agents.api import Agent
from spectral_bellman.environments.api import EVALUATION, TRAINING, VectorEnvironment
from spectral_bellman.replay import Ring, interrupt
from spectral_bellman.training import tally as tallies
from spectral_bellman.training.actors import HostActor, HostState, Lockstep, Part
from spectral_bellman.training.asynchronous import Arrived, FreeActor, FreeActors
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.device_runner import LearnerState
from spectral_bellman.training.evaluate import Played, play_on_host
from spectral_bellman.training.host_programs import HostPrograms
from spectral_bellman.training.learner import Learning, in_order
from spectral_bellman.training.policies import Policies
from spectral_bellman.training.tally import Tally

IN_FLIGHT = 2
"""Pieces of learning that may wait on the device."""
FRESH_BLOCKS = 2**20
"""Blocks of episodes of environments that a resume could not bring back begin here."""

Opener = Callable[[int, list[int], int], VectorEnvironment]
"""(seed, which of its environments, stream) -> these environments."""


class HostRunner:
    """Trains an agent on ``config.num_envs`` environments of the host."""

    def __init__(
        self,
        config: TrainConfig,
        name: str,
        opener: Opener,
        build: Callable[[jax.ShapeDtypeStruct, int], Agent[Any, Any, Any]],
        *,
        background: bool,
    ) -> None:
        """``background``: whether evaluations go on beside training."""
        self.config, self.background = config, background
        self._name, self._open, self._build = name, opener, build
        one = opener(config.first_seed, [0], EVALUATION)
        self._compiler = HostPrograms.of(config, one, build)
        self.agent = self._compiler.agent
        one.close()
        self.actors: list[HostActor] = []
        self.manifest: Any = None
        """What the replay was saved as last."""
        self._lockstep: Lockstep | None = None
        self._free: FreeActors | None = None
        self._policies = Policies(config.staleness)
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._evaluations: dict[int, Future[NDArray[Any]]] = {}
        """By number, those whose results nobody has asked for yet."""
        self._evaluation_episodes: dict[int, int] = {}
        self._evaluation_environments: dict[int, VectorEnvironment] = {}
        """By their number."""
        self._learns_from = 0
        self._learner: LearnerState
        self.waited = 0.0
        """Seconds that learning has waited for the environments."""

    @property
    def programs(self) -> dict[str, Future[Any]]:
        """The compiled programs, which runners of other seeds share."""
        return self._compiler.programs

    @programs.setter
    def programs(self, programs: dict[str, Future[Any]]) -> None:
        self._compiler.programs = programs

    @property
    def state(self) -> HostState:
        """All there is to save besides replay and environments; no round may be under way."""
        idle = self._lockstep is None or self._lockstep.idle
        assert idle, "a round is being collected: run the last with ahead=False"
        states = tuple(actor.state for actor in self.actors)
        return HostState(
            self._learner._replace(replay=None),
            self._policies.kept(self._number),
            self._evaluating,
            states,  # type: ignore[arg-type]  # set since the start
        )

    @property
    def replay(self) -> Ring:
        """The replay, which is saved by itself."""
        return self._learner.replay

    @property
    def replay_device(self) -> jax.Device | None:
        """Where the replay lies, if not on the device that learns."""
        return self._compiler.host

    def shapes(self) -> HostState:
        """The state as shapes, nothing allocated."""
        return self._compiler.state_shapes()

    def replay_shapes(self) -> Ring:
        """The replay as shapes."""
        return self._compiler.replay_shapes()

    def prepare(self) -> None:
        """Compile what training needs, all at once, and open the environments meanwhile."""
        self._compiler.prepare(self._open_all)

    def init(self) -> None:
        """A state before the first round."""
        self._open_all()
        frames = [actor.submit(actor.environments.reset) for actor in self.actors]
        state = self._compiler("init", jnp.int32(self.config.first_seed))
        actors = tuple(
            actor._replace(frame=frame.result())
            for actor, frame in zip(state.actors, frames, strict=True)
        )
        self._start(state._replace(actors=actors), self._compiler.empty_replay(), 0)
        self._set_free()

    def restore(
        self,
        state: HostState,
        extra: dict[str, Any],
        replay: Ring | None,
        progress: Callable[[float], None],
    ) -> str | None:
        """Go on from a checkpoint; says so if an environment did not come back the same.

        Without its replay, which is filled anew before learning goes on. Asynchronous actors begin
        new episodes.
        """
        self._open_all()
        number, differ = extra["round"], 0
        empty = replay is None
        self._start(state, self._compiler.empty_replay() if empty else replay, number)
        if empty:
            self._learns_from = number + self.config.first_learning_round + 1
        if self._free:
            everybody = jnp.ones(self.config.num_envs, bool)
            self._learner = self._learner._replace(
                replay=interrupt(self._learner.replay, everybody),
                tally=tallies.begin_episodes(self._learner.tally),
            )
            self._set_free()
            self._evaluate_again(extra, state)
            return None
        if empty:
            # Another run anyway: episodes begin anew, with seeds that no earlier one had.
            back = [a.submit(a.environments.reset, FRESH_BLOCKS + number) for a in self.actors]
            tally = tallies.begin_episodes(self._learner.tally)
            self._learner = self._learner._replace(tally=tally)
        else:

            def report(done: float) -> None:
                progress(done / len(self.actors))

            back = [
                actor.submit(actor.environments.restore, saved, report)
                for actor, saved in zip(self.actors, extra["environments"], strict=True)
            ]
        for actor, before, future in zip(self.actors, state.actors, back, strict=True):
            frame, first = future.result(), np.asarray(before.first) | empty
            unequal = (frame != np.asarray(before.frame)).reshape(len(frame), -1)
            differ += int(np.sum(np.any(unequal, axis=1)))
            actor.state = before._replace(frame=frame, first=first)
        self._evaluate_again(extra, state)
        if not differ or empty:
            return None
        return (
            f"{differ} of {self.config.num_envs} environments did not come back the same from "
            f"their seeds and actions: {self._name} is not deterministic, and the run goes on "
            "inexactly"
        )

    def adopt(self, state: HostState, number: int) -> None:
        """Take the policies of a checkpoint, to see them play only."""
        self._start(state, None, number)

    def extra(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state: running episodes, a running evaluation."""
        exact = self.config.on_host.checkpoint_replay == "on" and not self._free
        evaluation = next(iter(self._evaluations), None)
        return {
            "round": self._number,
            "environments": [a.environments.save() for a in self.actors] if exact else [],
            "evaluation": evaluation,
            "episodes": self._evaluation_episodes.get(evaluation or 0, 0),
        }

    def run_round(self, number: int, *, ahead: bool = False) -> None:
        """Learn from round ``number``; ``ahead`` lets the environments go on meanwhile."""
        began = time.perf_counter()
        if self._free:
            arrived = self._free.take(number)
            self.waited += time.perf_counter() - began
            self._learn(number, *self._store_parts(number, arrived))
        else:
            assert self._lockstep
            parts = self._lockstep.take(number, ahead)
            self.waited += time.perf_counter() - began
            self._learn(number, *self._store(number, parts))
        self._number = number + 1

    def figures(self) -> dict[str, float]:
        """What asynchronous actors did since the last call, and how long learning waited."""
        return self._free.figures(self.waited) if self._free else {}

    def tally(self) -> Tally:
        """The tally, on the host, with a leading axis for the seed."""
        return jax.tree.map(lambda x: np.asarray(x)[None], jax.device_get(self._learner.tally))

    def diagnostics(self, number: int) -> dict[str, NDArray[Any]]:
        """Diagnostics, with a leading axis for the seed."""
        key = jax.random.fold_in(jax.random.fold_in(self._key, number), 2)
        given = (self._learner.agent, self.newest_policy())
        found = self._compiler.from_replay("diagnose", given, self.replay, key)
        return {name: np.asarray(value)[None] for name, value in jax.device_get(found).items()}

    def newest_policy(self) -> Any:
        """The policy that was published last."""
        return self._policies.newest(self._number)

    def start_evaluation(self, number: int, episodes: int) -> None:
        """Begin greedy episodes with the newest policy; waits for the evaluation before it."""
        for future in self._evaluations.values():
            future.result()
        self._evaluate_later(number, episodes, jax.tree.map(jnp.copy, self.newest_policy()))
        if not self.background:
            self._evaluations[number].result()

    def evaluated(self, wait: bool = False) -> list[tuple[int, NDArray[Any]]]:
        """(number, returns (1, episodes)) of evaluations that have ended since the last call."""
        ended = [n for n, future in self._evaluations.items() if wait or future.done()]
        return [(number, self._evaluations.pop(number).result()[None]) for number in ended]

    def play(self, number: int, episodes: int, policy: Any = None) -> Played:
        """Greedy episodes, each in an environment of its own, in this thread."""
        config, opened = self.config, self._evaluation_environments
        policy = self.newest_policy() if policy is None else policy
        if episodes not in opened:
            indices = list(range(episodes))
            opened[episodes] = self._open(config.first_seed, indices, EVALUATION)
        key = jax.random.fold_in(jax.random.fold_in(self._key, number), 3)
        actor, stack = self._compiler(f"begin {episodes} greedily", key)

        def act(*given: Any) -> Any:
            name = f"act greedily in {episodes}"
            return self._compiler(name, policy, *given[:-1], key, given[-1])

        return play_on_host(act, opened[episodes], actor, stack, number, config.eval_max_steps)

    def working(self) -> int:
        """Bytes that the compiled programs need besides the state; compiles them."""
        return self._compiler.working()

    def close(self) -> None:
        """Stop the threads and close the environments."""
        self._policies.close()
        if self._free:
            self._free.stop()
        if self._lockstep:
            self._lockstep.stop()
        self._evaluator.shutdown(cancel_futures=True)
        for actor in self.actors:
            actor.close()
        for environments in self._evaluation_environments.values():
            environments.close()

    def _open_all(self) -> None:
        if self.actors:
            return
        config, compiler = self.config, self._compiler
        indices = np.arange(config.num_envs).reshape(config.on_host.parts, -1).tolist()
        if config.on_host.actors:
            from spectral_bellman.training import ray_actors

            shared, limit = ray_actors.Shared(), config.on_host.asynchronous
            kind = FreeActor if limit else ray_actors.RayActor
            given = (config, self._open, self._build, indices, shared, kind)
            self.actors += (started := ray_actors.start(*given))
            self._free = FreeActors(started, shared, limit) if limit else None
            return
        blank = compiler.blank()
        for group, part in enumerate(indices):
            opened = self._open(config.first_seed, part, TRAINING)
            self.actors.append(compiler.actor(group, opened, blank))

    def _start(self, state: HostState, replay: Ring | None, number: int) -> None:
        self._number, self._evaluating = number, state.evaluating
        for actor, before in zip(self.actors, state.actors, strict=False):
            actor.state = before
        self._learner = state.learner._replace(replay=replay)
        self._key = jnp.copy(self._learner.key)
        self._policies.start(number, state.policies)
        self._lockstep = Lockstep(self.actors, self._policies, self._key)

    def _set_free(self) -> None:
        """Let asynchronous actors begin episodes, which no earlier ones had the seeds of."""
        if not self._free:
            return
        block = FRESH_BLOCKS + self._number if self._number else 0
        begun = [a.submit(a.begin, a.state, block) for a in self.actors]  # type: ignore[attr-defined]
        for future in begun:
            future.result()
        self._free.start(self._number - 1, self.newest_policy(), self._key)

    def _evaluate_again(self, extra: dict[str, Any], state: HostState) -> None:
        """The evaluation that was under way, from its beginning."""
        if extra["evaluation"] is not None:
            self._evaluate_later(extra["evaluation"], extra["episodes"], state.evaluating)

    def _store(self, number: int, parts: tuple[Part, ...]) -> tuple[Tally, Ring, Any]:
        """Tally, replay and priorities with a round."""
        compiler, learner = self._compiler, self._learner
        answers = tuple(part.answers() for part in parts)
        tally = compiler("count", learner.tally, answers, np.int32(number))
        given = (learner.replay, learner.priorities, compiler.there(parts))
        return tally, *compiler("store", *given)

    def _store_parts(self, number: int, arrived: list[Arrived]) -> tuple[Tally, Ring, Any]:
        """Tally, replay and priorities with what has arrived for a round."""
        compiler, learner, due = self._compiler, self._learner, number % self.config.log_rounds == 0
        tally, replay, priorities = learner.tally, learner.replay, learner.priorities
        for i, one in enumerate(arrived):
            group, anew = np.int32(one.group), np.bool_(one.begun_anew)
            flags = (group, np.bool_(due and i == 0), anew)
            tally = compiler("count part", tally, one.part.answers(), *flags)
            given = compiler.there((one.part, group, anew))
            replay, priorities = compiler("store part", replay, priorities, *given)
        return tally, replay, priorities

    def _learn(self, number: int, tally: Tally, replay: Ring, priorities: Any) -> None:
        """Learn from the replay, unless still warming up; publish the next policy."""
        compiler, learner, count = self._compiler, self._learner, np.int32(number)
        state = Learning(learner.agent, priorities)
        if self.config.learns(number) and number >= self._learns_from:

            def publish(state: Any, key: Any) -> tuple[Any, Any]:
                if compiler.publishes_with_rows(number):
                    agent, policy = compiler.from_replay("publish", state.agent, replay, key, count)
                else:
                    agent, policy = compiler("publish without rows", state.agent, key, count)
                self._publish(number, policy)
                return state._replace(agent=agent), policy

            def run(side: str, state: Any, key: Any) -> tuple[Any, dict[str, Any]]:
                return self._run(side, state, replay, key)

            keys = compiler("keys", self._key, count)
            state, _, terms = in_order(state, keys, run, publish)
            tally = compiler("count terms", tally, terms, count)
        else:
            self._publish(number, self._policies.newest(number))
        self._learner = LearnerState(*state, replay, tally, learner.key)
        self._policies.forget(number)

    def _publish(self, number: int, policy: Any) -> None:
        self._policies.publish(number, policy)
        if self._free:
            self._free.publish(number, policy)

    def _run(self, side: str, state: Any, replay: Ring, key: Array) -> tuple[Any, dict[str, Any]]:
        """The pieces of the stages on a side, few of them waiting on the device; the last terms."""
        compiler, found = self._compiler, dict[str, Any]()
        for name, stage_key in compiler.keyed(side, key):
            last = compiler.pieces[name].count - 1
            waiting: collections.deque[Any] = collections.deque()
            for i in range(last):
                state, done = compiler.from_replay(name, state, replay, stage_key, np.int32(i))
                waiting.append(done)
                if len(waiting) > IN_FLIGHT - 1:
                    jax.block_until_ready(waiting.popleft())
            state, terms = compiler.from_replay(
                f"finish {name}", state, replay, stage_key, np.int32(last)
            )
            found |= terms
        return state, found

    def _evaluate_later(self, number: int, episodes: int, policy: Any) -> None:
        self._evaluating = policy
        self._evaluation_episodes = {number: episodes}
        self._evaluations[number] = self._evaluator.submit(
            lambda: self.play(number, episodes, policy).returns
        )
