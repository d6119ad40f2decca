"""Hidden frames: the game behind them, the share that is hidden, and stacks of frames."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.environments import make
from spectral_bellman.environments.api import Environment
from spectral_bellman.environments.hidden import Hidden, HiddenFrames
from spectral_bellman.environments.minatar import MinAtar
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build

GAME = MinAtar("breakout")
STEPS, GAMES = 60, 16


def played(environment):
    """First observations and steps of games with the same keys and actions."""

    def one(key):
        reset_key, *keys = jax.random.split(key, STEPS + 1)
        state, first = environment.reset(reset_key)
        keys = jnp.stack(keys)
        actions = jax.vmap(lambda k: jax.random.randint(k, (), 0, 6))(keys)
        return first, jax.lax.scan(lambda s, x: environment.step(s, *x), state, (actions, keys))[1]

    return jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), GAMES)))


@pytest.fixture(scope="module")
def bare():
    """The games with nothing hidden."""
    return played(Hidden(GAME, HiddenFrames(hidden_frames=0.0)))


def test_with_nothing_hidden_it_is_the_game(bare):
    """The game's own keys are the first halves of the keys that are given."""
    key, game = jax.random.key(3), Hidden(GAME, HiddenFrames(0.0))
    state, first = game.reset(key)
    plain, expected = GAME.reset(jax.random.split(key)[0])
    np.testing.assert_array_equal(first, expected)
    after, step = game.step(state, jnp.int32(5), key)
    _, expected_step = GAME.step(plain, jnp.int32(5), jax.random.split(key)[0])
    for a, b in zip(step, expected_step, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(game.render(after), GAME.render(after.game))
    assert isinstance(game, Environment)
    assert bare[0].any(axis=(1, 2, 3)).all()


def test_frames_are_hidden_at_the_rate_and_the_game_goes_on_behind_them(bare):
    first, steps = played(Hidden(GAME, HiddenFrames(hidden_frames=0.3)))
    shown_first, shown = bare
    for name in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(steps, name), getattr(shown, name))
    frames = np.concatenate([first[:, None], steps.observation], axis=1)
    whole = np.concatenate([shown_first[:, None], shown.observation], axis=1)
    hidden = ~frames.any(axis=(2, 3, 4))
    np.testing.assert_array_equal(frames[~hidden], whole[~hidden])
    assert abs(hidden.mean() - 0.3) < 4 * (0.3 * 0.7 / hidden.size) ** 0.5
    assert 0 < hidden[:, 0].sum() < GAMES  # the first frame too


def test_an_observation_is_the_last_frames_as_they_were_shown():
    one = played(Hidden(GAME, HiddenFrames(hidden_frames=0.5)))
    three = played(Hidden(GAME, HiddenFrames(hidden_frames=0.5, frame_stack=3)))
    frames = np.concatenate([one[0][:, None], one[1].observation], axis=1)
    stacks = np.concatenate([three[0][:, None], three[1].observation], axis=1)
    before = np.zeros_like(frames[:, :2])
    padded = np.concatenate([before, frames], axis=1)
    expected = np.concatenate([padded[:, k : k + STEPS + 1] for k in range(3)], axis=-1)
    np.testing.assert_array_equal(stacks, expected)


def test_a_run_takes_the_rate_and_the_stack_by_their_flags():
    spec = make("minatar_hidden/asterix")
    config = configure("dqn", spec, {"frame_stack": 4, "hidden_frames": 0.25, "frames": 10_000})
    assert str(config.protocol) == "25% of the frames hidden, 4 per observation"
    (runner,) = build(config.resolved(), spec).runners
    assert runner.environment.protocol == HiddenFrames(0.25, 4)
    assert runner.agent.observation.shape == (10, 10, 16)
    assert runner.environment.num_actions == 6
    assert configure("dqn", make("minatar/asterix")).agent == configure("dqn", spec).agent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_frames": 1.0}, r"--hidden-frames must be in \[0, 1\), got 1.0"),
        ({"hidden_frames": -0.1}, r"--hidden-frames must be in \[0, 1\), got -0.1"),
        ({"frame_stack": 0}, "--frame-stack must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        configure("dqn", make("minatar_hidden/breakout"), settings)


def test_a_misspelt_game_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="minatar_hidden/breakout"):
        make("minatar_hidden/brekout")
