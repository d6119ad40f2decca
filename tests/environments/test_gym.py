"""Gymnasium environments on the host: seeds, ends of episodes, checkpoints, replays."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from spectral_bellman import environments
from spectral_bellman.environments.api import VectorEnvironment
from spectral_bellman.environments.gym import GymEnvironments, maker

LIMIT = 4


class Walk(gymnasium.Env):
    """A random walk pushed by −1, 0 or 1; it ends beyond 3 and is cut after four steps.

    It remembers the observations it gave and the actions it got.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3, start=-1)
        self.shown, self.told, self.closed = [], [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.normal(size=2), 0
        self.shown.append(self.x)
        return self.x, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.told.append(action)
        self.x = self.x + action + 0.1 * self.np_random.normal(size=2)
        self.steps += 1
        self.shown.append(self.x)
        return self.x, float(self.x[0]), bool(self.x[0] > 3), self.steps >= LIMIT, {}

    def close(self):
        self.closed = True


def walks(**settings):
    """Environments, and the very objects they step."""
    objects: list[Walk] = []

    def make() -> Walk:
        objects.append(Walk())
        return objects[-1]

    return GymEnvironments("walk", make, **settings), objects


def play(environments: GymEnvironments, steps: int, seed: int = 0) -> list[np.ndarray]:
    actions = np.random.default_rng(seed).integers(0, 3, (steps, len(environments)))
    return [
        np.concatenate(
            [x.reshape(len(environments), -1).astype(np.float64) for x in environments.step(a)], 1
        )
        for a in actions
    ]


def test_spaces_are_read():
    walk, _ = walks(indices=(0, 1))
    assert (walk.observation.shape, walk.observation.dtype, walk.num_actions, len(walk)) == (
        (2,),
        np.float32,
        3,
        2,
    )


def test_the_same_seeds_give_the_same_episodes():
    first, second = (walks(seed=3, indices=(0, 1))[0] for _ in range(2))
    np.testing.assert_array_equal(first.reset(), second.reset())
    np.testing.assert_array_equal(play(first, 11), play(second, 11))


def test_every_seed_copy_stream_and_episode_begins_differently():
    starts = [
        walks(seed=seed, indices=(0, 1), stream=stream)[0].reset()
        for seed in (3, 4)
        for stream in (0, 1)
    ]
    walk, objects = walks(seed=3)
    walk.reset()
    play(walk, 2 * LIMIT)
    episodes = np.stack(objects[0].shown).astype(np.float32)
    episodes = (
        episodes[[0, LIMIT + 1, 2 * LIMIT + 2]]
        if len(episodes) == 2 * LIMIT + 3
        else episodes[[0, -1]]
    )
    np.testing.assert_array_equal(episodes[0], starts[0][0])  # whatever else is opened
    everything = np.concatenate([*starts, episodes[1:]])
    assert len(np.unique(everything, axis=0)) == len(everything)


def test_groups_play_as_one_pool_would():
    pool, parts = walks(indices=range(4))[0], [walks(indices=i)[0] for i in ([0, 1], [2, 3])]
    np.testing.assert_array_equal(pool.reset(), np.concatenate([part.reset() for part in parts]))
    actions = np.random.default_rng(0).integers(0, 3, (2 * LIMIT + 1, 4))
    for action in actions:
        step = pool.step(action)
        others = [part.step(action[i : i + 2]) for part, i in zip(parts, (0, 2), strict=True)]
        for one, *two in zip(step, *others, strict=True):
            np.testing.assert_array_equal(one, np.concatenate(two))
    assert pool.save() == parts[0].save() + parts[1].save()


def test_the_last_observation_of_a_truncated_episode_is_the_true_one():
    walk, objects = walks(indices=(0, 1))
    walk.reset()
    still = np.ones(2, int)  # which is action 0 of a space that starts at −1
    for _ in range(LIMIT - 1):
        step = walk.step(still)
        assert not step.truncated.any()
        np.testing.assert_array_equal(step.next_observation, step.observation)
    step = walk.step(still)
    assert step.truncated.all()
    for i, walker in enumerate(objects):
        np.testing.assert_array_equal(step.observation[i], walker.shown[-2].astype(np.float32))
        np.testing.assert_array_equal(step.next_observation[i], walker.shown[-1].astype(np.float32))
        np.testing.assert_array_equal(step.reward[i], np.float32(walker.shown[-2][0]))
    assert not np.any(step.observation == step.next_observation)


def test_termination_is_told_from_truncation():
    walk, objects = walks()
    walk.reset()
    objects[0].x = np.array([2.9, 0.0])
    step = walk.step(np.array([2]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])
    np.testing.assert_array_equal(step.observation[0], objects[0].shown[-2].astype(np.float32))
    np.testing.assert_array_equal(step.next_observation[0], objects[0].shown[-1].astype(np.float32))


def test_an_episode_that_terminates_at_its_limit_is_not_truncated():
    """Else a learner would bootstrap from the terminal state."""
    walk, objects = walks(indices=(0,))
    walk.reset(0)
    objects[0].x, objects[0].steps = np.array([9.0, 0.0]), LIMIT - 1
    step = walk.step(np.array([1]))
    assert (bool(step.terminated[0]), bool(step.truncated[0])) == (True, False)


def test_actions_start_where_the_space_does():
    walk, objects = walks(indices=range(3))
    walk.reset()
    walk.step(np.array([0, 1, 2]))
    assert [walker.told for walker in objects] == [[-1], [0], [1]]


def test_those_that_do_not_run_are_left_alone():
    walk, objects = walks(indices=(0, 1))
    walk.reset()
    step = walk.step(np.array([2, 2]), np.array([True, False]))
    assert [len(walker.told) for walker in objects] == [1, 0]
    assert step.reward[1] == 0
    assert [len(saved["actions"]) for saved in walk.save()] == [1, 0]


def test_a_running_episode_comes_back_to_the_bit():
    walk, _ = walks(seed=1, indices=range(4))
    walk.reset()
    last = play(walk, LIMIT + 2, seed=5)[-1]
    saved = walk.save()
    assert all(entry["episode"] >= 1 and entry["actions"] for entry in saved)
    after = play(walk, 9, seed=6)
    assert all(len(entry["actions"]) <= LIMIT for entry in saved)  # what was saved does not go on
    again, objects = walks(seed=1, indices=range(4))
    np.testing.assert_array_equal(again.restore(saved), last[:, -3:-1])
    assert again.save() == saved
    assert all(
        len(walker.told) == len(entry["actions"])
        for walker, entry in zip(objects, saved, strict=True)
    )
    np.testing.assert_array_equal(play(again, 9, seed=6), after)


def test_close_closes_all():
    walk, objects = walks(indices=(0, 1))
    walk.close()
    assert all(walker.closed for walker in objects)


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        ("action_space", gymnasium.spaces.Box(-1, 1, (2,)), "needs a Discrete space"),
        ("action_space", gymnasium.spaces.MultiDiscrete([2, 2]), "needs a Discrete space"),
        ("observation_space", gymnasium.spaces.Discrete(5), "FlattenObservation"),
        (
            "observation_space",
            gymnasium.spaces.Dict({"x": gymnasium.spaces.Discrete(5)}),
            "FlattenObservation",
        ),
    ],
)
def test_spaces_that_are_refused_name_the_cure(space, value, words):
    def make():
        walk = Walk()
        setattr(walk, space, value)
        return walk

    with pytest.raises(ValueError, match=f"^walk: (actions|observations) are .*{words}"):
        GymEnvironments("walk", make)


