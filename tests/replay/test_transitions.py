import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.replay import Transition, add, count, init_replay, push_frame, rows, sample

SEEN = jax.ShapeDtypeStruct((2,), jnp.float32)


def play(rng, steps, num_envs, ending, truncation, start):
    """Environments that show (environment, clock); the clock never repeats, so every transition can be recognised."""
    clock = np.array(start, float)
    observations, following, truncated, discounts = [], [], [], []
    for _ in range(steps):
        ends = rng.random(num_envs)
        cut = ends < truncation
        over = ~cut & (ends < truncation + ending)
        observations.append(np.stack([np.arange(num_envs), clock], 1))
        following.append(np.stack([np.arange(num_envs), clock + 1], 1))
        truncated.append(cut)
        discounts.append(np.where(over, 0.0, 1.0))
        clock = clock + np.where(cut | over, 100, 1)  # the next episode begins elsewhere
    stack = lambda x, dtype=np.float32: jnp.asarray(np.stack(x), dtype)  # noqa: E731
    times = stack(observations)[..., 1]
    transition = Transition(
        stack(observations), times.astype(jnp.int32), times * 2, stack(discounts), jnp.ones_like(times), stack(following)
    )
    return transition, jnp.asarray(np.stack(truncated)), clock


@pytest.mark.parametrize("truncation", [0.0, 0.2, 1.0])
def test_what_is_sampled_is_what_was_added(truncation):
    rng, num_envs, steps = np.random.default_rng(0), 3, 5
    replay, start, seen = init_replay(SEEN, num_envs, 60, steps), [0.0, 1e4, 2e4], []
    put, draw = jax.jit(add), jax.jit(lambda r, k: sample(r, k, (256,)))
    for i in range(12):
        transition, truncated, start = play(rng, steps, num_envs, 0.1, truncation, start)
        replay = put(replay, transition, truncated, jnp.zeros_like(truncated))
        seen += [tuple(x) for x in np.asarray(transition.observation).reshape(-1, 2)]
        drawn = jax.device_get(draw(replay, jax.random.key(i)))
        np.testing.assert_array_equal(drawn.reward, drawn.observation[:, 1] * 2)
        np.testing.assert_array_equal(drawn.action, drawn.observation[:, 1])
        alive = drawn.discount > 0
        # The true next observation of the same environment, also where the episode was cut.
        np.testing.assert_array_equal(drawn.next_observation[alive], (drawn.observation + np.array([0, 1]))[alive])
        assert {tuple(x) for x in drawn.observation} <= set(seen)
    per_env = int(count(replay)) / num_envs
    assert per_env <= 20
    assert per_env >= 10, "half of the slots hold last observations at worst"
    newest = np.array([max(t for e, t in seen if e == env) for env in range(num_envs)])
    assert {(float(e), t) for e, t in enumerate(newest)} <= {
        tuple(x) for x in np.asarray(draw(replay, jax.random.key(99)).observation)
    }


def test_sampling_is_uniform():
    rng = np.random.default_rng(1)
    replay = init_replay(SEEN, 2, 60, 10)
    transition, truncated, _ = play(rng, 10, 2, 0.1, 0.3, [0.0, 1e4])
    replay = add(replay, transition, truncated, jnp.zeros_like(truncated))
    drawn = np.asarray(sample(replay, jax.random.key(0), (40_000,)).observation)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    np.testing.assert_allclose(counts / 2_000, 1, atol=0.15)


def test_rows_are_the_whole_replay_or_weighted_draws():
    rng = np.random.default_rng(2)
    transition, truncated, _ = play(rng, 10, 2, 0.1, 0.3, [0.0, 1e4])
    replay = add(init_replay(SEEN, 2, 60, 10), transition, truncated, jnp.zeros_like(truncated))
    whole = rows(replay, jax.random.key(0), 1_000)
    assert float(jnp.sum(whole.weight)) == 20
    held = np.asarray(whole.transitions.observation)[np.asarray(whole.weight) > 0]
    assert len(np.unique(held, axis=0)) == 20
    drawn = rows(replay, jax.random.key(0), 50)
    np.testing.assert_allclose(drawn.weight, 20 / 50)
    same = np.asarray(whole.slot)[:, None] == np.asarray(drawn.slot)[None, :]
    matched = np.asarray(whole.transitions.observation)[np.argmax(same, axis=0)]
    np.testing.assert_array_equal(matched, drawn.transitions.observation)


