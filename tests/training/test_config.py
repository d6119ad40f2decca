"""The settings of a run: put together, changed, refused, and read back."""

import dataclasses
import json

import jax
import pytest

from spectral_bellman.agents.explorations import Thompson
from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.disk import run_folder
from spectral_bellman.environments import make
from spectral_bellman.training.config import (
    EmulatorSettings,
    HostSettings,
    TrainConfig,
    configure,
    flat,
    override,
    read_config,
    to_json,
)

SEA = make("deep_sea/4")


def test_a_setting_goes_where_it_belongs():
    """To the run, the agent, its choices, the solver inside a choice, or the protocol."""
    changes = {
        "frames": 123,
        "batch": 7,
        "theta_samples": 9,
        "noise_scale": 0.5,
        "q_steps": 3,
        "episode_frames": 240,
    }
    config = configure("sbm-dqn-ts", make("atari/pong"), changes)
    assert {name: flat(config)[name] for name in changes} == changes
    assert config.frames == 123
    assert config.agent.batch == 7
    assert config.agent.representation.theta_samples == 9
    assert config.agent.exploration.noise_scale == 0.5
    assert config.agent.representation.solver.q_steps == 3
    assert config.protocol.episode_frames == 240
    assert flat(configure("sbm-dqn-ts", make("atari/pong")))["episode_frames"] != 240


def test_a_choice_brings_settings_of_its_own():
    config = configure("sbm-dqn-ts", SEA, {"exploration": "ucb", "ridge": 0.3})
    assert (config.agent.exploration.name, config.agent.exploration.ridge) == ("ucb", 0.3)
    again = override(config, {"exploration": "thompson"})
    assert again.agent.exploration == Thompson()
    same = override(config, {"exploration": "ucb", "batch": 5})
    assert same.agent.exploration == config.agent.exploration


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("dqn", {"learning_rat": 1.0}, "did you mean learning_rate"),
        ("dqn", {"noise_scale": 1.0}, r"--noise-scale has no use here \(exploration epsilon\)"),
        ("dqn", {"noise_scale": 1.0}, "it is a setting of exploration thompson, exploration ucb"),
        ("sbm-dqn-ts", {"epsilon_end": 0.1}, "exploration thompson.*exploration epsilon"),
        (
            "sbm-dqn-ts",
            {"exploration": "epsilon", "ridge": 0.1},
            r"--ridge has no use here \(exploration epsilon\)",
        ),
        ("sbm-dqn-ts", {"pvn_networks": 3}, "representation spectral.*representation pvn"),
        ("dqn", {"theta_samples": 3}, "representation plain"),
        ("sbm-dqn-ts", {"episode_frame": 3}, "there is no setting 'episode_frame'"),
        (
            "dqn-ts",
            {"q_solver": "adam"},
            r"--q-solver has no use here \(representation td\): .* representation mse, .*pvn",
        ),
        (
            "r2d2",
            {"representation": "td", "exploration": "thompson", "noise_bound": True},
            "--noise-bound bounds the noise by .*rescaled values: take --no-noise-bound",
        ),
        ("sbm-dqn-ts", {"exploration": "thomson"}, "did you mean thompson"),
        ("dqn", {"exploration": "thompson"}, "needs features.*--representation td"),
        ("dqn", {"seeds": 0}, "--seeds must be at least 1, got 0"),
        ("dqn", {"frames": 0}, "--frames must be at least 1"),
        ("dqn", {"log_frames": -1}, "--log-frames must be 0 or more"),
        ("dqn", {"staleness": 0}, "--staleness must be at least 1"),
        ("dqn", {"eval_epsilon": 1.5}, "--eval-epsilon must be between 0 and 1"),
        ("sbm-dqn-ts", {"q_steps": 33, "updates": 32}, "--q-steps 33 are among the --updates 32"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_a_word_on_why(preset, changes, message):
    with pytest.raises(ValueError, match=message):
        configure(preset, SEA, changes)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("minatar/breakout", {"groups": 2}, "--groups has no use on minatar/breakout.*on the host"),
        ("deep_sea/4", {"dispatch_steps": 2}, "--dispatch-steps has no use on deep_sea/4"),
        (
            "gym/CartPole-v1",
            {"num_envs": 3, "groups": 2},
            "--num-envs 3 cannot be divided into --groups 2",
        ),
        ("gym/CartPole-v1", {"cores": 2}, r"--cores has no use on gym/.*emulators \(atari/\)"),
        ("gym/CartPole-v1", {"sticky_actions": 0.1}, "--sticky-actions .* a setting of atari/"),
        ("minatar/breakout", {"hidden_frames": 0.1}, "--hidden-frames .* of minatar_hidden/"),
        (
            "minatar/breakout",
            {"hidden": (3,)},
            "--hidden has no use on minatar/breakout: .*minatar",
        ),
        ("atari/pong", {"hidden": (3,)}, "--hidden has no use on atari/pong: the torso is centred"),
    ],
)
def test_a_setting_of_other_environments_is_refused(env, changes, message):
    with pytest.raises(ValueError, match=message):
        configure("dqn", make(env), changes)


