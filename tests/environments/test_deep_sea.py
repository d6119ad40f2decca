import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bsuite.environments.deep_sea import DeepSea as Oracle

from spectral_bellman.environments.api import Environment
from spectral_bellman.environments.deep_sea import DeepSea, DeepSeaState

N = 20_000
SIZES = (2, 9)


class Draws:
    """Wind and noise given in advance, where bsuite asks NumPy.

    The diver stays in the column if ``rand() <= 1 / size``.
    """

    held, noise = False, 0.0

    def rand(self) -> float:
        return 0.0 if self.held else 1.0

    def randn(self) -> float:
        return self.noise


def state(row: int, column: int) -> DeepSeaState:
    return DeepSeaState(jnp.int32(row), jnp.int32(column), jnp.bool_(False))


@jax.jit
def windy(row: jax.Array, column: jax.Array, action: jax.Array) -> Any:
    """20,000 times the same step in a stochastic sea of size 5 where 1 is right."""
    environment, keys = (
        DeepSea(5, stochastic=True, mapping_seed=None),
        jax.random.split(jax.random.key(0), N),
    )
    return jax.vmap(
        lambda key: environment.step(DeepSeaState(row, column, jnp.bool_(False)), action, key)
    )(keys)


def play(environment: DeepSea, actions: Any, key: jax.Array) -> Any:
    """An episode: the last state and the stacked steps."""
    keys = jax.random.split(key, len(actions))
    return jax.lax.scan(
        lambda s, x: environment.step(s, *x), environment.reset(key)[0], (actions, keys)
    )


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_step_is_bsuites(size: int, stochastic: bool) -> None:
    environment, oracle = (
        DeepSea(size, stochastic, mapping_seed=7),
        Oracle(size, not stochastic, seed=0, mapping_seed=7),
    )
    oracle._rng = draws = Draws()

    def episode(seek: jax.Array, key: jax.Array) -> Any:
        def body(now: DeepSeaState, key: jax.Array) -> Any:
            # Towards the treasure in some episodes: by chance it is not found.
            action = jnp.where(
                seek,
                jnp.asarray(environment.mapping)[now.row, now.column],
                jax.random.randint(key, (), 0, 2),
            )
            after, step = environment.step(now, action, key)
            wind, noise = jax.random.split(key)
            return after, (
                action,
                step,
                after.bad,
                jax.random.bernoulli(wind, 1 / size),
                jax.random.normal(noise),
            )

        now, first = environment.reset(key)
        return first, jax.lax.scan(body, now, jax.random.split(key, size))[1]

    keys = jax.random.split(jax.random.key(size), 24)
    first, (actions, steps, bad, held, noise) = jax.tree.map(
        np.asarray, jax.jit(jax.vmap(episode))(jnp.arange(24) % 3 == 0, keys)
    )
    for i in range(24):
        np.testing.assert_array_equal(first[i], oracle.reset().observation)
        for t in range(size):
            draws.held, draws.noise = bool(held[i, t]), float(noise[i, t])
            expected = oracle.step(actions[i, t])
            np.testing.assert_array_equal(steps.observation[i, t], expected.observation)
            assert steps.reward[i, t] == pytest.approx(expected.reward, abs=1e-6)
            assert steps.terminated[i, t] == expected.last() == (t == size - 1)
            assert bad[i, t] == oracle._bad_episode
    assert not steps.truncated.any()
    assert oracle._denoised_return >= 8 or stochastic, "eight episodes at least found the treasure"


@pytest.mark.parametrize("seed", [0, 42, 123])
def test_the_mapping_of_a_seed_is_bsuites(seed: int) -> None:
    np.testing.assert_array_equal(
        DeepSea(20, mapping_seed=seed).mapping, Oracle(20, mapping_seed=seed)._action_mapping
    )


def test_without_a_seed_one_is_right_everywhere() -> None:
    with warnings.catch_warnings(action="ignore"):
        debug = Oracle(3, randomize_actions=False)
    np.testing.assert_array_equal(DeepSea(3, mapping_seed=None).mapping, debug._action_mapping)


def test_going_right_always_finds_the_treasure() -> None:
    environment = DeepSea(8)
    end, steps = play(environment, jnp.asarray(environment.mapping.diagonal()), jax.random.key(0))
    np.testing.assert_allclose(steps.reward, [-0.01 / 8] * 7 + [1 - 0.01 / 8], rtol=1e-6)
    np.testing.assert_array_equal(steps.terminated, [False] * 7 + [True])
    assert float(steps.reward.sum()) == pytest.approx(0.99)
    assert not end.bad


@pytest.mark.parametrize("wrong", range(4))
def test_one_step_off_the_diagonal_loses_the_episode(wrong: int) -> None:
    environment = DeepSea(4, mapping_seed=None)
    end, steps = play(environment, jnp.ones(4, jnp.int32).at[wrong].set(0), jax.random.key(0))
    assert end.bad
    assert float(steps.reward.sum()) == pytest.approx(-0.0075)


def test_the_wind_holds_one_step_to_the_right_in_size() -> None:
    right, step = windy(jnp.int32(2), jnp.int32(2), jnp.int32(1))
    held = np.asarray(right.column) == 2
    assert ((np.asarray(right.column) == 3) | held).all()
    assert held.mean() == pytest.approx(1 / 5, abs=4 * np.sqrt(0.2 * 0.8 / N))
    assert not right.bad.any(), "the wind is not the agent's fault"
    np.testing.assert_allclose(
        step.reward, -0.01 / 5, rtol=1e-6, err_msg="who is held pays all the same, without noise"
    )
    left, _ = windy(jnp.int32(2), jnp.int32(2), jnp.int32(0))
    np.testing.assert_array_equal(left.column, 1, err_msg="going left never fails")
    assert left.bad.all()


