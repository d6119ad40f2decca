import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.environments.api import Environment
from spectral_bellman.environments.probes import Probe, answers, probes

# Q* at a discount of 0.5 in the states that are met, in order, worked out by hand.
BY_HAND = {
    "reward": [[1, 1]],
    "observation": [[-1, -1], [1, 1]],
    "delay": [[0.5, 0.5], [1, 1]],
    "discount": [[0.125, 0.125], [0.25, 0.25], [0.5, 0.5], [1, 1]],
    "action": [[-1, 1]],
    "action and observation": [[1, -1], [-1, 1]],
}


RESET = jax.jit(lambda probe, key: probe.reset(key))
STEP = jax.jit(lambda probe, state, action, key: probe.step(state, action, key))


@functools.cache
def everything() -> Any:
    """The probes and their answers at a discount of 0.5, all from one program."""
    names, stacked = probes()
    return names, stacked, jax.jit(jax.vmap(answers, (0, None)))(stacked, jnp.float32(0.5))


def probe(name: str) -> tuple[Probe, Any, Any]:
    """A probe, Q* and what is met."""
    names, *arrays = everything()
    one, (q, met) = jax.tree.map(lambda leaf: leaf[names.index(name)], arrays)
    return one, np.asarray(q), np.asarray(met)


def test_every_probe_has_an_answer_by_hand() -> None:
    assert probes()[0] == list(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_answers_by_hand(name: str) -> None:
    _, q, met = probe(name)
    used = len(BY_HAND[name])
    np.testing.assert_array_equal(q[:used], BY_HAND[name])
    np.testing.assert_array_equal(met, [[state < used] * 2 for state in range(4)])


@pytest.mark.parametrize("name", BY_HAND)
def test_playing_earns_the_answer(name: str) -> None:
    """Σ γ^t r_t of an episode, from each state it can start in.

    In a probe only the last action matters.
    """
    environment, q, met = probe(name)
    assert isinstance(environment, Environment)
    assert environment.num_actions == 2
    started = set()
    for seed, action in np.ndindex(10, 2):
        key = jax.random.key(seed)
        state, observation = RESET(environment, key)
        assert jax.ShapeDtypeStruct(observation.shape, observation.dtype) == environment.observation
        first = int(state)
        started.add(first)
        earned, weight, over = 0.0, 1.0, False
        while not over:
            np.testing.assert_array_equal(observation, environment.observe[state])
            assert met[state].all()
            state, step = STEP(environment, state, jnp.int32(action), key)
            observation, over = step.observation, bool(step.terminated)
            assert not step.truncated
            earned, weight = earned + weight * float(step.reward), weight * 0.5
        assert earned == q[first, action]
    assert started == ({0, 1} if "observation" in name else {0})


def test_a_step_keeps_its_dtypes_in_either_mode(dtype: str) -> None:
    environment, key = probe("delay")[0], jax.random.key(0)
    state, observation = jax.eval_shape(environment.reset, key)
    after, step = jax.eval_shape(environment.step, state, jax.ShapeDtypeStruct((), jnp.int_), key)
    assert after == state
    assert step.observation == observation == environment.observation
    assert [x.dtype for x in step] == [jnp.float32, jnp.float32, jnp.bool_, jnp.bool_]


def test_a_start_state_is_drawn_with_its_probability() -> None:
    states, _ = jax.jit(jax.vmap(probe("observation")[0].reset))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    counts = np.bincount(np.asarray(states), minlength=4) / 20_000
    np.testing.assert_allclose(counts[:2], 0.5, atol=4 * 0.5 / np.sqrt(20_000))
    assert counts[2:].sum() == 0


@pytest.mark.parametrize("name", BY_HAND)
def test_states_that_are_met_look_different(name: str) -> None:
    environment, _, met = probe(name)
    seen = np.asarray(environment.observe)[met[:, 0]]
    assert len(np.unique(seen, axis=0)) == len(seen)


@pytest.mark.parametrize("name", BY_HAND)
def test_bootstrapping_past_the_end_would_show(name: str) -> None:
    """The state after the last step has a value in every probe: adding it would be an error."""
    environment, q, met = probe(name)
    ends = np.asarray(environment.terminal) & met
    assert (q.max(axis=1)[np.asarray(environment.transition)][ends] != 0).all()


def test_one_step_of_all_probes_in_one_program() -> None:
    names, stacked, _ = everything()
    keys = jax.random.split(jax.random.key(0), len(names))

    @jax.jit
    def first_rewards() -> jax.Array:
        states = jax.vmap(lambda p, k: p.reset(k)[0])(stacked, keys)
        return jax.vmap(lambda p, s, k: p.step(s, jnp.int32(1), k)[1].reward)(stacked, states, keys)

    reward = dict(zip(names, np.asarray(first_rewards()).tolist(), strict=True))
    assert (reward["reward"], reward["delay"], reward["discount"], reward["action"]) == (1, 0, 0, 1)


def test_answers_know_what_no_policy_meets_and_the_best_way() -> None:
    """Two ways to the end: at once for 0.2, or by state 2 for 0.5 a step later.

    No policy meets state 3, and state 1 follows the end only.
    """
    forked = Probe(
        jnp.array([[0, 2], [0, 0], [1, 1], [1, 1]], jnp.int32),
        jnp.array([[0.2, 0.0], [9.0, 9.0], [0.5, 0.1], [0.0, 0.0]], jnp.float32),
        jnp.array([[True, False], [True, True], [True, True], [False, False]]),
        jnp.array([1.0, 0.0, 0.0, 0.0], jnp.float32),
        jnp.zeros((4, 2), jnp.float32),
    )
    q, met = answers(forked, 0.8)
    np.testing.assert_allclose(q, [[0.2, 0.4], [9, 9], [0.5, 0.1], [7.2, 7.2]], rtol=1e-6)
    np.testing.assert_array_equal(met[:, 0], [True, False, True, False])
