"""What the documents show runs, and what they link to exists."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
]
WITHOUT_CODE = {"CHANGELOG.md", "docs/history.md", "docs/results.md"}
MOST_WORDS = {"README.md": 700, "docs/history.md": 900}
"""Words outside tables."""


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in WITHOUT_CODE])
def test_code_runs(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    module = types.ModuleType("document")  # dataclasses look up the module they are defined in
    monkeypatch.setitem(sys.modules, "document", module)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks, "a document without code belongs in WITHOUT_CODE"
    for block in blocks:
        exec(compile(block, document, "exec"), module.__dict__)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_prose_is_wrapped_at_100(document: str) -> None:
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > 100 and line[:1] != "|" and line[:4] != "    "]
    assert not long


@pytest.mark.parametrize(("document", "most"), MOST_WORDS.items())
def test_short_documents_stay_short(document: str, most: int) -> None:
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    assert len(" ".join(line for line in lines if line[:1] != "|").split()) <= most


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if target.startswith("http"):
            continue
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{document} links to {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """What the headings of a document are called in links."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_equations_names_what_exists() -> None:
    import spectral_bellman.networks  # not imported by the package itself

    text = (ROOT / "docs/method.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:objective|operators|posterior|networks|tabular)\.\w+)`", text)
    assert len(names) > 20
    for name in names:
        module, attribute = name.split(".")
        assert hasattr(getattr(spectral_bellman, module), attribute), name
