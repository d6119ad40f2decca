"""The page of a report, in a real browser."""

import io
import sys

import pytest
from matplotlib.figure import Figure

from spectral_bellman.report.page import page
from spectral_bellman.report.tables import Cell, Table, estimate

from .browser import look_at

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the browser is Linux's")

ROWS = [
    [Cell("b"), estimate(10.0, 9.0, 11.0)],
    [Cell("a"), estimate(9.0, None, None, best=True)],
    [Cell("c"), Cell("–")],
]
COLUMN = """(column => [...document.querySelectorAll("table")[1].tBodies[0].rows].map(
  row => row.cells[column].innerText))"""


@pytest.fixture(scope="module")
def shown():
    file = io.BytesIO()
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1])
    figure.savefig(file, dpi=50)
    tables = [
        Table("One & all", ("x",), [[Cell("1", 1.0)]]),
        Table("Two", ("agent", "IQM"), ROWS, ["a <note>"]),
    ]
    return page(
        "Runs <compared>",
        tables,
        {"a figure": file.getvalue()},
        {"command": "sbm report </pre><script>"},
    )


def test_what_is_written_is_seen(shown, tmp_path):
    found = look_at(
        shown,
        """({title: document.title,
            heads: [...document.querySelectorAll("h1, h2")].map(x => x.innerText),
            width: document.querySelector("img").naturalWidth,
            note: document.querySelector(".note").innerText,
            high: document.querySelector("td small").getBoundingClientRect().height > 5,
            origin: JSON.parse(document.querySelector("pre").textContent),
            mode: document.compatMode})""",
        tmp_path / "browser",
    )
    assert found == {
        "title": "Runs <compared>",
        "heads": ["Runs <compared>", "One & all", "Two"],
        "width": 100,
        "note": "a <note>",
        "high": True,
        "origin": {"command": "sbm report </pre><script>"},
        "mode": "CSS1Compat",
    }


def test_a_click_on_a_column_sorts_by_its_numbers(shown, tmp_path):
    click = 'document.querySelectorAll("table")[1].querySelectorAll("th button")[{}].click()'
    script = f"""(() => {{
      const found = [{COLUMN}(0)];
      {click.format(1)}; found.push({COLUMN}(0));
      {click.format(1)}; found.push({COLUMN}(0));
      {click.format(0)}; found.push({COLUMN}(0));
      found.push([...document.querySelectorAll("[aria-sort]")].map(
        x => x.innerText + x.getAttribute("aria-sort")));
      return found;
    }})()"""
    before, down, up, names, marked = look_at(shown, script, tmp_path / "browser")
    # 10 is more than 9, though not as text; what has no number comes last, or first.
    assert (before, down, up, names) == (
        ["b", "a", "c"],
        ["b", "a", "c"],
        ["c", "a", "b"],
        ["c", "b", "a"],
    )
    assert marked == ["agentdescending"]


@pytest.mark.parametrize("mistake", ["<script>missing()</script>", "<img src=nowhere.png>"])
def test_a_page_with_a_mistake_is_found_out(mistake, tmp_path):
    with pytest.raises(AssertionError, match=r"missing is not defined|cannot load"):
        look_at(f"<!doctype html><title>x</title>{mistake}", "1", tmp_path / "browser")
