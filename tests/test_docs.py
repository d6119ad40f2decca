"""What the documents show runs, and what they link to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_runs(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, document, "exec"), names)
    assert document == "CONTRIBUTING.md" or names, "a document without code is not what this test is for"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document} links to {target}"


def test_the_table_of_equations_names_what_exists() -> None:
    import spectral_bellman.networks  # not imported by the package itself

    text = (ROOT / "docs/method.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:objective|operators|posterior|networks|tabular)\.\w+)`", text)
    assert len(names) > 20
    for name in names:
        module, attribute = name.split(".")
        assert hasattr(getattr(spectral_bellman, module), attribute), name
