"""Where learning saturates: many simulated actors, one real learner.

Each simulated actor sleeps as long as its emulators would take, and then hands in a round of random
frames through Ray. Asynchronous learning takes the rounds as in a real run. It is timed with
gradient steps, and without them, when storing and transfers are the limit. Several simulated actors
share a process.

    python benchmarks/ray_simulation.py --preset dqn --actors 1 4 16 64 256
"""

import functools
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console

from spectral_bellman.disk.pictures import to_png
from spectral_bellman.disk.provenance import provenance, write_json
from spectral_bellman.environments.catalogue import make
from spectral_bellman.training.actors import Part
from spectral_bellman.training.asynchronous import Arrived, FreeActor, FreeActors
from spectral_bellman.training.cluster import connect
from spectral_bellman.training.config import configure
from spectral_bellman.training.ray_actors import Shared
from spectral_bellman.training.runner import build

NEVER_STALE = 1_000_000
"""Learning waits for nobody."""
KINDS = {"with gradient steps": True, "storing alone": False}


@dataclass(frozen=True)
class Simulation:
    """Speed by the number of simulated actors."""

    env: str = "atari/pong"
    """An environment on the host, for its shapes."""
    preset: str = "dqn"
    """The agent that learns."""
    actors: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    """Numbers of simulated actors."""
    envs: int = 16
    """Environments of each actor."""
    actor_speed: float = 1_500.0
    """Agent steps per second of one actor: what a core was measured to do, acting included."""
    processes: int = 32
    """Processes at most; actors share them."""
    seconds: float = 10.0
    """How long each number of actors is timed."""
    replay: int = 200_000
    """Transitions that the replay holds."""
    out: Path = Path("out/ray_simulation.json")
    """Where the figures go; the picture lies beside it."""


class Sleeping:
    """Simulated actors in a process of their own, one for each call that is under way."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds, self._rng = seconds, np.random.default_rng(seed)
        self._round: list[Any] = []

    def begin_alone(self, *given: Any) -> None:
        """Nothing to begin."""

    def collect_alone(self, shapes: Any, *given: Any) -> tuple[list[Any], float]:
        """A round, always the same, after a while."""
        self._round = self._round or [
            self._rng.integers(0, 2, shape).astype(kind) for shape, kind in shapes
        ]
        time.sleep(self._seconds)
        return self._round, self._seconds


class Simulated(FreeActor):
    """Asks a ``Sleeping`` for rounds of the right shapes."""

    part: Any = None
    """A part as shapes."""

    def round(self, number: int, version: int, policy: Any, key: Any) -> tuple[Arrived, float]:
        """A round; the policy is sent, as it would be."""
        leaves, tree = jax.tree.flatten(self.part)
        shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
        found, seconds = self.ask("collect_alone", shapes, policy)
        part = jax.tree.unflatten(tree, found)
        return Arrived(self._group, version, part, False), seconds

    def kill(self) -> None:
        """Others share the process."""


def main(simulation: Simulation) -> None:
    """Time every number of actors, and print."""
    console = Console()
    ray = connect("")
    speeds: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    staleness: dict[str, float] = {}
    for count in simulation.actors:
        for kind, learning in KINDS.items():
            with console.status(f"{count} actors, {kind}"):
                speed, stale = measure(ray, simulation, count, learning)
            speeds[kind][str(count)] = speed
            if learning:
                staleness[str(count)] = stale
            asked = count * simulation.actor_speed
            console.print(
                f"{count} actors, {kind}: {speed:,.0f} agent steps/s, {speed / asked:.0%} of what "
                f"they could do, policies {stale:.1f} rounds old",
                highlight=False,
            )
    figures = {
        "agent steps per second": speeds,
        "mean staleness in rounds": staleness,
        "config": {name: str(value) for name, value in asdict(simulation).items()},
        "provenance": provenance(),
    }
    simulation.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(simulation.out, figures)
    draw(figures, simulation.out.with_suffix(".png"))
    console.print(str(simulation.out))


def measure(ray: Any, simulation: Simulation, count: int, learning: bool) -> tuple[float, float]:
    """Agent steps per second, and the mean age of policies in rounds."""
    spec = make(simulation.env)
    envs = count * simulation.envs
    given = {
        "num_envs": envs,
        "replay_capacity": max(simulation.replay, envs * 40),
        "actors": count,
        "asynchronous": NEVER_STALE,
        "staleness": 1,
    }
    config = configure(simulation.preset, spec, given).resolved()
    runner = build(config, spec).runners[0]
    seconds = config.round_steps * simulation.envs / simulation.actor_speed
    kind = ray.remote(num_cpus=0, max_concurrency=-(-count // simulation.processes))(Sleeping)
    handles = [kind.remote(seconds, i) for i in range(min(count, simulation.processes))]
    shared = Shared()
    actors = [
        Simulated(i, functools.partial(lambda h: h, handles[i % len(handles)]), shared)
        for i in range(count)
    ]
    Simulated.part = part_of(runner)
    runner.actors = actors
    runner._free = free = FreeActors(actors, shared, NEVER_STALE)
    try:
        runner.prepare()
        start_blank(runner)
        first = config.first_learning_round + 2 if learning else 2
        if not learning:
            runner._learns_from = NEVER_STALE
        for number in range(first):
            runner.run_round(number)
        runner.tally()
        free.figures(0.0)
        began, number = time.perf_counter(), first
        while time.perf_counter() - began < simulation.seconds:
            runner.run_round(number)
            number += 1
        runner.tally()
        elapsed = time.perf_counter() - began
        stale = free.figures(0.0)["staleness"]
        return (number - first) * config.round_agent_steps / elapsed, stale
    finally:
        runner.close()
        for handle in handles:
            ray.kill(handle)


def part_of(runner: Any) -> Part:
    """What an actor hands in, as shapes."""
    definitions = runner._compiler._definitions()
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), definitions["store part"][2][2]
    )


def start_blank(runner: Any) -> None:
    """Begin without emulators: the frames do not matter."""
    state = runner._compiler("init", jnp.int32(0))
    runner._start(state, runner._compiler.empty_replay(), 0)
    runner._free.start(-1, runner.newest_policy(), runner._key)


def draw(figures: dict[str, Any], path: Path) -> None:
    """Speed by the number of actors, with what the actors could do."""
    config = figures["config"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    counts = [int(n) for n in next(iter(figures["agent steps per second"].values()))]
    axes.plot(
        counts,
        [n * float(config["actor_speed"]) for n in counts],
        color="grey",
        linestyle="--",
        label="what the actors could do",
    )
    for (kind, found), marker in zip(figures["agent steps per second"].items(), "os", strict=True):
        axes.plot(counts, list(found.values()), marker=marker, label=kind)
        axes.axhline(max(found.values()), color="grey", linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel(f"simulated actors, {float(config['actor_speed']):,.0f} agent steps/s each")
    axes.set_ylabel("agent steps per second")
    device = ", ".join(figures["provenance"]["device"])
    axes.set_title(f"{config['preset']} on {config['env']}, learner on {device}")
    axes.legend()
    path.write_bytes(to_png(figure))


if __name__ == "__main__":
    main(tyro.cli(Simulation))
