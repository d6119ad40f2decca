"""Atari games against an emulator driven by hand: ends of episodes, seeds, checkpoints, replays."""

import dataclasses
import json

import ale_py
import numpy as np
import pytest
from ale_py import roms

from spectral_bellman import environments
from spectral_bellman.environments import atari
from spectral_bellman.environments.api import HostStep, SplitStep, VectorEnvironment
from spectral_bellman.environments.atari import AtariEnvironments, AtariProtocol, emulator_seed


def area(pixels: int, size: int) -> np.ndarray:
    """(size, pixels): the share of each pixel in each of ``size`` equal parts."""
    edges, pixel = np.arange(size + 1)[:, None] * pixels / size, np.arange(pixels)[None]
    return (
        np.clip(np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel), 0, None)
        * size
        / pixels
    )


class Oracle:
    """One emulator, driven by hand: one frame an ``act``."""

    def __init__(self, game: str, protocol: AtariProtocol, seed: int) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.protocol, self.ale = protocol, ale_py.ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", protocol.sticky_actions)
        self.ale.setInt("max_num_frames_per_episode", protocol.episode_frames)
        self.ale.loadROM(roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()
        self.rows, self.columns = (
            area(pixels, protocol.screen_size) for pixels in self.ale.getScreenDims()
        )

    def picture(self, *shots: np.ndarray) -> np.ndarray:
        return self.rows @ np.max(shots, axis=0).astype(float) @ self.columns.T

    def reset(self) -> np.ndarray:
        self.ale.reset_game()
        return self.picture(self.ale.getScreenGrayscale())

    def step(self, action: int) -> tuple[list[np.ndarray], float, bool, bool, int]:
        """The last two frames, reward, over, cut, and lives."""
        reward, shots = 0.0, []
        for _ in range(self.protocol.frame_skip):
            reward += self.ale.act(self.actions[action])
            shots.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        over, cut = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        return shots[-2:], reward, over, cut and not over, self.ale.lives()


def same_picture(shown: np.ndarray, expected: np.ndarray) -> None:
    assert np.max(np.abs(shown - expected)) <= 1  # which is how the halves are rounded


def games(
    game: str, indices=(0, 1), seed: int = 7, stream: int = 0, **settings
) -> AtariEnvironments:
    return AtariEnvironments(game, AtariProtocol(**settings), seed, indices, 2, stream)


def actions_of(pool: AtariEnvironments, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, pool.num_actions, (steps, len(pool)))


def play(pool: AtariEnvironments, actions: np.ndarray) -> list[HostStep]:
    return [pool.step(action) for action in actions]


def assert_same(steps: list[HostStep], others: list[HostStep]) -> None:
    for step, other in zip(steps, others, strict=True):
        for name, one, two in zip(HostStep._fields, step, other, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name)


def pick(steps: list[HostStep], which: slice) -> list[HostStep]:
    return [HostStep(*(x[which] for x in step)) for step in steps]


@pytest.mark.parametrize(
    ("game", "episode_frames", "steps", "over", "cut", "highest"),
    [("breakout", 3_000, 450, 2, 0, 1), ("asterix", 480, 300, 0, 4, 50)],
)
def test_a_game_is_what_an_emulator_driven_by_hand_plays(
    game, episode_frames, steps, over, cut, highest
):
    """Every step of the emulator is a step here, over several episodes of one seed.

    Rewards are those of the game.
    """
    pool = games(game, episode_frames=episode_frames)
    oracles = [Oracle(game, pool.protocol, emulator_seed(7, 0, i, 0)) for i in range(2)]
    for shown, oracle in zip(pool.reset(), oracles, strict=True):
        same_picture(shown, oracle.reset())
    ends, rewards = np.zeros((2, 2), int), []
    for time, action in enumerate(actions_of(pool, steps)):
        step = pool.step(action)
        rewards.extend(step.reward.tolist())
        np.testing.assert_array_equal(step.first, step.terminated | step.truncated)
        for i, oracle in enumerate(oracles):
            shots, *told, _ = oracle.step(action[i])
            assert [step.reward[i], step.terminated[i], step.truncated[i]] == told
            if time % 13 == 0 and not step.first[i]:
                same_picture(step.observation[i], oracle.picture(*shots))
            if step.first[i]:
                ends[i] += (step.terminated[i], step.truncated[i])
                beginning = oracle.reset()
                same_picture(step.next_observation[i], beginning)
                assert np.max(np.abs(step.observation[i] - beginning)) > 1
            else:
                np.testing.assert_array_equal(step.next_observation[i], step.observation[i])
    assert np.sum(ends[:, 0]) >= over
    assert np.sum(ends[:, 1]) >= cut
    assert max(rewards) >= highest


@pytest.mark.parametrize(
    ("game", "count"), [("pong", 6), ("breakout", 4), ("freeway", 3), ("boxing", 18)]
)
def test_a_game_has_its_own_actions(game, count):
    assert games(game, [0]).num_actions == count


def test_all_actions_if_asked_for():
    assert games("freeway", [0], full_actions=True).num_actions == 18


def test_what_is_shown():
    pool = games("pong", [0, 1, 2], frame_stack=3)
    assert (pool.observation.shape, pool.observation.dtype, pool.stack, len(pool)) == (
        (84, 84),
        np.uint8,
        3,
        3,
    )
    shown = pool.reset()
    assert (shown.shape, shown.dtype) == ((3, 84, 84), np.uint8)
    step = pool.step(np.zeros(3, np.int32))
    for frame in (step.observation, step.next_observation):
        assert (frame.shape, frame.dtype) == ((3, 84, 84), np.uint8)
    assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype, step.first.dtype) == (
        np.float32,
        bool,
        bool,
        bool,
    )
    held = step.next_observation.copy()
    play(pool, actions_of(pool, 40))
    np.testing.assert_array_equal(
        step.next_observation, held
    )  # frames are the caller's: the emulators do not write in them again
    assert games("pong", [0], screen_size=40).reset().shape == (1, 40, 40)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_actions_stick(sticky):
    """The seed is only for the sticky actions: without them the game is the same."""
    pool = games("asterix", sticky_actions=sticky)
    pool.reset()
    frames = np.stack(
        [step.observation for step in play(pool, np.repeat(actions_of(pool, 80)[:, :1], 2, 1))], 1
    )
    assert np.array_equal(*frames) == (sticky == 0)


