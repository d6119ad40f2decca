"""Checkpoints of a run: what of its runners is saved, and how they come back."""

import contextlib
import functools
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from spectral_bellman.disk import checkpoint, segments
from spectral_bellman.disk.provenance import provenance
from spectral_bellman.disk.run_folder import CHECKPOINTS
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.progress import warn
from spectral_bellman.training.seeds import Seeds

REPLAY = "replay"
"""The folder of the replays of host environments, saved by what is new in them."""


def save(
    folder: Path, number: int, runners: Seeds, config: TrainConfig, info: dict[str, Any]
) -> int:
    """Write a checkpoint, and of replays on the host's side only what is new; the bytes written."""
    checkpoints = folder / CHECKPOINTS
    manifests: list[Any] = []
    written = 0
    if runners.host and config.on_host.checkpoint_replay == "on":
        for runner in runners.runners:
            saved = segments.save(_segments(folder, runner), number, runner.replay, runner.manifest)
            runner.manifest = saved.manifest
            manifests.append(saved.manifest)
            written += saved.bytes
    content = {**info, "replay": manifests}
    path = checkpoint.save(checkpoints, number, runners.state, content, config.checkpoint_keep)
    kept = []
    for old in checkpoint.candidates(checkpoints):
        with contextlib.suppress(checkpoint.Damaged):
            kept.append(checkpoint.read_info(old)["replay"])
    for i, runner in enumerate(runners.runners if manifests else ()):
        needed = [replay[i] for replay in kept if replay]
        segments.prune(_segments(folder, runner), needed)
    return written + sum(file.stat().st_size for file in path.iterdir())


def load(folder: Path, runners: Seeds, console: Console) -> tuple[Path, dict[str, Any], list[str]]:
    """Bring runners back from the newest intact checkpoint: path, info, problems."""
    problems: list[str] = []

    def read(path: Path) -> tuple[Any, dict[str, Any], list[Any]]:
        info = checkpoint.read_info(path)
        replays = [
            segments.load(
                _segments(folder, runner),
                manifest,
                runner.replay_shapes(),
                runner.replay_device,
            )
            for runner, manifest in zip(runners.runners, info["replay"], strict=False)
        ]
        return checkpoint.load(path, runners.shapes()), info, replays

    path, (states, info, replays) = checkpoint.newest(
        folder / CHECKPOINTS, read, functools.partial(warn, console)
    )
    if not runners.host:
        for runner, state in zip(runners.runners, states, strict=True):
            runner.restore(state)
        return path, info, problems
    if not replays:
        warmup = runners.runners[0].config.agent.warmup_steps
        problems.append(
            "the replay was not kept (--checkpoint-replay off): the environments begin new "
            f"episodes, and learning waits until {warmup:,} agent steps have filled the replay "
            "anew, so that it is another run from here"
        )
        replays = [None] * len(runners.runners)
    columns = Progress.get_default_columns()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(
            "replaying the actions of the running episodes", total=len(runners.runners)
        )
        for runner, state, extra, replay in zip(
            runners.runners, states, info["extra"], replays, strict=True
        ):
            problem = runner.restore(
                state, extra, replay, functools.partial(progress.advance, task)
            )
            problems += [problem] if problem else []
        for runner, manifest in zip(runners.runners, info["replay"], strict=False):
            runner.manifest = manifest
    return path, info, problems


def load_policies(
    folder: Path, runners: Seeds, name: str | None, console: Console
) -> tuple[Path, dict[str, Any]]:
    """Give runners the policies of a checkpoint, by default the newest intact; path, info."""
    checkpoints = folder / CHECKPOINTS
    if name is None:
        path, states, info = checkpoint.load_newest(
            checkpoints, runners.shapes(), functools.partial(warn, console)
        )
    elif (checkpoints / name).is_dir():
        path = checkpoints / name
        states, info = checkpoint.load(path, runners.shapes()), checkpoint.read_info(path)
    else:
        known = ", ".join(p.name for p in checkpoint.candidates(checkpoints))
        raise FileNotFoundError(f"{checkpoints / name} does not exist; there are {known}")
    for runner, state in zip(runners.runners, states, strict=True):
        if runners.host:
            runner.adopt(state, info["round"])
        else:
            runner.restore(state)
    return path, info


def versions() -> dict[str, Any]:
    """What a run must share with its resume to go on bit for bit."""
    facts = provenance()
    return {"python": facts["python"], "device": facts["device"], **facts["packages"]}


def compare_versions(saved: dict[str, Any], console: Console) -> None:
    """Say which versions differ from those that a checkpoint was written with."""
    now = versions()
    differ = {name: (saved.get(name), new) for name, new in now.items() if saved.get(name) != new}
    if differ:
        text = ", ".join(f"{name} was {old} and is {new}" for name, (old, new) in differ.items())
        warn(console, f"{text}: the run goes on, but not bit for bit as it would have")


def _segments(folder: Path, runner: Any) -> Path:
    return folder / REPLAY / str(runner.config.first_seed)
