"""``sbm bench``."""

import json
from pathlib import Path

import pytest

from .calling import sbm


@pytest.mark.slow
def test_bench_measures_the_presets_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    presets, out = ("dqn", "dqn-ts"), tmp_path / "bench.json"
    flags = ["--presets", *presets, "--seconds", "0.05", "--out", str(out)]
    sbm(monkeypatch, "bench", "deep_sea/3", *flags)
    figures, printed = json.loads(out.read_text(encoding="utf-8")), capsys.readouterr().out
    times = figures["seconds a round"]
    assert set(times) == set(presets)
    overhead = figures["overhead of dqn-ts over dqn"]
    assert overhead == pytest.approx(times["dqn-ts"] / times["dqn"] - 1)
    assert "overhead of dqn-ts over dqn" in printed
    assert set(figures["configs"]) == set(presets)