def test_an_episode_begins_with_nothing_pressed_unless_asked_for():
    still = np.zeros((30, 3), int)

    def watch(**settings):
        pool = games("breakout", [0, 1, 2], sticky_actions=0.0, **settings)
        pool.reset()
        return np.stack([step.observation for step in play(pool, still)])

    frames = watch()
    np.testing.assert_array_equal(
        frames, np.broadcast_to(frames[0], frames.shape)
    )  # no ball until fire is pressed
    assert np.any(watch(fire_reset=True) != frames)
    pool = games("asterix", [0, 1, 2])
    plain, begun = pool.reset(), games("asterix", [0, 1, 2], noop_starts=200).reset()
    np.testing.assert_array_equal(plain, np.broadcast_to(plain[0], plain.shape))
    assert np.any(begun != begun[:1])


@pytest.fixture(scope="module")
def cut():
    """The last step of episodes cut after twenty, the same step of others, and a first frame."""
    pool, whole = games("asterix", episode_frames=80), games("asterix")
    beginning = pool.reset()
    np.testing.assert_array_equal(whole.reset(), beginning)
    actions = actions_of(pool, 20)
    short, long = play(pool, actions), play(whole, actions)
    assert_same(short[:-1], long[:-1])
    assert not long[-1].first.any()
    return short[-1], long[-1], beginning


def test_a_cut_episode_is_truncated_and_not_terminated(cut):
    last, true, beginning = cut
    assert (last.truncated.all(), last.terminated.any(), last.first.all()) == (True, False, True)
    np.testing.assert_array_equal(last.reward, true.reward)
    np.testing.assert_array_equal(last.next_observation, beginning)
    for shown, correct, first in zip(last.observation, true.observation, beginning, strict=True):
        assert np.sum(shown != first) > np.sum(shown != correct) > 0 or np.array_equal(
            shown, correct
        )  # of its own episode, not of the next


