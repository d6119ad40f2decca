import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectral_bellman.disk.archive import add_runs
from spectral_bellman.disk.run_folder import SCHEMA
from spectral_bellman.report.runs import find_runs, load_run, series

CONFIG = {"schema": SCHEMA, "preset": "dqn", "env": "minatar/breakout", "agent": {}}


def write(folder: Path, text: str | bytes, config: Any = CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "metrics.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def line(seed: int, frames: int, **values: float | None) -> str:
    return json.dumps({"seed": seed, "frames": frames, **values}) + "\n"


def test_a_run_is_read(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, line(3, 10, loss=1.5) + line(1, 10, loss=None)))
    assert run.config == CONFIG
    assert run.records == [
        {"seed": 3, "frames": 10, "loss": 1.5},
        {"seed": 1, "frames": 10, "loss": None},
    ]
    assert run.seeds == [1, 3]
    assert run.keys == ["frames", "loss", "seed"]
    assert load_run(write(tmp_path / "new", "")).records == []


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    whole = line(0, 10, loss=1.0)
    for end in range(len(whole) - 1):
        assert len(load_run(write(tmp_path, whole + whole[:end])).records) == 1
    assert len(load_run(write(tmp_path, whole + whole[:-1])).records) == 2, (
        "only the newline is missing"
    )
    assert len(load_run(write(tmp_path, whole.encode() + '{"ν'.encode()[:-1])).records) == 1, (
        "cut inside a letter"
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"seed": 0, "fra', "not JSON"),
        ("", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"seed": 0}', '"frames" must be a whole number, got None'),
        ('{"seed": 0.5, "frames": 1}', '"seed" must be a whole number, got 0.5'),
        ('{"seed": 0, "frames": 1, "loss": "low"}', "\"loss\" must be a number or null, got 'low'"),
    ],
)
def test_anything_else_malformed_is_named_with_its_place(
    tmp_path: Path, bad: str, message: str
) -> None:
    for after in (line(0, 20), ""):  # in the middle, and at the end but with its newline
        with pytest.raises(
            ValueError, match=r"metrics\.jsonl:2: .*repair or remove the line"
        ) as error:
            load_run(write(tmp_path, line(0, 10) + bad + "\n" + after))
        assert message in str(error.value)


def test_a_run_needs_its_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match=r'config\.json: no text under "env"'):
        load_run(write(tmp_path, "", {"preset": "dqn"}))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        load_run(tmp_path)


def test_runs_are_found_at_and_below_a_folder_once(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", ""), write(tmp_path / "b" / "c", "")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}", encoding="utf-8")
    assert find_runs([tmp_path]) == [first, second]
    assert find_runs([second]) == [second]
    assert find_runs([tmp_path / "b", tmp_path, tmp_path / "b" / ".." / "a"]) == [
        tmp_path / "b" / ".." / "a",
        second,
    ]


def test_no_runs_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", "")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no run .* at or below .*empty; give the folder"):
        find_runs([tmp_path / "a", tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match=r"no folder .*absent"):
        find_runs([tmp_path / "absent"])
    with pytest.raises(FileNotFoundError, match="no folders given"):
        find_runs([])


def test_series_has_the_log_points_of_its_key(tmp_path: Path) -> None:
    text = (
        line(7, 10, loss=1.0)
        + line(2, 10, loss=2.0)
        + line(7, 20)
        + line(2, 20)
        + line(7, 30, loss=3.0)
        + line(2, 30, loss=None)
    )
    frames, values = series(load_run(write(tmp_path, text)), "loss")
    assert frames.tolist() == [10, 30]
    np.testing.assert_array_equal(values, [[2, np.nan], [1, 3]])
    frames, values = series(load_run(tmp_path), "absent")
    assert frames.shape == (0,)
    assert values.shape == (2, 0)


def test_a_null_return_keeps_the_last_and_other_nulls_do_not(tmp_path: Path) -> None:
    returns = [
        [None, 1.0, None, None, 4.0],
        [2.0, None, 3.0, None],
    ]  # the second seed lacks its last line
    lines = [
        line(s, 10 * t, **{"return": r, "loss": r})
        for s, row in enumerate(returns)
        for t, r in enumerate(row)
    ]
    run = load_run(write(tmp_path, "".join(lines)))
    np.testing.assert_array_equal(
        series(run, "return")[1], [[np.nan, 1, 1, 1, 4], [2, 2, 3, 3, np.nan]]
    )
    np.testing.assert_array_equal(
        series(run, "loss")[1], [[np.nan, 1, np.nan, np.nan, 4], [2, np.nan, 3, np.nan, np.nan]]
    )


def test_runs_in_an_archive_are_found_and_read_as_in_folders(tmp_path: Path) -> None:
    text = line(3, 10, loss=1.5)
    folder = write(tmp_path / "table" / "b", text)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    archive = tmp_path / "table" / "runs.zip"
    add_runs(archive, {"a": files, "c": {"config.json": b"{}"}})
    assert find_runs([tmp_path]) == [folder, archive / "a"]
    assert find_runs([archive]) == find_runs([archive / "a", archive]) == [archive / "a"]
    run = load_run(archive / "a")
    assert (run.config, run.records) == (load_run(folder).config, load_run(folder).records)
    assert run.folder == archive / "a"
    other = archive.rename(tmp_path / "table" / "mine.zip")
    assert find_runs([tmp_path]) == [folder], "only runs.zip is looked for"
    assert find_runs([other]) == [other / "a"]


def test_errors_in_an_archive_name_it(tmp_path: Path) -> None:
    archive = tmp_path / "runs.zip"
    add_runs(archive, {"c": {"config.json": b"{}"}})
    with pytest.raises(FileNotFoundError, match=r"no run .* at or below .*runs\.zip"):
        find_runs([archive])
    with pytest.raises(FileNotFoundError, match=r"no folder .*runs\.zip/absent"):
        find_runs([archive / "absent"])
    with pytest.raises(FileNotFoundError, match=r"no config\.json in .*runs\.zip/absent"):
        load_run(archive / "absent")
    config = json.dumps(CONFIG).encode()
    add_runs(archive, {"c": {"config.json": config}})
    with pytest.raises(FileNotFoundError, match=r"no metrics\.jsonl in .*runs\.zip/c"):
        load_run(archive / "c")
    add_runs(archive, {"c": {"config.json": config, "metrics.jsonl": b"[]\n"}})
    with pytest.raises(ValueError, match=r"runs\.zip/c/metrics\.jsonl:1: not a JSON object"):
        load_run(archive / "c")
    archive.write_bytes(archive.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"runs\.zip is damaged .*: restore the file"):
        find_runs([tmp_path])
