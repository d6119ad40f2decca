"""The DQN that MinAtar's authors publish, beside ours: `results/dqn-minatar-authors`.

Trains with their program, from a checkout of github.com/kenjyoung/MinAtar. That needs torch, not
this project::

    PYTHONPATH=MinAtar python benchmarks/authors_dqn.py train --checkout MinAtar --game asterix

Draws the results next to the runs of `sbm suite dqn-minatar`, and prints the means in the docs::

    python benchmarks/authors_dqn.py draw
"""

import argparse
import importlib.util
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path("results")
LINE = 20_000
"""Frames to a point of the curve that is kept."""
WINDOWS = ((300, 400), (400, 487), (322, 645), (645, 968), (900, 1000))
"""Thousands of frames over which the mean of a curve is printed, if it is that long."""


def train(checkout: Path, game: str, seed: int, frames: int, out: Path) -> None:
    """Run their `examples/dqn.py`; keep the mean return of the episodes in each 20,000 frames."""
    import torch  # type: ignore[import-not-found]
    from minatar import Environment  # type: ignore[import-not-found]

    specification = importlib.util.spec_from_file_location("dqn", checkout / "examples" / "dqn.py")
    assert specification is not None
    assert specification.loader is not None
    program: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    program.NUM_FRAMES = frames
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002, what their program draws from
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    weights = out / f"{game}-{seed}"
    env = Environment(game)
    env.seed(seed)
    program.dqn(counted(env, frames), False, False, str(weights))
    saved = Path(f"{weights}_data_and_weights")
    data = torch.load(saved)
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    path = out / f"{game}-{seed}.json"
    keep(path, game, seed, data["returns"], data["frame_stamps"], commit, torch.__version__)
    saved.unlink()


def counted(env: Any, frames: int) -> Any:
    """The environment, printing its progress every 20,000 frames."""
    act, done = env.act, 0

    def told(action: Any) -> Any:
        nonlocal done
        done += 1
        if done % LINE == 0:
            print(f"{done:,} of {frames:,} frames", flush=True)
        return act(action)

    env.act = told
    return env


def keep(
    path: Path,
    game: str,
    seed: int,
    returns: list[float],
    ends: list[int],
    commit: str,
    torch_version: str,
) -> None:
    """Write the curve; the last episode is the one that was cut."""
    score, end = np.asarray(returns[:-1]), np.asarray(ends[:-1])
    line = -(-end // LINE) * LINE
    points = [
        [int(x), round(float(score[line == x].mean()), 3), int((line == x).sum())]
        for x in np.unique(line)
    ]
    command = "python benchmarks/authors_dqn.py train"
    record: dict[str, Any] = {
        "what": "examples/dqn.py of MinAtar's authors, its training return",
        "curve is": f"frames, mean over the episodes of the {LINE:,} before, their number",
        "command": f"{command} --checkout MinAtar --game {game} --seed {seed}",
        "game": game,
        "seed": seed,
        "MinAtar": commit,
        "torch": torch_version,
        "frames": int(ends[-1]),
        "last 100 episodes": round(float(score[-100:].mean()), 2),
        "curve": points,
    }
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def means(curve: np.ndarray[Any, Any]) -> list[str]:
    """The mean return over each window inside the curve, weighted by episodes if they are known."""
    frames, returns, counts = (
        *curve.T[:2],
        curve.T[2] if curve.shape[1] > 2 else np.ones(len(curve)),
    )
    said = []
    for low, high in WINDOWS:
        inside = (frames > 1000 * low) & (frames <= 1000 * high)
        if frames[-1] >= 1000 * high - LINE:
            said.append(
                f"{low}k to {high}k {np.average(returns[inside], weights=counts[inside]):.1f}"
            )
    return said


def draw() -> None:
    """Their curves and ours in one picture for each game."""
    import matplotlib.pyplot as plt

    from spectral_bellman.report.figures import COLORS, tidy
    from spectral_bellman.report.runs import load_run

    paths = sorted((RESULTS / "dqn-minatar-authors").glob("*.json"))
    theirs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    games = sorted({run["game"] for run in theirs})
    figure, panels = plt.subplots(
        1, len(games), figsize=(5.2 * len(games), 3.6), layout="constrained", squeeze=False
    )
    for game, panel in zip(games, panels[0], strict=True):
        run = load_run(
            RESULTS / "dqn-minatar" / f"dqn-minatar-reward_clip=1.0-minatar-{game}-seed-0-4"
        )
        for seed in run.seeds:
            lines = [
                line
                for line in run.records
                if line["seed"] == seed and line.get("return") is not None
            ]
            frames, returns = [line["frames"] for line in lines], [line["return"] for line in lines]
            panel.plot(frames, returns, color=COLORS[0], lw=1, label="dqn-minatar")
        variants = (
            ("eight-envs", "8 environments", 5),
            ("weights", "PyTorch's initial weights", 2),
        )
        for folder, label, colour in variants:
            for path in (RESULTS / f"dqn-minatar-{folder}").glob(f"{game}.json"):
                content = json.loads(path.read_text(encoding="utf-8"))
                curve = np.asarray(content["training return (frames, mean over the log line)"])
                panel.plot(*curve.T, color=COLORS[colour], lw=1.6, label=f"dqn-minatar, {label}")
                print(f"{game}, dqn-minatar, {label}:", *means(curve))
        for other in theirs:
            if other["game"] == game:
                curve = np.asarray(other["curve"])
                panel.plot(*curve.T[:2], color=COLORS[1], lw=1.6, label="the authors' program")
                print(f"{game}, the authors' program:", *means(curve))
        tidy(panel, f"minatar/{game}")
        panel.set(title=f"minatar/{game}", ylabel="training return")
    named = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels()), strict=True))
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=len(named), frameon=False
    )
    out = RESULTS / "dqn-minatar-authors" / "curves.png"
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    training.add_argument("--checkout", type=Path, required=True)
    training.add_argument("--game", default="asterix")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--frames", type=int, default=1_000_000)
    training.add_argument("--out", type=Path, default=RESULTS / "dqn-minatar-authors")
    training.set_defaults(run=train)
    commands.add_parser("draw").set_defaults(run=draw)
    options = vars(parser.parse_args())
    options.pop("run")(**options)