def test_each_observation_is_held_once():
    replay = init_replay(jax.ShapeDtypeStruct((84, 84), jnp.uint8), 4, 1_000, 8)
    assert replay.observation.nbytes <= 1_004 * 84 * 84


def test_a_replay_too_small_for_a_round_names_the_cure():
    with pytest.raises(ValueError, match="raise --replay-capacity to 68 or more"):
        init_replay(SEEN, 4, 20, 8)
    init_replay(SEEN, 4, 68, 8)


def frames_of(rng, replay, rounds, steps, num_envs, ending, truncation):
    """Play episodes whose frames show a number of their own; add them, and remember each transition's true stacks by its frame."""
    number, episode = 0, [[] for _ in range(num_envs)]
    known, put = {}, jax.jit(add)
    picture = lambda values: np.broadcast_to(np.asarray(values, np.float32)[..., None, None], (*np.shape(values), 2, 2))  # noqa: E731

    def stack(history):
        return [0] * (4 - len(history[-4:])) + history[-4:]

    def new():
        nonlocal number
        number += 1
        return number

    shown = [new() for _ in range(num_envs)]
    for env in range(num_envs):
        episode[env] = [shown[env]]
    for _ in range(rounds):
        seen, following = np.zeros((steps, num_envs)), np.zeros((steps, num_envs))
        truncated, first = np.zeros((steps, num_envs), bool), np.zeros((steps, num_envs), bool)
        discount = np.ones((steps, num_envs), np.float32)
        for t in range(steps):
            for env in range(num_envs):
                seen[t, env], first[t, env] = episode[env][-1], len(episode[env]) == 1
                before = stack(episode[env])
                draw = rng.random()
                episode[env].append(new())
                following[t, env] = episode[env][-1]
                truncated[t, env] = draw < truncation
                discount[t, env] = 0.0 if truncation <= draw < truncation + ending else 1.0
                known[seen[t, env]] = (before, stack(episode[env]), discount[t, env])
                if draw < truncation + ending:
                    episode[env] = [new()]
        ones = jnp.ones((steps, num_envs))
        transition = Transition(picture(seen), ones.astype(jnp.int32), jnp.asarray(seen), discount, ones, picture(following))
        replay = put(replay, jax.tree.map(jnp.asarray, transition), jnp.asarray(truncated), jnp.asarray(first))
    return replay, known


@pytest.mark.parametrize(("ending", "truncation"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.2), (0.0, 1.0)])
@pytest.mark.parametrize("rounds", [1, 3, 30])
def test_a_stack_holds_the_frames_of_its_episode_and_no_other(ending, truncation, rounds):
    frame, rng = jax.ShapeDtypeStruct((2, 2), jnp.float32), np.random.default_rng(3)
    replay, known = frames_of(rng, init_replay(frame, 3, 60, 4, stack=4), rounds, 4, 3, ending, truncation)
    drawn = jax.device_get(sample(replay, jax.random.key(0), (512,)))
    assert drawn.observation.shape == (512, 4, 2, 2)
    for i in range(512):
        before, after, discount = known[drawn.reward[i]]
        np.testing.assert_array_equal(drawn.observation[i, :, 0, 0], before)
        assert drawn.discount[i] == discount
        if discount:  # what follows a terminal step is multiplied by nothing; a cut episode goes on from its true last frame
            np.testing.assert_array_equal(drawn.next_observation[i, :, 0, 0], after)
    assert len(set(drawn.reward.tolist())) == int(count(replay)) or rounds == 30
    whole = rows(replay, jax.random.key(0), 1_000)
    for seen, weight, reward in zip(whole.transitions.observation, whole.weight, whole.transitions.reward, strict=True):
        if weight:
            np.testing.assert_array_equal(seen[:, 0, 0], known[float(reward)][0])


def test_frames_are_pushed_and_a_new_episode_begins_with_zeros():
    stack = jnp.arange(2 * 3 * 1, dtype=jnp.uint8).reshape(2, 3, 1)
    pushed = push_frame(stack, jnp.array([[9], [8]], jnp.uint8), jnp.array([False, True]))
    np.testing.assert_array_equal(pushed[..., 0], [[1, 2, 9], [0, 0, 8]])
