import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.environments.api import Environment, Step
from spectral_bellman.environments.minatar import GAMES, MinAtar

CHANNELS = {"asterix": 4, "breakout": 4, "freeway": 7, "seaquest": 10, "space_invaders": 6}
# Compiling takes far longer than running here.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.mark.parametrize("game", GAMES)
def test_the_same_keys_give_the_games_of_pgx(game: str) -> None:
    """Games side by side, against pgx's own ``init`` and ``step`` one after the other."""
    environment = MinAtar(game)
    module = sys.modules[f"pgx.minatar.{game}"]
    oracle = getattr(module, "MinAtar" + game.title().replace("_", ""))(
        use_minimal_action_set=False, sticky_action_prob=0.1
    )
    assert isinstance(environment, Environment)
    assert environment.num_actions == 6
    assert environment.observation == jax.ShapeDtypeStruct((10, 10, CHANNELS[game]), jnp.bool_)
    # In freeway up is drawn more often than the other actions, or nobody crosses the road.
    games, length, drawn = (4, 2501, 9) if game == "freeway" else (32, 250, 6)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        actions = jax.random.randint(key, length, 0, drawn)
        return jnp.where(actions > 5, 2, actions), jax.random.split(key, length)

    def ours(key: jax.Array) -> Any:
        state, first = environment.reset(key)
        return first, jax.lax.scan(lambda s, x: environment.step(s, *x), state, draw(key))[1]

    def theirs(key: jax.Array) -> Any:
        def body(state: Any, x: Any) -> Any:
            after = oracle.step(state, *x)
            step = Step(after.observation, after.rewards[0], after.terminated, after.truncated)
            return after, (state.terminated, step)

        state = oracle.init(key)
        return state.observation, jax.lax.scan(body, state, draw(key))[1]

    keys = jax.random.split(jax.random.key(0), games)
    first, steps = jax.jit(jax.vmap(ours), compiler_options=QUICK)(keys)
    # pgx does not keep to the strictness that the tests ask of our code.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected_first, (over, expected) = jax.jit(
            lambda: jax.lax.map(theirs, keys), compiler_options=QUICK
        )()
    np.testing.assert_array_equal(first, expected_first)
    playing = ~np.asarray(over)
    steps, expected = jax.tree.map(lambda x: np.asarray(x)[playing], (steps, expected))
    jax.tree.map(np.testing.assert_array_equal, steps, expected)
    assert steps.terminated.any(), "games in which nothing happens say little"
    assert steps.reward.any()
    if game == "freeway":
        np.testing.assert_array_equal(
            playing.sum(axis=1), 2501, err_msg="its own clock ends it, which is no truncation"
        )


def test_an_episode_is_cut_at_max_steps_unless_the_game_ends_there() -> None:
    """The ball of breakout falls past a paddle that stays where it is.

    The clock is put forward, so that time is up about then.
    """
    environment, key = MinAtar("breakout", max_steps=20), jax.random.key(3)

    @jax.jit
    @jax.vmap
    def play(left: jax.Array) -> Step:
        state = environment.reset(key)[0]._replace(time=20 - left)
        return jax.lax.scan(
            lambda s, k: environment.step(s, jnp.int32(0), k), state, jax.random.split(key, 20)
        )[1]

    steps = jax.tree.map(np.asarray, play(jnp.arange(21, dtype=jnp.int32)))
    end = int(steps.terminated[20].argmax()) + 1
    assert steps.terminated[20, end - 1]
    assert 3 < end < 20
    assert not steps.truncated[20, :end].any()
    for left, cut in ((end - 1, True), (end, False)):
        np.testing.assert_array_equal(steps.truncated[left, :left], [False] * (left - 1) + [cut])
        np.testing.assert_array_equal(
            steps.terminated[left, :left], [False] * (left - 1) + [not cut]
        )
        np.testing.assert_array_equal(
            steps.observation[left, :left],
            steps.observation[20, :left],
            err_msg="the true last one",
        )


def test_one_action_in_ten_is_the_last_one_again() -> None:
    """At the start the last action was 0: a paddle told to go left stays with probability 0.1."""
    environment, n = MinAtar("breakout"), 20_000
    moved = jax.jit(
        jax.vmap(
            lambda k: environment.step(environment.reset(k)[0], jnp.int32(1), k)[1].observation[
                9, 3, 0
            ]
        )
    )
    assert float(moved(jax.random.split(jax.random.key(0), n)).mean()) == pytest.approx(
        0.9, abs=4 * np.sqrt(0.09 / n)
    )


@pytest.mark.parametrize("game", ["breakout", "freeway"])
def test_a_step_keeps_its_dtypes_in_either_mode(game: str, dtype: str) -> None:
    """pgx's own freeway cannot be traced in float64 mode."""
    environment, key = MinAtar(game), jax.random.key(0)
    state, observation = jax.eval_shape(environment.reset, key)
    after, step = jax.eval_shape(environment.step, state, jax.ShapeDtypeStruct((), jnp.int_), key)
    assert after == state
    assert step.observation == observation
    assert [x.dtype for x in step] == [jnp.bool_, jnp.float32, jnp.bool_, jnp.bool_]


def test_the_state_carries_no_more_than_the_game_reads() -> None:
    state, observation = jax.eval_shape(MinAtar("breakout").reset, jax.random.key(0))
    assert all(leaf.shape != observation.shape for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("game", ["breakout", "freeway"])
def test_the_picture_has_the_player_in_white_and_black_where_nothing_is(game: str) -> None:
    environment = MinAtar(game)
    state, screen = jax.jit(environment.reset)(jax.random.key(0))
    picture = np.asarray(jax.jit(environment.render)(state))
    assert picture.dtype == np.uint8
    assert picture.shape == (160, 160, 3)
    cells = picture[::16, ::16]
    np.testing.assert_array_equal(picture, np.kron(cells, np.ones((16, 16, 1), np.uint8)))
    np.testing.assert_array_equal((cells == 255).all(axis=-1), screen[..., 0])
    np.testing.assert_array_equal((cells == 0).all(axis=-1), ~np.asarray(screen).any(axis=-1))
    lowest = np.where(np.asarray(screen).any(axis=-1), np.asarray(screen).argmax(axis=-1), -1)
    colours = {
        (int(kind), *colour.tolist())
        for kind, colour in zip(lowest.ravel(), cells.reshape(-1, 3), strict=True)
    }
    assert len(colours) == len({c[0] for c in colours}) == len({c[1:] for c in colours}), (
        "one colour to a channel"
    )


def test_an_environment_is_known_by_its_settings() -> None:
    assert MinAtar("breakout") == MinAtar("breakout")
    assert hash(MinAtar("breakout")) == hash(MinAtar("breakout"))
    assert MinAtar("breakout") != MinAtar("breakout", max_steps=10)
    assert repr(MinAtar("breakout")) == "MinAtar(game='breakout', max_steps=5000)"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pgx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pgx", None)
    with pytest.raises(ImportError, match=r"pip install 'spectral_bellman\[minatar\]'"):
        MinAtar("breakout")


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"no game 'pong'; choose one of asterix, breakout, freeway, seaquest, space_invaders",
    ):
        MinAtar("pong")
    with pytest.raises(ValueError, match=r"max_steps is 0; .* at least 1"):
        MinAtar("breakout", max_steps=0)
