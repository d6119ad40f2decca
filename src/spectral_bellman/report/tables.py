"""Tables: one content, shown on the screen, in Markdown, in LaTeX and in HTML."""

import html
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.table import Table as ScreenTable
from rich.text import Text


class Cell(NamedTuple):
    """A text, and the number that it is sorted by."""

    text: str
    value: float | int | None = None
    best: bool = False
    """Whether it is the best in its row or column, and set in bold."""


class Table(NamedTuple):
    """A table with its title and notes."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    minor: Sequence[str] = ()
    """Columns that are left out on a narrow screen."""


WIDE = 120
"""Characters per line from which on a screen is not narrow."""


def number(value: float | None) -> str:
    """Three digits, or all before the point."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def estimate(
    value: float | None, low: float | None, high: float | None, *, best: bool = False
) -> Cell:
    """A number with its interval, if it has one: None and NaN stand for none."""
    if value is None:
        return Cell("–")
    known = low is not None and high is not None and math.isfinite(low)
    interval = f" [{number(low)}, {number(high)}]" if known else ""
    return Cell(number(value) + interval, value, best)


def to_screen(table: Table, width: int = WIDE) -> ScreenTable:
    """For a terminal of `width` characters; intervals are below their numbers."""
    screen = ScreenTable(
        title=table.title,
        title_justify="left",
        caption=Text("\n".join(table.notes)),
        caption_justify="left",
        show_lines=len(table.rows) > 1,
    )
    shown = [i for i, name in enumerate(table.header) if width >= WIDE or name not in table.minor]
    for i in shown:
        justify: Literal["left", "right"] = "right" if _is_numeric(table, i) else "left"
        screen.add_column(table.header[i], justify=justify, overflow="fold")

    def text(cell: Cell) -> Text:  # rich would take brackets in a plain string for markup
        return Text(cell.text.replace(" [", "\n["), style="bold" if cell.best else "")

    for row in table.rows:
        screen.add_row(*(text(row[i]) for i in shown))
    return screen


def to_markdown(table: Table) -> str:
    """A section of Markdown, with the title as its heading."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    def text(cell: Cell) -> str:
        return f"**{cell.text}**" if cell.best else cell.text

    head = line(table.header) + line(["---"] * len(table.header))
    body = "".join(line([text(cell) for cell in row]) for row in table.rows)
    notes = "".join(f"- {note}\n" for note in table.notes)
    return f"## {table.title}\n\n{head}{body}\n{notes}"


def to_latex(table: Table) -> str:
    """A table environment; needs the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\" + "\n"

    def text(cell: Cell) -> str:
        return rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)

    columns = "".join("r" if _is_numeric(table, i) else "l" for i in range(len(table.header)))
    caption = _tex(" ".join([f"{table.title}.", *(f"{note}." for note in table.notes)]))
    body = "".join(line([text(cell) for cell in row]) for row in table.rows)
    return (
        f"\\begin{{table}}\n  \\centering\n  \\caption{{{caption}}}\n"
        f"  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
        f"{line([_tex(name) for name in table.header])}    \\midrule\n{body}"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def to_html(table: Table) -> str:
    """A section with a table whose columns can be sorted by a click."""

    def heading(name: str) -> str:
        return f'<th><button type="button">{html.escape(name)}</button></th>'

    def data(cell: Cell) -> str:
        text = html.escape(cell.text)
        if " [" in text:
            text = text.replace(" [", "<br><small>[") + "</small>"
        if cell.best:
            text = f"<strong>{text}</strong>"
        return f"<td{_sort_key(cell.value)}>{text}</td>"

    head = "".join(map(heading, table.header))
    body = "".join(f"<tr>{''.join(map(data, row))}</tr>\n" for row in table.rows)
    notes = "".join(f"<p class=note>{html.escape(note)}</p>\n" for note in table.notes)
    return (
        f"<section><h2>{html.escape(table.title)}</h2>\n"
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n{notes}</section>\n"
    )


def _is_numeric(table: Table, column: int) -> bool:
    return any(row[column].value is not None for row in table.rows)


def _sort_key(value: float | int | None) -> str:
    if value is None:
        return ""
    return f' data-value="{"Infinity" if value == math.inf else value}"'


_TEX = {
    **{"–": "--", "−": "$-$", "×": r"$\times$", "∞": r"$\infty$"},
    **{"φ": r"$\phi$", "θ": r"$\theta$", "ε": r"$\epsilon$"},
}


def _tex(text: str) -> str:
    text = text.replace("\\", "\\textbackslash ")
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    for character, replacement in _TEX.items():
        text = text.replace(character, replacement)
    return text
