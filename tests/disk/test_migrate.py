"""Configs of older runs: missing settings filled in, and presets renamed by their agent."""

import pytest

from spectral_bellman.disk.migrate import (
    BEFORE,
    FEED_FORWARD,
    migrated,
    upgraded,
    with_choices,
)


def old(preset: str, **agent: object) -> dict[str, object]:
    return {"preset": preset, "env": "minatar/breakout", "agent": agent, "provenance": {"x": 1}}


def test_missing_settings_are_what_they_were_before_they_existed() -> None:
    found = migrated(old("dqn", head_rate=0.3, q_start="backup"), 2)
    assert found["agent"] == {**BEFORE, "head_rate": 0.3, "q_start": "backup"}
    assert found["schema"] == 2
    assert found["provenance"] == {"x": 1}
    assert "original_preset" not in found


@pytest.mark.parametrize(
    ("preset", "norm", "name"),
    [
        ("sbm-dqn-ts", "value", "sbm-linear-dqn-ts"),
        ("sbm-dqn", "value", "sbm-linear-dqn"),
        ("sbm-dqn-ts", "unit", "sbm-dqn-ts"),
        ("sbm-dqn", "clip", "sbm-dqn"),
        ("mse-dqn-ts", "value", "mse-dqn-ts"),
    ],
)
def test_sbm_with_q_as_its_first_feature_is_the_linear_form(
    preset: str, norm: str, name: str
) -> None:
    found = migrated(old(preset, norm=norm, representation="averaged"), 2)
    assert found["preset"] == name
    assert found.get("original_preset") == (preset if name != preset else None)


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ("atari/pong", {"groups", "cores", "replay_memory"}),
        ("gym/CartPole-v1", {"groups", "replay_memory"}),
        ("minatar/breakout", set()),
    ],
)
def test_version_2_had_settings_of_the_host_for_all_environments(env: str, names: set[str]) -> None:
    before = {"schema": 2, "env": env, "groups": 2, "cores": 3, "replay_memory": "host", "seeds": 4}
    found = upgraded(before, 3)
    assert (found["schema"], found["seeds"]) == (3, 4)
    assert set(found["host"] or {}) == names
    assert not {"groups", "cores", "replay_memory"} & set(found)
    assert before["groups"] == 2, "the config itself is not changed"


def test_version_4_added_choices_and_moved_one_setting() -> None:
    solver = {"name": "adam", "q_steps": 4}
    record = {"name": "spectral", "q_start": "backup", "solver": solver}
    before = {"schema": 3, "env": "x", "agent": {"representation": record, "double": True}}
    found = with_choices(before, 4)
    assert found["schema"] == 4
    assert found["agent"] == {
        **FEED_FORWARD,
        "double": True,
        "representation": {
            "name": "spectral",
            "theta_tilde_steps": 0,
            "solver": {**solver, "q_start": "backup"},
        },
    }
    assert record["q_start"] == "backup", "the config itself is not changed"
    assert with_choices({"schema": 3, "env": "x"}, 4) == {"schema": 4, "env": "x"}


def test_before_version_5_every_transition_was_a_row_of_its_own() -> None:
    record = {"name": "ucb", "precision_samples": 7}
    found = with_choices({"schema": 4, "agent": {**FEED_FORWARD, "exploration": record}}, 5)
    assert found["agent"] == {**FEED_FORWARD, "exploration": {**record, "precision_distinct": 0}}
    plain = {"schema": 4, "agent": {**FEED_FORWARD, "exploration": {"name": "epsilon"}}}
    assert with_choices(plain, 5)["agent"] == plain["agent"]


@pytest.mark.parametrize(
    ("exploration", "steps", "lowered"),
    [
        ("thompson", 100, "variance"),
        ("ucb", 100, "variance"),
        ("epsilon", 100, None),
        ("thompson", 0, None),
    ],
)
def test_version_1_annealed_the_variance_of_the_noise(
    exploration: str, steps: int, lowered: str | None
) -> None:
    config = old("dqn-ts", exploration=exploration, noise_anneal_steps=steps)
    found = migrated(config, 4)["provenance"]
    assert found == {"x": 1} | ({"noise_anneals": lowered} if lowered else {})
    without = {key: value for key, value in config.items() if key != "provenance"}
    assert migrated(without, 4).get("provenance") == (
        {"noise_anneals": lowered} if lowered else None
    )


def test_the_config_itself_is_not_changed() -> None:
    config = old("sbm-dqn", norm="value")
    migrated(config, 2)
    assert config == old("sbm-dqn", norm="value")


def test_a_config_without_an_agent_is_left_to_its_reader() -> None:
    assert migrated({"preset": "x", "env": "y"}, 2) == {"schema": 2, "preset": "x", "env": "y"}
