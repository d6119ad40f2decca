"""What agents come to over several games: scores that can be averaged, as the paper's tables and figures show them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spectral_bellman import scores
from spectral_bellman.agents.presets import PRESETS
from spectral_bellman.analysis.groups import Group
from spectral_bellman.analysis.sheets import Cell, Sheet, estimate, number
from spectral_bellman.analysis.statistics import Interval, iqm, stratified_interval

FAMILIES = {"atari": ("Atari", "human-normalised score"), "minatar": ("MinAtar", "normalised score")}
POINTS = 40
"""At which a curve over several games is read off."""
RESAMPLES = 500
"""Of the bootstrap, for each point of a curve."""
INTERVAL = "[ ]: 95% interval of a stratified bootstrap over seeds"


class Field(NamedTuple):
    """Agents that have all played the same games."""

    title: str
    score: str
    games: tuple[str, ...]
    """Names of environments."""
    agents: dict[str, list[Group]]
    """Agent -> its groups, in the order of the games."""

    def table(self, agent: str, *, training: bool = False) -> np.ndarray:
        """(seeds, games): normalised final scores, or those of training, of as many seeds as every game has."""
        columns = []
        for group in self.agents[agent]:
            values = group.training() if training else group.final().values
            normal = scores.normalized(group.env, values[np.isfinite(values)])
            assert normal is not None
            columns.append(normal)
        seeds = min(map(len, columns))
        return np.stack([column[:seeds] for column in columns], axis=1)


def fields(groups: Sequence[Group]) -> list[Field]:
    """Every set of at least two games that an agent has played, with all the agents that have played them; most games first.

    A set that one agent alone has played is left out where there are others. Games without constants to normalise by, and agents on
    them without a finished episode, are left out. Of Atari, those of the paper's games with sparse rewards are a field of their own
    if there are others besides.
    """
    found = []
    for family, (title, score) in FAMILIES.items():
        played: dict[str, dict[str, Group]] = {}
        for group in groups:
            values = group.final().values
            if (
                group.env.startswith(family + "/")
                and np.isfinite(values).any()
                and scores.normalized(group.env, values) is not None
            ):
                played.setdefault(group.agent, {})[group.env] = group
        sets = {tuple(sorted(envs)) for envs in played.values()}
        explore = {f"atari/{game}" for game in scores.ATARI_EXPLORE}
        sets |= {tuple(env for env in games if env in explore) for games in sets}
        for games in sorted(sets, key=lambda games: (-len(games), games)):
            if len(games) < 2:
                continue
            agents = {agent: [envs[game] for game in games] for agent, envs in sorted(played.items()) if set(games) <= set(envs)}
            if len(agents) == 1 < len(played):  # nobody to compare it with, while others have played some of these games
                continue
            sparse = " with sparse rewards" if set(games) <= explore else ""
            found.append(Field(f"{title}: {len(games)} games{sparse}", score, games, agents))
    return found


def aggregate_sheet(field: Field) -> Sheet:
    """IQM, median and mean of each agent, its IQM in training, and how likely it beats ``dqn``; the paper's tables 1 and 2."""
    tables = {agent: field.table(agent) for agent in field.agents}
    found = {agent: scores.aggregate(table) for agent, table in tables.items()}
    names = {"IQM": "iqm", "median": "median", "mean": "mean"}
    if any(group.key == "eval_return" for groups in field.agents.values() for group in groups):
        names["IQM in training"] = "training"
        for agent, statistics in found.items():
            if len(trained := field.table(agent, training=True)):
                statistics["training"] = scores.aggregate(trained)["iqm"]
    tops = {name: max((float(f[name].value) for f in found.values() if name in f), default=np.nan) for name in names.values()}
    rows = []
    for agent, table in tables.items():
        known = {name: found[agent].get(name, (None, None, None)) for name in tops}
        cells = [estimate(*known[name], best=known[name][0] == top and len(found) > 1) for name, top in tops.items()]
        beats = Cell("–")
        if "dqn" in tables and agent != "dqn":
            beats = estimate(*scores.probability_of_improvement(table, tables["dqn"]))
        preset = PRESETS.get(agent.partition(" ")[0])
        rows.append([Cell(agent), Cell(preset.row if preset else ""), Cell(str(len(table)), len(table)), *cells, beats])
    games = ", ".join(game.partition("/")[2].replace("_", " ") for game in field.games)
    header = ("agent", "the paper's row", "seeds", *names, "P(better than dqn)")
    return Sheet(f"{field.title}, {field.score}", header, rows, [games, INTERVAL], minor=("the paper's row", "median", "mean"))


def games_sheet(field: Field) -> Sheet:
    """The final score of each agent in each game, as the game gives it; the paper's table by games."""
    atari = field.games[0].startswith("atari/")
    header = ["game", *(("random", "human") if atari else ()), *field.agents]
    rows = []
    for i, game in enumerate(field.games):
        name = game.partition("/")[2]
        ends = [Cell(number(end), end) for end in (scores.RANDOM[name], scores.HUMAN[name])] if atari else []
        means = {agent: float(np.nanmean(groups[i].final().values)) for agent, groups in field.agents.items()}
        top = max(means.values())
        rows.append(
            [Cell(name.replace("_", " ")), *ends, *(Cell(number(m), m, m == top and len(means) > 1) for m in means.values())]
        )
    return Sheet(f"{field.title}, mean of the final scores", header, rows)


def curve(field: Field, agent: str) -> tuple[np.ndarray, Interval]:
    """Frames (T,), and the IQM of the normalised score at each over all seeds and games."""
    groups = field.agents[agent]
    # Of each game the seeds that have a score, and of these the points where they have one.
    curves = []
    for group in groups:
        frames, values = group.curve(group.key)
        known = np.isfinite(values)
        curves.append([(frames[there], row[there]) for row, there in zip(values, known, strict=True) if there.any()])
    seeds = min(map(len, curves))
    points = [frames for rows in curves for frames, _ in rows[:seeds]]
    grid = np.linspace(max(frames[0] for frames in points), min(frames[-1] for frames in points), POINTS)
    columns = []
    for group, rows in zip(groups, curves, strict=True):
        normal = scores.normalized(group.env, np.array([np.interp(grid, *row) for row in rows[:seeds]]))
        assert normal is not None
        columns.append(normal)
    table = np.stack(columns, axis=1)  # (seeds, games, T)
    intervals = [
        stratified_interval([table[:, :, t]], lambda x: iqm(x.reshape(len(x), -1), axis=1), resamples=RESAMPLES)
        for t in range(POINTS)
    ]
    return grid, Interval(*(np.array(ends) for ends in zip(*intervals, strict=True)))


def profile(field: Field, agent: str) -> tuple[np.ndarray, Interval]:
    """Thresholds (τ,), and the share of runs that score more."""
    highest = max(float(field.table(other).max()) for other in field.agents)
    thresholds = np.linspace(0, max(highest, 0.1), 60)
    return thresholds, scores.performance_profile(field.table(agent), thresholds, samples=RESAMPLES)
