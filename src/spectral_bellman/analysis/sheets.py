"""Tables for people: one content, shown on the screen, in Markdown, in LaTeX and in HTML."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text


class Cell(NamedTuple):
    """What is read, and what it is sorted by."""

    text: str
    value: float | None = None
    best: bool = False
    """Whether it is the best of its kind, and set in bold."""


class Sheet(NamedTuple):
    """A table with its title and notes."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    minor: Sequence[str] = ()
    """Columns that a narrow screen does without."""


WIDE = 120
"""Characters a line, from which on a screen is not narrow."""


def number(value: float | None) -> str:
    """Three digits, or all before the point."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def estimate(value: float | None, low: float | None, high: float | None, *, best: bool = False) -> Cell:
    """A number with its interval, if it has one: None and NaN stand for none."""
    if value is None:
        return Cell("–")
    known = low is not None and high is not None and math.isfinite(low)
    interval = f" [{number(low)}, {number(high)}]" if known else ""
    return Cell(number(value) + interval, value, best)


def on_screen(sheet: Sheet, width: int = WIDE) -> Table:
    """For a terminal of so many characters a line: intervals go below their numbers."""
    notes = Text("\n".join(sheet.notes))
    table = Table(title=sheet.title, title_justify="left", caption=notes, caption_justify="left", show_lines=len(sheet.rows) > 1)
    shown = [i for i, name in enumerate(sheet.header) if width >= WIDE or name not in sheet.minor]
    for i in shown:
        numeric = any(row[i].value is not None for row in sheet.rows)
        table.add_column(sheet.header[i], justify="right" if numeric else "left", overflow="fold")
    for row in sheet.rows:
        # Text: brackets are not markup.
        cells = (row[i] for i in shown)
        table.add_row(*(Text(cell.text.replace(" [", "\n["), style="bold" if cell.best else "") for cell in cells))
    return table


def markdown(sheet: Sheet) -> str:
    """With its title as a heading."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    body = "".join(line([f"**{cell.text}**" if cell.best else cell.text for cell in row]) for row in sheet.rows)
    notes = "".join(f"- {note}\n" for note in sheet.notes)
    return f"## {sheet.title}\n\n{line(sheet.header)}{line(['---'] * len(sheet.header))}{body}\n{notes}"


def latex(sheet: Sheet) -> str:
    """A table environment; needs the package booktabs."""
    columns = "".join("r" if any(row[i].value is not None for row in sheet.rows) else "l" for i in range(len(sheet.header)))

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\" + "\n"

    body = "".join(line([rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in row]) for row in sheet.rows)
    caption = " ".join([f"{sheet.title}.", *(f"{note}." for note in sheet.notes)])
    return (
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{_tex(caption)}}}\n  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
        f"{line([_tex(name) for name in sheet.header])}    \\midrule\n{body}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )


def in_html(sheet: Sheet) -> str:
    """A section with a table whose columns can be sorted by a click."""
    head = "".join(f'<th><button type="button">{html.escape(name)}</button></th>' for name in sheet.header)
    body = ""
    for row in sheet.rows:
        cells = ""
        for cell in row:
            value = "" if cell.value is None else f' data-value="{cell.value!r}"'
            text = html.escape(cell.text).replace(" [", "<br><small>[") + ("</small>" if " [" in cell.text else "")
            cells += f"<td{value}>{f'<strong>{text}</strong>' if cell.best else text}</td>"
        body += f"<tr>{cells}</tr>\n"
    notes = "".join(f"<p class=note>{html.escape(note)}</p>\n" for note in sheet.notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return f"<section><h2>{html.escape(sheet.title)}</h2>\n{table}\n{notes}</section>\n"


TEX = {"–": "--", "−": "$-$", "φ": r"$\phi$", "θ": r"$\theta$", "ε": r"$\epsilon$", "×": r"$\times$"}


def _tex(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash " if character == "\\" else "\\" + character)
    for character, replacement in TEX.items():
        text = text.replace(character, replacement)
    return text
