"""``sbm presets`` and ``sbm envs``."""

from rich.console import Console
from rich.table import Table

from spectral_bellman.agents.presets import PRESETS, agent_config, find_preset
from spectral_bellman.environments.api import EnvironmentSpec
from spectral_bellman.environments.catalogue import FAMILIES, available, make
from spectral_bellman.training.config import TrainConfig, configure, live
from spectral_bellman.training.progress import say


def presets(name: str, env: str, console: Console) -> None:
    """List the agents, or every setting of one of them on an environment."""
    if name:
        find_preset(name)
        spec = make(env or "gym/CartPole-v1")
        settings(configure(name, spec), spec, console)
        return
    names = 4 if console.width >= 80 else 1  # four do not fit a narrower screen
    columns = ("preset", "representation", "exploration", "θ̂", "the paper's row")
    table = named(*columns, names=names)
    others: dict[str, list[str]] = {}
    for key, preset in PRESETS.items():
        config = agent_config(key, "", {})
        fitted = "fitted" if config.solver else "learned"
        if not config.representation.has_features:
            fitted = "none"
        table.add_row(key, config.representation.name, config.exploration.name, fitted, preset.row)
        parts = config.backbone, config.operator, config.sampling
        others.setdefault(", ".join(f"{part.kind} {part.name}" for part in parts), []).append(key)
    console.print(table)
    console.print("θ̂: fitted to φ in a phase of its own, or learned with φ")
    for chosen, keys in others.items():
        console.print(f"{chosen}: {', '.join(keys)}")
    stale: dict[int, list[str]] = {}
    for family in FAMILIES.values():
        stale.setdefault(family.run["staleness"], []).append(family.name)
    for count, families in sorted(stale.items()):
        rounds = f"{count} round{'s' if count > 1 else ''}"
        console.print(f"staleness of the policy that acts: {rounds} on {', '.join(families)}")
    console.print("sbm presets PRESET --env ENV lists every setting")


def envs(console: Console) -> None:
    """List the environments."""
    table = named("environment", "what it is")
    for name, line in available().items():
        table.add_row(name, line)
    console.print(table)


def settings(config: TrainConfig, spec: EnvironmentSpec, console: Console) -> None:
    """List the settings that have a use, and say what the preset's name meant before."""
    table = named("setting", "value", title=f"{config.preset} on {config.env}")
    for name, value in live(config.resolved(), spec).items():
        table.add_row(name, str(value))
    console.print(table)
    if changed := find_preset(config.preset).changed.get(spec.family):
        say(console, changed)


def named(*columns: str, names: int = 1, title: str | None = None) -> Table:
    """A table whose first ``names`` columns have names: they are whole on a narrow screen too."""
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i < names, overflow="fold")
    return table
