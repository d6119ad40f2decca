"""Tables in Markdown, LaTeX and HTML: the same content, nothing taken for markup."""

import io
import math

from rich.console import Console

from spectral_bellman.report.tables import (
    Cell,
    Table,
    estimate,
    number,
    to_html,
    to_latex,
    to_markdown,
    to_screen,
)

TABLE = Table(
    "Games & scores",
    ("agent_x", "IQM"),
    [
        [Cell("a|b <i>"), estimate(1.2345, 1.0, 2000.4, best=True)],
        [Cell("50% \\ {φ}"), estimate(3.0, None, None)],
        [Cell("c"), Cell("–")],
    ],
    ["[ ]: an interval"],
)


def test_numbers_have_three_digits_or_all_before_the_point():
    assert [number(x) for x in (None, 0.12345, 12.345, 999.4, 12345.6, -1234.5)] == [
        "–",
        "0.123",
        "12.3",
        "999",
        "12,346",
        "-1,234",
    ]


def test_markdown():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "## Games & scores"
    assert lines[2:5] == [
        "| agent_x | IQM |",
        "| --- | --- |",
        "| a\\|b <i> | **1.23 [1, 2,000]** |",
    ]
    assert lines[-1] == "- [ ]: an interval"


def test_latex():
    text = to_latex(TABLE)
    assert r"\caption{Games \& scores. [ ]: an interval.}" in text
    assert r"\begin{tabular}{lr}" in text
    assert r"agent\_x & IQM \\" in text
    assert r"a|b <i> & \textbf{1.23 [1, 2,000]} \\" in text
    assert r"50\% \textbackslash  \{$\phi$\} & 3 \\" in text
    assert text.count("\\begin") == text.count("\\end") == 2


def test_html():
    text = to_html(TABLE)
    assert "<h2>Games &amp; scores</h2>" in text
    assert "<td>a|b &lt;i&gt;</td>" in text
    assert '<td data-value="1.2345"><strong>1.23<br><small>[1, 2,000]</small></strong></td>' in text
    assert "<td>–</td>" in text


def test_infinity_sorts_after_every_number_on_the_page():
    """JavaScript's name for it; `Number("inf")` would be NaN."""
    text = to_html(Table("x", ("a",), [[Cell("not solved", math.inf)]]))
    assert '<td data-value="Infinity">not solved</td>' in text


def test_on_the_screen_brackets_are_not_markup():
    console = Console(file=io.StringIO(), width=120)
    console.print(to_screen(TABLE))
    assert "[1, 2,000]" in console.file.getvalue()


def test_a_narrow_screen_does_without_minor_columns():
    table = TABLE._replace(minor=TABLE.header[1:])
    assert [column.header for column in to_screen(table, 119).columns] == [TABLE.header[0]]
    assert [column.header for column in to_screen(table, 120).columns] == list(TABLE.header)
