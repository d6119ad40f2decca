"""What the runner for host environments compiles: programs by name, with the shapes they take."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Progress
from spectral_bellman.environments.api import VectorEnvironment
from spectral_bellman.replay import Ring, init_ring, interrupt
from spectral_bellman.training import tally as tallies
from spectral_bellman.training.actors import (
    Buffer,
    HostActor,
    HostActorState,
    HostState,
    Part,
    act_and_write,
    rollout_of,
    timestep_of,
)
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.device_runner import init_learner
from spectral_bellman.training.learner import Learner, Learning, Pieces, extras_of, keys_of
from spectral_bellman.training.programs import lowered, working_bytes
from spectral_bellman.training.rollout import actor_keys, learning_key
from spectral_bellman.training.tally import Tally

Definition = tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...]]
"""Function, arguments that are donated, shapes of the arguments."""


class HostPrograms:
    """The programs of a runner, compiled when they are first called, or all at once."""

    def __init__(
        self,
        config: TrainConfig,
        agent: Agent[Any, Any, Any],
        shown: jax.ShapeDtypeStruct,
        stack: int,
    ) -> None:
        """``shown``: what an environment returns; ``stack``: frames in an observation, or 0."""
        self.config, self.agent, self._shown, self._stack = config, agent, shown, stack
        self._size = config.num_envs // config.on_host.parts
        self._learner = Learner(agent, config.on_host.dispatch_steps, config.first_learning_round)
        self._extras = extras_of(agent)
        self.pieces = {
            f"{side} {i}": Pieces(stage, config.on_host.dispatch_steps)
            for side, stages in self._learner.stages.items()
            for i, stage in enumerate(stages)
        }
        self.programs: dict[str, Future[Any]] = {}
        self.host = jax.devices("cpu")[0] if config.on_host.replay_memory == "host" else None

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        environments: VectorEnvironment,
        build: Callable[[jax.ShapeDtypeStruct, int], Agent[Any, Any, Any]],
    ) -> "HostPrograms":
        """The programs of the agent that ``build`` makes for such environments."""
        shown, stack = environments.observation, environments.stack
        observation = jax.ShapeDtypeStruct((stack, *shown.shape), shown.dtype) if stack else shown
        return cls(config, build(observation, environments.num_actions), shown, stack)

    def actor(self, group: int, environments: VectorEnvironment, blank: Array) -> HostActor:
        """An actor with a group of environments; ``blank`` is what ``blank`` returns."""
        return HostActor(
            group,
            environments,
            self.config.round_steps,
            blank,
            lambda *given: self("act", *given),
            lambda: self("buffer"),
        )

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Run a program."""
        future = self.programs.get(name)
        return (future.result() if future else self._compiled(name))(*arguments)

    def from_replay(self, name: str, given: Any, replay: Ring, key: Any, *number: np.int32) -> Any:
        """Run a program that draws from the replay, or first draw where the replay lies."""
        if self.host is None:
            return self(name, given, replay, key, *number)
        draw = f"draw {name.removeprefix('finish ')}"
        drawn = jax.device_put(self(draw, replay, self.there(key), *number), jax.local_devices()[0])
        return self(f"{name} from drawn", given, drawn, key, *number)

    def there(self, tree: Any) -> Any:
        """The tree where the replay is."""
        return jax.device_put(tree, self.host) if self.host else tree

    def keyed(self, side: str, key: Array) -> Iterator[tuple[str, Array]]:
        """The stages on one side of publishing, with their keys."""
        names = [name for name in self.pieces if name.startswith(side)]
        yield from zip(names, keys_of(key, len(names)), strict=False)

    def publishes_with_rows(self, number: int) -> bool:
        """Whether publishing in a round reads rows of the replay."""
        return bool(self._learner.due(number))

    def prepare(self, meanwhile: Callable[[], None]) -> None:
        """Compile what a round needs, all at once, while ``meanwhile`` runs here."""
        definitions = self._definitions()
        names = [name for name in self._names() if name not in self.programs]
        ready = {name: lowered(*definitions[name]) for name in names}
        self.programs.update({name: Future() for name in names})
        # Opening emulators holds Python up, but not the compiler.
        with ThreadPoolExecutor(len(names) + 1) as pool:
            done = [
                pool.submit(_settle, self.programs[name], program.compile)
                for name, program in ready.items()
            ]
            meanwhile()
            for future in done:
                future.result()

    def working(self) -> int:
        """Bytes that the programs need besides the state; compiles them."""
        names = self._names()
        with ThreadPoolExecutor(len(names)) as pool:
            most = max(working_bytes(program) for program in pool.map(self._compiled, names))
        # Two rounds of buffers: the one that is collected while the last is stored.
        frame = int(np.prod(self._shown.shape)) * np.dtype(self._shown.dtype).itemsize
        return most + 2 * self.config.round_agent_steps * frame

    def state_shapes(self) -> HostState:
        """The state as shapes."""
        return jax.eval_shape(self.init, jnp.int32(0))

    def replay_shapes(self) -> Ring:
        """The replay as shapes, placed where it lies."""
        return self._placed(jax.eval_shape(self._ring))

    def _ring(self) -> Ring:
        config = self.config
        return init_ring(
            self._shown,
            self._extras,
            config.num_envs,
            config.replay_capacity,
            config.round_steps,
            self._stack,
        )

    def empty_replay(self) -> Ring:
        """The replay before the first step."""
        return jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype, device=self.host), self.replay_shapes()
        )

    def blank(self) -> Array:
        """Frames for rounds in which no episode is cut."""
        shape = (self.config.round_steps, self._size, *self._shown.shape)
        return jnp.zeros(shape, self._shown.dtype)

    def init(self, seed: Array) -> HostState:
        """A state before the first round, whose frames are still blank."""
        learner_key, actor_key = jax.random.split(jax.random.key(seed))
        learner, policies = init_learner(
            self._learner, self.config, jax.eval_shape(self._ring), learner_key
        )
        # All at once: what belongs to an environment may depend on its place among all.
        actor = self.agent.init_actor(self.config.num_envs, actor_keys(actor_key, 0)[0])
        groups = range(self.config.on_host.parts)
        cuts = [slice(group * self._size, (group + 1) * self._size) for group in groups]
        actors = tuple(
            HostActorState(
                jax.tree.map(lambda leaf, cut=cut: leaf[cut], actor),
                self._no_frames(self._size),
                jnp.zeros((self._size, *self._shown.shape), self._shown.dtype),
                jnp.ones(self._size, bool),
                jnp.zeros(self._size),
                jnp.zeros(self._size, jnp.int32),
            )
            for cut in cuts
        )
        return HostState(learner, policies, jax.tree.map(jnp.copy, policies[-1]), actors)

    def _no_frames(self, count: int) -> Array:
        observation = self.agent.observation
        shape = (count, *observation.shape) if self._stack else (count, 0)
        return jnp.zeros(shape, observation.dtype)

    def _compiled(self, name: str) -> Any:
        mine: Future[Any] = Future()
        # At once, also where the runners of other seeds share the programs.
        future = self.programs.setdefault(name, mine)
        if future is mine:
            _settle(mine, lambda: lowered(*self._definitions()[name]).compile())
        return future.result()

    def _names(self) -> list[str]:
        """What a round needs."""
        free = ["count part", "store part"]
        names = ["init", "buffer", "act", "keys", "count terms"]
        names += free if self.config.on_host.asynchronous else ["count", "store"]
        names += ["publish without rows"] if self.agent.publish_every > 1 else []
        for name in ("publish", *self.pieces):
            parts = [name]
            if name in self.pieces:  # of one piece there is nothing but the last
                one = self.pieces[name].count == 1
                parts = [f"finish {name}"] if one else [name, f"finish {name}"]
            drawn = [f"draw {name}", *(f"{part} from drawn" for part in parts)]
            names += parts if self.host is None else drawn
        return names

    def _definitions(self) -> dict[str, Definition]:
        """Name -> definition. What is donated comes back first and in order: see ``programs``."""
        config, agent, learner = self.config, self.agent, self._learner
        count = jax.ShapeDtypeStruct((), jnp.int32)
        key = jax.eval_shape(lambda: jax.random.key(0))
        state, replay = self.state_shapes(), self.replay_shapes()
        actor, policy = state.actors[0], state.policies[-1]
        train_state, tally = state.learner.agent, state.learner.tally
        learning = Learning(train_state, state.learner.priorities)
        buffer = jax.eval_shape(self._buffer)
        blank = jax.eval_shape(self.blank)
        flags = jax.ShapeDtypeStruct(blank.shape[:2], jnp.bool_)
        numbers = jax.ShapeDtypeStruct(flags.shape, jnp.float32)
        part = Part(buffer, actor.frame, blank, numbers, numbers, flags, flags)
        parts = (part,) * config.on_host.parts
        when, flag = jax.ShapeDtypeStruct((3,), jnp.int32), jax.ShapeDtypeStruct((), jnp.bool_)
        one = (actor.frame, actor.first, actor.reward, actor.action)
        found: dict[str, Definition] = {
            "init": (self.init, (), (count,)),
            "buffer": (self._buffer, (), ()),
            "act": (
                lambda *given: act_and_write(agent, *given),
                (1, 2, 3),
                (policy, actor.agent, actor.stack, buffer, *one, key, when),
            ),
            "publish without rows": (
                lambda state, key, number: self._publish(state, None, key, number),
                (),
                (train_state, key, count),
            ),
            "keys": (self._keys_of, (), (key, count)),
            "count": (self._count, (0,), (tally, tuple(p.answers() for p in parts), count)),
            "store": (
                self._store,
                (0, 1),
                (replay, self._placed(learning.priorities), self._placed(parts)),
            ),
            "count terms": (tallies.count_terms, (0,), (tally, tally.terms, count)),
            "count part": (
                self._count_part,
                (0,),
                (tally, part.answers(), count, flag, flag),
            ),
            "store part": (
                self._store_part,
                (0, 1),
                (replay, *self._placed((learning.priorities, part, count, flag))),
            ),
        }

        for episodes in {config.eval_episodes, config.score_episodes}:
            begin = functools.partial(self._begin_greedily, episodes)
            several = jax.tree.map(
                lambda x, n=episodes: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), one
            )
            found[f"begin {episodes} greedily"] = (begin, (), (key,))
            found[f"act greedily in {episodes}"] = (
                self._act_greedily,
                (1, 2),
                (policy, *jax.eval_shape(begin, key), *several, key, count),
            )

        def define(
            name: str, draw: Callable[..., Any], use: Callable[..., Any], given: Any, *rest: Any
        ) -> None:
            drawn = jax.eval_shape(draw, replay, key, *rest)
            found[f"draw {name}"] = (draw, (), (replay, *self._placed((key, *rest))))
            found[f"{name} from drawn"] = (use, (), (given, drawn, key, *rest))

            def whole(given: Any, replay: Ring, key: Any, *rest: Any) -> Any:
                return use(given, draw(replay, key, *rest), key, *rest)

            found[name] = (whole, (), (given, replay, key, *rest))

        define(
            "publish",
            lambda ring, key, _: learner.select(ring, key),
            self._publish,
            train_state,
            count,
        )
        define(
            "diagnose",
            learner.held_out,
            lambda given, drawn, key: agent.diagnose(*given, *drawn, key),  # type: ignore[call-arg]
            (train_state, policy),
        )
        for name, piece in self.pieces.items():
            if self.host is not None:
                drawn = jax.eval_shape(piece.draw, replay, key, count)
                found[f"draw {name}"] = (piece.draw, (), (replay, *self._placed((key, count))))
            for full, run, run_from in (
                (name, piece.run, piece.run_from),
                (f"finish {name}", piece.finish, piece.finish_from),
            ):
                found[full] = (run_from, (0,), (learning, replay, key, count))
                if self.host is not None:
                    found[f"{full} from drawn"] = (run, (0,), (learning, drawn, key, count))
        return found

    def _placed(self, tree: Any) -> Any:
        """Shapes of what lies with the replay."""
        if self.host is None:
            return tree
        placed = jax.sharding.SingleDeviceSharding(self.host)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), tree)

    def _buffer(self) -> Buffer:
        shape = (self.config.round_steps, self._size)

        def zeros(leaf: jax.ShapeDtypeStruct) -> Array:
            return jnp.zeros((*shape, *leaf.shape), leaf.dtype)

        return Buffer(
            zeros(self._shown),
            jnp.zeros(shape, bool),
            jnp.zeros(shape, jnp.int32),
            jax.tree.map(zeros, self._extras),
        )

    def _begin_greedily(self, count: int, key: RandomKey) -> tuple[Any, Array]:
        return self.agent.init_actor(count, key), self._no_frames(count)

    def _act_greedily(
        self,
        policy: Any,
        actor: Any,
        stack: Array,
        frame: Array,
        first: Array,
        reward: Array,
        previous_action: Array,
        key: RandomKey,
        time: Array,
    ) -> tuple[Any, Array, Array]:
        timestep, stack = timestep_of(stack, frame, first, reward, previous_action)
        key = jax.random.fold_in(key, time)
        action, _, actor = self.agent.act(policy, actor, timestep, key, greedy=True)
        return actor, stack, action

    def _keys_of(self, key: RandomKey, number: Array) -> tuple[RandomKey, ...]:
        keys = jax.random.split(learning_key(key, number), 3)
        return tuple(keys[i] for i in range(3))

    def _count(self, tally: Tally, parts: tuple[Part, ...], number: Array) -> Tally:
        tally = tallies.reset_recent(tally, number % self.config.log_rounds == 0)
        reward, done = (
            jnp.concatenate([getattr(part, name) for part in parts], axis=1)
            for name in ("reward", "done")
        )
        return tallies.count_episodes(tally, reward, done)

    def _store(self, replay: Ring, priorities: Any, parts: tuple[Part, ...]) -> tuple[Ring, Any]:
        for group, part in enumerate(parts):
            replay, priorities = self._learner.store(
                replay, priorities, rollout_of(part), group * self._size
            )
        return replay, priorities

    def _count_part(
        self, tally: Tally, part: Part, group: Array, first: Array, anew: Array
    ) -> Tally:
        tally, start = tallies.reset_recent(tally, first), group * self._size
        return tallies.count_part(tally, part.reward, part.done, start, anew)

    def _store_part(
        self, replay: Ring, priorities: Any, part: Part, group: Array, anew: Array
    ) -> tuple[Ring, Any]:
        left = (jnp.arange(self.config.num_envs) // self._size == group) & anew
        replay = interrupt(replay, left)
        return self._learner.store(replay, priorities, rollout_of(part), group * self._size)

    def _publish(self, state: Any, rows: Any, key: RandomKey, number: Array) -> tuple[Any, Any]:
        progress = Progress((number + 1) * self.config.round_agent_steps, number)
        return self.agent.publish(state, rows, progress, key)


def _settle(future: Future[Any], make: Callable[[], Any]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:
        future.set_exception(error)
