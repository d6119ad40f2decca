from pathlib import Path

import pytest

from .calling import FLAGS, sbm


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that the command line has trained; tests only add files to it."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    with pytest.MonkeyPatch.context() as patch:
        sbm(patch, "train", "dqn", "--env", "deep_sea/3", *FLAGS, "--out", str(folder))
    return folder


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder, and a terminal that wraps nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path