def test_bytes_stay_bytes():
    class Pixels(Walk):
        def __init__(self):
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)

    assert GymEnvironments("pixels", Pixels).observation.dtype == np.uint8


def test_makers_make_copies_that_share_nothing():
    given = Walk()
    one, other = maker(given)(), maker(given)()
    assert one is not other
    assert one is not given
    one.reset(seed=0)
    assert not other.shown
    assert maker(Walk) is Walk


def test_make_takes_an_environment_or_a_maker():
    for given in (Walk(), Walk):
        spec = environments.make(given)
        assert (spec.name, spec.family, spec.device) == ("Walk", "gym", None)
        assert not spec.can_render
        with pytest.raises(ValueError, match=r"^Walk cannot be shown: only .* by name"):
            spec.check_can_render()
        opened, (same, _) = spec.open(5, [2, 3], 1), walks(seed=5, indices=(2, 3), stream=1)
        assert isinstance(opened, VectorEnvironment)
        np.testing.assert_array_equal(opened.reset(7), same.reset(7))
        np.testing.assert_array_equal(play(opened, 6), play(same, 6))


def test_an_environment_known_by_name_is_opened_and_replayed(monkeypatch):
    """The pictures are those of the very episode that was played: its observations are in them."""

    class Shown(Walk):
        metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 1}

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            assert self.render_mode == "rgb_array"
            return np.broadcast_to(np.uint8(10 * np.abs(self.x[0])), (4, 6, 3))

    known = gymnasium.envs.registration.EnvSpec("Shown-v0", entry_point=Shown)
    monkeypatch.setitem(gymnasium.registry, "Shown-v0", known)
    spec = environments.make("gym/Shown-v0")
    assert (spec.name, spec.family, spec.device, spec.can_render) == (
        "gym/Shown-v0",
        "gym",
        None,
        True,
    )
    opened = spec.open(3, [4, 6], 1)
    shown, actions, steps = [opened.reset(11)[1]], [2, 0, 1, 2], []
    for action in actions:
        steps.append(opened.step(np.array([1, action])))
        shown.append(steps[-1].observation[1])
        if steps[-1].first[1]:
            break
    replayed = list(spec.replay(3, 6, 1, 11, actions[: len(steps)]))
    assert len(replayed) == len(shown) >= 3
    for (picture, _), observation in zip(replayed, shown, strict=True):
        assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
        assert abs(int(picture[0, 0, 0]) - 10 * abs(observation[0])) <= 1
    rewards = [0.0, *(step.reward[1] for step in steps)]
    np.testing.assert_allclose([step.reward for step in replayed], rewards, rtol=1e-6)
    with pytest.raises(ValueError, match="runs on the host"):
        spec.render(None)
