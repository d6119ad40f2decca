"""Which room may import which, and what the method needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "spectral_bellman"
METHOD = {"objective", "operators", "posterior", "_arrays", "_names"}
"""What every room may import."""
ROOMS = {
    "objective": set(),
    "operators": set(),
    "posterior": set(),
    "_arrays": set(),
    "_names": set(),
    "scores": set(),
    "tabular": {"disk", "scores"},
    "networks": set(),
    "replay": set(),
    "environments": {"scores"},
    "agents": {"networks", "replay"},
    "disk": {"replay"},  # the rings that segments hold
    "report": {"disk", "scores"},
    "training": {"agents", "networks", "replay", "environments", "disk"},
    "commands": {
        *("agents", "networks", "replay", "environments", "disk", "training", "report", "scores"),
        "tabular",
    },
}
"""Room -> the rooms that it may import besides the method and itself."""


def imported(path: Path) -> set[str]:
    """The rooms of the package that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "spectral_bellman":
                names = [f"spectral_bellman.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("spectral_bellman.")}
    return found


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE]
FILES += [path for path in sorted(SOURCE.glob("*.py")) if not path.name.startswith("__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    wrong = imported(path) - ROOMS[room] - METHOD - {room}
    assert not wrong, f"{room} must not import {', '.join(sorted(wrong))}"


def test_every_room_is_known():
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == set(ROOMS)


def test_no_file_is_longer_than_400_lines():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {str(path): n for path, n in lengths.items() if n > 400} == {}


def fresh(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ("gymnasium", "optax", "rich", "tyro", "ale_py", "scipy", "equinox", "matplotlib")


def test_the_method_loads_nothing_of_weight():
    loaded = fresh(
        "import sys; from spectral_bellman import objective, operators, posterior; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert loaded == "[]"


def test_the_method_works_on_systems_without_fcntl_and_resource():
    code = (
        "import sys; sys.modules['fcntl'] = sys.modules['resource'] = None; "
        "from spectral_bellman import objective, operators, posterior, tabular, scores; "
        "import spectral_bellman; spectral_bellman.train; print('works')"
    )
    assert fresh(code) == "works"


def test_names_that_are_loaded_later_are_there():
    code = (
        "import spectral_bellman; print(sorted(set(spectral_bellman.__all__) - "
        "set(dir(spectral_bellman)))); spectral_bellman.tabular.MDP; spectral_bellman.resume; "
        "spectral_bellman.scores.HUMAN"
    )
    assert fresh(code) == "[]"
    import spectral_bellman

    with pytest.raises(AttributeError, match="nonsense"):
        _ = spectral_bellman.nonsense