def test_a_cut_episode_shows_its_true_last_frame(cut):
    last, true, _ = cut
    np.testing.assert_array_equal(last.observation, true.observation)


def test_the_loss_of_a_life_is_terminal_if_asked_for():
    pool, plain = (games("breakout", [0], life_loss_terminal=on) for on in (True, False))
    oracle = Oracle("breakout", pool.protocol, emulator_seed(7, 0, 0, 0))
    np.testing.assert_array_equal(pool.reset(), plain.reset())
    oracle.reset()
    lives, lost, over = oracle.ale.lives(), 0, 0
    for action in actions_of(pool, 450):
        step, same = pool.step(action), plain.step(action)
        *_, ended, _, left = oracle.step(action[0])
        assert step.terminated.item() == (left < lives)
        assert step.first.item() == ended
        for name in (
            "observation",
            "reward",
            "next_observation",
            "first",
            "truncated",
        ):  # the game goes on
            np.testing.assert_array_equal(getattr(step, name), getattr(same, name))
        assert same.terminated.item() == ended
        lost, over, lives = lost + (left < lives), over + ended, left
        if ended:
            oracle.reset()
            lives = oracle.ale.lives()
    assert over >= 1
    assert lost > 5 * over


def test_a_seed_is_made_of_the_run_the_stream_the_environment_and_the_block():
    seeds = [
        emulator_seed(*place)
        for place in ((4, 0, 2, 1), (3, 1, 2, 1), (3, 0, 3, 1), (3, 0, 2, 2), (3, 0, 2, 1))
    ]
    assert len(set(seeds)) == 5
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)
    assert emulator_seed(3, 0, 2, 1) == seeds[-1]
    assert len({emulator_seed(0, 0, i, k) for i in range(50) for k in range(50)}) == 2_500


def test_other_seeds_streams_indices_and_blocks_play_otherwise():
    def watch(indices=(0, 1), block=0, **settings):
        pool = games("asterix", indices, **settings)
        pool.reset(block)
        return [
            np.stack(frames)
            for frames in zip(*(s.observation for s in play(pool, actions)), strict=True)
        ]

    actions = np.repeat(np.random.default_rng(1).integers(0, 9, (80, 1)), 2, 1)
    usual = watch()
    np.testing.assert_array_equal(usual, watch())
    different = [*usual, watch(seed=8)[0], watch(stream=1)[0], watch(block=1)[0], watch((2, 3))[0]]
    assert len({frames.tobytes() for frames in different}) == len(different)


def test_groups_play_as_one_pool_would(monkeypatch):
    monkeypatch.setattr(atari, "BLOCK_STEPS", 15)
    pool = games("asterix", range(4), episode_frames=80)
    parts = [games("asterix", which, episode_frames=80) for which in ([0, 1], [2, 3])]
    beginning = pool.reset()
    actions = actions_of(pool, 50)
    steps = play(pool, actions)
    assert pool.save()[0]["block"] == 2
    for part, which in zip(parts, (slice(0, 2), slice(2, 4)), strict=True):
        np.testing.assert_array_equal(part.reset(), beginning[which])
        assert_same(play(part, actions[:, which]), pick(steps, which))
        assert part.save() == pool.save()[which]


@pytest.mark.parametrize("block_steps", [20, 21])
def test_a_new_block_begins_at_the_first_end_after_so_many_steps(monkeypatch, block_steps):
    """Episodes of 20 steps: an end begins a new block if the block has at least so many steps."""
    monkeypatch.setattr(atari, "BLOCK_STEPS", block_steps)
    pool = games("asterix", episode_frames=80)
    pool.reset()
    oracle, length = None, 20 if block_steps == 20 else 40
    for time, action in enumerate(actions_of(pool, 60)):
        number = time // length
        assert [saved["block"] for saved in pool.save()] == [number] * 2
        if time % length == 0:
            oracle = Oracle("asterix", pool.protocol, emulator_seed(7, 0, 1, number))
            oracle.reset()
        step = pool.step(action)
        shots, *told, _ = oracle.step(action[1])
        assert [step.reward[1], step.terminated[1], step.truncated[1]] == told
        if time % 20 == 18:  # by when the sticky actions of another seed have made another picture
            same_picture(step.observation[1], oracle.picture(*shots))
        if step.first[1]:
            same_picture(step.next_observation[1], oracle.reset())


