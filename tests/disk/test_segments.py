import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.disk import arrays, checkpoint, segments
from spectral_bellman.disk.checkpoint import ARRAYS, INFO, Damaged, candidates
from spectral_bellman.disk.segments import Manifest, Saved, load, prune, save
from spectral_bellman.replay import OneStep, Ring, Rollout, add, init_ring, sample
from spectral_bellman.replay import ring as ring_module

ENVS, ROUND = 3, 5
FRAME = jax.ShapeDtypeStruct((4, 3), jnp.uint8)
EXTRAS = {
    "prob": jax.ShapeDtypeStruct((), jnp.float32),
    "carry": [jax.ShapeDtypeStruct((2,), jnp.bfloat16)],
}
SLOT_BYTES = 12 + 1 + 4 * 5 + 2 * 2
OVERHEAD = 4_000
"""Of a segment: the header and info.json."""

put = jax.jit(add)
draw = jax.jit(lambda ring, key: sample(ring, OneStep(), key, (64,)))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 5 slots of frames: segments have several, and a rest."""
    monkeypatch.setattr(segments, "CHUNK", 5 * ENVS * 12)


def empty(
    stack: int = 4,
    capacity: int = 90,
    frame: jax.ShapeDtypeStruct = FRAME,
    num_envs: int = ENVS,
    extras: Any = EXTRAS,
) -> Ring:
    return init_ring(frame, extras, num_envs, capacity, ROUND, stack)


def grown(ring: Ring, rng: np.random.Generator, steps: int, truncation: float = 0.2) -> Ring:
    """With random steps, of which each environment truncates another share."""
    num_envs, (_, *frame) = ring.valid.shape[0], ring.observation.shape[1:]

    def random(dtype: Any, *shape: int) -> jax.Array:
        if dtype == jnp.float32:  # any bits, so NaNs too
            return jnp.asarray(rng.integers(0, 2**32, shape, np.uint32).view(np.float32))
        return jnp.asarray(rng.integers(0, 2 if dtype is bool else 256, shape)).astype(dtype)

    while steps > 0:
        length = ROUND if steps >= ROUND else 1
        shape = (length, num_envs)
        rollout = Rollout(
            observation=random(ring.observation.dtype, *shape, *frame),
            action=random(jnp.int32, *shape),
            reward=random(jnp.float32, *shape),
            discount=random(jnp.float32, *shape),
            first=random(bool, *shape),
            truncated=jnp.asarray(rng.random(shape) < truncation * np.arange(num_envs)),
            last_observation=random(ring.observation.dtype, *shape, *frame),
            extras=jax.tree.map(
                lambda leaf, shape=shape: random(leaf.dtype, *shape, *leaf.shape[2:]),
                ring.steps.extras,
            ),
        )
        ring = put(ring, rollout)
        steps -= length
    return ring


def copied(ring: Ring) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [
        (leaf.dtype.name, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(ring)
    ]


def like(ring: Ring) -> Ring:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ring)


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in candidates(folder))


def named(manifest: Manifest) -> list[int]:
    return [entry["number"] for entry in manifest]


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Kept(NamedTuple):
    """A save, and the ring as it was then."""

    manifest: Manifest
    ring: Ring

    def check(self, folder: Path) -> None:
        assert copied(load(folder, self.manifest, like(self.ring))) == copied(self.ring)


def kept(folder: Path, number: int, ring: Ring, since: Manifest | None) -> Kept:
    manifest = json.loads(json.dumps(save(folder, number, ring, since).manifest))
    return Kept(manifest, ring)


# Steps between saves: the ring, of 34 slots, goes round within a gap and over several.
GAPS = [0, 1, 1, 5, 40, 2, 10, 90, 1, 5, 5, 5, 5, 5, 5, 5, 30, 31, 32]


@pytest.mark.parametrize(
    ("stack", "frame"),
    [(4, FRAME), (0, jax.ShapeDtypeStruct((2,), jnp.float32))],
    ids=["frames", "vectors"],
)
def test_every_save_comes_back_bit_for_bit(
    tmp_path: Path, stack: int, frame: jax.ShapeDtypeStruct
) -> None:
    rng, ring, manifest = np.random.default_rng(stack), empty(stack, frame=frame), None
    spread = 0
    for number, steps in enumerate(GAPS):
        ring = grown(ring, rng, steps)
        live = kept(tmp_path, number, ring, manifest)
        manifest = live.manifest
        live.check(tmp_path)
        spread = max(spread, int(np.ptp(np.asarray(ring.written))))
        if number % 6 == 0:  # and it goes on as the live one does
            got, want = load(tmp_path, manifest, like(ring)), ring
            for seed in range(2):
                got, want = (
                    grown(state, np.random.default_rng(seed), 2 * ROUND) for state in (got, want)
                )
                assert copied(got) == copied(want)
                draws = [
                    jax.tree.leaves(draw(state, jax.random.key(seed))) for state in (got, want)
                ]
                assert all(
                    np.asarray(a).tobytes() == np.asarray(b).tobytes()
                    for a, b in zip(*draws, strict=True)
                )
    assert spread > ring.valid.shape[1], "the rings are to be more than a round apart"


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    rng, ring = np.random.default_rng(0), empty(capacity=600)
    saved = Saved(0, [])
    for number, steps in enumerate([100, 1, 5, 20, 250, 250, 3]):
        before, ring = np.asarray(ring.written), grown(ring, rng, steps)
        saved = save(tmp_path, number, ring, saved.manifest)
        new = min(int((np.asarray(ring.written) - before).max()) + 1, ring.valid.shape[1])
        assert 0 < saved.bytes - new * ENVS * SLOT_BYTES < OVERHEAD
        assert saved.bytes == disk(tmp_path / f"{number:012d}")
    assert named(saved.manifest) == [5, 6], "a segment of the whole ring needs none before it"


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = save(tmp_path, 3, empty(), None)
    assert named(first.manifest) == [3]
    assert save(tmp_path, 4, empty(), first.manifest) == Saved(0, first.manifest)
    second = kept(tmp_path, 5, grown(empty(), rng, 5), first.manifest)
    assert named(second.manifest) == [5], "it holds the first slot too"
    assert save(tmp_path, 5, second.ring, second.manifest) == Saved(0, second.manifest)
    again = kept(
        tmp_path, 5, grown(second.ring, rng, 5), second.manifest
    )  # the same number with more in it
    again.check(tmp_path)
    assert numbers(tmp_path) == [3, 5]


@pytest.mark.parametrize("truncation", [0.0, 0.4])
def test_what_is_kept_on_the_disk_is_bounded_and_enough(tmp_path: Path, truncation: float) -> None:
    rng, ring, live = np.random.default_rng(1), empty(), Kept([], empty())
    slots = ring.valid.shape[1]
    history: list[Kept] = []
    for number in range(40):
        ring = grown(ring, rng, ROUND, truncation)
        live = kept(tmp_path, number, ring, live.manifest)
        history = [*history, live][-2:]
        prune(tmp_path, [save.manifest for save in history])
        assert set(numbers(tmp_path)) == {
            number for save in history for number in named(save.manifest)
        }
        # The slowest environment goes round in so many saves. One more save is under way, and one
        # belongs to the manifest before.
        assert len(numbers(tmp_path)) <= -(-slots // ROUND) + 2
        longest = 1 + (2 * ROUND if truncation else ROUND)
        assert disk(tmp_path) <= len(numbers(tmp_path)) * (longest * ENVS * SLOT_BYTES + OVERHEAD)
        if number % 7 == 0:
            for save_ in history:
                save_.check(tmp_path)
    prune(tmp_path, [])
    assert os.listdir(tmp_path) == []


def test_pruning_takes_no_folder_but_segments(tmp_path: Path) -> None:
    live = kept(tmp_path, 1, empty(), None)
    (tmp_path / "notes").mkdir()
    shutil.copytree(tmp_path / "000000000001", tmp_path / ".partial-000000000002")
    kept(tmp_path, 3, empty(), None)
    prune(tmp_path, [live.manifest])
    assert sorted(os.listdir(tmp_path)) == ["000000000001", "notes"]
    prune(tmp_path / "nowhere", [])


def test_a_run_that_went_back_never_uses_what_came_after(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    first = kept(tmp_path, 100, grown(empty(capacity=600), rng, 20), None)
    second = kept(tmp_path, 200, grown(first.ring, rng, 10), first.manifest)
    lost = kept(tmp_path, 300, grown(second.ring, rng, 10), second.manifest)
    kept(tmp_path, 400, grown(lost.ring, rng, 10), lost.manifest)
    back = load(tmp_path, second.manifest, like(second.ring))
    # By its counters 300 could come before this one.
    other = kept(tmp_path, 350, grown(back, rng, 30), second.manifest)
    assert named(other.manifest) == [100, 200, 350]
    assert numbers(tmp_path) == [100, 200, 350]
    for save_ in (first, second, other):
        save_.check(tmp_path)
    same = kept(tmp_path, 350, grown(back, rng, 30), second.manifest)  # and under the same number
    same.check(tmp_path)
    with pytest.raises(Damaged, match=f"{tmp_path / '000000000350' / INFO} is of another save"):
        other.check(tmp_path)
    with pytest.raises(Damaged, match="000000000300"):
        lost.check(tmp_path)
    anew = kept(
        tmp_path, 150, grown(empty(capacity=600), rng, 5), None
    )  # a run from the beginning in the same folder
    assert numbers(tmp_path) == [100, 150]
    anew.check(tmp_path)
    first.check(tmp_path)


def test_a_manifest_that_is_not_of_this_ring_is_not_built_upon(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ahead = kept(tmp_path, 1, grown(empty(capacity=600), rng, 30), None)
    behind = kept(tmp_path, 2, grown(empty(capacity=600), rng, 10), ahead.manifest)
    assert named(behind.manifest) == [2]
    behind.check(tmp_path)


def test_a_count_that_wraps_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, ring, manifest = np.random.default_rng(10), empty(), None
    monkeypatch.setattr(ring_module, "WRAP", 4 * ring.capacity)
    monkeypatch.setattr(sys.modules[__name__], "put", jax.jit(lambda *given: add(*given)))
    falls = 0
    for number in range(60):
        before, ring = np.asarray(ring.written), grown(ring, rng, ROUND)
        falls += bool((np.asarray(ring.written) < before).any())
        live = kept(tmp_path, number, ring, manifest)
        manifest = live.manifest
        live.check(tmp_path)
    assert falls > 2


def test_a_number_that_cannot_be_used_does_no_harm(tmp_path: Path) -> None:
    live = kept(tmp_path, 1, empty(), None)
    for number in (-1, 10**12):
        with pytest.raises(ValueError, match=f"number {number} cannot name a replay segment"):
            save(tmp_path, number, empty(), None)
    live.check(tmp_path)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 9)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[int(0.7 * len(content))] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink, lambda file: shutil.rmtree(file.parent)])
@pytest.mark.parametrize("name", [ARRAYS, INFO])
def test_damage_is_named_and_what_does_not_need_it_is_whole(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    rng = np.random.default_rng(4)
    first = kept(tmp_path, 1, grown(empty(), rng, 20), None)
    second = kept(tmp_path, 2, grown(first.ring, rng, 5), first.manifest)
    third = kept(tmp_path, 3, grown(second.ring, rng, 5), second.manifest)
    harm(tmp_path / "000000000002" / name)
    for save_ in (second, third):
        with pytest.raises(Damaged, match=str(tmp_path / "000000000002")):
            save_.check(tmp_path)
    first.check(tmp_path)
    if (name, harm) != (ARRAYS, flip):  # what is seen without reading everything is not built upon
        fourth = kept(tmp_path, 4, grown(third.ring, rng, 5), third.manifest)
        assert named(fourth.manifest) == [4]
        fourth.check(tmp_path)
        assert named(kept(tmp_path, 5, third.ring, third.manifest).manifest) == [
            5
        ]  # also where nothing is new


class Killed(BaseException):
    """The process ends here: nothing that is caught or cleaned up on the way out happens."""


def kill_at(patch: pytest.MonkeyPatch, moment: int) -> None:
    """Count what touches the disk; from `moment` on nothing does."""
    clock = iter(range(10**6))

    def mortal(
        function: Callable[..., Any], last: Callable[..., Any] = lambda *_, **__: None
    ) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            now = next(clock)
            if now == moment:
                last(*args)
            if now >= moment:
                raise Killed
            return function(*args, **options)

        return called

    def half(folder: Path, *_: Any) -> None:
        for file in [*Path(folder).glob("*")][:1]:
            file.unlink()

    patch.setattr(Path, "rename", mortal(Path.rename))
    patch.setattr(shutil, "rmtree", mortal(shutil.rmtree, half))
    patch.setattr(checkpoint, "_sync", mortal(checkpoint._sync))
    patch.setattr(arrays, "memory", mortal(arrays.memory))
    patch.setattr(checkpoint, "write_json", mortal(checkpoint.write_json))


def test_a_kill_at_any_moment_leaves_what_was_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    source = tmp_path / "source"
    first = kept(source, 1, grown(empty(), rng, 20), None)
    second = kept(source, 2, grown(first.ring, rng, 40), first.manifest)
    assert named(second.manifest) == [2]
    third = kept(source, 3, grown(second.ring, rng, 10), second.manifest)
    fourth = kept(
        source, 4, grown(third.ring, rng, 5), third.manifest
    )  # and a run that went back from here
    kept(source, 5, grown(fourth.ring, rng, 5), fourth.manifest)
    assert numbers(source) == [1, 2, 3, 4, 5]
    ring = grown(third.ring, rng, 8)
    for moment in range(10**6):
        folder = tmp_path / f"killed {moment}"
        shutil.copytree(source, folder)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, moment)
            try:
                saved: Manifest | None = save(folder, 4, ring, third.manifest).manifest
                prune(folder, [third.manifest, saved])
                ended = True
            except Killed:
                ended = False
        second.check(folder)
        third.check(folder)
        live = kept(folder, 4, ring, third.manifest)
        live.check(folder)
        prune(folder, [third.manifest, live.manifest])
        assert sorted(os.listdir(folder)) == ["000000000002", "000000000003", "000000000004"]
        shutil.rmtree(folder)
        if ended:
            break
    assert moment > 20


def test_an_error_while_writing_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    first = kept(tmp_path, 1, grown(empty(), rng, 20), None)
    ring, take, calls = grown(first.ring, rng, 10), segments._take, iter(range(100))

    def fails(*args: Any) -> Any:
        if next(calls) == 4:
            raise RuntimeError("the device is gone")
        return take(*args)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_take", fails)
        with pytest.raises(RuntimeError, match="the device is gone"):
            save(tmp_path, 2, ring, first.manifest)
    assert os.listdir(tmp_path) == ["000000000001"]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
        with pytest.raises(
            OSError,
            match=r"replay segment 0+2 could not .* needs 0\.0 MB, 0\.0 MB are free; earlier saves",
        ) as caught:
            save(tmp_path, 2, ring, first.manifest)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["000000000001"]
    first.check(tmp_path)
    kept(tmp_path, 2, ring, first.manifest).check(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (empty(capacity=93), "capacity is 34 in it and 35 in this run"),
        (empty(stack=1, capacity=99), "stack is 4 in it and 1 in this run"),
        (
            empty(frame=jax.ShapeDtypeStruct((4, 4), jnp.uint8)),
            r"observation is \['uint8', 6, 3, 4, 3\] .* and \['uint8', 6, 3, 4, 4\]",
        ),
        (
            empty(frame=jax.ShapeDtypeStruct((4, 3), jnp.int8)),
            r"observation is \['uint8', .* and \['int8'",
        ),
        (
            empty(extras={"prob": EXTRAS["prob"]}),
            r"steps.extras\['carry'\]\[0\] is \['bfloat16', 6, 3, 2\] in it and None",
        ),
        (empty(capacity=60, num_envs=2), r"age is \['int32', 6, 3\], .* and \['int32', 6, 2\]"),
    ],
    ids=["capacity", "stack", "shape", "dtype", "extras", "environments"],
)
def test_another_ring_is_refused(tmp_path: Path, other: Ring, message: str) -> None:
    live = kept(tmp_path, 1, grown(empty(), np.random.default_rng(7), 5, 0.0), None)
    with pytest.raises(
        ValueError, match=f"{tmp_path / '000000000001'} is of another run: .*{message}"
    ):
        load(tmp_path, live.manifest, like(other))
    with pytest.raises(ValueError, match="no segments"):
        load(tmp_path, [], like(other))


def test_it_is_loaded_onto_the_device_that_is_named(tmp_path: Path) -> None:
    live = kept(tmp_path, 1, grown(empty(), np.random.default_rng(8), 5), None)
    for place in (None, jax.devices()[0]):
        got = load(tmp_path, live.manifest, live.ring, place)
        assert copied(got) == copied(live.ring)
        assert all(leaf.committed == (place is not None) for leaf in jax.tree.leaves(got))


def test_few_lengths_are_compiled_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CHUNK", 1 << 20)
    rng, ring, manifest = np.random.default_rng(9), empty(capacity=600), None
    segments._take.clear_cache()
    for number in range(40):
        ring = grown(ring, rng, ROUND * int(rng.integers(1, 6)))
        manifest = save(tmp_path, number, ring, manifest).manifest
    assert segments._take._cache_size() <= 5 * 4  # five kinds of leaves; 8, 16, 32 and 64 slots


MEMORY = """
import sys
from pathlib import Path
import equinox as eqx
import jax, jax.numpy as jnp
import numpy as np
from spectral_bellman.disk import segments
from spectral_bellman.replay import init_ring

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

