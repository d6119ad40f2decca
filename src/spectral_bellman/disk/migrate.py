"""Configs of older runs in today's terms, so that a report can compare them with newer ones.

Version 1 of `config.json` has no schema number. Three things changed since:

- Settings were added. A run from before a setting existed behaved as `BEFORE` says, which is not
  always today's default.
- The SBM presets with `norm value` have Q itself as their first feature. They are the first-order
  form and are called `sbm-linear-...` now.
- `noise_anneal_steps` lowered the variance of the noise. It lowers the standard deviation now. The
  provenance of such a run says so under `NOISE_ANNEALS`.
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

NOISE_ANNEALS = "noise_anneals"
"""Key of the provenance: what `noise_anneal_steps` lowered, if that was not the deviation."""
VARIANCE = "variance"
"""Its value for runs of version 1."""

ANNEALED = ("thompson", "ucb")
"""Explorations whose noise could be annealed in version 1."""

RENAMED = {"sbm-dqn-ts": "sbm-linear-dqn-ts", "sbm-dqn": "sbm-linear-dqn"}
"""New names of presets, for runs whose agent has `norm value`."""


class OldRun(ValueError):
    """A run of an older version, which this version can report but not resume."""


HOST = ("groups", "dispatch_steps", "replay_memory", "checkpoint_replay")
"""Settings of host environments, which version 2 kept for all environments."""


FEED_FORWARD: dict[str, Any] = {
    "backbone": {"name": "feed_forward"},
    "operator": {"name": "one_step"},
    "sampling": {"name": "uniform"},
    "double": False,
    "rescaling": 0.0,
    "gradient_clip": 0.0,
}
"""Agent settings since version 4, and what all earlier runs had in effect."""


def with_choices(config: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A config of version 3, 4 or 5 as one of version ``schema``, with the choices of that version.

    Where the fit of θ̂ starts is a setting of its solver since version 4. Equal transitions may be
    one row of Σ since version 5. θ̃ may be fitted to each batch, and actors be asynchronous, since
    version 6.
    """
    result: dict[str, Any] = {**config, "schema": schema}
    if not isinstance(config.get("agent"), Mapping):
        return result
    result["agent"] = agent = {**FEED_FORWARD, **config["agent"]}
    if isinstance(agent.get("representation"), Mapping):
        agent["representation"] = part = dict(agent["representation"])
        start, solver = part.pop("q_start", None), dict(part.get("solver") or {})
        if solver.get("name") == "adam":
            part["solver"] = {"q_start": start or "last", **solver}
        if part.get("name") in ("mse", "spectral"):
            agent["representation"] = {"theta_tilde_steps": 0, **part}
    if isinstance(result.get("host"), Mapping):
        result["host"] = {
            "actors": 0,
            "asynchronous": 0,
            "cluster": "",
            **result["host"],
        }
    exploration = agent.get("exploration")
    if isinstance(exploration, Mapping) and "precision_samples" in exploration:
        agent["exploration"] = {"precision_distinct": 0, **exploration}
    return result


def upgraded(config: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A config of version 2 as one of version ``schema``: only host environments have ``host``."""
    result: dict[str, Any] = {**config, "schema": schema, "host": None}
    host = {name: result.pop(name) for name in (*HOST, "cores") if name in result}
    kind = config["env"].partition("/")[0]
    if kind == "gym":
        host.pop("cores", None)
    if kind in ("gym", "atari") and host:
        result["host"] = host
    return with_choices(result, schema)


def migrated(config: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A config of version 1 as one of version `schema`, with its agent still one flat record."""
    agent = config.get("agent")
    preset = config["preset"]
    result: dict[str, Any] = {"schema": schema, **config}
    if not isinstance(agent, Mapping):
        return result
    result["agent"] = {**{k: v for k, v in BEFORE.items() if k not in agent}, **agent}
    if agent.get("noise_anneal_steps") and agent.get("exploration") in ANNEALED:
        facts = config.get("provenance")
        known = facts if isinstance(facts, Mapping) else {}
        result["provenance"] = {**known, NOISE_ANNEALS: VARIANCE}
    if agent.get("norm") == "value" and preset in RENAMED:
        result |= {"preset": RENAMED[preset], "original_preset": preset}
    return result