def test_hidden_layers_are_for_the_torso_that_has_them():
    spec = make("minatar/breakout")
    config = configure("dqn", spec, {"hidden": (3,), "network": "mlp"})
    assert config.agent.hidden == (3,)
    assert configure("dqn", make("gym/CartPole-v1"), {"hidden": (3,)}).agent.hidden == (3,)


def test_settings_of_the_host_are_there_where_something_reads_them():
    def host(env):
        return configure("dqn", make(env)).host

    assert host("deep_sea/4") is None
    assert type(host("gym/CartPole-v1")) is HostSettings
    assert type(host("atari/pong")) is EmulatorSettings
    assert host("atari/pong").groups == 2
    config = configure("dqn", make("atari/pong"), {"groups": 1, "cores": 3})
    assert (config.host.groups, config.host.cores) == (1, 3)


def test_settings_are_refused_after_all_of_them_are_known():
    """A choice may come after the settings it brings."""
    config = configure("sbm-dqn-ts", SEA, {"epsilon_end": 0.2, "exploration": "epsilon"})
    assert config.agent.exploration.epsilon_end == 0.2


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean dqn"):
        configure("dqm", SEA)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig("dqn", "deep_sea/4").seeds = 3  # type: ignore[misc]


ENVS = ("deep_sea/4", "gym/CartPole-v1", "minatar/breakout", "atari/pong")
# dqn-dopamine is for screens.
PAIRS = [(p, env) for p in PRESETS for env in ENVS if p != "dqn-dopamine" or "atari" in env]


@pytest.mark.parametrize(("preset", "env"), PAIRS)
def test_a_config_comes_back_from_its_folder(tmp_path, preset, env):
    config = configure(preset, make(env), {"frames": 77, "seeds": 2}).resolved()
    run_folder.write_config(tmp_path, {**to_json(config), "provenance": {"commit": "x"}})
    assert read_config(tmp_path) == config
    content = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (content["preset"], content["agent"]["representation"]["name"]) == (
        preset,
        config.agent.representation.name,
    )


AGENT = to_json(configure("sbm-dqn-ts", SEA))["agent"]


GONE = object()


