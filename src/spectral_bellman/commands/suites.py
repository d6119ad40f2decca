"""The suites: runs that belong in one table, as data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from spectral_bellman.scores import ATARI_EXPLORE, HUMAN, MINATAR

ROWS = (
    "dqn",
    "dqn-ts",
    "mse-dqn-ts",
    "sbm-dqn-ts-no-orth",
    "pvn-dqn",
    "pvn-dqn-ts",
    "sbm-dqn",
    "sbm-dqn-ts",
)
"""Every DQN row of the paper's tables."""
R2D2_ROWS = ("r2d2", "sbm-r2d2", "sbm-r2d2-ts")
"""Every R2D2 row."""
LEARNED = ("dqn-ts", "mse-dqn-ts", "sbm-dqn-ts")
"""Ways to learn features for propagated noise."""
LINEAR = ("sbm-linear-dqn", "sbm-linear-dqn-ts")
GAMES = tuple(f"minatar/{game}" for game in MINATAR)
HIDDEN = tuple(f"minatar_hidden/{game}" for game in ("breakout", "asterix", "space_invaders"))
TUNED_ON = ("minatar/breakout", "minatar/asterix")


class Block(NamedTuple):
    """Every preset on every environment, with seeds 0 to ``seeds`` − 1."""

    presets: tuple[str, ...]
    envs: tuple[str, ...]
    seeds: int
    settings: Mapping[str, Any]


class Suite(NamedTuple):
    """Blocks of runs, what they show, and where they are kept."""

    what: str
    blocks: tuple[Block, ...]
    table: str
    """The folder of `results/` with the table that they belong to."""


def _atari(*games: str) -> tuple[str, ...]:
    return tuple(f"atari/{game}" for game in games)


class Way(NamedTuple):
    """A preset with its settings on DeepSea, up to a size."""

    preset: str
    settings: Mapping[str, Any]
    largest: int


SEAS = ((6, 300), (10, 500), (14, 700), (20, 1_000), (30, 1_200), (50, 1_500))
"""Size, and episodes of a run."""


def _deep_sea(*ways: Way) -> tuple[Block, ...]:
    """Each way on several sizes, the quick ones first."""
    return tuple(
        Block((way.preset,), (f"deep_sea/{size}",), 10, {**_sea(size, episodes), **way.settings})
        for size, episodes in SEAS
        for way in ways
        if size <= way.largest
    )


def _sea(size: int, episodes: int) -> dict[str, Any]:
    return {
        "frames": episodes * size,
        "log_frames": 5 * size,
        "eval_frames": episodes * size // 10,
        "replay_capacity": min(episodes, 1_000) * size,
    }


def _features() -> tuple[Block, ...]:
    """Features of few dimensions, learned in several ways, all with the same propagated noise."""
    ways = (("sbm-dqn-ts", {"learning_rate": 0.0}), *((p, {}) for p in LEARNED))
    return tuple(
        Block(
            (preset,),
            ("deep_sea/20", "deep_sea_mixed/20"),
            10,
            {
                **_sea(20, 1_000),
                "exploration": "propagated",
                "hidden": (256,),
                "features": features,
                **settings,
            },
        )
        for features in (32, 64, 128, 256)
        for preset, settings in ways
    )


_MILLION = {"frames": 1_000_000}
_TEN_MILLION = {"frames": 10_000_000, "eval_frames": 1_000_000}
_SIXTEEN_MILLION = {"frames": 16_000_000, "eval_frames": 1_000_000}
_CONTROLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dqn", {}),
    ("sbm-linear-dqn-ts", {}),
    ("dqn", {"epsilon_end": 0.0}),
    ("sbm-linear-dqn-ts", {"theta_variance": 0.0}),
    ("sbm-linear-dqn-ts", {"theta_variance": 0.0, "spread": 0.0}),
    ("sbm-linear-dqn", {}),
    ("sbm-linear-dqn", {"epsilon_end": 0.0}),
    ("dqn-ts", {}),
    ("sbm-dqn-ts", {}),
    ("mse-dqn-ts", {}),
    ("sbm-dqn-ts-no-orth", {}),
    ("sbm-dqn-ts", {"theta_tilde_steps": 8, "q_start": "last"}),
    ("pvn-dqn", {}),
    ("pvn-dqn-ts", {}),
)
"""Agents that differ in one ingredient each, and their settings."""

