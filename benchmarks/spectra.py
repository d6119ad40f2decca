"""The learned features of several agents: spectrum, effective rank, and how well they fit backups.

python benchmarks/spectra.py --frames 200_000
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from spectral_bellman.agents.choices import flat
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments import make
from spectral_bellman.replay import OneStep, sample
from spectral_bellman.report.figures import COLORS, tidy
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import build

LEGEND = {
    "sbm-dqn-ts": "spectral, σ_rep² = 1e-2",
    "sbm-dqn-ts-no-orth": "spectral, no orthogonality",
    "dqn-ts": "DQN loss",
    "pvn-dqn-ts": "PVN",
    "sbm-dqn-ts-paper": "the paper's hyper-parameters",
}
# The comparison is between losses, so all agents share these settings.
ALIKE: dict[str, Any] = {
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-8,
    "theta_variance": 1e-2,
    "q_start": "last",
    "noise_anneal_steps": 0,
}
# The paper has 512 and 64 steps, too slow for a CPU: 2 samples an agent step here, not 72.
PAPER = {"updates": 16, "q_steps": 2}


@dataclass(frozen=True)
class Spectra:
    """Agents on one environment, and the features they end up with."""

    env: str = "minatar/breakout"
    """One in JAX."""
    presets: tuple[str, ...] = tuple(LEGEND)
    """The agents."""
    frames: int = 200_000
    """Of each agent."""
    rows: int = 4_096
    """Transitions that E[φφᵀ] is made of."""
    out: Path = Path("out/spectra")
    """Folder of the figure and its numbers; what it already holds is not run again."""


def learned(config: Spectra, preset: str) -> dict[str, Any]:
    """Eigenvalues of E[φφᵀ] in the end, and diagnostics on the way."""
    made = make(config.env)
    changes = PAPER if preset.endswith("paper") else ALIKE
    used = flat(configure(preset, made).agent)
    changes = {name: value for name, value in changes.items() if name in used}
    settings = configure(preset, made, {"frames": config.frames, **changes}).resolved()
    loop = build(settings, made)
    loop.prepare()
    loop.init()
    curves: dict[str, list[list[float]]] = {
        "sigma_effective_rank": [],
        "backup_error": [],
        "return": [],
    }
    for number in track(range(settings.rounds), preset):
        loop.run_round(number)
        if (number + 1) % settings.log_rounds == 0 and settings.learns(number):
            frames, found = (number + 1) * settings.round_frames, loop.diagnostics(number + 1)
            tally = loop.tally()
            found["return"] = tally.recent_return / np.maximum(tally.recent_episodes, 1)
            for name in curves.keys() & found.keys():
                curves[name].append([frames, round(float(found[name][0]), 4)])
    learner = jax.tree.map(lambda x: x[0], loop.state[0][0])
    batch = sample(learner.replay, OneStep(), jax.random.key(0), (config.rows,)).items
    part = loop.runners[0].agent.representation
    taken = jax.jit(lambda network: part.features_taken(network, batch))
    phi = np.asarray(taken(learner.agent.network), np.float64)
    eigenvalues = np.linalg.eigvalsh(phi.T @ phi / len(phi))[::-1]
    return {
        "eigenvalues": [float(f"{value:.4g}") for value in np.maximum(eigenvalues, 0)],
        **curves,
    }


def main(config: Spectra) -> None:
    """Train, draw and keep."""
    path = config.out / "spectra.json"
    config.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(path.read_text())["agents"] if path.exists() else {}
    for preset in config.presets:
        if preset not in found:
            found[preset] = learned(config, preset)
            write_json(
                path,
                {
                    "env": config.env,
                    "frames": config.frames,
                    "agents": found,
                    "provenance": provenance(),
                },
            )
    figure = Figure(figsize=(12, 4), layout="constrained")
    spectrum, rank, error = figure.subplots(1, 3)
    for (preset, agent), colour in zip(found.items(), COLORS, strict=False):
        name = f"{preset}: {LEGEND[preset]}" if preset in LEGEND else preset
        values = np.array(agent["eigenvalues"])
        spectrum.loglog(
            np.arange(1, len(values) + 1), values / values.sum(), color=colour, label=name
        )
        for panel, key in ((rank, "sigma_effective_rank"), (error, "backup_error")):
            if agent[key]:
                panel.plot(*zip(*agent[key], strict=True), color=colour)
    spectrum.set(
        title="Spectrum of E[φφᵀ] in the end",
        xlabel="which eigenvalue",
        ylabel="share of the sum",
        ylim=(1e-8, 1),
    )
    spectrum.grid(alpha=0.25, lw=0.6)
    rank.set(title="Effective rank", yscale="log")
    error.set(title="Backup error (1: φ explains nothing)", yscale="log")
    for panel in (rank, error):
        tidy(panel, config.env)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(config.out / "spectra.png", dpi=140)
    Console().print(f"{config.out / 'spectra.png'}")


if __name__ == "__main__":
    main(tyro.cli(Spectra))
