"""Settings by flat names: changed, refused, and read back from JSON."""

import dataclasses
import itertools
import json
import re

import pytest

from spectral_bellman.agents import AgentConfig
from spectral_bellman.agents.choices import (
    KINDS,
    flat,
    from_json,
    override,
    suited,
    to_json,
    users,
)
from spectral_bellman.agents.explorations import UCB, Epsilon, Propagated, Thompson
from spectral_bellman.agents.presets import PRESETS, agent_config
from spectral_bellman.agents.representations import MSE, TD, Linear, Plain, Spectral
from spectral_bellman.agents.representations.api import AdamSolver, LeastSquares
from spectral_bellman.environments import FAMILIES

DEFAULT = AgentConfig()
EPSILON = AgentConfig(exploration=Epsilon())
EVERY = [
    (preset, family) for preset in PRESETS for family in FAMILIES
]  # each preset on each family


def of(preset: str, family: str) -> AgentConfig:
    return agent_config(preset, family, {}, FAMILIES[family].agent)


@pytest.mark.parametrize(("preset", "family"), EVERY)
def test_every_preset_goes_through_flat_names_and_json_and_back(preset, family):
    config = of(preset, family)
    names = flat(config)
    assert override(DEFAULT, names) == config
    assert override(config, {}) == config
    assert override(config, names) == config
    assert suited(DEFAULT, {**names, "no_such_setting": 1}) == config
    stored = json.loads(json.dumps(to_json(config)))
    assert from_json(DEFAULT, stored) == config
    assert from_json(config, stored) == config
    changed = override(config, {"batch": 77, "hidden": (3,)})
    assert flat(changed) == {**names, "batch": 77, "hidden": (3,)}


def leaves(content) -> int:
    """Settings in JSON, choices included."""
    if not isinstance(content, dict):
        return 1
    return sum(leaves(value) for value in content.values())


def compositions():
    """Every representation with every solver, and every exploration, and both ways to sample.

    With every backbone and operator that they go with.
    """
    parts = []
    for part in KINDS["representation"].values():
        solvers = KINDS["q_solver"].values() if hasattr(part(), "solver") else [None]
        parts += [part(**({"solver": s()} if s else {})) for s in solvers]
    ways = [
        [choice() for choice in KINDS[kind].values()]
        for kind in ("exploration", "backbone", "operator", "sampling")
    ]
    return [
        AgentConfig(backbone, operator, part, way, sampling)
        for part, way, backbone, operator, sampling in itertools.product(parts, *ways)
        if part.has_features or not way.needs_features
        if operator.name in backbone.operators()
        if not (part.one_step_values and operator.name == "retrace")
        if backbone.rows == 1 or getattr(part, "solver", None) != LeastSquares()
    ]


def test_no_two_settings_of_an_agent_have_one_name():
    found = compositions()
    assert len(found) >= 300
    for config in found:
        assert leaves(to_json(config)) == len(flat(config))
        assert override(DEFAULT, flat(config)) == config
        assert from_json(DEFAULT, to_json(config)) == config


def test_flat_names_have_choices_by_their_kind():
    names = flat(AgentConfig(representation=Spectral(alpha=0.5), exploration=UCB(ridge=0.3)))
    assert (names["representation"], names["exploration"]) == ("spectral", "ucb")
    assert (names["q_solver"], names["alpha"], names["ridge"]) == ("adam", 0.5, 0.3)
    assert "epsilon_end" not in names


def test_a_choice_is_changed_with_its_settings_in_any_order():
    found = override(DEFAULT, {"q_rows": 7, "ridge": 0.5, "q_solver": "least_squares"})
    assert found.representation.solver == LeastSquares(q_rows=7)
    assert found.exploration == Thompson(ridge=0.5)
    found = override(DEFAULT, {"spread": 2.0, "exploration": "epsilon", "representation": "linear"})
    assert found.representation == Linear(spread=2.0)
    assert found.exploration == Epsilon()


def test_another_choice_starts_from_its_own_numbers():
    start = override(DEFAULT, {"features": 7, "theta_variance": 0.3, "q_steps": 2, "ridge": 0.9})
    found = override(start, {"representation": "mse", "exploration": "propagated", "q_steps": 3})
    assert found.representation == MSE(solver=AdamSolver(q_steps=3))
    assert found.exploration == Propagated()
    assert override(start, {"representation": "spectral"}) == start


def test_a_choice_may_be_given_as_it_is():
    given = {"representation": TD(features=3), "exploration": Propagated(ridge=0.2), "ridge": 0.4}
    found = override(DEFAULT, given)
    assert found.representation == TD(features=3)
    assert found.exploration == Propagated(ridge=0.4)


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        (
            EPSILON,
            "noise_scale",
            "--noise-scale has no use here (exploration epsilon): it is a setting of "
            "exploration thompson, exploration ucb",
        ),
        (
            DEFAULT,
            "epsilon_end",
            "--epsilon-end has no use here (exploration thompson): it is a setting of "
            "exploration epsilon",
        ),
        (
            AgentConfig(representation=Linear()),
            "alpha",
            "--alpha has no use here (representation linear): it is a setting of "
            "representation spectral",
        ),
        (
            AgentConfig(representation=MSE()),
            "q_rows",
            "--q-rows has no use here (q_solver adam): it is a setting of q_solver least_squares",
        ),
        (
            AgentConfig(representation=Linear()),
            "q_steps",
            "--q-steps has no use here (nothing reads it): it is a setting of q_solver adam",
        ),
        (
            AgentConfig(representation=Spectral(solver=LeastSquares())),
            "q_learning_rate",
            "--q-learning-rate has no use here (q_solver least_squares and representation "
            "spectral): it is a setting of q_solver adam, representation td",
        ),
    ],
)
def test_a_setting_without_a_use_is_refused_with_a_word_on_who_uses_it(config, name, message):
    with pytest.raises(ValueError) as refused:
        override(config, {name: 1})
    assert str(refused.value) == message
    assert suited(config, {name: 1}) == config