SUITES = {
    "minatar-dqn": Suite(
        "the five games of MinAtar by four agents; every row of the paper on Breakout and Asterix",
        (
            Block(("dqn", "dqn-ts", "mse-dqn-ts", "sbm-linear-dqn-ts"), GAMES, 10, _MILLION),
            Block((*ROWS, *LINEAR), TUNED_ON, 10, _MILLION),
        ),
        table="minatar",
    ),
    "dqn-minatar": Suite(
        "DQN as the MinAtar authors have it",
        (Block(("dqn-minatar",), GAMES, 5, _MILLION),),
        table="dqn_check",
    ),
    "dqn-dopamine": Suite(
        "DQN as Dopamine has it, on the games where its curves are steadiest",
        (
            Block(
                ("dqn-dopamine",),
                _atari("boxing", "breakout", "space_invaders", "beam_rider", "asterix", "enduro"),
                1,
                _TEN_MILLION,
            ),
        ),
        table="dqn_check",
    ),
    "atari-dqn": Suite(
        "sbm-linear-dqn-ts beside dqn: four games, three with sbm-dqn-ts too, then Atari Explore",
        (
            Block(
                ("dqn", "sbm-linear-dqn-ts"),
                _atari("boxing", "breakout", "pong", "freeway"),
                1,
                _TEN_MILLION,
            ),
            Block(("sbm-dqn-ts",), _atari("boxing", "breakout", "pong"), 1, _TEN_MILLION),
            Block(("dqn", "sbm-linear-dqn-ts"), _atari(*ATARI_EXPLORE), 1, _TEN_MILLION),
        ),
        table="atari",
    ),
    "atari-r2d2": Suite(
        "r2d2, sbm-r2d2-ts and dqn on Pong, Breakout and Venture; r2d2 with n-step targets on Pong",
        (
            Block(("r2d2", "sbm-r2d2-ts", "dqn"), _atari("pong"), 1, _SIXTEEN_MILLION),
            Block(("r2d2", "sbm-r2d2-ts", "dqn"), _atari("breakout", "venture"), 1, _TEN_MILLION),
            Block(
                ("r2d2",),
                _atari("pong"),
                1,
                {**_SIXTEEN_MILLION, "operator": "n_step", "double": True},
            ),
        ),
        table="atari_r2d2",
    ),
    "hidden-minatar": Suite(
        "MinAtar with half of the frames hidden: with memory, without, and dqn with four frames",
        (
            Block(R2D2_ROWS, HIDDEN, 5, _MILLION),
            Block(("r2d2",), HIDDEN, 5, {**_MILLION, "memory": False}),
            Block(("dqn",), HIDDEN, 5, {**_MILLION, "frame_stack": 4}),
        ),
        table="hidden_minatar",
    ),
    "atari-55": Suite(
        "the paper's benchmark: 55 games, every row, ten seeds, 100 million agent steps",
        (
            Block(
                (*ROWS, *R2D2_ROWS),
                _atari(*HUMAN),
                10,
                {"frames": 400_000_000, "eval_frames": 4_000_000},
            ),
        ),
        table="atari_55",
    ),
    "minatar-weights": Suite(
        "dqn with each kind of initial weights, on the two games that settings are chosen on",
        tuple(
            Block(("dqn",), TUNED_ON, 5, {**_MILLION, "initial_weights": weights})
            for weights in ("normal", "uniform", "xavier")
        ),
        table="minatar_controls",
    ),
    "minatar-controls": Suite(
        "what each ingredient adds: agents that differ in one, on the five games of MinAtar",
        tuple(
            Block((preset,), GAMES, 10, {**_MILLION, **settings}) for preset, settings in _CONTROLS
        ),
        table="minatar_controls",
    ),
    "deep-sea": Suite(
        "episodes to solve DeepSea, by each way to explore",
        _deep_sea(
            Way("sbm-dqn-ts", {"exploration": "propagated"}, 50),
            Way("dqn", {}, 30),
            *(
                Way("sbm-dqn-ts", {"exploration": way}, 30)
                for way in ("epsilon", "thompson", "ucb")
            ),
        ),
        table="deep_sea",
    ),
    "deep-sea-features": Suite(
        "do features matter? DeepSea with few dimensions: features frozen, and learned in each way",
        _features(),
        table="deep_sea_features",
    ),
}