def wander(
    pool: AtariEnvironments, beginning: np.ndarray, actions: np.ndarray
) -> tuple[list, list, list[HostStep]]:
    """What was saved and shown before every step, and the steps."""
    saved, shown, steps = [pool.save()], [beginning], []
    for action in actions:
        steps.append(pool.step(action))
        saved.append(pool.save())
        shown.append(steps[-1].next_observation)
    return saved, shown, steps


def assert_comes_back(
    fresh: AtariEnvironments, time: int, saved: list, shown: list, steps: list, actions: np.ndarray
) -> None:
    told = json.loads(json.dumps(saved[time]))
    done = []
    np.testing.assert_array_equal(fresh.restore(told, done.append), shown[time])
    assert fresh.save() == saved[time]
    assert sum(done) == pytest.approx(1) or not done
    assert_same(play(fresh, actions[time:]), steps[time:])
    assert fresh.save() == saved[-1]


@pytest.mark.parametrize("time", [0, 13, 30, 60, 64])
def test_what_was_saved_comes_back_to_the_bit(monkeypatch, wandered, time):
    """Before any step, within an episode, right after an end (30), in a new block (60)."""
    monkeypatch.setattr(atari, "BLOCK_STEPS", 40)
    assert_comes_back(
        games("breakout", episode_frames=120, life_loss_terminal=True), time, *wandered
    )


@pytest.fixture(scope="module")
def wandered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "BLOCK_STEPS", 40)
        pool = games("breakout", episode_frames=120, life_loss_terminal=True)
        actions = actions_of(pool, 130)
        saved, shown, steps = wander(pool, pool.reset(), actions)
    assert [[item["block"] for item in saved[time]] for time in (30, 59, 60, 61, 120)] == [
        [k, k] for k in (0, 0, 1, 1, 2)
    ]
    assert steps[29].first.all()
    assert sum(np.sum(step.terminated) for step in steps) >= 2
    return saved, shown, steps, actions


def test_environments_with_different_histories_come_back(monkeypatch):
    """One episode ends when others do not and begins a block: right then, and one end later."""
    monkeypatch.setattr(atari, "BLOCK_STEPS", 1)
    pool = games("breakout", [0, 1, 2], life_loss_terminal=True)
    actions = actions_of(pool, 400, seed=2)
    saved, shown, steps = wander(pool, pool.reset(), actions)
    ends = [time + 1 for time, step in enumerate(steps) if step.first.any()]
    assert len(ends) >= 2
    assert all(not steps[time - 1].first.all() for time in ends)
    for time in (ends[0], ends[1] + 3):
        assert len({len(item["actions"]) for item in saved[time]}) > 1
        until = min(time + 60, len(steps))
        fresh = games("breakout", [0, 1, 2], life_loss_terminal=True)
        assert_comes_back(fresh, time, saved[: until + 1], shown, steps[:until], actions[:until])


def test_an_evaluation_has_games_of_its_own_by_number():
    pool = games("asterix", stream=1, episode_frames=80)
    actions = actions_of(pool, 30)
    pool.reset(5)
    five = play(pool, actions)
    pool.reset(6)
    six = play(pool, actions)
    pool.reset(5)
    assert_same(play(pool, actions), five)
    assert any(np.any(a.observation != b.observation) for a, b in zip(five, six, strict=True))