now, peak = (lambda: kilobytes("VmRSS")), (lambda: kilobytes("VmHWM"))

segments.CHUNK = 8 << 20
frame = jax.ShapeDtypeStruct((84, 84), jnp.uint8)
make = lambda: init_ring(frame, {"prob": jax.ShapeDtypeStruct((), jnp.float32)}, 4, 43_000, 4, 4)
like, sums, folder = jax.eval_shape(make), lambda x: x.observation[:, ::97, 3, 5], Path(sys.argv[1])

def marked(x):
    return x.at[:, :, 3, 5].set(jnp.arange(x.shape[1]).astype(x.dtype)[None].repeat(4, 0))

ring = make()
observation = jax.jit(marked, donate_argnums=0)(ring.observation)
written = jnp.full(4, 30_000, jnp.int32)
ring = eqx.tree_at(lambda r: (r.written, r.observation), ring, (written, observation))
del observation
size, want = ring.observation.nbytes, np.asarray(sums(ring)).copy()
before = now()
manifest = segments.save(folder, 1, ring, None).manifest
more = eqx.tree_at(lambda r: r.written, ring, ring.written + 20)
manifest = segments.save(folder, 2, more, manifest).manifest
saving = peak() - before
del ring, more
emptied = now()
got = segments.load(folder, manifest, like)
same = bool((np.asarray(sums(got)) == want).all())
print(size, saving, before - emptied, peak() - emptied - size, len(manifest), same)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_the_ring_is_in_memory_once(tmp_path: Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    shown = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    ring, saving, freed, loading, count, same = shown.stdout.split()
    assert int(ring) > 300e6
    assert (count, same) == ("2", "True")
    assert int(saving) < 0.3 * int(ring), "a copy on the way to the disk"
    assert int(freed) > 0.6 * int(ring), "the measurement of what follows is void"
    assert int(loading) < 0.4 * int(ring), "a copy on the way from the disk"
