"""Flipped bits and files cut short in a bench's folders: named, and made again when asked, nothing else touched."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_bench import SPEC, parsed
from typer.testing import CliRunner, Result

from flipguard.bench.kept import read_arrays
from flipguard.bench.run import Bench
from flipguard.cli.app import app
from flipguard.releases.folder import read_json, write_json
from flipguard.releases.yaml_text import as_yaml
from flipguard.types import DamagedFile

HINT = "The same command with --repair makes it again, and nothing else."
Damage = Callable[[Path], None]


def flip(path: Path) -> None:
    """One bit in the midst of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


EITHER = pytest.mark.parametrize("damage", [flip, cut])


def run(folder: Path, *options: object) -> Result:
    (folder.parent / "small.yaml").write_text(as_yaml({**SPEC, "seeds": [3]}))
    fixed = ["bench", folder.parent / "small.yaml", "--out", folder, "--device", "cpu", "--processes", 1]
    return CliRunner().invoke(app, [str(a) for a in (*fixed, *options)], prog_name="flipguard")


def said(result: Result) -> str:
    return " ".join(result.output.split())


def refused(result: Result, path: Path) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith(f"flipguard: {path} is ")
    assert result.stderr.endswith(f" {HINT}\n")
    assert result.stderr.count("\n") == 1


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench of three rows that ran to its end."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    done = run(folder, *WANTED)
    assert done.exit_code == 0, done.output
    return folder


WANTED = ("--row", "none", "--row", "kd", "--row", "cyclic")


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def times(folder: Path) -> dict[Path, int]:
    """When each of the networks' and pairs' files was written."""
    kept = [path for home in ("networks", "pairs") for path in (folder / home).rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in kept}


def figures(folder: Path) -> list[dict[str, Any]]:
    return [{**run, "seconds": None} for run in pq.read_table(folder / "runs.parquet").to_pylist()]


def same(out: Path, whole: Path) -> None:
    """The same figures, predictions and weights; the seconds of what was trained again are others."""
    assert figures(out) == figures(whole)
    assert pq.read_table(out / "predictions.parquet").equals(pq.read_table(whole / "predictions.parquet"))
    assert times(out).keys() == times(whole).keys()
    for name in times(whole):
        if name.suffix == ".safetensors":
            assert (out / name).read_bytes() == (whole / name).read_bytes()


def touched(out: Path, before: dict[Path, int]) -> set[str]:
    return {str(path.parent / path.stem) for path, time in times(out).items() if before.get(path) != time}


@EITHER
@pytest.mark.parametrize("name", ["logits.npz", "0.safetensors", "record.json"])
def test_a_network_that_a_pair_is_measured_by(name: str, damage: Damage, out: Path, whole: Path) -> None:
    # Of the old side nobody reads how long it took.
    side = "new" if name == "record.json" else "old"
    broken = next(out.glob(f"networks/single.{side}.3.0-*/{name}"))
    damage(broken)
    # KD's network is held to the old one, and with its folder gone it is trained again.
    shutil.rmtree(next(out.glob("networks/kd.new.3.0-*")))
    for path in [*out.glob("pairs/*"), out / "runs.parquet"]:
        path.unlink()
    refused(run(out, *WANTED), broken)
    mended = run(out, *WANTED, "--repair")
    assert mended.exit_code == 0, mended.output
    assert f"note: {broken} was damaged, and is made again." in said(mended)
    assert f"{side} single.0, seed 3" in mended.stdout
    same(out, whole)


@pytest.mark.parametrize("name", ["logits.npz", "1.safetensors"])
def test_a_file_that_is_gone(name: str, out: Path, whole: Path) -> None:
    lost = next(out.glob(f"networks/cyclic.new.3.0-*/{name}"))
    lost.unlink()
    assert run(out, *WANTED).exit_code == 0
    if name == "logits.npz":
        next(out.glob("pairs/cyclic.3.0.json")).unlink()
        refused(run(out, *WANTED), lost)
    assert run(out, *WANTED, "--repair").exit_code == 0
    same(out, whole)


def test_a_network_that_nothing_needs_now(out: Path, whole: Path) -> None:
    """As `flipguard train --repair` does it for a member of a finished run."""
    broken = next(out.glob("networks/cyclic.old.3.0-*/1.safetensors"))
    before = times(out)
    flip(broken)
    assert run(out, *WANTED).exit_code == 0
    mended = run(out, *WANTED, "--repair")
    assert f"note: {broken} was damaged, and is made again." in said(mended)
    assert "1 of 1  old cyclic, seed 3" in mended.stdout
    assert {Path(name).parent for name in touched(out, before)} == {broken.parent.relative_to(out)}
    same(out, whole)


def test_a_state_that_a_killed_run_left(out: Path, whole: Path) -> None:
    home = next(out.glob("networks/kd.new.3.0-*"))
    (home / "record.json").unlink()
    state = home / "state.safetensors"
    (home / "0.safetensors").rename(state)
    flip(state)
    (out / "pairs/kd.3.0.json").unlink()
    refused(run(out, *WANTED), state)
    assert run(out, *WANTED, "--repair").exit_code == 0
    same(out, whole)


