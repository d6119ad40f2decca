"""Greedy episodes on the device and on the host, where the returns are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.training.actors import timestep_of
from spectral_bellman.training.evaluate import begin, device_returns, play_on_host, play_step

from .stubs import Corridor, Dice, Hosted, Scribe

RIGHT, STAY, ALTERNATE, RIGHT_AFTER_A_QUARTER = range(4)
"""Policies, by number."""
RETURNS = {RIGHT: 2.0, STAY: 1.25, ALTERNATE: 2.25, RIGHT_AFTER_A_QUARTER: 2.25}
ACTIONS = {
    RIGHT: [1, 1],
    STAY: [0, 0, 0, 0, 0],
    ALTERNATE: [1, 0, 1],
    RIGHT_AFTER_A_QUARTER: [0, 1, 1],
}
EPISODES = 3


class Player(Scribe):
    """Follows a policy only where it is asked to be greedy; its other actions are no actions."""

    def act(self, policy, actor, timestep, key, *, greedy=False):
        assert greedy
        first, before = timestep.first, timestep.previous_action
        alternate = jnp.where(first, 1, 1 - before)
        after_a_quarter = ((timestep.reward > 0) & ~first).astype(jnp.int32)
        ones = jnp.ones_like(before)
        action = jnp.stack([ones, 0 * ones, alternate, after_a_quarter])[policy]
        return action, {}, actor + 1


AGENT = Player(Corridor.observation)


def on_device(policy: int, max_steps: int):
    key = jax.random.key(0)
    play = jax.jit(
        lambda policy: device_returns(AGENT, Corridor(), policy, key, EPISODES, max_steps)
    )
    return np.asarray(play(jnp.int32(policy)))


def on_host(policy: int, max_steps: int, environments=None):
    key = jax.random.key(0)

    @jax.jit
    def act(actor, stack, frame, first, reward, previous_action, time):
        timestep, stack = timestep_of(stack, frame, first, reward, previous_action)
        action, _, actor = AGENT.act(jnp.int32(policy), actor, timestep, key, greedy=True)
        return actor, stack, action

    environments = environments or Hosted(Corridor(), EPISODES)
    actor, no_stack = AGENT.init_actor(EPISODES, key), jnp.zeros((EPISODES, 0))
    return play_on_host(act, environments, actor, no_stack, 7, max_steps)


@pytest.mark.parametrize("policy", RETURNS)
def test_both_players_know_the_return(policy):
    """The agent sees the reward and the action before, and where an episode begins."""
    np.testing.assert_array_equal(on_device(policy, 10), [RETURNS[policy]] * EPISODES)
    played = on_host(policy, 10)
    np.testing.assert_array_equal(played.returns, [RETURNS[policy]] * EPISODES)
    assert played.number == 7
    assert [actions.tolist() for actions in played.actions] == [ACTIONS[policy]] * EPISODES


@pytest.mark.parametrize(("max_steps", "ends"), [(1, False), (4, False), (5, True)])
def test_an_episode_that_does_not_end_in_time_is_nan(max_steps, ends):
    wanted = [RETURNS[STAY] if ends else np.nan] * EPISODES
    np.testing.assert_array_equal(on_device(STAY, max_steps), wanted)
    played = on_host(STAY, max_steps)
    np.testing.assert_array_equal(played.returns, wanted)
    assert [len(actions) for actions in played.actions] == [max_steps] * EPISODES


class Uneven(Hosted):
    """Episodes of one, two and three steps, which are over at once after their end."""

    def reset(self, block=0):
        self.time = 0
        return super().reset(block)

    def step(self, actions, running=None):
        self.time += 1
        answer = super().step(actions, running)
        lengths = np.arange(1, self.size + 1)
        assert running.tolist() == (self.time <= lengths).tolist()
        return answer._replace(
            reward=np.full(self.size, 1.0, np.float32), first=self.time >= lengths
        )


def test_rewards_after_the_end_are_not_counted():
    played = on_host(STAY, 10, Uneven(Corridor(), EPISODES))
    np.testing.assert_array_equal(played.returns, [1, 2, 3])
    assert [len(actions) for actions in played.actions] == [1, 2, 3]


class Throwing(Player):
    """For ``Dice``, whose episodes are one step."""

    observation = Dice.observation

    def act(self, policy, actor, timestep, key, *, greedy=False):
        return jnp.zeros(len(timestep.first), jnp.int32), {}, actor


def test_episodes_on_the_device_begin_apart_and_by_their_key():
    agent = Throwing(Dice.observation)
    play = jax.jit(lambda key: device_returns(agent, Dice(), 0, key, 4, 3))
    one, again, other = (np.asarray(play(jax.random.key(seed))) for seed in (0, 0, 1))
    assert len(set(one.tolist())) == 4
    np.testing.assert_array_equal(one, again)
    assert not set(one.tolist()) & set(other.tolist())


def test_an_episode_can_be_played_step_by_step_as_films_do():
    key, policy = jax.random.key(0), jnp.int32(ALTERNATE)
    playing = begin(AGENT, Corridor(), key, EPISODES)
    assert playing.timestep.first.all()
    step = jax.jit(lambda playing: play_step(AGENT, Corridor(), policy, key, playing))
    for time, action in enumerate(ACTIONS[ALTERNATE]):
        assert playing.running.all()
        assert int(playing.time) == time
        playing = step(playing)
        assert playing.timestep.previous_action.tolist() == [action] * EPISODES
        assert not playing.timestep.first.any()
    assert not playing.running.any()
    np.testing.assert_array_equal(playing.returns, [RETURNS[ALTERNATE]] * EPISODES)
    np.testing.assert_array_equal(step(playing).returns, playing.returns)
