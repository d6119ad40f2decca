import json
from pathlib import Path

import pytest

from spectral_bellman.analysis.provenance import provenance, write_json


def test_it_names_what_a_rerun_needs() -> None:
    facts = provenance()
    assert set(facts) >= {"command", "commit", "python", "packages", "device", "processor", "cores"}
    assert facts["packages"]["jax"]
    assert "/" not in facts["command"].split()[0], "no paths of the machine"


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"σ": 1})
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": 1}