def test_every_setting_of_a_choice_is_refused_by_those_without_it():
    some = compositions()[::7]
    for kind, known in KINDS.items():
        assert {flat(config).get(kind) for config in some} >= set(known)
    for config in some:
        for choice in [c for kind in KINDS.values() for c in kind.values()]:
            for field in dataclasses.fields(choice):
                if field.name in flat(config) or field.name == "solver":
                    continue
                assert f"{choice.kind} {choice.name}" in users(field.name)
                with pytest.raises(ValueError, match=r"has no use here .*it is a setting of"):
                    override(config, {field.name: 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lerning_rate": 1.0}, "there is no setting 'lerning_rate'; did you mean learning_rate"),
        ({"noise_scal": 1.0}, "there is no setting 'noise_scal'; did you mean noise_scale"),
        ({"qqqq": 1.0}, "there is no setting 'qqqq'$"),
        ({"exploration": "thomson"}, "no --exploration 'thomson'; did you mean thompson"),
        ({"exploration": "zz"}, "choose one of epsilon, ladder, thompson, ucb, propagated"),
        ({"q_solver": "least_square"}, "no --q-solver 'least_square'; did you mean least_squares"),
        ({"representation": "expected"}, "there is no --representation 'expected'"),
        ({"alpha": 2.0}, "--alpha must be between 0 and 1, got 2.0"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(changes, message):
    with pytest.raises(ValueError, match=message):
        override(DEFAULT, changes)


def test_unknown_names_of_nothing_are_left_out_where_that_is_asked():
    assert suited(DEFAULT, {"lerning_rate": 1.0, "noise_scal": 2, "epsilon_end": 0.5}) == DEFAULT


def replaced(name, value, config=DEFAULT, **inside):
    """The JSON of a config with one thing changed."""
    content = json.loads(json.dumps(to_json(config)))
    place = content
    for step in inside.get("within", ()):
        place = place[step]
    place[name] = value
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (replaced("batch", "256"), "--batch must be a whole number, got '256'"),
        (replaced("batch", 2.5), "--batch must be a whole number, got 2.5"),
        (replaced("batch", True), "--batch must be a whole number, got True"),
        (replaced("learning_rate", None), "--learning-rate must be a number, got None"),
        (replaced("learning_rate", True), "--learning-rate must be a number, got True"),
        (replaced("hidden", 128), "--hidden must be a list of whole numbers, got 128"),
        (replaced("hidden", ["a"]), "--hidden must be a list"),
        (replaced("hidden", [1.5]), "--hidden must be a list"),
        (replaced("network", 3), "--network cannot be 3; choose one of auto"),
        (replaced("representation", "spectral"), "names no representation"),
        (replaced("representation", {"name": "averaged"}), "names no representation"),
        (replaced("name", "thomson", within=("exploration",)), "names no exploration"),
        (replaced("alpha", "1", within=("representation",)), "--alpha must be a number, got '1'"),
        (replaced("solver", None, within=("representation",)), "names no q_solver"),
        (
            replaced("noise_bound", 1, within=("exploration",)),
            "--noise-bound must be true or false, got 1",
        ),
        (replaced("norm", "value", within=("exploration",)), "there is no setting norm"),
        (replaced("q_steps", 4), "there is no setting q_steps"),
        (replaced("name", "x"), "there is no setting name"),
        (
            replaced("norm", "value", within=("representation",)),
            "--norm cannot be 'value'; choose one of unit, clip",
        ),
        (replaced("alpha", 3.0, within=("representation",)), "--alpha must be between 0 and 1"),
    ],
)
def test_wrong_json_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        from_json(DEFAULT, content)


@pytest.mark.parametrize("name", [*to_json(DEFAULT)])
def test_a_missing_setting_is_refused(name):
    content = to_json(DEFAULT)
    del content[name]
    with pytest.raises(ValueError, match=f"the setting {name} is missing"):
        from_json(DEFAULT, content)


def test_integers_are_numbers_and_lists_are_tuples():
    content = replaced("learning_rate", 1)
    content["hidden"] = []
    found = from_json(DEFAULT, content)
    assert (type(found.learning_rate), found.learning_rate, found.hidden) == (float, 1, ())
    content["hidden"] = [5, 6]
    assert from_json(found, content).hidden == (5, 6)


def test_json_of_one_composition_is_read_into_any_other():
    plain = AgentConfig(representation=Plain(), exploration=Epsilon())
    for config in (plain, DEFAULT, AgentConfig(representation=TD(), exploration=Propagated())):
        for start in (plain, DEFAULT):
            assert from_json(start, json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "unitt"}, "--norm cannot be 'unitt'; did you mean unit?"),
        ({"noise_bound": "no"}, "--noise-bound must be true or false, got 'no'"),
        ({"batch": "64"}, "--batch must be a whole number, got '64'"),
        ({"q_steps": 2.5}, "--q-steps must be a whole number, got 2.5"),
        ({"learning_rate": "fast"}, "--learning-rate must be a number"),
    ],
)
def test_values_of_another_kind_are_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        override(DEFAULT, changes)


def test_whole_numbers_do_for_real_ones():
    assert override(DEFAULT, {"learning_rate": 1}).learning_rate == 1.0
    assert type(override(DEFAULT, {"learning_rate": 1}).learning_rate) is float
    assert override(DEFAULT, {"hidden": [3, 4]}).hidden == (3, 4)
