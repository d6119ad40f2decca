"""A report as one HTML page that needs nothing but itself."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from spectral_bellman.analysis.sheets import Sheet, in_html

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top }
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
    const compare = (a, b) => typeof a !== typeof b ? (typeof a === "number" ? 1 : -1) : a < b ? -1 : a > b ? 1 : 0;
    const rows = [...body.rows].sort((x, y) => compare(key(x), key(y)));
    body.append(...(down ? rows.reverse() : rows));
  }));
}
"""


def page(title: str, sheets: Sequence[Sheet], figures: Mapping[str, bytes], facts: Mapping[str, Any]) -> str:
    """The page. ``figures``: caption -> PNG; ``facts``: where it all comes from."""
    pictures = "".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
        for caption, png in figures.items()
    )
    origin = html.escape(json.dumps(facts, indent=2))
    head = '<meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">'
    return (
        f"<!doctype html>\n<html lang=en><head>{head}\n<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n{''.join(map(in_html, sheets))}{pictures}"
        f"<details><summary>Where this comes from</summary><pre>{origin}</pre></details>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )
