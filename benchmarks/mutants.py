"""Whether the tests notice one-line mistakes, each made in a copy of the project.

Every mutant changes one line of ``src``. Its mirrored test file runs first, until the first
failure, for at most two minutes. A mutant that survives is run against ``make test``'s whole suite.

    python benchmarks/mutants.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro
from rich.console import Console
from rich.progress import track

from spectral_bellman.disk.provenance import provenance, write_json

ROOT = Path(__file__).parents[1]
SECONDS = 120
"""For a mirrored test file."""


class Mutant(NamedTuple):
    """A line of a file, what takes its place, and the test file that mirrors the file."""

    file: str
    line: str
    becomes: str
    tests: str = ""

    @property
    def mirrored(self) -> str:
        """The test file."""
        folder, _, name = self.file.rpartition("/")
        return self.tests or str(Path("tests") / folder / f"test_{name}")


MUTANTS = (
    Mutant("objective.py", "(1 - alpha) * cov + alpha *", "alpha * cov + (1 - alpha) *"),
    Mutant("objective.py", "/ (samples * (samples - 1))", "/ (samples * samples)"),
    Mutant("objective.py", "_mean_quadratic(phi, param_cov)", "_mean_quadratic(phi, feature_cov)"),
    Mutant("operators.py", "jnp.minimum(1, pi_taken", "jnp.maximum(1, pi_taken"),
    Mutant("operators.py", "jnp.append(jnp.isinf(mu_next), True)", "jnp.append(mu_next < 0, True)"),
    Mutant("operators.py", "jnp.argmax(chooser, axis=-1", "jnp.argmax(q, axis=-1"),
    Mutant(
        "posterior.py",
        "return smallest / (len(precision) * (1 - discount))",
        "return smallest / (1 - discount)",
    ),
    Mutant(
        "posterior.py", "_solve(factor, z, transpose=True)", "_solve(factor, z, transpose=False)"
    ),
    Mutant("posterior.py", "jnp.sqrt(scale) * _solve(", "scale * _solve("),
    Mutant("scores.py", "np.mean(x >= y", "np.mean(x > y"),
    Mutant(
        "tabular/power.py",
        "phi if simultaneous else new_phi",
        "new_phi if simultaneous else phi",
    ),
    Mutant("tabular/features.py", "if errors[-1] == min(errors):", "if True:"),
    Mutant("tabular/mdp.py", "mdp.transition, q.max(axis=1)", "mdp.transition, q.mean(axis=1)"),
    Mutant(
        "networks/theta_tilde.py",
        "replace_fn=jnp.zeros_like",
        "replace_fn=jnp.ones_like",
    ),
    Mutant("networks/recurrent.py", "jax.nn.sigmoid(forget + 1)", "jax.nn.sigmoid(forget)"),
    Mutant("networks/recurrent.py", "jnp.where(first, 0.0, x)", "x"),
    Mutant(
        "environments/deep_sea.py", "(state.row == state.column)", "(state.row >= state.column)"
    ),
    Mutant("environments/gym.py", "reward, over, cut & ~over", "reward, over, cut"),
    Mutant("environments/hidden.py", "observation[..., frame.shape[-1] :]", "observation[..., 1:]"),
    Mutant("replay/ring.py", "advance = 1 + truncated", "advance = 1 + 0 * truncated"),
    Mutant("replay/windows.py", "(ring.age % self.period == 0)", "(ring.age >= 0)"),
    Mutant(
        "replay/windows.py",
        "before = jnp.minimum(ring.age, self.burn_in + 1)",
        "before = jnp.minimum(ring.age, 0)",
    ),
    Mutant("replay/sampling.py", "** importance", "** (1 - importance)"),
    Mutant(
        "replay/sampling.py",
        "jnp.maximum(priorities.maximum, jnp.max(value))",
        "jnp.max(value)",
    ),
    Mutant("agents/q_agent.py", "(progress.round + 1) % every", "progress.round % every"),
    Mutant(
        "agents/q_agent.py", "jnp.asarray(self.config.eval_epsilon), key", "policy.epsilon, key"
    ),
    Mutant(
        "agents/explorations/posterior.py",
        "start = self.noise_scale**0.5",
        "start = self.noise_scale",
    ),
    Mutant(
        "agents/explorations/propagated.py", "(generation == current)", "(generation <= current)"
    ),
    Mutant(
        "agents/explorations/propagated.py",
        "                state.draws.parameters,",
        "0 * state.draws.parameters,",
    ),
    Mutant("agents/representations/linear.py", "cov[1:, 1:]", "cov"),
    Mutant(
        "agents/representations/pvn.py",
        "quantile = 1 - self.pvn_quantile",
        "quantile = self.pvn_quantile",
    ),
    Mutant(
        "agents/backbones/recurrent.py",
        "jnp.arange(len(mask)) + 1, last",
        "jnp.arange(len(mask)), last",
    ),
    Mutant("agents/backbones/recurrent.py", "jnp.where(mask, probability, jnp.inf)", "probability"),
    Mutant(
        "agents/backbones/recurrent.py", "jax.lax.stop_gradient(network).unroll", "network.unroll"
    ),
    Mutant("agents/backbones/recurrent.py", "jnp.where(mask, lengths, 0.0)", "lengths"),
    Mutant(
        "agents/q_agent.py",
        "weight = jnp.where(mask, sample.weight[:, None], 0.0).ravel()",
        "weight = jnp.where(mask, 1.0, 0.0).ravel()",
        "tests/agents/backbones/test_recurrent.py",
    ),
    Mutant(
        "agents/q_agent.py",
        "return Batch(phi, weight, backbone.rows)",
        "return Batch(phi, weight, 1)",
        "tests/agents/backbones/test_recurrent.py",
    ),
    Mutant(
        "agents/backups.py",
        "share = self.priority_max_share",
        "share = 0.0",
        "tests/agents/backbones/test_recurrent.py",
    ),
    Mutant("replay/windows.py", "burn_in + self.trained + self.period", "burn_in + self.trained"),
    Mutant("training/host_programs.py", "cut=cut: leaf[cut]", "cut=cut: leaf[: self._size]"),
    Mutant(
        "training/learner.py",
        'state, more = run("after", state, keys[2])',
        'state, more = run("after", state, keys[0])',
    ),
    Mutant("training/tally.py", "jnp.where(done, 0, lengths)", "lengths"),
    Mutant("training/policies.py", "(number - self.staleness).result()", "(number - 1).result()"),
    Mutant("disk/checkpoint.py", "if checksum != _checksum(content):", "if False:"),
    Mutant("disk/log.py", "self._file.truncate(position)", "pass"),
    Mutant("report/scoring.py", "counted = late[-MOST_EVALUATIONS:]", "counted = late[-1:]"),
    Mutant(
        "report/deep_sea.py",
        "math.inf if number is None else number for number in numbers",
        "number for number in numbers if number is not None",
    ),
)


@dataclass(frozen=True)
class Settings:
    """Run the mutants."""

    only: str = ""
    """Only mutants whose file has this in its name."""
    suite: bool = True
    """Run survivors against the whole suite."""
    out: Path = Path("out/mutants.json")
    """Where the results go."""


def main(settings: Settings) -> None:
    """Run every mutant, print who survived, and write the results."""
    console = Console()
    chosen = [mutant for mutant in MUTANTS if settings.only in mutant.file]
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "out", "__pycache__"))
        for mutant in track(chosen, "mutants", console=console):
            began = time.monotonic()
            by = "mirrored tests" if fails(copy, mutant, mutant.mirrored, "-x") else ""
            if not by and settings.suite:
                suite = ("tests", "-x", "-m", "not slow", "--numprocesses=2")
                by = "whole suite" if fails(copy, mutant, *suite, seconds=3600) else ""
            seconds = round(time.monotonic() - began, 1)
            found.append({**mutant._asdict(), "caught by": by or "nothing", "seconds": seconds})
            said = f"{mutant.file}: {mutant.line} -> {mutant.becomes}: {by or 'survived'}"
            console.print(said, markup=False, highlight=False)
    caught = [mutant for mutant in found if mutant["caught by"] != "nothing"]
    mirrored = [mutant for mutant in found if mutant["caught by"] == "mirrored tests"]
    total = f"{len(caught)} of {len(found)} caught, {len(mirrored)} by the mirrored tests"
    console.print(total, highlight=False)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(settings.out, {"result": total, "mutants": found, "provenance": provenance()})


def fails(copy: Path, mutant: Mutant, *arguments: str, seconds: float = SECONDS) -> bool:
    """Whether a test fails with the mutant in the copy; a time-out counts as survival."""
    path = copy / "src/spectral_bellman" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.line) != 1:
        count = text.count(mutant.line)
        raise ValueError(f"{mutant.file} has {count} times {mutant.line!r}: write the mutant anew")
    path.write_text(text.replace(mutant.line, mutant.becomes), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, timeout=seconds, capture_output=True, check=False
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{command}: {done.stdout.decode()[-2000:]}")
        return done.returncode == 1
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings))