@EITHER
@pytest.mark.parametrize("ending", ["json", "npz"])
def test_a_pair(ending: str, damage: Damage, out: Path, whole: Path) -> None:
    broken = out / f"pairs/kd.3.0.{ending}"
    before = times(out)
    damage(broken)
    refused(run(out, *WANTED), broken)
    mended = run(out, "--row", "none", "--repair")
    assert mended.exit_code == 0, mended.output
    assert f"note: {broken} was damaged, and is made again." in said(mended)
    assert touched(out, before) == {"pairs/kd.3.0"}
    same(out, whole)


def test_a_pair_whose_networks_were_deleted(out: Path, whole: Path) -> None:
    shutil.rmtree(out / "networks")
    flip(out / "pairs/cyclic.3.0.npz")
    mended = run(out, *WANTED, "--repair")
    assert mended.exit_code == 0, mended.output
    assert "2 of 2" in mended.stdout
    assert figures(out) == figures(whole)


def test_networks_that_are_shared(out: Path, whole: Path) -> None:
    shared = (out / "networks").rename(out.parent / "shared")
    broken = next(shared.glob("kd.new.3.0-*/logits.npz"))
    flip(broken)
    (out / "pairs/kd.3.0.json").unlink()
    refused(run(out, *WANTED, "--networks", shared), broken)
    mended = run(out, *WANTED, "--networks", shared, "--repair")
    assert mended.exit_code == 0, mended.output
    shared.rename(out / "networks")
    same(out, whole)


def test_nothing_to_repair_is_nothing_done(out: Path, whole: Path) -> None:
    before = times(out)
    mended = run(out, *WANTED, "--repair")
    assert mended.exit_code == 0
    assert "damaged" not in mended.output
    assert touched(out, before) == set()
    same(out, whole)


@EITHER
@pytest.mark.parametrize("name", ["runs.parquet", "predictions.parquet"])
def test_the_tables_files_are_gathered_again(name: str, damage: Damage, out: Path, whole: Path) -> None:
    shutil.rmtree(out / "networks")
    damage(out / name)
    shown = run(out, "--tables")
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"flipguard: {out / name}")
    assert shown.stderr.endswith(f"Without --tables it is made again, from {out / 'pairs'}.\n")
    assert shown.stderr.count("\n") == 1
    done = run(out, *WANTED)
    assert done.exit_code == 0, done.output
    assert (out / name).read_bytes() == (whole / name).read_bytes()
    shutil.rmtree(out / "pairs")
    damage(out / name)
    assert run(out, "--tables").stderr.endswith("Put back a copy.\n")


def test_other_conditions_are_seen_by_the_pairs_too(out: Path) -> None:
    cut(out / "runs.parquet")
    before = times(out)
    for repair in ((), ("--repair",)):
        other = run(out, "train.epochs=4", *WANTED, *repair)
        assert other.exit_code == 2
        assert f"{out / 'runs.parquet'} is damaged, and no pair in {out / 'pairs'} was measured as" in other.stderr
    assert touched(out, before) == set()


def test_tables_without_pairs_are_not_trained_anew_unasked(out: Path, whole: Path) -> None:
    shutil.rmtree(out / "pairs")
    cut(out / "runs.parquet")
    again = run(out, *WANTED)
    assert again.exit_code == 2
    assert again.stderr.endswith(f"{HINT}\n")
    assert run(out, *WANTED, "--repair").exit_code == 0
    same(out, whole)


@pytest.mark.parametrize("option", ["--count", "--tables"])
def test_options_that_make_nothing(option: str, out: Path) -> None:
    both = run(out, option, "--repair")
    assert both.exit_code == 2
    assert f"{option} makes no network and no pair again: leave it out." in both.stderr
    cut(out / "pairs/kd.3.0.json")
    refused(run(out, "--count"), out / "pairs/kd.3.0.json")


def test_no_flip_in_an_archive_goes_unseen(out: Path, tmp_path: Path) -> None:
    """Each byte in turn: the same arrays, or a damaged file."""
    whole = out / "pairs/kd.3.0.npz"
    arrays, content = read_arrays(whole, ("old", "new")), whole.read_bytes()
    path, seen = tmp_path / "flipped.npz", 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            found = read_arrays(path, ("old", "new"))
        except DamagedFile:
            seen += 1
        else:
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in arrays.items()
            }
    assert seen > len(content) / 2


def test_no_flip_in_a_sealed_record_goes_unseen(tmp_path: Path) -> None:
    value = {"key": "a → b", "records": [{"churn": 0.125}]}
    path = tmp_path / "record.json"
    write_json(path, value, sealed=True)
    assert read_json(path) == value
    assert json.loads(path.read_text())["seal"].startswith("sha256:")
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(DamagedFile):
            assert read_json(path).items() >= value.items()


def test_a_pair_waits_for_the_teachers_of_its_networks(finished: Path, tmp_path: Path) -> None:
    """Its own networks are whole; what it cost is known when those that they learned from are there again."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    cut(out / "pairs" / "elodi.3.0.json")
    for copy in (0, 1):
        (teacher,) = (out / "networks").glob(f"single.new.3.{copy}-*")
        cut(teacher / "logits.npz")
    Bench(parsed(), out).run(processes=1, repair=True)
    assert (out / "predictions.parquet").read_bytes() == (finished / "predictions.parquet").read_bytes()
