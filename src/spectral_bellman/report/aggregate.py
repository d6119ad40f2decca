"""Agents over several games: scores on a common scale, as in the paper's tables and figures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spectral_bellman import scores
from spectral_bellman.report.families import Environment, Scale
from spectral_bellman.report.groups import Group, merged_notes
from spectral_bellman.report.scoring import GREEDY_NOTE, TRAINING, TRAINING_NOTE
from spectral_bellman.report.tables import Cell, Table, estimate, number
from spectral_bellman.scores import Interval, iqm, stratified_interval

POINTS = 40
"""Points of a curve over several games."""
RESAMPLES = 500
"""Bootstrap resamples for each point of a curve."""
INTERVAL = "[ ]: 95% interval of a stratified bootstrap over seeds"


class Comparison(NamedTuple):
    """Agents that have all played the same games."""

    title: str
    score: str
    """What the score is called."""
    games: tuple[str, ...]
    """Names of environments."""
    agents: dict[str, list[Group]]
    """Agent -> its groups, in the order of the games."""

    @property
    def frame_unit(self) -> str:
        """What a frame of these games is."""
        return self._first.frame_unit

    @property
    def ends(self) -> tuple[str, str] | None:
        """Names of the scores that count as 0 and as 1, if tables show them."""
        return self._first.score.ends if self._first.score else None

    @property
    def _first(self) -> Environment:
        return next(iter(self.agents.values()))[0].environment

    def table(self, agent: str, *, training: bool = False) -> np.ndarray:
        """Normalised final scores, or training returns: (seeds, games).

        All games have as many seeds as the game with the fewest.
        """
        columns = []
        for group in self.agents[agent]:
            values = group.training if training else group.final
            columns.append(_normalized(group, values[np.isfinite(values)]))
        seeds = min(map(len, columns))
        return np.stack([column[:seeds] for column in columns], axis=1)

    @property
    def groups(self) -> list[Group]:
        """All groups, agent by agent."""
        return [group for groups in self.agents.values() for group in groups]

    def rule(self, agent: str) -> str:
        """How an agent was scored, with all rules where they differ between games."""
        return "; ".join(sorted({group.rule for group in self.agents[agent]}))


def comparisons(groups: Sequence[Group]) -> list[Comparison]:
    """Every set of two or more games that an agent has played, with all agents that played it.

    The largest sets come first. Left out are sets that one agent alone has played where others have
    played some of the games, games without reference scores, and agents without a finished episode.
    The subsets of a family, such as Atari's games with sparse rewards, form sets of their own if
    there are other games besides.
    """
    found = []
    scored = [group for group in groups if _has_score(group)]
    for family in dict.fromkeys(group.environment.family for group in scored):
        played: dict[str, dict[str, Group]] = {}
        subsets: dict[str, set[str]] = {}
        for group in (group for group in scored if group.environment.family == family):
            played.setdefault(group.agent, {})[group.env] = group
            for part in _scale(group).subsets:
                subsets.setdefault(part, set()).add(group.env)
            title, label = group.environment.title, _scale(group).label
        sets = {tuple(sorted(envs)) for envs in played.values()}
        for envs in subsets.values():
            sets |= {tuple(env for env in games if env in envs) for games in sets}
        for games in sorted(sets, key=lambda games: (-len(games), games)):
            agents = {
                agent: [envs[game] for game in games]
                for agent, envs in sorted(played.items())
                if set(games) <= set(envs)
            }
            if len(games) < 2 or len(agents) == 1 < len(played):
                continue
            inside = [part for part, envs in subsets.items() if set(games) <= envs]
            name = " ".join([f"{title}: {len(games)} games", *inside])
            found.append(Comparison(name, label, games, agents))
    return found


def aggregate_table(comparison: Comparison, rows: Mapping[str, str], against: str = "dqn") -> Table:
    """IQM, median and mean of each agent, and how it compares with one of them.

    The IQM of the training returns is beside them where there are evaluations. These are the
    paper's tables 1 and 2.

    Args:
      comparison: the agents and games.
      rows: the paper's name for the row of each preset.
      against: the agent that all others are compared with.
    """
    tables = {agent: comparison.table(agent) for agent in comparison.agents}
    found = {agent: scores.aggregate(table) for agent, table in tables.items()}
    names = {"IQM": "iqm", "median": "median", "mean": "mean"}
    rules = {agent: comparison.rule(agent) for agent in tables}
    if any(rule != TRAINING for rule in rules.values()):
        names["IQM in training"] = "training"
        for agent, statistics in found.items():
            if len(trained := comparison.table(agent, training=True)):
                statistics["training"] = scores.aggregate(trained)["iqm"]
    best = {
        name: max((float(f[name].value) for f in found.values() if name in f), default=np.nan)
        for name in names.values()
    }
    lines = []
    for agent, table in tables.items():
        known = {name: found[agent].get(name, (None, None, None)) for name in best}
        cells = [
            estimate(*known[name], best=known[name][0] == top and len(found) > 1)
            for name, top in best.items()
        ]
        compared = [Cell("–"), Cell("–")]
        if against in tables and agent != against:
            ways = (scores.iqm_difference, scores.probability_of_improvement)
            compared = [estimate(*way(table, tables[against])) for way in ways]
        row = Cell(rows.get(agent.partition(" ")[0], ""))
        seeds = Cell(str(len(table)), len(table))
        lines.append([Cell(agent), row, Cell(rules[agent]), seeds, *cells, *compared])
    than = (f"IQM minus {against}'s", f"P(better than {against})")
    header = ("agent", "the paper's row", "score", "seeds", *names, *than)
    games = ", ".join(game.partition("/")[2].replace("_", " ") for game in comparison.games)
    about = merged_notes((group.agent, group.notes) for group in comparison.groups)
    notes = [games, *rule_notes(rules.values()), INTERVAL, *about]
    minor = ("the paper's row", "score", "median", "mean")
    return Table(f"{comparison.title}, {comparison.score}", header, lines, notes, minor)


def games_table(comparison: Comparison) -> Table:
    """The mean final score of each agent in each game, as the game counts; the paper's table."""
    header = ["game", *(comparison.ends or ()), *comparison.agents]
    rows = []
    for i, game in enumerate(comparison.games):
        name = game.partition("/")[2]
        scale = _scale(next(iter(comparison.agents.values()))[i])
        ends = (scale.zero, scale.one) if comparison.ends else ()
        means = [float(np.nanmean(groups[i].final)) for groups in comparison.agents.values()]
        top = max(means)
        cells = [Cell(number(mean), mean, mean == top and len(means) > 1) for mean in means]
        rows.append(
            [Cell(name.replace("_", " ")), *(Cell(number(end), end) for end in ends), *cells]
        )
    rules = {agent: comparison.rule(agent) for agent in comparison.agents}
    notes = [f"{agent}: {rule}" for agent, rule in rules.items()]
    if len(set(rules.values())) == 1:
        notes = [f"all agents: {notes[0].partition(': ')[2]}"]
    notes = [*notes, *rule_notes(rules.values())]
    return Table(f"{comparison.title}, mean of the final scores", header, rows, notes)


