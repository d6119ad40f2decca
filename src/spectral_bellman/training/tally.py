"""What has happened in a run: episodes, returns, terms of the losses; arrays on the device."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

NEVER = jnp.iinfo(jnp.int32).max


class Tally(NamedTuple):
    """Counts since the last log line, and the episodes that are under way."""

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


def init_tally(num_envs: int, terms: tuple[str, ...]) -> Tally:
    """Nothing has happened yet."""
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
        terms={name: zero for name in terms},
        broken={name: jnp.full((), NEVER, jnp.int32) for name in terms},
    )
    return jax.tree.map(jnp.copy, tally)


def begin_episodes(tally: Tally) -> Tally:
    """The tally with the episodes under way forgotten, because the environments begin new ones."""
    return tally._replace(
        running_return=jnp.zeros_like(tally.running_return),
        running_length=jnp.zeros_like(tally.running_length),
    )


def reset_recent(tally: Tally, due: Bool[Array, ""]) -> Tally:
    """The tally with what was counted since the last log line set to zero, if one is due."""
    recent = (
        tally.recent_episodes,
        tally.recent_return,
        tally.recent_length,
        tally.rounds,
        tally.terms,
    )
    episodes, returns, lengths, rounds, terms = jax.tree.map(
        lambda x: jnp.where(due, jnp.zeros_like(x), x), recent
    )
    return tally._replace(
        recent_episodes=episodes,
        recent_return=returns,
        recent_length=lengths,
        rounds=rounds,
        terms=terms,
    )


def count_episodes(tally: Tally, reward: Float[Array, "T N"], done: Bool[Array, "T N"]) -> Tally:
    """The tally with the episodes of a round."""

    def one(tally: Tally, step: tuple[Array, Array]) -> tuple[Tally, None]:
        reward, done = step
        returns, lengths = tally.running_return + reward, tally.running_length + 1
        finished = jnp.sum(done, dtype=jnp.int32)
        total = jnp.sum(jnp.where(done, returns, 0))
        length = jnp.sum(jnp.where(done, lengths, 0)).astype(jnp.float32)
        mean = total / jnp.maximum(finished, 1).astype(jnp.float32)
        return tally._replace(
            running_return=jnp.where(done, 0, returns),
            running_length=jnp.where(done, 0, lengths),
            episodes=tally.episodes + finished,
            recent_episodes=tally.recent_episodes + finished,
            recent_return=tally.recent_return + total,
            recent_length=tally.recent_length + length,
            last_return=jnp.where(finished > 0, mean, tally.last_return),
        ), None

    return jax.lax.scan(one, tally, (reward, done))[0]


def count_part(
    tally: Tally,
    reward: Float[Array, "T n"],
    done: Bool[Array, "T n"],
    start: Int[Array, ""],
    anew: Bool[Array, ""],
) -> Tally:
    """The tally with the episodes of a part of the environments, from ``start`` on.

    ``anew``: whether these environments left the episodes unfinished that were under way.
    """
    running = (tally.running_return, tally.running_length)
    part = [jax.lax.dynamic_slice_in_dim(x, start, reward.shape[1]) for x in running]
    part = [jnp.where(anew, 0, x) for x in part]
    tally = count_episodes(
        tally._replace(running_return=part[0], running_length=part[1]), reward, done
    )
    after = (tally.running_return, tally.running_length)
    whole = [
        jax.lax.dynamic_update_slice_in_dim(x, y, start, 0)
        for x, y in zip(running, after, strict=True)
    ]
    return tally._replace(running_return=whole[0], running_length=whole[1])


def count_terms(tally: Tally, means: dict[str, Any], round_number: Int[Array, ""]) -> Tally:
    """The tally with the mean of each term in a round; a chunk that is not finite makes it so."""

    def first_broken(before: Array, value: Array) -> Array:
        return jnp.where(jnp.isfinite(value), before, jnp.minimum(before, round_number))

    return tally._replace(
        rounds=tally.rounds + 1,
        terms={name: tally.terms[name] + value for name, value in means.items()},
        broken={name: first_broken(tally.broken[name], value) for name, value in means.items()},
    )
