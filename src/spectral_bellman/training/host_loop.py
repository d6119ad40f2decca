"""The loop for environments on the host: they step while the agent learns. One seed.

The environments form groups, each with a thread of its own: while one chooses its actions, the others step. What a group sees stays
on the device: single frames go there once, are stacked there for acting, kept on a page until the round ends, and then stored.

Round t is collected with the policy that round t − 2 published, for round t − 1 may still be learning; which policy acts, and what
an update may sample, depend on these numbers and never on timing. Learning is sent to the device in short pieces, of which few are
ever waiting there: a device does what it is told in order, and choosing an action must not wait for a round of updates.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import Actor, Agent, AgentState, Policy, Timestep
from spectral_bellman.agents.diagnostics import diagnose, material
from spectral_bellman.environments.gym import HostEnvironments
from spectral_bellman.replay import Replay, Transition, add, init_replay, push_frame
from spectral_bellman.training import rounds
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.pieces import Pieces
from spectral_bellman.training.rounds import Learner, Tally

IN_FLIGHT = 2
"""Pieces of learning that may wait on the device."""

Opener = Callable[[int, Sequence[int], int], HostEnvironments]
"""(seed, which of its environments, stream) -> these environments."""


class Scene(NamedTuple):
    """Where a group of n environments stands."""

    actor: Actor
    stack: Any
    """(n, stack, …): the observations without the newest frame; empty where frames are observations."""
    frame: Any
    """(n, …): the newest."""
    first: Any
    """(n,): whether it begins an episode."""


class Page(NamedTuple):
    """A round of a group as the device has seen it, (T, n, …)."""

    frame: Array
    first: Array
    action: Array
    behaviour_prob: Array


class Part(NamedTuple):
    """A round of a group."""

    page: Any
    """``Page``."""
    following: Any
    """(n, …): the frames after the last step."""
    last: Any
    """(T, n, …): the last frames of episodes that were cut."""
    reward: Any
    discount: Any
    truncated: Any
    done: Any


class State(NamedTuple):
    """All there is to save, besides the environments and the replay, which is None here."""

    learner: Learner
    acting: Policy
    """The policy that acts in the next round."""
    published: Policy
    """The policy published last."""
    evaluating: Policy
    """The policy that an evaluation under way began with."""
    scenes: tuple[Scene, ...]


class Evaluation(NamedTuple):
    """Greedy episodes: their returns, (episodes,), and their actions; NaN and all actions so far for those that did not end."""

    number: int
    returns: NDArray[Any]
    actions: list[NDArray[np.int32]]


class HostLoop:
    """Trains an agent on ``config.num_envs`` environments."""

    def __init__(self, config: TrainConfig, name: str, opener: Opener) -> None:
        self.config, self._name, self._open = config, name, opener
        self._size = config.num_envs // config.groups
        self.environments: list[HostEnvironments] = []
        one = opener(config.first_seed, [0], 1)
        shown, self._stack = one.observation, one.stack
        self._shown = shown
        observation = jax.ShapeDtypeStruct((self._stack, *shown.shape) if self._stack else shown.shape, shown.dtype)
        self.agent = Agent(config.agent, observation, one.num_actions)
        one.close()
        self.pieces = {
            name: Pieces(stage, config.dispatch_steps)
            for name, stage in zip(("before", "after"), self.agent.stages(config.dispatch_steps), strict=True)
            if stage.times
        }
        self.programs: dict[str, Future[Any]] = {}
        self._host = jax.devices("cpu")[0] if config.replay_memory == "host" else None
        self.manifest: Any = None
        """What the replay was saved as last."""
        self._workers = [ThreadPoolExecutor(1, thread_name_prefix=f"environments-{i}") for i in range(config.groups)]
        self._collecting: dict[int, list[Future[Part]]] = {}
        self._policies: dict[int, Future[Policy]] = {}
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._evaluations: dict[int, Future[Evaluation]] = {}
        """By number, those whose results nobody has asked for yet."""
        self._learns_from = 0
        self.waited = 0.0
        """Seconds that learning has waited for the environments."""
        self._judged: HostEnvironments | None = None

    @property
    def background(self) -> bool:
        """Whether evaluations go on beside training: Python's environments would only take turns with it."""
        return self._stack > 0

    @property
    def state(self) -> State:
        """All there is to save besides the replay and the environments; no round may be under way."""
        assert not self._collecting, "a round is being collected: run the last one with ahead=False"
        return State(
            self._learner._replace(replay=None),
            self._policies[self._number - 2].result(),
            self._policies[self._number - 1].result(),
            self._evaluating,
            tuple(self._scenes),
        )

    @property
    def replay(self) -> Replay:
        """The replay, which is saved by itself."""
        return self._learner.replay

    @property
    def replay_device(self) -> jax.Device | None:
        """Where the replay lies, if not on the device that learns."""
        return self._host

    def shapes(self) -> State:
        """The state as shapes, nothing allocated."""
        return jax.eval_shape(self._init, jnp.int32(0))

    def replay_shapes(self) -> Replay:
        """The replay as shapes."""
        config = self.config
        return self._placed(
            jax.eval_shape(
                lambda: init_replay(self._shown, config.num_envs, config.replay_capacity, config.round_steps, self._stack)
            )
        )

    def init(self) -> None:
        """A state before the first round."""
        self._open_all()
        frames = [future.result() for future in [w.submit(e.reset) for w, e in zip(self._workers, self.environments, strict=True)]]
        state = jax.jit(self._init)(jnp.int32(self.config.first_seed))
        scenes = [scene._replace(frame=frame) for scene, frame in zip(state.scenes, frames, strict=True)]
        self._start(state._replace(scenes=tuple(scenes)), self._empty(), 0)

    def restore(self, state: State, extra: dict[str, Any], replay: Replay | None, progress: Callable[[float], None]) -> str | None:
        """Go on from a checkpoint; says so if an environment did not come back the same.

        Without its replay, which is filled anew before learning goes on.
        """
        self._open_all()
        number, differ = extra["round"], 0
        self._start(state, self._empty() if replay is None else replay, number)
        if replay is None:
            self._learns_from = number + -(-self.config.agent.warmup_steps // self.config.round_agent_steps)
            # Another run anyway: episodes begin anew, with seeds that no earlier one had.
            back = [
                worker.submit(part.reset, 2**20 + number) for worker, part in zip(self._workers, self.environments, strict=True)
            ]
        else:
            back = [
                worker.submit(part.restore, saved, lambda done: progress(done / len(self.environments)))
                for worker, part, saved in zip(self._workers, self.environments, extra["environments"], strict=True)
            ]
        for i, (scene, future) in enumerate(zip(state.scenes, back, strict=True)):
            frame, first = future.result(), np.asarray(scene.first) | (replay is None)
            differ += int(np.sum(np.any((frame != np.asarray(scene.frame)).reshape(self._size, -1), axis=1)))
            self._scenes[i] = scene._replace(frame=frame, first=first)
        if extra["evaluation"] is not None:
            self._evaluate_later(extra["evaluation"], state.evaluating)
        if not differ or replay is None:
            return None
        return (
            f"{differ} of {self.config.num_envs} environments did not come back the same from their seeds and actions: "
            f"{self._name} is not deterministic, and the run goes on inexactly"
        )

    def adopt(self, state: State, number: int) -> None:
        """Take the policies of a checkpoint, for those who only want to see them play."""
        self._start(state, None, number)

    def extra(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state: the running episodes, and the evaluation under way."""
        return {
            "round": self._number,
            "environments": [part.save() for part in self.environments] if self.config.checkpoint_replay == "on" else [],
            "evaluation": next(iter(self._evaluations), None),
        }

    def run_round(self, number: int, *, ahead: bool = False) -> None:
        """Learn from round ``number``; ``ahead`` lets the environments go on into the next meanwhile."""
        self._collect_later(number)
        if ahead:
            self._collect_later(number + 1)
        began = time.perf_counter()
        parts = tuple(future.result() for future in self._collecting.pop(number))
        self.waited += time.perf_counter() - began
        self._learn(number, parts)
        self._number = number + 1

    def tally(self) -> Tally:
        """The tally, on the host, with a leading axis for the seed."""
        return jax.tree.map(lambda x: np.asarray(x)[None], jax.device_get(self._learner.tally))

    def diagnostics(self, number: int) -> dict[str, NDArray[Any]]:
        """Diagnostics, with a leading axis for the seed."""
        key = jax.random.fold_in(jax.random.fold_in(self._key, number), 2)
        agent, policy = self._learner.agent, self._policies[self._number - 1].result()
        found = self._from_replay("diagnose", (agent, policy), self.replay, key)
        return {name: np.asarray(value)[None] for name, value in jax.device_get(found).items()}

    def start_evaluation(self, number: int) -> None:
        """Begin greedy episodes with the policy published last; waits for the evaluation before it."""
        for future in self._evaluations.values():
            future.result()
        self._evaluate_later(number, jax.tree.map(jnp.copy, self._policies[self._number - 1].result()))
        if not self.background:
            self._evaluations[number].result()

    def evaluated(self, wait: bool = False) -> list[tuple[int, NDArray[Any]]]:
        """(number, returns (1, episodes)) of evaluations that have ended since the last call."""
        ended = [number for number, future in self._evaluations.items() if wait or future.done()]
        return [(number, self._evaluations.pop(number).result().returns[None]) for number in ended]

    def evaluate(self, number: int, policy: Policy | None = None) -> Evaluation:
        """Greedy episodes in environments of their own, in this thread."""
        config = self.config
        policy = policy or self._policies[self._number - 1].result()
        if self._judged is None:
            self._judged = self._open(config.first_seed, range(config.eval_episodes), 1)
        environments, count = self._judged, config.eval_episodes
        returns, running = np.zeros(count), np.ones(count, bool)
        frame, first = environments.reset(number), np.ones(count, bool)
        stack = jnp.zeros((count, *self.agent.observation.shape), self._shown.dtype)
        key = jax.random.fold_in(jax.random.fold_in(self._key, number), 3)
        taken: list[NDArray[np.int32]] = []
        lengths = np.zeros(count, int)
        for time_ in range(config.eval_max_steps):
            stack, action = self._program("act greedily", policy, stack, frame, first, key, np.int32(time_))
            taken.append(np.asarray(action))
            step = environments.step(taken[-1], running)
            returns += np.where(running, step.reward, 0)
            lengths += running
            running &= ~step.first
            frame, first = step.following, step.first
            if not running.any():
                break
        actions = np.stack(taken)
        played = [actions[:length, i] for i, length in enumerate(lengths)]
        return Evaluation(number, np.where(running, np.nan, returns), played)

    def working(self) -> int:
        """Bytes that the compiled programs need besides the state; compiles them."""
        names = self._names()
        with ThreadPoolExecutor(len(names)) as pool:
            most = max(rounds.working_bytes(program) for program in pool.map(self._compiled, names))
        # Two rounds of pages: the one that is collected while the last is stored.
        return most + 2 * self.config.round_agent_steps * int(np.prod(self._shown.shape)) * np.dtype(self._shown.dtype).itemsize

    def close(self) -> None:
        """Stop the threads and close the environments."""
        for future in self._policies.values():
            if not future.done():
                future.set_exception(RuntimeError("the run was stopped"))
        for parts in self._collecting.values():
            for part in parts:
                part.cancel()
                with contextlib.suppress(BaseException):
                    part.exception()
        for worker in (*self._workers, self._evaluator):
            worker.shutdown(cancel_futures=True)
        for environments in (*self.environments, *((self._judged,) if self._judged else ())):
            environments.close()

    def _open_all(self) -> None:
        if self.environments:
            return
        indices = np.arange(self.config.num_envs).reshape(self.config.groups, self._size)
        self.environments = [self._open(self.config.first_seed, [int(i) for i in part], 0) for part in indices]

    def _start(self, state: State, replay: Replay | None, number: int) -> None:
        self._number, self._scenes, self._evaluating = number, list(state.scenes), state.evaluating
        self._learner = state.learner._replace(replay=replay)
        self._key = jnp.copy(self._learner.key)
        self._blank = jnp.zeros((self.config.round_steps, self._size, *self._shown.shape), self._shown.dtype)
        for round_number, policy in ((number - 2, state.acting), (number - 1, state.published)):
            self._policies[round_number] = Future()
            self._policies[round_number].set_result(policy)

    def _empty(self) -> Replay:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=self._host), self.replay_shapes())

    def _collect_later(self, number: int) -> None:
        if number not in self._collecting:
            self._policies.setdefault(number, Future())
            self._collecting[number] = [worker.submit(self._collect, i, number) for i, worker in enumerate(self._workers)]

    def _collect(self, group: int, number: int) -> Part:
        """Round ``number`` of a group, in its thread."""
        config, environments, scene = self.config, self.environments[group], self._scenes[group]
        policy = self._policies[number - 2].result()
        actor, stack, frame, first = scene
        page = self._program("page")
        shape = (config.round_steps, self._size)
        reward, discount = np.empty(shape, np.float32), np.empty(shape, np.float32)
        truncated, done = np.empty(shape, bool), np.empty(shape, bool)
        last: Any = self._blank
        for t in range(config.round_steps):
            when = np.array([number, t, group], np.int32)
            actor, stack, page, action = self._program("act", policy, actor, stack, page, frame, first, self._key, when)
            step = environments.step(np.asarray(action))
            reward[t], discount[t] = step.reward, 1 - step.terminated
            truncated[t], done[t] = step.truncated, step.first
            if step.truncated.any():
                last = np.zeros(self._blank.shape, self._blank.dtype) if last is self._blank else last
                last[t] = step.observation
            frame, first = step.following, step.first
        self._scenes[group] = Scene(actor, stack, frame, first)
        return Part(page, frame, last, reward, discount, truncated, done)

    def _learn(self, number: int, parts: tuple[Part, ...]) -> None:
        """Store a round and, unless still warming up, learn; publish the next policy."""
        learner, count = self._learner, np.int32(number)
        tally = self._program("count", learner.tally, _told(parts), count)
        replay = self._program("store", learner.replay, self._there(parts))
        state = learner.agent
        published = self._policies[number - 1].result()
        if self.config.learns(number) and number >= self._learns_from:
            keys = self._program("keys", self._key, count)
            state, terms = self._run("before", state, replay, keys[0])
            state, published = self._from_replay("publish", state, replay, keys[1], count)
            self._policies[number].set_result(published)
            state, more = self._run("after", state, replay, keys[2])
            tally = self._program("count terms", tally, terms | more, count)
        else:
            self._policies[number].set_result(published)
        self._learner = Learner(state, replay, tally, learner.key)
        del self._policies[number - 2]

    def _run(self, name: str, state: AgentState, replay: Replay, key: Any) -> tuple[AgentState, dict[str, Any]]:
        """The pieces of a stage, with few of them waiting on the device; the terms of the last step."""
        if name not in self.pieces:
            return state, {}
        last = self.pieces[name].count - 1
        waiting: collections.deque[Any] = collections.deque()
        for i in range(last):
            state, done = self._from_replay(name, state, replay, key, np.int32(i))
            waiting.append(done)
            if len(waiting) > IN_FLIGHT - 1:
                jax.block_until_ready(waiting.popleft())
        return self._from_replay(f"finish {name}", state, replay, key, np.int32(last))

    def _from_replay(self, name: str, given: Any, replay: Replay, key: Any, *number: np.int32) -> Any:
        """Run a program that draws from the replay: as one, or, where the replay lies elsewhere, drawing there first."""
        if self._host is None:
            return self._program(name, given, replay, key, *number)
        draw = f"draw {name.removeprefix('finish ')}"
        drawn = jax.device_put(self._program(draw, replay, self._there(key), *number), jax.local_devices()[0])
        return self._program(f"{name} from drawn", given, drawn, key, *number)

    def _there(self, tree: Any) -> Any:
        """The tree where the replay is."""
        return jax.device_put(tree, self._host) if self._host else tree

    def _evaluate_later(self, number: int, policy: Policy) -> None:
        self._evaluating = policy
        self._evaluations[number] = self._evaluator.submit(self.evaluate, number, policy)

    # What is compiled. Arguments are named in the order of the calls above.

    def _program(self, name: str, *arguments: Any) -> Any:
        future = self.programs.get(name)
        return (future.result() if future else self._compiled(name))(*arguments)

    def _compiled(self, name: str) -> Any:
        mine: Future[Any] = Future()
        future = self.programs.setdefault(name, mine)  # at once, also where the loops of other seeds share the programs
        if future is mine:
            _settle(mine, lambda: self._lowered(name).compile())
        return future.result()

    def _lowered(self, name: str) -> Any:
        function, donate, shapes = self._definitions()[name]
        return jax.jit(function, donate_argnums=donate, keep_unused=True).lower(*shapes)

    def prepare(self) -> None:
        """Compile what training needs, all at once, and open the environments meanwhile."""
        names = [name for name in self._names() if name not in self.programs]
        lowered = {name: self._lowered(name) for name in names}
        self.programs.update({name: Future() for name in names})
        # Opening emulators holds Python up, but not the compiler.
        with ThreadPoolExecutor(len(names) + 1) as pool:
            done = [pool.submit(_settle, self.programs[name], program.compile) for name, program in lowered.items()]
            self._open_all()
            for future in done:
                future.result()

    def _names(self) -> list[str]:
        """What a round needs."""
        names = ["page", "act", "count", "store", "keys", "count terms"]
        for name in ("publish", *self.pieces):
            parts = [name]
            if name in self.pieces:  # of one piece there is nothing but the last
                parts = [f"finish {name}"] if self.pieces[name].count == 1 else [name, f"finish {name}"]
            names += parts if self._host is None else [f"draw {name}", *(f"{part} from drawn" for part in parts)]
        return names

    def _definitions(self) -> dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...]]]:
        """Name -> (function, arguments given away, shapes of the arguments).

        What is given away comes back first and in the same order, so that each result takes the place of its own argument: where it
        takes another's, XLA moves that out of the way, and on a GPU in a wrong order (jax 0.11).
        """
        config, agent, count = self.config, self.agent, jax.ShapeDtypeStruct((), jnp.int32)
        state, replay = self.shapes(), self.replay_shapes()
        learner, scene = state.learner, state.scenes[0]
        flags = jax.ShapeDtypeStruct((config.round_steps, self._size), jnp.bool_)
        numbers = jax.ShapeDtypeStruct(flags.shape, jnp.float32)
        page = jax.eval_shape(self._page)
        blank = jax.ShapeDtypeStruct((*flags.shape, *self._shown.shape), self._shown.dtype)
        frame = jax.ShapeDtypeStruct(blank.shape[1:], blank.dtype)
        parts = (Part(page, frame, blank, numbers, numbers, flags, flags),) * config.groups
        key = jax.eval_shape(lambda: jax.random.key(0))
        placed = self._placed
        drawn = jax.eval_shape(lambda replay, key: material(agent, replay, key), replay, key)
        selection = jax.eval_shape(agent.select, replay, key)
        seen = jax.ShapeDtypeStruct((config.eval_episodes, *agent.observation.shape), self._shown.dtype)
        judged = jax.ShapeDtypeStruct((config.eval_episodes, *self._shown.shape), self._shown.dtype)
        found: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...]]] = {
            "page": (self._page, (), ()),
            "act": (
                self._act,
                (1, 2, 3),
                (state.acting, *scene[:2], page, *scene[2:], key, jax.ShapeDtypeStruct((3,), jnp.int32)),
            ),
            "act greedily": (
                self._act_greedily,
                (1,),
                (state.acting, seen, judged, jax.ShapeDtypeStruct((config.eval_episodes,), jnp.bool_), key, count),
            ),
            "keys": (self._keys_of, (), (key, count)),
            "count": (self._count, (0,), (learner.tally, _told(parts), count)),
            "store": (self._store, (0,), (replay, placed(parts))),
            "publish": (
                lambda state, replay, key, number: self._publish(state, agent.select(replay, key), key, number),
                (),
                (learner.agent, replay, key, count),
            ),
            "draw publish": (lambda replay, key, _: agent.select(replay, key), (), (replay, placed(key), placed(count))),
            "publish from drawn": (self._publish, (), (learner.agent, selection, key, count)),
            "count terms": (rounds.count_terms, (0,), (learner.tally, learner.tally.terms, count)),
            "diagnose": (
                lambda given, replay, key: diagnose(agent, given[0], given[1], material(agent, replay, key), key),
                (),
                ((learner.agent, state.published), replay, key),
            ),
            "draw diagnose": (lambda replay, key: material(agent, replay, key), (), (replay, placed(key))),
            "diagnose from drawn": (
                lambda given, drawn, key: diagnose(agent, given[0], given[1], drawn, key),
                (),
                ((learner.agent, state.published), drawn, key),
            ),
        }
        for name, piece in self.pieces.items():
            drawn = jax.eval_shape(piece.draw, replay, key, count)
            found[f"draw {name}"] = (piece.draw, (), (replay, placed(key), placed(count)))
            for part, run, run_from in ((name, piece.run, piece.run_from), (f"finish {name}", piece.finish, piece.finish_from)):
                found[part] = (run_from, (0,), (learner.agent, replay, key, count))
                found[f"{part} from drawn"] = (run, (0,), (learner.agent, drawn, key, count))
        return found

    def _placed(self, tree: Any) -> Any:
        """Shapes of what lies with the replay."""
        if self._host is None:
            return tree
        placed = jax.sharding.SingleDeviceSharding(self._host)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), tree)

    def _init(self, seed: Array) -> State:
        learner_key, actor_key = jax.random.split(jax.random.key(seed))
        learner, policy = rounds.init_learner(self.agent, learner_key, self.config.num_envs)
        width = (self._size, *self.agent.observation.shape) if self._stack else (self._size, 0)
        scenes = tuple(
            Scene(
                self.agent.init_actor(self._size, jax.random.fold_in(actor_key, group)),
                jnp.zeros(width, self._shown.dtype),
                jnp.zeros((self._size, *self._shown.shape), self._shown.dtype),
                jnp.ones(self._size, bool),
            )
            for group in range(self.config.groups)
        )
        published, evaluating = (jax.tree.map(jnp.copy, policy) for _ in range(2))
        return State(learner, policy, published, evaluating, scenes)

    def _page(self) -> Page:
        shape = (self.config.round_steps, self._size)
        frames = jnp.zeros((*shape, *self._shown.shape), self._shown.dtype)
        return Page(frames, jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), jnp.zeros(shape))

    def _act(
        self, policy: Policy, actor: Actor, stack: Array, page: Page, frame: Array, first: Array, key: RandomKey, when: Array
    ) -> tuple[Actor, Array, Page, Array]:
        key = jax.random.fold_in(jax.random.fold_in(rounds.collection_key(key, when[0]), when[1]), when[2])
        stack = push_frame(stack, frame, first) if self._stack else stack
        seen = stack if self._stack else frame
        action, prob, actor = self.agent.act(policy, actor, Timestep(seen, first), key)
        written = Page(frame, first, action, prob)
        return actor, stack, jax.tree.map(lambda rows, row: rows.at[when[1]].set(row), page, written), action

    def _act_greedily(
        self, policy: Policy, stack: Array, frame: Array, first: Array, key: RandomKey, time: Array
    ) -> tuple[Array, Array]:
        seen = push_frame(stack, frame, first) if self._stack else frame
        key = jax.random.fold_in(key, time)
        return seen if self._stack else stack, self.agent.act_greedily(policy, seen, self.config.eval_epsilon, key)[0]

    def _keys_of(self, key: RandomKey, number: Array) -> tuple[RandomKey, ...]:
        keys = jax.random.split(rounds.learning_key(key, number), 3)
        return tuple(keys[i] for i in range(3))

    def _count(self, tally: Tally, told: tuple[Part, ...], number: Array) -> Tally:
        tally = rounds.reset_tally(tally, number % self.config.log_rounds == 0)
        return rounds.count_episodes(tally, _side_by_side(told, "reward"), _side_by_side(told, "done"))

    def _store(self, replay: Replay, parts: tuple[Part, ...]) -> Replay:
        for group, (page, following, last, reward, discount, truncated, _) in enumerate(parts):
            after = jnp.concatenate([page.frame[1:], following[None]])
            after = jnp.where(truncated.reshape(*truncated.shape, *(1,) * (after.ndim - 2)), last, after)
            steps = Transition(page.frame, page.action, reward, discount, page.behaviour_prob, after)
            replay = add(replay, steps, truncated, page.first, group * self._size)
        return replay

    def _publish(self, state: AgentState, selection: Any, key: RandomKey, number: Array) -> tuple[AgentState, Policy]:
        agent_steps = (number + 1) * self.config.round_agent_steps
        return self.agent.publish(state, selection, agent_steps, number, key)


def _settle(future: Future[Any], make: Callable[[], Any]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:
        future.set_exception(error)


def _told(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts without frames: what the environments answered."""
    return tuple(part._replace(page=None, following=None, last=None) for part in parts)


def _side_by_side(parts: tuple[Part, ...], name: str) -> Array:
    return jnp.concatenate([getattr(part, name) for part in parts], axis=1)
