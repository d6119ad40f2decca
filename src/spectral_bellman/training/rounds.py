"""A round of training as pure functions of one seed: collect, store, learn, keep the tally. Both loops are made of these."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import Actor, Agent, AgentState, Policy, Timestep
from spectral_bellman.environments.base import Environment
from spectral_bellman.replay import Transition, add

NEVER = jnp.iinfo(jnp.int32).max


class Tally(NamedTuple):
    """What has happened since the last log line, and the episodes that are under way."""

    running_return: Float[Array, " N"]
    running_length: Int[Array, " N"]
    episodes: Int[Array, ""]
    """Finished since the run began."""
    recent_episodes: Int[Array, ""]
    """Finished since the last log line; the next two are sums over them."""
    recent_return: Float[Array, ""]
    recent_length: Float[Array, ""]
    last_return: Float[Array, ""]
    """Mean return of the episodes that finished last, in the same step."""
    rounds: Int[Array, ""]
    """Rounds that learned since the last log line."""
    terms: dict[str, Float[Array, ""]]
    """Sums over these rounds of the mean of each term."""
    broken: dict[str, Int[Array, ""]]
    """The first round in which a term was not finite."""


class Learner(NamedTuple):
    """What learns and remembers."""

    agent: AgentState
    replay: Any
    """A ``Replay``; None where it is kept apart."""
    tally: Tally
    key: Array
    """The key of the seed; every random number of round t comes from it and t."""


class Scene(NamedTuple):
    """Where the environments of a seed stand."""

    actor: Actor
    states: Any
    timestep: Timestep


class Collected(NamedTuple):
    """T steps of N environments."""

    steps: Transition
    truncated: Any
    """(T, N) booleans."""
    done: Any
    """(T, N) booleans."""
    first: Any
    """(T, N) booleans: the observation begins an episode."""


def init_learner(agent: Agent, key: RandomKey, num_envs: int) -> tuple[Learner, Policy]:
    """A learner without a replay, and the policy it publishes first."""
    agent_key, run_key = jax.random.split(key)
    state = agent.init(agent_key)
    zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
    tally = Tally(
        running_return=jnp.zeros(num_envs),
        running_length=jnp.zeros(num_envs, jnp.int32),
        episodes=none,
        recent_episodes=none,
        recent_return=zero,
        recent_length=zero,
        last_return=jnp.full((), jnp.nan, jnp.float32),
        rounds=none,
        terms={name: zero for name in agent.terms},
        broken={name: jnp.full((), NEVER, jnp.int32) for name in agent.terms},
    )
    return Learner(state, None, jax.tree.map(jnp.copy, tally), run_key), agent.init_policy(state)


def init_scene(agent: Agent, environment: Environment, key: RandomKey, num_envs: int) -> Scene:
    """Environments that have just been reset."""
    actor_key, reset_key = jax.random.split(key)
    states, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, num_envs))
    return Scene(agent.init_actor(num_envs, actor_key), states, Timestep(observation, jnp.ones(num_envs, bool)))


def collect(
    agent: Agent, environment: Environment, policy: Policy, scene: Scene, key: RandomKey, steps: int
) -> tuple[Scene, Collected]:
    """``steps`` steps of each environment under the policy; an episode that ends is followed by the next."""
    num_envs = len(scene.timestep.first)

    def one(scene: Scene, key: RandomKey) -> tuple[Scene, Collected]:
        act_key, step_key, reset_key = jax.random.split(key, 3)
        observation = scene.timestep.observation
        action, prob, actor = agent.act(policy, scene.actor, scene.timestep, act_key)
        states, step = jax.vmap(environment.step)(scene.states, action, jax.random.split(step_key, num_envs))
        done = step.terminated | step.truncated
        fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, num_envs))
        states, following = jax.tree.map(lambda new, old: select(done, new, old), fresh, (states, step.observation))
        truncated = step.truncated & ~step.terminated
        discount = 1 - step.terminated.astype(jnp.float32)
        transition = Transition(observation, action, step.reward, discount, prob, step.observation)
        return Scene(actor, states, Timestep(following, done)), Collected(transition, truncated, done, scene.timestep.first)

    return jax.lax.scan(one, scene, jax.random.split(key, steps))


def learn(
    agent: Agent,
    learner: Learner,
    policy: Policy,
    collected: Collected,
    round_number: Int[Array, ""],
    *,
    log_rounds: int,
    learning: bool,
) -> tuple[Learner, Policy]:
    """Store a round's steps, count its episodes and, unless still warming up, learn from the replay and publish the next policy."""
    tally = reset_tally(learner.tally, round_number % log_rounds == 0)
    tally = count_episodes(tally, collected.steps.reward, collected.done)
    replay = add(learner.replay, collected.steps, collected.truncated, collected.first)
    state = learner.agent
    if learning:
        key = learning_key(learner.key, round_number)
        agent_steps = (round_number + 1) * collected.done.size
        state, policy, terms = agent.learn(state, replay, agent_steps, round_number, key)
        tally = count_terms(tally, {name: jnp.mean(values) for name, values in terms.items()}, round_number)
    return Learner(state, replay, tally, learner.key), policy