@pytest.mark.parametrize(
    ("row", "column", "action", "mean", "noise"),
    [
        (4, 0, 0, 0, 1),
        (4, 0, 1, -0.002, 1),
        (4, 4, 0, 0, 1),
        (4, 4, 1, 0.998, 1),
        (4, 2, 1, -0.002, 0),
        (3, 0, 0, 0, 0),
    ],
)
def test_noise_is_added_in_the_corners_of_the_last_row_alone(
    row: int, column: int, action: int, mean: float, noise: float
) -> None:
    reward = np.asarray(windy(jnp.int32(row), jnp.int32(column), jnp.int32(action))[1].reward)
    assert reward.mean() == pytest.approx(mean, abs=1e-6 + noise * 4 / np.sqrt(N))
    assert reward.std() == pytest.approx(noise, abs=1e-6 + noise * 4 / np.sqrt(2 * N))


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_optimal_return_is_bsuites_and_what_going_right_earns(stochastic: bool) -> None:
    environment = DeepSea(6, stochastic, mapping_seed=None)
    assert environment.optimal_return == pytest.approx(Oracle(6, not stochastic)._optimal_return)
    keys = jax.random.split(jax.random.key(2), N)
    earned = jax.jit(
        jax.vmap(lambda k: play(environment, jnp.ones(6, jnp.int32), k)[1].reward.sum())
    )(keys)
    assert float(earned.mean()) == pytest.approx(
        environment.optimal_return, abs=1e-6 + stochastic * 4 * 1.2 / np.sqrt(N)
    )


def test_what_counts_as_solved() -> None:
    assert DeepSea().solved(8, 10)
    assert not DeepSea().solved(9, 10)
    assert not DeepSea().solved(0, 0)
    assert DeepSea(stochastic=True).solved(79, 100)
    assert not DeepSea(stochastic=True).solved(80, 100)
    assert not DeepSea(stochastic=True).solved(0, 99)


@pytest.mark.parametrize("stochastic", [False, True])
def test_jit_changes_nothing(stochastic: bool) -> None:
    environment, key = DeepSea(4, stochastic), jax.random.key(0)
    actions = jnp.array([1, 0, 1, 1], jnp.int32)
    end, steps = jax.jit(play, static_argnums=0)(environment, actions, key)
    plain, _ = environment.reset(key)
    for row, step_key in enumerate(jax.random.split(key, 4)):
        plain, step = environment.step(plain, actions[row], step_key)
        # XLA may fuse a multiplication with an addition, which rounds once less.
        jax.tree.map(
            lambda x, xs, i=row: np.testing.assert_allclose(xs[i], x, rtol=1e-6), step, steps
        )
    jax.tree.map(np.testing.assert_array_equal, plain, end)


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_step_keeps_its_dtypes_in_either_mode(stochastic: bool, dtype: str) -> None:
    environment, key = DeepSea(4, stochastic), jax.random.key(0)
    assert isinstance(environment, Environment)
    state, observation = jax.eval_shape(environment.reset, key)
    after, step = jax.eval_shape(environment.step, state, jax.ShapeDtypeStruct((), jnp.int_), key)
    assert after == state
    assert step.observation == observation == environment.observation
    assert [x.dtype for x in step] == [jnp.float32, jnp.float32, jnp.bool_, jnp.bool_]


@pytest.mark.parametrize("size", [7, 200])
def test_the_picture_shows_the_diver_and_the_treasure(size: int) -> None:
    environment = DeepSea(size)
    cell = max(1, -(-160 // size))
    picture = np.asarray(environment.render(state(1, 0)))
    assert picture.dtype == np.uint8
    assert picture.shape == (cell * size, cell * size, 3)
    assert len(picture) >= 160
    white = (picture == 255).all(axis=-1)
    assert white[cell : 2 * cell, :cell].all()
    assert white.sum() == cell**2
    assert picture[-1, -1].tolist() == [240, 196, 40]
    assert not (np.asarray(environment.render(state(size, 0))) == 255).all(axis=-1).any(), (
        "gone at the end"
    )


@pytest.mark.parametrize("size", [1, 0, -3])
def test_a_sea_that_is_too_small_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"DeepSea: size is {size}; .* at least 2"):
        DeepSea(size)


def test_mixed_observations_are_a_rotation_of_the_plain_ones() -> None:
    plain, mixed = DeepSea(4), DeepSea(4, mixed=True)
    actions = jnp.asarray([1, 0, 1, 1])
    (_, ours), (_, theirs) = (play(sea, actions, jax.random.key(0)) for sea in (mixed, plain))
    assert mixed.observation.shape == ours.observation.shape[1:] == (16,)
    np.testing.assert_allclose(mixed.rotation @ mixed.rotation.T, np.eye(16), atol=1e-6)
    flat = np.asarray(theirs.observation).reshape(4, 16)
    np.testing.assert_allclose(ours.observation, flat @ mixed.rotation, atol=1e-6)
    assert (np.asarray(ours.observation)[-1] == 0).all(), "after the last step"
    np.testing.assert_array_equal(ours.reward, theirs.reward)
    np.testing.assert_array_equal(mixed.render(mixed.reset(jax.random.key(0))[0]),
                                  plain.render(plain.reset(jax.random.key(0))[0]))  # fmt: skip
