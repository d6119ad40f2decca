"""What all figures of a report share: colours, panels, legend and file format."""

import math
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

BASELINE = "dqn"
"""The agent that the others are compared with. It is black."""
MOST_LINES = 6
"""Agents in one panel. The others are in the table only."""
CHOSEN = f"at most {MOST_LINES} agents a panel: {BASELINE}, then the best; the table has all"
"""The rule of `choose`, for the legend of a figure that leaves agents out."""

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is faint on white, and
# with some of Paul Tol's.
BLACK, BLUE, VERMILLION, GREEN = "#000000", "#0072B2", "#D55E00", "#009E73"
PINK, ORANGE, SKY, WINE, OLIVE = "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933"
SPARE = ("#44AA99", "#AA4499", "#888888", "#661100", "#332288")
STROKES = ("-", "--", ":", "-.")
LOOKS = {
    "dqn": (BLACK, "-"),
    "dqn-minatar": (BLACK, "--"),
    "dqn-dopamine": (BLACK, "-."),
    "dqn-ts": (ORANGE, "-"),
    "mse-dqn-ts": (PINK, "-"),
    "pvn-dqn-ts": (GREEN, "-"),
    "pvn-dqn": (GREEN, "--"),
    "sbm-dqn-ts": (VERMILLION, "-"),
    "sbm-dqn": (OLIVE, "-"),
    "sbm-dqn-ts-no-orth": (VERMILLION, ":"),
    "sbm-dqn-ts-paper": (VERMILLION, "-."),
    "sbm-linear-dqn-ts": (BLUE, "-"),
    "sbm-linear-dqn": (BLUE, "--"),
    "r2d2": (BLACK, ":"),
    "sbm-r2d2-ts": (WINE, "--"),
    "sbm-r2d2": (OLIVE, "--"),
    "sbm-r2d2-ts-paper": (WINE, "-."),
    # sbm-dqn-ts explores by Thompson sampling, and sbm-dqn by ε-greedy actions.
    "sbm-dqn-ts (exploration=thompson)": (VERMILLION, "-"),
    "sbm-dqn-ts (exploration=epsilon)": (OLIVE, "-"),
    "sbm-dqn-ts (exploration=ucb)": (WINE, "-"),
    "sbm-dqn-ts (exploration=propagated)": (SKY, "-"),
}
"""Colour and line style of each agent, the same in every figure."""


def tidy(panel: Axes, frame_unit: str | None = None) -> None:
    """Set grid and spines; with a unit of frames, label the horizontal axis with it."""
    if frame_unit is not None:
        panel.set_xlabel(frame_unit)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if panel.get_xscale() == "linear":
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


def legend(figure: Figure, agents: Collection[str], title: str | None) -> None:
    """One legend below all panels; the figure grows by its height."""
    look = styles(agents)
    letters = 13 * figure.get_figwidth() - 2  # in a line of this font size
    columns = max(1, min(len(look), int(letters / (max(map(len, look)) + 6))))
    lines = math.ceil(len(look) / columns) + (title.count("\n") + 1 if title else 0)
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


def choose(scores: Mapping[str, float]) -> list[str]:
    """The agents that are drawn in one panel: the baseline, then the highest scores.

    Args:
      scores: agent -> what it is ranked by; NaN comes last, and equal scores keep their order.
    """

    def place(agent: str) -> tuple[bool, float]:
        score = scores[agent]
        return agent != BASELINE, math.inf if math.isnan(score) else -score

    return sorted(scores, key=place)[:MOST_LINES]


def styles(agents: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and line style of each agent, in the order of their names.

    An agent of `LOOKS` always has its own look. Any other label has one of the spare colours. It
    depends on the label alone, unless two such labels in the figure would have the same.
    """
    looks: dict[str, tuple[str, str]] = {}
    for agent in sorted(set(agents)):
        first = zlib.crc32(agent.encode()) % len(SPARE)
        order = [(colour, s) for s in STROKES for colour in SPARE[first:] + SPARE[:first]]
        free = next((look for look in order if look not in looks.values()), order[0])
        looks[agent] = LOOKS.get(agent, free)
    return {agent: {"color": colour, "ls": stroke} for agent, (colour, stroke) in looks.items()}