def test_a_bare_step_is_a_step_of_the_emulators():
    pool, usual = games("asterix"), games("asterix")
    assert isinstance(pool, VectorEnvironment)
    assert isinstance(pool, SplitStep)
    pool.reset()
    usual.reset()
    actions = actions_of(pool, 30)
    for action in actions[:-1]:
        pool.send(action)
        pool.recv()
        usual.step(action)
    step, same = pool.step(actions[-1]), usual.step(actions[-1])
    np.testing.assert_array_equal(step.observation, same.observation)


@pytest.mark.parametrize("steps", [25, None])
def test_an_episode_is_replayed_in_colour(steps):
    """The pictures and rewards of the second environment's episode, to its end or up to a step."""
    spec = environments.make("atari/breakout").with_protocol(AtariProtocol(screen_size=40))
    pool = spec.open(7, [0, 3], stream=1, threads=2)
    assert (pool.protocol, pool.stack) == (spec.protocol, 4)
    oracle = Oracle("breakout", spec.protocol, emulator_seed(7, 1, 3, 2))
    pool.reset(2)
    oracle.reset()
    colours, rewards, taken = [oracle.ale.getScreenRGB()], [0.0], []
    for action in actions_of(pool, 500):
        step = pool.step(action)
        taken.append(int(action[1]))
        reward, screens = 0.0, []
        for _ in range(4):
            reward += oracle.ale.act(oracle.actions[action[1]])
            screens.append(oracle.ale.getScreenRGB())
            if oracle.ale.game_over():
                break
        colours.append(np.maximum(*screens[-2:]))
        rewards.append(reward)
        assert step.reward[1] == reward
        if step.first[1] or len(taken) == steps:
            break
    assert step.first[1] == (steps is None)
    pictures, replayed = zip(*spec.replay(7, 3, 1, 2, taken), strict=True)
    assert list(replayed) == rewards
    assert steps or sum(rewards) > 0
    assert {(x.shape, x.dtype) for x in pictures} == {((210, 160, 3), np.dtype(np.uint8))}
    np.testing.assert_array_equal(np.stack(pictures[:-1]), np.stack(colours[:-1]))
    # Where a game ends within a step, the emulator pools other frames than the oracle does.
    assert np.mean(pictures[-1] != colours[-1]) <= (0 if steps else 0.01)


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("atari/Pong", "pong"),
        ("atari/MontezumaRevenge", "montezuma_revenge"),
        ("atari/Montezuma's Revenge", "montezuma_revenge"),
        ("atari/montezuma_revenge", "montezuma_revenge"),
        ("atari/Q*bert", "qbert"),
        ("atari/tetris", "tetris"),
    ],
)
def test_a_game_has_one_name(name, game):
    spec = environments.make(name)
    assert (spec.name, spec.family, spec.device) == (f"atari/{game}", "atari", None)
    assert spec.opener.args == (game,)


@pytest.mark.parametrize(
    ("name", "nearest"), [("atari/pongg", "pong"), ("atari/montezuma", "montezuma_revenge")]
)
def test_a_misspelt_game_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"no Atari game '{name}'; did you mean .*{nearest}"):
        environments.make(name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sticky_actions", -0.1),
        ("sticky_actions", 1.0),
        ("frame_skip", 0),
        ("frame_stack", 0),
        ("episode_frames", 0),
        ("screen_size", 35),
        ("noop_starts", -1),
    ],
)
def test_a_bad_protocol_names_the_flag(setting, value):
    with pytest.raises(ValueError, match=f"^--{setting.replace('_', '-')} must .*got {value}"):
        AtariProtocol(**{setting: value})
    assert dataclasses.replace(AtariProtocol()) == AtariProtocol()


def test_the_protocol_says_what_it_is():
    assert "no terminal at the loss of a life" in str(AtariProtocol())
    departed = AtariProtocol(0.0, 3, 2, False, 60, True, True, True, 30, 1_000)
    for words in (
        "actions 0;",
        "skip 3, no max",
        "60×60 grey, 2",
        "all 18",
        "; terminal at",
        "; fire",
        "30 no-ops",
        "1,000",
    ):
        assert words in str(departed)
        assert words not in str(AtariProtocol())
