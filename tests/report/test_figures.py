"""Looks of agents, which agents a panel has, and the size of a picture."""

import io
import itertools

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.commands.demo import LABELS
from spectral_bellman.disk.pictures import to_png
from spectral_bellman.report.figures import LOOKS, SPARE, choose, styles


def test_every_preset_has_a_look_of_its_own() -> None:
    assert set(PRESETS) <= set(LOOKS)
    looks = [LOOKS[preset] for preset in PRESETS]
    assert len(set(looks)) == len(looks)
    assert set(LABELS.values()) <= set(LOOKS)


def test_the_baseline_has_a_colour_that_no_agent_of_ours_has() -> None:
    ours = {colour for agent, (colour, _) in LOOKS.items() if agent.startswith("sbm")}
    assert LOOKS["dqn"][0] not in ours
    assert not ours & set(SPARE)


def test_an_agent_looks_the_same_in_any_company() -> None:
    names = [*LOOKS, "mine"]
    alone = {name: styles([name])[name] for name in names}
    for pair in itertools.combinations(names, 2):
        assert styles(pair) == {name: alone[name] for name in sorted(pair)}
    assert alone["dqn"] == {"color": "#000000", "ls": "-"}


def test_unknown_agents_differ_from_each_other_and_from_the_known() -> None:
    names = [f"agent-{i}" for i in range(20)]
    looks = [tuple(style.values()) for style in styles([*names, *LOOKS]).values()]
    assert len(set(looks[:20])) == 20
    assert not set(looks[:20]) & set(LOOKS.values())


def test_the_baseline_is_chosen_first_then_the_best() -> None:
    scores = {"a": 3.0, "b": np.nan, "c": 5.0, "dqn": 0.0, "d": 4.0, "e": 2.0, "f": 1.0, "g": -1.0}
    assert choose(scores) == ["dqn", "c", "d", "a", "e", "f"]
    assert choose({"a": np.nan, "b": 1.0}) == ["b", "a"]


def test_a_picture_has_its_colours_in_a_palette() -> None:
    figure = Figure(figsize=(2, 1))
    panel = figure.subplots()
    panel.plot([0, 1], color="#D55E00", lw=10)
    picture = Image.open(io.BytesIO(to_png(figure, dpi=100)))
    assert (picture.mode, picture.size) == ("P", (200, 100))
    colours = {colour for _, colour in picture.convert("RGB").getcolors(10_000) or []}
    assert {(255, 255, 255), (0xD5, 0x5E, 0x00)} <= colours
