"""A bench whose networks are kept at an address: each worker has a folder of its own, the driver brings all home."""

from pathlib import Path
from typing import Any

import pytest
from small_bench import parsed
from typer.testing import CliRunner

from flipguard.bench.run import Bench
from flipguard.cli.app import app
from flipguard.training.pool import Here, Pool
from flipguard.training.processes import Processes
from flipguard.types import DamagedFile, InputError

ROWS = ("elodi", "heir", "pair", "cyclic")


def bench(folder: Path, kept: Path | None = None, rows: tuple[str, ...] = ROWS) -> Bench:
    return Bench(parsed(), folder, rows=rows, seeds=[3], kept=None if kept is None else f"file://{kept}")


def ran(one: Bench, pool: Pool | None = None, **options: Any) -> list[str]:
    """The networks that were trained, in the order of their names."""
    names: list[str] = []
    one.run(on_network=lambda done: names.append(done.network), pool=pool or Here(), **options)
    return sorted(names)


def weights(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("networks/*/*.safetensors")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "out"
    bench(folder).run(processes=1)
    return folder


def test_the_networks_are_those_of_one_disk(plain: Path, tmp_path: Path) -> None:
    first = ran(bench(tmp_path / "first", tmp_path / "kept"), Processes(2))
    assert len(first) == 13
    assert weights(tmp_path / "first") == weights(plain)
    assert (tmp_path / "first/table.md").exists()
    # Whoever comes next, from another disk, finds them there.
    assert ran(bench(tmp_path / "second", tmp_path / "kept")) == []
    assert weights(tmp_path / "second") == weights(plain)


def test_what_is_here_already_goes_there_for_those_who_learn_from_it(plain: Path, tmp_path: Path) -> None:
    bench(tmp_path / "out", rows=("none",)).run(processes=1)
    assert ran(bench(tmp_path / "out", tmp_path / "kept", rows=("elodi",))) == [
        "new elodi, seed 3",
        "old elodi, seed 3",
    ]
    made = weights(tmp_path / "out")
    assert len(made) == 8
    assert made.items() <= weights(plain).items()


def test_what_is_damaged_there_is_named_and_made_again(plain: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ran(bench(tmp_path / "first", kept, rows=("pair",)))
    home = next(path for path in kept.iterdir() if path.name.startswith("pair.new"))
    largest = max((path for path in home.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 4
    largest.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"kept/pair\.new"):
        ran(bench(tmp_path / "second", kept, rows=("pair",)))
    told: list[str] = []
    again = ran(bench(tmp_path / "second", kept, rows=("pair",)), repair=True, on_note=told.append)
    assert again == ["new pair, seed 3"]
    assert [text.endswith("does not fit its checksum: it is made again.") for text in told] == [True]
    assert weights(tmp_path / "second").items() <= weights(plain).items()


def test_what_is_damaged_there_and_whole_here_goes_there_again(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept", tmp_path / "out"
    ran(bench(out, kept, rows=("mean",)))
    home = next(path for path in kept.iterdir() if path.name.startswith("mean.old"))
    lost = max((path for path in home.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = lost.read_bytes()
    lost.unlink()
    told: list[str] = []
    assert ran(bench(out, kept, rows=("mean",)), repair=True, on_note=told.append) == []
    assert len(told) == 1
    assert lost.read_bytes() == content


def test_what_is_there_is_not_counted(tmp_path: Path) -> None:
    whole = bench(tmp_path / "out", rows=("none",)).count().networks
    ran(bench(tmp_path / "out", tmp_path / "kept", rows=("mean",)))
    assert whole == 6
    assert bench(tmp_path / "other", tmp_path / "kept", rows=("mean", "none")).count().networks == whole


def test_an_address_is_for_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"networks are kept at an address by machines of a cluster, as with --on"):
        bench(tmp_path / "out", tmp_path / "kept").run()
    done = CliRunner().invoke(app, ["bench", "digits", "--out", str(tmp_path / "out"), "--networks", "file:///nowhere"])
    assert done.exit_code == 2
    assert done.stderr == (
        "flipguard: file:///nowhere: networks are kept at an address by machines of a cluster, as with --on.\n"
    )
