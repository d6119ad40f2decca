"""The learner: Algorithm 2's order, and its phases in chunks of gradient steps.

``in_order`` is the only place that knows what comes first. On a device environment a round of
learning is one traced function (``Learner.learn``); on the host the same stages are sent to the
device in pieces (``Pieces``), so short that choosing an action need not wait for a whole round.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Agent, Phase, Progress, Terms, Timestep
from spectral_bellman.replay import Ring, Rollout, Rows, add, init_ring, rows, sample
from spectral_bellman.training.programs import largest_divisor

PREPARED_BYTES = 128 * 2**20
"""Memory for what is prepared at once for one chunk of gradient steps."""
LARGE_BYTES = 8 * 2**20
"""From here on a gradient step is large enough to be a chunk of its own."""


class Learning(NamedTuple):
    """What gradient steps change."""

    agent: Any
    """The agent's train state."""
    priorities: Any
    """What the agent's sampler keeps beside the ring; () where it samples uniformly."""


class Stage(NamedTuple):
    """A phase in equal chunks: draw from the replay, then learn from what was drawn."""

    times: int
    """Chunks in a round."""
    steps: int
    """Gradient steps in a chunk."""
    draw: Callable[[Ring, Any, RandomKey], Any]
    """(ring, priorities, key) -> sample of a chunk."""
    run: Callable[[Learning, Any, RandomKey], tuple[Learning, Terms]]
    """(state, drawn, key) -> state, terms of the last step."""


Run = Callable[[str, Any, RandomKey], tuple[Any, Terms]]
"""(before or after, state, key) -> state, terms: all phases on one side of publishing."""


def in_order(
    state: Any,
    keys: Sequence[RandomKey],
    run: Run,
    publish: Callable[[Any, RandomKey], tuple[Any, Any]],
) -> tuple[Any, Any, Terms]:
    """A round of learning (Algorithm 2): phases, publishing, phases. State, policy, terms."""
    state, terms = run("before", state, keys[0])
    state, policy = publish(state, keys[1])
    state, more = run("after", state, keys[2])
    return state, policy, terms | more


class Learner:
    """Learns from a replay, in the order of Algorithm 2."""

    def __init__(self, agent: Agent[Any, Any, Any], most: int = 0, first_round: int = 0) -> None:
        """A learner.

        Args:
          agent: what learns.
          most: gradient steps in a chunk, at most; 0: as many as memory allows.
          first_round: the first round that learns, which publishes with rows of the replay.
        """
        self.agent, self._first_round = agent, first_round
        before, after = agent.phases()
        self.stages = {
            "before": [self._stage(phase, most) for phase in before if phase.steps],
            "after": [self._stage(phase, most) for phase in after if phase.steps],
        }

    def init_priorities(self, ring: Ring) -> Any:
        """What the sampler keeps beside an empty ring."""
        return self.agent.sampler.init(ring)

    def store(
        self, ring: Ring, priorities: Any, rollout: Rollout, start: int | Array = 0
    ) -> tuple[Ring, Any]:
        """Add steps of the environments from ``start`` on to the replay."""
        after = add(ring, rollout, start)
        return after, self.agent.sampler.admit(priorities, after, ring.head)

    def learn(
        self, state: Learning, ring: Ring, progress: Progress, key: RandomKey
    ) -> tuple[Learning, Any, Terms]:
        """One round of learning: state, the next policy, and terms (chunks,) of the losses."""

        def run(side: str, state: Learning, key: RandomKey) -> tuple[Learning, Terms]:
            found: Terms = {}
            stages = self.stages[side]
            for stage, stage_key in zip(stages, keys_of(key, len(stages)), strict=True):

                def once(
                    state: Learning, key: RandomKey, stage: Stage = stage
                ) -> tuple[Learning, Terms]:
                    return stage.run(state, stage.draw(ring, state.priorities, key), key)

                state, terms = jax.lax.scan(once, state, jax.random.split(stage_key, stage.times))
                found |= terms
            return state, found

        def publish(state: Learning, key: RandomKey) -> tuple[Learning, Any]:
            agent, policy = self.publish(state.agent, ring, progress, key)
            return state._replace(agent=agent), policy

        return in_order(state, list(jax.random.split(key, 3)), run, publish)

    def publish(
        self, state: Any, ring: Ring, progress: Progress, key: RandomKey
    ) -> tuple[Any, Any]:
        """Publish a policy of an agent's train state, with rows of the replay where due."""

        def with_rows(state: Any) -> tuple[Any, Any]:
            return self.agent.publish(state, self.select(ring, key), progress, key)

        def without(state: Any) -> tuple[Any, Any]:
            return self.agent.publish(state, None, progress, key)

        if self.agent.publish_every == 1 or not self.agent.publish_rows:
            return with_rows(state)
        return jax.lax.cond(self.due(progress.round), with_rows, without, state)

    def due(self, number: Any) -> Any:
        """Whether publishing in a round reads rows of the replay."""
        return (number - self._first_round) % self.agent.publish_every == 0

    def select(self, ring: Ring, key: RandomKey) -> Rows | None:
        """The rows of the replay that publishing needs, if any."""
        agent = self.agent
        if not agent.publish_rows:
            return None
        return self._rows(ring, jax.random.split(key)[0], agent.publish_rows)

    def held_out(self, ring: Ring, key: RandomKey) -> tuple[Any, Rows | None]:
        """What diagnostics look at: items, and rows of the replay for agents with features.

        The items are drawn uniformly, whatever the agent's sampler.
        """
        agent = self.agent
        row_key, item_key = jax.random.split(key, 4)[:2]
        items = sample(ring, agent.window, item_key, (agent.diagnostic_items,)).items
        if not agent.diagnostic_rows:
            return items, None
        return items, self._rows(ring, row_key, agent.diagnostic_rows)

    def _rows(self, ring: Ring, key: RandomKey, limit: int) -> Rows:
        return rows(ring, self.agent.window, key, limit, self.agent.publish_distinct)

    def terms(self) -> tuple[str, ...]:
        """The names of the terms that a round of learning reports."""
        agent = self.agent
        slots = agent.window.room + 4
        ring = jax.eval_shape(lambda: init_ring(agent.observation, extras_of(agent), 1, slots, 1))
        key = jax.eval_shape(lambda: jax.random.key(0))
        number = jax.ShapeDtypeStruct((), jnp.int32)
        priorities = jax.eval_shape(self.init_priorities, ring)
        state = Learning(jax.eval_shape(agent.init, key), priorities)
        progress = Progress(number, number)  # type: ignore[arg-type]
        return tuple(jax.eval_shape(self.learn, state, ring, progress, key)[2])

    def _stage(self, phase: Phase, most: int) -> Stage:
        window, sampler = self.agent.window, self.agent.sampler
        if phase.rows:

            def draw_rows(ring: Ring, _: Any, key: RandomKey) -> Rows:
                return rows(ring, window, key, phase.rows)

            def run_rows(state: Learning, drawn: Rows, key: RandomKey) -> tuple[Learning, Terms]:
                prepared = phase.prepare(state.agent, drawn, key)
                agent, terms, _ = phase.update(state.agent, drawn, prepared)
                return state._replace(agent=agent), terms

            return Stage(phase.steps, 1, draw_rows, run_rows)
        large = phase.step_bytes >= LARGE_BYTES
        alone = large or phase.one_by_one or sampler.by_priority
        fit = 1 if alone else PREPARED_BYTES // max(phase.step_bytes, 1)
        chunk = largest_divisor(phase.steps, min(most or phase.steps, fit))

        def draw(ring: Ring, priorities: Any, key: RandomKey) -> Any:
            shape = (chunk, phase.batch)
            return sampler.draw(ring, window, priorities, jax.random.split(key)[0], shape)

        def update(state: Learning, sample: Any, prepared: Any) -> tuple[Learning, Terms]:
            agent, terms, value = phase.update(state.agent, sample, prepared)
            priorities = state.priorities
            if value is not None:
                priorities = sampler.update(priorities, sample.index, value)
            return Learning(agent, priorities), terms

        def run(state: Learning, samples: Any, key: RandomKey) -> tuple[Learning, Terms]:
            prepared = phase.prepare(state.agent, samples, jax.random.split(key)[1])

            def step(state: Learning, inputs: tuple[Any, Any]) -> tuple[Learning, None]:
                return update(state, *inputs)[0], None

            # Terms of the last step alone: XLA leaves out a third of the other steps.
            but_last = jax.tree.map(lambda x: x[:-1], (samples, prepared))
            state, _ = jax.lax.scan(step, state, but_last)
            state, terms = update(state, *jax.tree.map(lambda x: x[-1], (samples, prepared)))
            return state._replace(agent=phase.finish(state.agent)), terms

        return Stage(phase.steps // chunk, chunk, draw, run)


def keys_of(key: RandomKey, count: int) -> list[RandomKey]:
    """A key for each of the stages on one side of publishing."""
    return [key][:count] if count < 2 else list(jax.random.split(key, count))


def extras_of(agent: Agent[Any, Any, Any]) -> Any:
    """Shapes of the extras that the replay stores of one step of one environment."""

    def act(key: RandomKey) -> Any:
        observation = jnp.zeros((1, *agent.observation.shape), agent.observation.dtype)
        timestep = Timestep(observation, jnp.ones(1, bool), jnp.zeros(1), jnp.zeros(1, jnp.int32))
        policy = agent.init_policy(agent.init(key))
        return agent.act(policy, agent.init_actor(1, key), timestep, key)[1]

    extras = jax.eval_shape(act, jax.eval_shape(lambda: jax.random.key(0)))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), extras)


