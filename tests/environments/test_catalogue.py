"""The catalogue: names, objects, defaults, and that one entry is all a new family needs."""

import dataclasses
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from spectral_bellman.environments import AtariProtocol, DeepSea, EnvironmentSpec, Family, Step
from spectral_bellman.environments.api import (
    EVALUATION,
    TRAINING,
    Environment,
    HostStep,
    PlayProtocol,
    RenderedStep,
    ScoreScale,
    VectorEnvironment,
    block_seed,
)
from spectral_bellman.environments.catalogue import FAMILIES, available, family_of, make, register
from spectral_bellman.environments.probes import probes
from spectral_bellman.report.aggregate import comparisons
from spectral_bellman.report.curves import curves_figure, games_figure
from spectral_bellman.report.families import environment
from spectral_bellman.report.groups import group_runs
from spectral_bellman.report.report import summarise, tables_of
from spectral_bellman.report.runs import Run, find_runs, load_run
from spectral_bellman.report.tables import to_markdown
from spectral_bellman.scores import MINATAR, human_normalized
from spectral_bellman.training.config import configure
from spectral_bellman.training.runner import train

# A family as somebody else would write it: all of it is here.


class Corridor(NamedTuple):
    """Walk ``length`` steps to the right."""

    length: int

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1,), jnp.float32)

    def reset(self, key: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.zeros(1, jnp.float32)

    def step(self, state: jax.Array, action: jax.Array, key: Any) -> tuple[jax.Array, Step]:
        after = jnp.maximum(state + 2 * action - 1, 0).astype(jnp.int32)
        over = after >= self.length
        seen = after.astype(jnp.float32)[None]
        return after, Step(seen, over.astype(jnp.float32), over, jnp.zeros((), bool))

    def render(self, state: jax.Array) -> jax.Array:
        cells = jnp.arange(self.length + 1) == state
        return jnp.broadcast_to(cells[None, :, None], (2, self.length + 1, 3)).astype(jnp.uint8)


def suited(spec: EnvironmentSpec, run: Any, agent: Any, chosen: Any) -> Any:
    assert isinstance(spec.device, Corridor)
    return {"round_steps": 2 * spec.device.length}, {"batch": agent["batch"] // 2}


TOY = Family(
    name="toy",
    title="Toy",
    patterns={"toy/N": "a corridor of N steps"},
    run={"num_envs": 3, "staleness": 1},
    agent={"batch": 8},
    make=lambda name: EnvironmentSpec(name, "toy", device=Corridor(int(name.partition("/")[2]))),
    suited=suited,
    frame_unit="frames (a step of the corridor each)",
    score_scale=ScoreScale(
        "share of the way",
        lambda name: (-1.0, float(name.partition("/")[2])),
        ends=("nowhere", "the end"),
        subsets={"that are short": ("toy/2", "toy/3")},
    ),
)


@pytest.fixture
def toy() -> Iterator[Family]:
    assert register(TOY) is FAMILIES["toy"]
    yield TOY
    del FAMILIES["toy"]


def test_one_entry_is_all_that_a_new_family_needs(toy: Family) -> None:
    spec = make("toy/2")
    assert (spec.name, spec.family, spec.frame_skip) == ("toy/2", "toy", 1)
    assert family_of("toy/2") is toy
    assert available()["toy/N"] == "a corridor of N steps"
    assert toy.run["num_envs"] == 3
    assert toy.suited(spec, toy.run, toy.agent, ()) == ({"round_steps": 4}, {"batch": 4})
    assert (toy.film, toy.protocol) == ("gif", None)
    assert spec.device is not None
    state, _ = spec.device.reset(jax.random.key(0))
    pictures = [spec.render(state)]
    for terminated in (False, True):
        state, step = spec.device.step(state, jnp.int32(1), jax.random.key(0))
        assert bool(step.terminated) == terminated == bool(step.reward)
        pictures.append(jax.jit(spec.render)(state))
    np.testing.assert_array_equal(np.stack(pictures)[:, 0, :, 0], np.eye(3))
    with pytest.raises(ValueError, match="did you mean toy/N"):
        make("tpy/N")


@pytest.mark.slow
def test_a_report_takes_unit_and_scale_from_the_entry(toy: Family, tmp_path: Path) -> None:
    small = {"frames": 60, "hidden": (8,), "updates": 2, "replay_capacity": 60, "seeds": 2}
    quiet = Console(file=io.StringIO())
    for name in ("toy/2", "toy/3"):
        train("dqn", name, out=tmp_path / name, console=quiet, **small)
    config = json.loads((tmp_path / "toy/3" / "config.json").read_text(encoding="utf-8"))
    assert config["environment"] == {
        "family": "toy",
        "title": "Toy",
        "frame_unit": "frames (a step of the corridor each)",
        "score": {
            "label": "share of the way",
            "zero": -1.0,
            "one": 3.0,
            "ends": ["nowhere", "the end"],
            "subsets": ["that are short"],
        },
    }
    # The report does not look into the catalogue: the runs may come from another program.
    groups = group_runs([load_run(path) for path in find_runs([tmp_path])])
    (compared,) = comparisons(groups)
    final = np.stack([group.final for group in groups], axis=1)
    expected = (final + 1) / np.array([3.0, 4.0])
    np.testing.assert_array_equal(compared.table("dqn"), expected)
    texts = [to_markdown(table) for table in tables_of(groups, [*map(summarise, groups)], {})]
    assert "## Toy: 2 games that are short, share of the way\n" in texts[0]
    assert "| game | nowhere | the end | dqn |" in texts[1]
    assert "| 2 | -1 | 2 |" in texts[1]
    panel = games_figure([compared]).axes[0]  # type: ignore[union-attr]
    assert panel.get_ylabel() == "IQM of the share of the way"
    units = {axes.get_xlabel() for axes in (panel, *curves_figure(groups).axes) if axes.axison}
    assert units == {"frames (a step of the corridor each)"}


def test_a_family_without_scale_says_so_and_needs_no_bounds() -> None:
    assert Family("plain", "Plain", {}).facts("plain/1") == {
        "family": "plain",
        "title": "Plain",
        "frame_unit": "frames (= agent steps)",
        "score": None,
    }
    assert FAMILIES["atari"].facts("atari/air_raid")["score"] is None, "no human score"


def test_older_runs_are_scaled_as_the_catalogue_scales_newer_ones() -> None:
    named = ("atari/pong", "atari/boxing", "atari/tetris", "minatar/freeway", "minatar/x")
    for name in (*named, "deep_sea/4", "gym/CartPole-v1"):
        older = Run(Path("x"), {"env": name}, [])
        family = family_of(name)
        assert family is not None
        newer = Run(Path("x"), {"env": name, "environment": family.facts(name)}, [])
        assert environment(older) == environment(newer)


def test_the_catalogue_holds_no_test_families() -> None:
    assert list(FAMILIES) == ["deep_sea", "minatar", "memory", "atari", "jax", "gym"]


class Counter:
    """A host environment that counts: the least that the protocol asks for."""

    observation, stack, num_actions = jax.ShapeDtypeStruct((1,), np.float32), 0, 2

    def __init__(self, speed: int, indices: Any, start: int) -> None:
        self.speed, self.numbers, self.start = speed, np.array(indices, np.float32), start

    def __len__(self) -> int:
        return len(self.numbers)

    def reset(self, block: int = 0) -> np.ndarray:
        self.numbers = self.numbers * 0 + block + self.start
        return self.numbers[:, None]

    def step(self, actions: np.ndarray, running: np.ndarray | None = None) -> HostStep:
        self.numbers = self.numbers + self.speed
        seen, never = self.numbers[:, None], np.zeros(len(self), bool)
        return HostStep(seen, self.numbers, never, never, seen, never)

    def save(self) -> list[dict[str, Any]]:
        return [{"number": float(number)} for number in self.numbers]

    def restore(self, saved: list[dict[str, Any]], progress: Any) -> np.ndarray:
        self.numbers = np.array([item["number"] for item in saved], np.float32)
        return self.numbers[:, None]

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Pace:
    """How fast it counts."""

    frame_skip: int = 2


def test_a_host_family_with_a_protocol_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(protocol: Pace, seed: int, indices: Any, stream: int, threads: int) -> Counter:
        assert threads == 3
        return Counter(protocol.frame_skip, indices, seed + stream)

    def replayed(protocol: Pace, *episode: Any) -> Any:
        yield RenderedStep(np.zeros((1, 1, 3), np.uint8), float(protocol.frame_skip))

    def made(name: str) -> EnvironmentSpec:
        given = {"opener": opened, "replayer": replayed, "protocol": Pace()}
        return EnvironmentSpec(name, "count", **given)

    monkeypatch.setattr("spectral_bellman.environments.catalogue.FAMILIES", {**FAMILIES})
    family = Family("count", "Count", {"staleness": 2}, patterns={"count/up": ""}, make=made)
    register(family)
    spec = make("count/up")
    assert (spec.device, spec.frame_skip, spec.can_render) == (None, 2, True)
    assert isinstance(spec.protocol, PlayProtocol)
    faster = spec.with_protocol(dataclasses.replace(Pace(), frame_skip=5))
    pool = faster.open(10, [0, 1], EVALUATION, threads=3)
    assert isinstance(pool, VectorEnvironment)
    assert pool.reset(4).tolist() == [[15], [15]]
    assert pool.step(np.zeros(2, int)).next_observation.tolist() == [[20], [20]]
    assert [step.reward for step in faster.replay(10, 0, EVALUATION, 4, [])] == [5]


def test_a_prefix_belongs_to_one_family(toy: Family) -> None:
    with pytest.raises(ValueError, match="a family 'toy' already"):
        register(TOY)
    with pytest.raises(ValueError, match="'other': toy/ belongs to 'toy'"):
        register(dataclasses.replace(TOY, name="other"))


def test_the_catalogue_imports_no_emulator() -> None:
    """Not gymnasium, ale_py or pgx: they are slow to import, and pgx may not be installed."""
    code = (
        "import sys, spectral_bellman.environments.catalogue as catalogue; "
        "catalogue.available(), catalogue.make('deep_sea/5'); "
        "print(*({'gymnasium', 'ale_py', 'pgx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_a_name_leads_to_its_family() -> None:
    assert make("gym/CartPole-v1").family == "gym"
    sea, windy = make("deep_sea/3"), make("deep_sea_stochastic/3")
    assert make("deep_sea_mixed/3").device == DeepSea(3, mixed=True)
    assert (sea.name, sea.family, sea.device) == ("deep_sea/3", "deep_sea", DeepSea(3))
    assert (windy.family, windy.device) == ("deep_sea", DeepSea(3, stochastic=True))
    assert (make("minatar/asterix").family, make("atari/pong").family) == ("minatar", "atari")
    for name, family in (("deep_sea_stochastic/9", "deep_sea"), ("atari/pong", "atari")):
        found = family_of(name)
        assert found is not None
        assert found.name == family
    assert family_of("DeepSea") is family_of("deep_see/3") is None


def test_an_object_needs_no_entry() -> None:
    spec = make(DeepSea(4))
    assert (spec.name, spec.family, spec.device) == ("DeepSea", "jax", DeepSea(4))
    assert isinstance(spec.device, Environment)
    assert spec.can_render

    class Callable(Corridor):
        """Callable as gym makers are, but an environment."""

        def __call__(self) -> None:
            raise AssertionError

    assert make(Callable(3)).family == "jax"


@pytest.mark.parametrize("name", ["deep_sea/5", "minatar/breakout", "atari/pong", "gym/Acrobot-v1"])
def test_a_named_environment_can_be_sent_to_another_process(name: str) -> None:
    spec = make(name)
    again = pickle.loads(pickle.dumps(spec))
    assert repr(again) == repr(spec)
    if spec.device is None:
        for one in (spec, again):
            pool = one.open(1, [2])
            assert pool.reset().shape == (1, *pool.observation.shape)
            pool.close()


def test_a_spec_is_for_the_device_or_for_the_host() -> None:
    for given in ({}, {"device": Corridor(1), "opener": lambda *_: None}):
        with pytest.raises(ValueError, match="give a device environment, or an opener"):
            EnvironmentSpec("both or none", "toy", **given)
    spec = EnvironmentSpec("toy/1", "toy", device=Corridor(1))
    with pytest.raises(ValueError, match="toy/1 runs on the device: there is nothing to open"):
        spec.open(0, [0])
    with pytest.raises(ValueError, match="toy/1 runs on the device: render its states"):
        spec.replay(0, 0, 0, 0, [])


def test_an_environment_without_pictures_says_so() -> None:
    spec = make(probes()[1])
    assert (spec.name, spec.can_render) == ("Probe", False)
    with pytest.raises(ValueError, match=r"Probe cannot be shown: it has no render\(state\)"):
        spec.render(None)


def test_block_seeds_differ_in_everything_that_makes_them() -> None:
    places = [(4, 0, 2, 1), (3, 1, 2, 1), (3, 0, 3, 1), (3, 0, 2, 2), (3, 0, 2, 1)]
    seeds = [block_seed(*place) for place in places]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert (TRAINING, EVALUATION) == (0, 1)
    # Episodes of runs and figures that are published: these numbers must not change.
    assert (seeds[-1], block_seed(0, 0, 0, 0)) == (2963835823, 2968811710)


# Defaults.


def test_every_family_says_how_stale_its_policies_are() -> None:
    stale = {name: family.run["staleness"] for name, family in FAMILIES.items()}
    assert stale == {"deep_sea": 1, "minatar": 1, "memory": 1, "jax": 1, "atari": 2, "gym": 2}


def test_updates_are_all_gradient_steps_of_a_round() -> None:
    found = {
        name: (family.agent.get("updates"), family.agent.get("q_steps"))
        for name, family in FAMILIES.items()
    }
    assert found == {
        "deep_sea": (10, 2),
        "minatar": (16, 4),
        "memory": (8, 2),
        "atari": (128, 32),
        "jax": (None, None),
        "gym": (16, 4),
    }


@pytest.mark.parametrize("given", ["deep_sea", "object"])
@pytest.mark.parametrize(("size", "width"), [(4, 128), (10, 128), (14, 256), (20, 512), (30, 1024)])
def test_deep_sea_has_a_direction_for_all_that_can_be_met(
    given: str, size: int, width: int
) -> None:
    spec = make(DeepSea(size) if given == "object" else f"deep_sea/{size}")
    run, agent = FAMILIES[spec.family].suited(spec, {}, {}, ())
    assert run == {
        "round_steps": size,
        "frames": 300 * size,
        "replay_capacity": 500 * size,
    }
    assert agent["features"] >= size * (size + 1)
    assert (agent["features"], agent["hidden"]) == (width, (width,))
    assert agent["precision_samples"] > run["replay_capacity"]
    assert agent["propagated_iterations"] == size
    _, rest = FAMILIES[spec.family].suited(spec, {}, {}, {"features": 256, "batch": 2})
    assert set(agent) - set(rest) == {"features"}


def test_other_objects_have_no_settings_of_their_own() -> None:
    assert FAMILIES["jax"].suited(make(Corridor(3)), {}, {}, ()) == ({}, {})


@pytest.mark.parametrize(
    ("num_envs", "updates", "q_steps", "target_rounds", "expected"),
    [
        (256, 128, 32, 2, (8, 2, 32, 16)),
        (128, 576, 64, 1, (72, 8, 8, 16)),
        (256, 128, 0, 1, (8, 0, 16, 16)),
        (256, 36, 4, 18, (9, 1, 72, 64)),
        (256, 129, 31, 1, (129, 31, 1, 256)),
    ],
)
def test_atari_on_a_cpu_takes_shorter_rounds_at_the_same_rates(
    num_envs: int,
    updates: int,
    q_steps: int,
    target_rounds: int,
    expected: tuple[int, int, int, int],
) -> None:
    family = FAMILIES["atari"]
    run = {**family.run, "num_envs": num_envs}
    agent = {"updates": updates, "q_steps": q_steps, "target_rounds": target_rounds}
    small, changes = family.machine("cpu", run, agent)
    assert tuple(changes[name] for name in agent) == expected[:3]
    assert small == {"num_envs": 16, "round_steps": expected[3]}
    # As much is learned per agent step.
    rounds = num_envs * run["round_steps"] / (16 * expected[3])
    assert rounds * changes["updates"] == updates
    assert rounds * changes["q_steps"] == q_steps
    assert changes["target_rounds"] == rounds * target_rounds
    assert family.machine("gpu", run, agent) == ({}, {})


def test_what_a_report_needs_of_a_family() -> None:
    assert {family.frame_unit for family in FAMILIES.values()} == {
        "frames (= agent steps)",
        "frames (4 per agent step)",
    }
    atari = FAMILIES["atari"]
    assert (atari.protocol, make("atari/pong").protocol) == (AtariProtocol(), AtariProtocol())
    assert (make("atari/pong").frame_skip, make("deep_sea/3").frame_skip) == (4, 1)
    assert (atari.frames_per_second, atari.film, atari.steps_beside_python) == (60, "mp4", True)
    assert not FAMILIES["gym"].steps_beside_python


def test_scores_are_on_the_scale_of_the_tables() -> None:
    score = np.array([3.0, 10.5])
    scale = FAMILIES["atari"].score_scale
    assert scale is not None
    found, expected = scale.normalized("atari/pong", score), human_normalized("pong", score)
    np.testing.assert_array_equal(found, expected)  # type: ignore[arg-type]
    assert scale.normalized("atari/tetris", score) is None
    scale = FAMILIES["minatar"].score_scale
    assert scale is not None
    one, zero = MINATAR["freeway"]
    found = scale.normalized("minatar/freeway", np.array([zero, one]))
    np.testing.assert_array_equal(found, [0, 1])  # type: ignore[arg-type]
    assert scale.normalized("minatar/x", score) is None
    labels = [f.score_scale.label for f in FAMILIES.values() if f.score_scale]
    assert labels == ["normalised score", "human-normalised score"]


# Names that do not exist.


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minatar/breakot", "did you mean minatar/breakout"),
        ("minatr/breakout", "did you mean minatar/breakout"),
        ("gym/CartPol-v1", "did you mean .*CartPole-v1"),
        ("CartPole-v1", "did you mean gym/CartPole-v1"),
        ("deep_see/N", "did you mean deep_sea/N"),
        ("gym/", "needs the name of a Gymnasium environment"),
        ("deep_sea", "needs a size, e.g. deep_sea/10"),
        ("deep_sea/ten", "needs a size, e.g. deep_sea/10"),
        ("???", "sbm envs lists them"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(name, words):
    with pytest.raises(ValueError, match=words):
        make(name)


@pytest.mark.parametrize("nonsense", [3, None, [1, 2]])
def test_nonsense_is_a_type_error_that_says_what_an_environment_is(nonsense):
    with pytest.raises(
        TypeError, match=f"an environment is a name .*gymnasium.Env.*got {type(nonsense).__name__}"
    ):
        make(nonsense)


@pytest.mark.parametrize(
    ("env", "exploration", "ridge"),
    [
        ("deep_sea/5", "propagated", 1e-4),
        ("deep_sea/5", "thompson", 0.01),
        ("deep_sea_stochastic/5", "propagated", 0.01),
    ],
)
def test_what_was_seen_once_is_known_where_rewards_are_exact(env, exploration, ridge):
    config = configure("sbm-dqn-ts", make(env), {"exploration": exploration})
    found = config.agent.exploration
    assert found.ridge == ridge
    assert getattr(found, "propagated_variance", ridge) == ridge
