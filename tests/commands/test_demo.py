"""The rule for solved, by hand, and the folder that is free."""

import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.commands import demo


def found(*episodes: int, total: int = 60) -> np.ndarray:
    result = np.zeros(total, bool)
    result[list(episodes)] = True
    return result


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (np.ones(60, bool), 20),  # not before a whole window
        (np.ones(20, bool), 20),
        (found(*range(10)), 20),
        (found(*range(30, 40)), 40),  # the tenth of them is episode 40, counted from one
        (found(*range(20, 40, 2)), 39),  # 20, 22, …, 38: ten within 19
        (found(*range(0, 60, 3)), None),  # never more than seven in twenty
        (found(*range(9)), None),
        (found(*range(9), 20), None),  # ten, but not within twenty
        (found(*range(1, 10), 20), 21),
        (found(), None),
    ],
)
def test_episodes_to_solve_by_hand(row, expected):
    assert demo.WINDOW == 20
    assert demo.episodes_to_solve(row) == expected


def test_folders_are_numbered_from_two(tmp_path):
    wanted = tmp_path / "demo.d"
    assert demo._free(wanted) == wanted
    wanted.mkdir()
    assert demo._free(wanted) == tmp_path / "demo.d-2"
    (tmp_path / "demo.d-2").mkdir()
    (tmp_path / "demo.d-4").mkdir()
    assert demo._free(wanted) == tmp_path / "demo.d-3"


def test_fewer_episodes_than_the_window_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--episodes must be at least 20.*got 19"):
        demo.demo(tmp_path / "x", 19, 1, Console(quiet=True))
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_demo_trains_both_agents_and_draws_them(tmp_path):
    solved = demo.demo(tmp_path / "demo", demo.WINDOW, 1, Console(quiet=True))
    assert set(solved) == {"sbm-dqn-ts", "dqn"}
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "dqn" / "summary.json").exists()
