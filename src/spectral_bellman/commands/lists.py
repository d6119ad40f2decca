"""``sbm presets`` and ``sbm envs``."""

from rich.console import Console
from rich.table import Table

from spectral_bellman.agents.presets import PRESETS, agent_config, find_preset
from spectral_bellman.environments.catalogue import FAMILIES, available, make
from spectral_bellman.training.config import configure, flat


def presets(name: str, env: str, console: Console) -> None:
    """List the agents, or every setting of one of them on an environment."""
    if name:
        find_preset(name)
        env = env or "gym/CartPole-v1"
        table = Table("setting", "value", title=f"{name} on {env}")
        for setting, value in flat(configure(name, make(env)).resolved()).items():
            table.add_row(setting, str(value))
        console.print(table)
        return
    table = Table("preset", "the paper's row", "representation", "exploration", "θ̂")
    for key, preset in PRESETS.items():
        config = agent_config(key, "", {})
        fitted = "fitted to φ" if config.solver else "learned with φ"
        if not config.representation.has_features:
            fitted = "none"
        table.add_row(key, preset.row, config.representation.name, config.exploration.name, fitted)
    console.print(table)
    stale: dict[int, list[str]] = {}
    for family in FAMILIES.values():
        stale.setdefault(family.run["staleness"], []).append(family.name)
    for count, families in sorted(stale.items()):
        rounds = f"{count} round{'s' if count > 1 else ''}"
        console.print(f"staleness of the policy that acts: {rounds} on {', '.join(families)}")
    console.print("sbm presets PRESET --env ENV lists every setting")


def envs(console: Console) -> None:
    """List the environments."""
    table = Table("environment", "what it is")
    for name, line in available().items():
        table.add_row(name, line)
    console.print(table)
