"""What all figures of a report share: colours, panels and legend."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from spectral_bellman.report.families import family_of
from spectral_bellman.report.groups import Group

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STROKES = ("-", "--", ":", "-.")


def tidy(panel: Axes, env: str | None = None) -> None:
    """Set grid and spines; with an environment, label the horizontal axis as its frames."""
    if env is not None:
        panel.set_xlabel(family_of(env).frames)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    panel.set_xlim(left=0)
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def grid(
    rows: Sequence[Sequence[tuple[str, str]]], width: float, height: float
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A figure with the named panels of each row; short rows end with blank space."""
    columns = max(map(len, rows))
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width * columns, height * len(rows)), layout=layout)
    cells: Any = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, cells, strict=True):
        for cell in line[len(row) :]:
            cell.set_axis_off()
    return figure, {panel: cells[i, j] for i, row in enumerate(rows) for j, panel in enumerate(row)}


def legend(figure: Figure, groups: Sequence[Group], title: str | None) -> None:
    """One legend below all panels; the figure grows by its height."""
    look = styles(groups)
    letters = 13 * figure.get_figwidth() - 2  # in a line of this font size
    columns = max(1, min(len(look), int(letters / (max(map(len, look)) + 6))))
    lines = math.ceil(len(look) / columns) + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.25 * lines + 0.2)
    handles = [Line2D([], [], label=agent, lw=1.8, **style) for agent, style in look.items()]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=title,
        title_fontsize=9,
    )


def styles(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Colour of each agent, and line style where there are more agents than colours."""
    agents = sorted({group.agent for group in groups})
    strokes = {agent: STROKES[i // len(COLORS) % len(STROKES)] for i, agent in enumerate(agents)}
    return {
        agent: {"color": COLORS[i % len(COLORS)], "ls": strokes[agent]}
        for i, agent in enumerate(agents)
    }