class Pieces:
    """A stage in pieces of at most so many gradient steps, each of which is one program."""

    def __init__(self, stage: Stage, most: int) -> None:
        """``most``: gradient steps in a piece; 0: all."""
        self._stage = stage
        bound = most // max(stage.steps, 1) if most else stage.times
        self._times = largest_divisor(stage.times, bound)
        self.count = stage.times // self._times

    def draw(self, ring: Ring, key: RandomKey, index: Array) -> Any:
        """All that piece ``index`` learns from, where sampling needs no priorities."""
        return jax.lax.map(lambda key: self._stage.draw(ring, (), key), self._keys(key, index))

    def run(self, state: Any, drawn: Any, key: RandomKey, index: Array) -> tuple[Any, Array]:
        """Learn from what was drawn; the number of the next piece, to wait for."""
        keys = self._keys(key, index)
        return self._scan(self._stage.run, state, (drawn, keys)), index + 1

    def run_from(self, state: Any, ring: Ring, key: RandomKey, index: Array) -> tuple[Any, Array]:
        """Draw and learn, in turn."""
        return self._scan(self._drawing(ring), state, (self._keys(key, index),)), index + 1

    def finish(self, state: Any, drawn: Any, key: RandomKey, index: Array) -> tuple[Any, Terms]:
        """``run`` for the last piece, with the terms of its last step."""
        return self._finish(self._stage.run, state, (drawn, self._keys(key, index)))

    def finish_from(
        self, state: Any, ring: Ring, key: RandomKey, index: Array
    ) -> tuple[Any, Terms]:
        """``run_from`` for the last piece, with the terms of its last step."""
        return self._finish(self._drawing(ring), state, (self._keys(key, index),))

    def _keys(self, key: RandomKey, index: Array) -> Array:
        keys = jax.random.split(key, self._stage.times)
        return jax.lax.dynamic_slice_in_dim(keys, index * self._times, self._times)

    def _drawing(self, ring: Ring) -> Callable[..., tuple[Any, Terms]]:
        stage = self._stage
        return lambda state, key: stage.run(state, stage.draw(ring, state.priorities, key), key)

    def _scan(self, once: Callable[..., Any], state: Any, inputs: tuple[Any, ...]) -> Any:
        return jax.lax.scan(lambda state, x: (once(state, *x)[0], None), state, inputs)[0]

    def _finish(self, once: Callable[..., Any], state: Any, inputs: tuple[Any, ...]) -> Any:
        state = self._scan(once, state, jax.tree.map(lambda x: x[:-1], inputs))
        return once(state, *jax.tree.map(lambda x: x[-1], inputs))