def collection_key(key: RandomKey, round_number: Int[Array, ""]) -> RandomKey:
    """The key for acting and stepping in a round, from that of the seed."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), 0)


def learning_key(key: RandomKey, round_number: Int[Array, ""]) -> RandomKey:
    """The key for learning in a round, from that of the seed."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), 1)


def working_bytes(program: Any) -> int:
    """What a compiled program needs besides its arguments, as the compiler reports it."""
    analysis = program.memory_analysis()
    if analysis is None:
        return 0
    outputs = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    return int(analysis.temp_size_in_bytes + outputs + analysis.generated_code_size_in_bytes)


def select(mask: Bool[Array, " N"], new: Array, old: Array) -> Array:
    """``new`` for the environments in the mask, ``old`` for the others."""
    if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        return jnp.where(mask, new, old)
    return jnp.where(mask.reshape(mask.shape + (1,) * (old.ndim - 1)), new, old)


def reset_tally(tally: Tally, due: Bool[Array, ""]) -> Tally:
    """The tally with what was counted since the last log line set to zero, if one is due."""
    recent = (tally.recent_episodes, tally.recent_return, tally.recent_length, tally.rounds, tally.terms)
    episodes, returns, lengths, rounds, terms = jax.tree.map(lambda x: jnp.where(due, jnp.zeros_like(x), x), recent)
    return tally._replace(recent_episodes=episodes, recent_return=returns, recent_length=lengths, rounds=rounds, terms=terms)


def count_episodes(tally: Tally, reward: Float[Array, "T N"], done: Bool[Array, "T N"]) -> Tally:
    """The tally with the episodes of a round."""

    def one(tally: Tally, step: tuple[Array, Array]) -> tuple[Tally, None]:
        reward, done = step
        returns, lengths = tally.running_return + reward, tally.running_length + 1
        finished = jnp.sum(done, dtype=jnp.int32)
        total = jnp.sum(jnp.where(done, returns, 0))
        return tally._replace(
            running_return=jnp.where(done, 0, returns),
            running_length=jnp.where(done, 0, lengths),
            episodes=tally.episodes + finished,
            recent_episodes=tally.recent_episodes + finished,
            recent_return=tally.recent_return + total,
            recent_length=tally.recent_length + jnp.sum(jnp.where(done, lengths, 0)).astype(jnp.float32),
            last_return=jnp.where(finished > 0, total / jnp.maximum(finished, 1).astype(jnp.float32), tally.last_return),
        ), None

    return jax.lax.scan(one, tally, (reward, done))[0]


def count_terms(tally: Tally, means: dict[str, Float[Array, ""]], round_number: Int[Array, ""]) -> Tally:
    """The tally with the mean of each term in a round; what is not finite in one chunk makes the mean so."""

    def first_broken(before: Array, value: Array) -> Array:
        return jnp.where(jnp.isfinite(value), before, jnp.minimum(before, round_number))

    return tally._replace(
        rounds=tally.rounds + 1,
        terms={name: tally.terms[name] + value for name, value in means.items()},
        broken={name: first_broken(tally.broken[name], value) for name, value in means.items()},
    )