def written(folder, **changes):
    """A config.json with something changed, or ``GONE``."""
    content = {"schema": run_folder.SCHEMA, **to_json(configure("sbm-dqn-ts", SEA))}
    content |= changes
    content = {name: value for name, value in content.items() if value is not GONE}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": GONE}, "the setting frames is missing"),
        ({"frames": "many"}, "--frames must be a whole number"),
        ({"frames": -1}, "--frames must be at least 1"),
        ({"agent": {}}, "is missing"),
        ({"agent": {**AGENT, "more": 1}}, "there is no setting more"),
        (
            {"agent": {**AGENT, "exploration": {"name": "none"}}},
            "the setting exploration names no exploration",
        ),
    ],
)
def test_a_config_that_is_not_one_is_refused_with_its_file(tmp_path, changes, message):
    written(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        read_config(tmp_path)


def test_what_others_add_to_a_config_is_left_alone(tmp_path):
    written(tmp_path, provenance={"commit": "x"}, comment="of mine")
    assert read_config(tmp_path) == configure("sbm-dqn-ts", SEA)


def lengths(**changes) -> TrainConfig:
    """Rounds of ten frames."""
    settings = {"frames": 1_000, "num_envs": 2, "round_steps": 5, **changes}
    return TrainConfig("dqn", "x", **settings)


@pytest.mark.parametrize(
    ("changes", "rounds", "log_rounds", "eval_rounds"),
    [
        ({}, 100, 1, 10),
        ({"frames": 1_001}, 101, 1, 10),
        ({"frames": 9}, 1, 1, 1),
        ({"log_frames": 35}, 100, 3, 9),  # evaluations are at log lines
        ({"log_frames": 200, "eval_frames": 10}, 100, 20, 20),
        ({"eval_frames": 1_000}, 100, 1, 100),
    ],
)
def test_lines_and_evaluations_are_whole_numbers_of_rounds(
    changes, rounds, log_rounds, eval_rounds
):
    config = lengths(**changes)
    assert (config.rounds, config.log_rounds, config.eval_rounds) == (
        rounds,
        log_rounds,
        eval_rounds,
    )


def test_a_score_is_of_three_evaluations_in_the_last_tenth():
    config = lengths(eval_episodes=10, score_episodes=30)
    assert config.score_rounds == {93, 96, 100}
    assert {n: config.episodes_at(n) for n in range(1, 101) if config.episodes_at(n)} == {
        **{n: 10 for n in range(10, 91, 10)},
        **{n: 30 for n in (93, 96, 100)},
    }
    assert all(n > 0.9 * config.rounds for n in config.score_rounds)


@pytest.mark.parametrize("frames", [None, 100_000, 500_000, 1_000_000, 1_234_567, 10_000_000])
@pytest.mark.parametrize("env", ENVS)
def test_all_evaluations_of_the_last_tenth_are_of_the_score(env, frames):
    """Reports take the last three evaluations of the last tenth, wherever the others fall."""
    changes = {} if frames is None else {"frames": frames}
    config = configure("dqn", make(env), changes).resolved()
    lines = {*range(config.log_rounds, config.rounds, config.log_rounds), config.rounds}
    due = {n: config.episodes_at(n) for n in sorted(lines)}
    late = [episodes for n, episodes in due.items() if episodes and 10 * n > 9 * config.rounds]
    assert late == [30, 30, 30]
    assert sum(episodes == 10 for episodes in due.values()) >= 8


@pytest.mark.parametrize("log_frames", [10, 30, 70, 330, 2_000])
def test_evaluations_for_the_score_are_at_log_lines_and_at_the_end(log_frames):
    config = lengths(log_frames=log_frames)
    assert config.rounds in config.score_rounds
    others = config.score_rounds - {config.rounds}
    assert all(number % config.log_rounds == 0 for number in others)
    assert all(0 < number < config.rounds for number in others)


def test_a_longer_run_keeps_the_distances_of_the_shorter():
    config = lengths().resolved()
    longer = dataclasses.replace(config, frames=3_000)
    assert (longer.log_rounds, longer.eval_rounds) == (config.log_rounds, config.eval_rounds)
    assert longer.score_rounds == {280, 290, 300}


def test_the_warm_up_ends_with_the_round_that_reaches_it():
    config = lengths()
    for warmup, first in ((0, 0), (10, 0), (11, 1), (20, 1), (25, 2)):
        agent = dataclasses.replace(config.agent, warmup_steps=warmup)
        changed = dataclasses.replace(config, agent=agent)
        assert [n for n in range(5) if changed.learns(n)] == list(range(first, 5))


def test_deep_sea_has_a_direction_for_everything_that_can_be_met():
    for size, width in ((4, 128), (10, 128), (14, 256), (20, 512), (30, 1024)):
        config = configure("sbm-dqn-ts", make(f"deep_sea/{size}"))
        agent = config.agent
        assert agent.representation.features >= size * (size + 1)
        assert (agent.representation.features, agent.hidden) == (width, (width,))
        # Σ is made of all of the replay.
        assert config.replay_capacity < agent.exploration.precision_samples
    sea = make("deep_sea/20")
    assert flat(configure("sbm-dqn-ts", sea, {"features": 32}))["features"] == 32
    assert flat(configure("sbm-dqn-ts-paper", sea))["features"] == 256


def test_atari_on_a_cpu_takes_shorter_rounds_at_the_same_rates(monkeypatch):
    small = configure("dqn-dopamine", make("atari/pong"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    large = configure("dqn-dopamine", make("atari/pong"))
    assert small.round_agent_steps < large.round_agent_steps
    assert small.samples_per_step == large.samples_per_step == 8
    targets = {c.agent.target_rounds * c.round_agent_steps for c in (small, large)}
    assert len(targets) == 1
    assert abs(targets.pop() / 8_000 - 1) < 0.05  # Dopamine's


def test_families_say_how_stale_the_policy_is():
    assert configure("dqn", SEA).staleness == 1
    assert configure("dqn", make("atari/pong")).staleness == 2
    assert configure("dqn", SEA, {"staleness": 3}).staleness == 3


@pytest.mark.parametrize("warmup", [0, 1, 63, 64, 65, 1_000])
def test_the_first_round_that_learns(warmup):
    changes = {"warmup_steps": warmup, "num_envs": 4, "round_steps": 16}
    config = configure("dqn", SEA, changes)
    first = config.first_learning_round
    assert config.learns(first)
    assert first == 0 or not config.learns(first - 1)