def rule_notes(rules: Iterable[str]) -> list[str]:
    """The notes that explain the rules by which the rows of a table were scored."""
    kinds = {part == TRAINING for rule in rules for part in rule.split("; ")}
    return [GREEDY_NOTE] * (False in kinds) + [TRAINING_NOTE] * (True in kinds)


def curve(comparison: Comparison, agent: str) -> tuple[np.ndarray, Interval]:
    """Frames (T,), and the IQM of the normalised score over all seeds and games at each."""
    groups = comparison.agents[agent]
    # In each game the seeds that have a score, and for each seed the points where it has one.
    curves = []
    for group in groups:
        frames, values = group.curve(group.key)
        known = np.isfinite(values)
        curves.append(
            [(frames[k], row[k]) for row, k in zip(values, known, strict=True) if k.any()]
        )
    seeds = min(map(len, curves))
    points = [frames for rows in curves for frames, _ in rows[:seeds]]
    first, last = max(frames[0] for frames in points), min(frames[-1] for frames in points)
    grid = np.linspace(first, last, POINTS)
    columns = [
        _normalized(group, np.array([np.interp(grid, *row) for row in rows[:seeds]]))
        for group, rows in zip(groups, curves, strict=True)
    ]
    table = np.stack(columns, axis=1)  # (seeds, games, T)

    def middle(drawn: np.ndarray) -> np.ndarray:
        return iqm(drawn.reshape(len(drawn), -1), axis=1)

    intervals = [
        stratified_interval([table[:, :, t]], middle, resamples=RESAMPLES) for t in range(POINTS)
    ]
    return grid, Interval(*(np.array(ends) for ends in zip(*intervals, strict=True)))


def profile(comparison: Comparison, agent: str) -> tuple[np.ndarray, Interval]:
    """Thresholds (τ,), and the share of runs that score more than each."""
    highest = max(float(comparison.table(other).max()) for other in comparison.agents)
    thresholds = np.linspace(0, max(highest, 0.1), 60)
    table = comparison.table(agent)
    return thresholds, scores.performance_profile(table, thresholds, samples=RESAMPLES)


def _has_score(group: Group) -> bool:
    return group.environment.score is not None and bool(np.isfinite(group.final).any())


def _scale(group: Group) -> Scale:
    scale = group.environment.score
    assert scale is not None, group.env
    return scale


def _normalized(group: Group, values: np.ndarray) -> np.ndarray:
    return _scale(group).normalized(values)
