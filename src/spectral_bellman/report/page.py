"""A report as one HTML page without external files."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from spectral_bellman.report.tables import Table, to_html

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #8884 }
th, td { text-align: left; vertical-align: top }
td[data-value] { text-align: right }
th button { all: unset; cursor: pointer; font-weight: 600 }
th button:focus-visible { outline: 2px solid }
th[aria-sort=ascending] button::after { content: " ▲" }
th[aria-sort=descending] button::after { content: " ▼" }
figure { margin: 1.5rem 0 }
img { max-width: 100%; background: #fff }
small, .note { color: #777; margin: .2rem 0 }
"""
SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const order = (a, b) => a < b ? -1 : a > b ? 1 : 0;
    const compare = (a, b) => typeof a === typeof b ? order(a, b) : typeof a === "number" ? 1 : -1;
    const rows = [...body.rows].sort((x, y) => compare(key(x), key(y)));
    body.append(...(down ? rows.reverse() : rows));
  }));
}
"""


def page(
    title: str,
    tables: Sequence[Table],
    figures: Mapping[str, bytes],
    facts: Mapping[str, Any],
) -> str:
    """The page.

    Args:
      title: its heading.
      tables: shown first.
      figures: caption -> PNG.
      facts: provenance, shown at the end.
    """
    pictures = "".join(_picture(caption, png) for caption, png in figures.items())
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n{''.join(map(to_html, tables))}{pictures}"
        "<details><summary>Where this comes from</summary>"
        f"<pre>{html.escape(json.dumps(facts, indent=2))}</pre></details>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _picture(caption: str, png: bytes) -> str:
    text, data = html.escape(caption), base64.b64encode(png).decode()
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>\n"
    )
