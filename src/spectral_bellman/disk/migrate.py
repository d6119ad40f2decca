"""Configs of older runs in today's terms, so that a report can compare them with newer ones.

Version 1 of `config.json` has no schema number. Two things changed since:

- Settings were added. A run from before a setting existed behaved as `BEFORE` says, which is not
  always today's default.
- The SBM presets with `norm value` have Q itself as their first feature. They are the first-order
  form and are called `sbm-linear-...` now.
"""

from collections.abc import Mapping
from typing import Any

BEFORE: dict[str, Any] = {
    "head_rate": 1.0,
    "initial_weights": "normal",
    "optimiser": "adam",
    "q_start": "last",
    "relative_variance": False,
}
"""Agent settings added during version 1, and the value that earlier runs had in effect."""

RENAMED = {"sbm-dqn-ts": "sbm-linear-dqn-ts", "sbm-dqn": "sbm-linear-dqn"}
"""New names of presets, for runs whose agent has `norm value`."""


class OldRun(ValueError):
    """A run of an older version, which this version can report but not resume."""


HOST = ("groups", "dispatch_steps", "replay_memory", "checkpoint_replay")
"""Settings of host environments, which version 2 kept for all environments."""


def upgraded(config: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A config of version 2 as one of version ``schema``: only host environments have ``host``."""
    result: dict[str, Any] = {**config, "schema": schema, "host": None}
    host = {name: result.pop(name) for name in (*HOST, "cores") if name in result}
    kind = config["env"].partition("/")[0]
    if kind == "gym":
        host.pop("cores", None)
    if kind in ("gym", "atari") and host:
        result["host"] = host
    return result


def migrated(config: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A config of version 1 as one of version `schema`, with its agent still one flat record."""
    agent = config.get("agent")
    preset = config["preset"]
    result: dict[str, Any] = {"schema": schema, **config}
    if not isinstance(agent, Mapping):
        return result
    result["agent"] = {**{k: v for k, v in BEFORE.items() if k not in agent}, **agent}
    if agent.get("norm") == "value" and preset in RENAMED:
        result |= {"preset": RENAMED[preset], "original_preset": preset}
    return result
