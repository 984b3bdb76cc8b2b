"""Broken files, broken options, random bytes: one line, exit 2, nothing overwritten, never a traceback."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from flipguard.cli.app import app
from flipguard.predictions import Predictions

GOOD = "id,label,prediction\n1,0,0\n2,1,1\n3,1,0\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text(GOOD)
    return tmp_path


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.stdout
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("flipguard: ")
    # An error that nobody foresaw would name --debug.
    assert "--debug" not in lines[0], lines[0]
    for part in parts:
        assert part in lines[0]


def parquet(**columns: object) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def truncated(path: Path) -> None:
    parquet(id=list(range(997)), label=[0] * 997, prediction=[0] * 997)(path)
    path.write_bytes(path.read_bytes()[:-200])


def outside_the_classes(path: Path) -> None:
    """A file that names two classes, in whose rows the third is then predicted."""
    values = np.array([0, 1, 1])
    Predictions.from_arrays(id=np.array([1, 2, 3]), label=values, prediction=values, classes=("a", "b")).write(path)
    table = pq.read_table(path)
    place = table.column_names.index("prediction")
    pq.write_table(table.set_column(place, "prediction", pa.array([0, 1, 7])), path)


def scores(rows: list[list[float]]) -> Callable[[Path], None]:
    return parquet(id=[1, 2, 3], label=[0, 1, 1], logits=rows)


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("new.parquet", lambda _: None, "new.parquet does not exist."),
    "missing glob": ("part*.parquet", lambda _: None, "part*.parquet matches no file."),
    "empty": ("new.parquet", lambda path: path.touch(), "new.parquet is empty (0 bytes)"),
    "empty csv": ("new.csv", lambda path: path.touch(), "new.csv is empty (0 bytes)"),
    "no rows": ("new.csv", text("id,label,prediction\n"), "new.csv is empty"),
    "folder without parts": ("parts", lambda path: path.mkdir(), "parts is a folder without *.parquet files"),
    "truncated": ("new.parquet", truncated, "new.parquet is no readable Parquet file"),
    "garbage": ("new.parquet", text("this is no Parquet file at all"), "new.parquet is no readable Parquet file"),
    "garbage npz": ("new.npz", text("this is no NPZ file"), "new.npz is no "),
    "garbage arrow": ("new.arrow", text("this is no Arrow file"), "new.arrow is no readable Arrow file"),
    "unknown ending": ("new.xlsx", text("x"), "unknown ending '.xlsx'"),
    "no header": ("new.csv", text("1,0,0\n2,1,1\n3,1,0\n"), "header"),
    "no prediction": ("new.csv", text("id,label\n1,0\n2,1\n3,1\n"), "prediction"),
    "duplicate ids": ("new.csv", text(GOOD + "3,1,0\n"), "new.csv"),
    "ids in one file only": ("new.csv", text(GOOD + "4,1,0\n"), "--on-missing drop"),
    "contradicting labels": ("new.csv", text(GOOD.replace("3,1,0", "3,0,0")), "--labels"),
    "nan logits": ("new.parquet", scores([[0.0, 1.0], [float("nan"), 1.0], [1.0, 0.0]]), "NaN"),
    "infinite logits": ("new.parquet", scores([[0.0, 1.0], [float("inf"), 1.0], [1.0, 0.0]]), "infinity"),
    "ragged logits": ("new.parquet", scores([[0.0, 1.0], [0.0], [1.0, 0.0]]), "new.parquet"),
    "prediction outside the classes": ("new.parquet", outside_the_classes, "outside"),
    "class names that do not match": ("new.csv", text("id,label,prediction\n1,x,x\n2,y,y\n3,y,x\n"), "class"),
}


@pytest.mark.parametrize("command", ["compare", "matrix"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_and_outputs_stay_as_they_were(kind: str, command: str, folder: Path) -> None:
    name, make, expected = BROKEN[kind]
    if kind == "class names that do not match":
        Path("good.csv").write_text("id,label,prediction\n1,a,a\n2,b,b\n3,b,a\n")
    make(Path(name))
    for output in ("out.json", "out.md"):
        Path(output).write_text("precious")
    before = sorted(path.name for path in folder.iterdir())
    result = run(command, "good.csv", name, "--json", "out.json", "--markdown", "out.md")
    assert_refused(result, expected)
    assert Path("out.json").read_text() == Path("out.md").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-nfr", "-0.1"], "--max-nfr must be at least 0, it is -0.1."),
        (["--max-nfr", "1"], None),
        (["--max-nfr", "1.1"], "--max-nfr must be at most 1"),
        (["--max-nfr", "nan"], "--max-nfr must be"),
        (["--max-nfr", "much"], "--max-nfr"),
        (["--max-nrf", "0.1"], "No such option: --max-nrf"),
        (["--max-churn", "-1"], "--max-churn must be at least 0"),
        (["--min-slice", "0"], "--min-slice must be at least 1"),
        (["--gate-on", "luck"], "--gate-on must be 'interval' or 'value'"),
        (["--confidence", "95"], "--confidence must be below 1"),
        (["--on-missing", "keep"], "--on-missing must be 'error' or 'drop'"),
        (["--correction", "none"], "--correction must be 'holm' or 'bh'"),
        (["--by", "contry"], "neither file has a column 'contry'"),
        (["--cluster", "x"], "neither file has a column 'x'"),
        (["--split", "test"], "--split needs a column 'split'"),
        (["--labels", "none.csv"], "none.csv does not exist."),
        (["--class-map", "none.json"], "none.json cannot be read"),
        (["--noise", "none.csv"], "none.csv does not exist."),
        (["--memory", "lots"], "--memory must be a size"),
        (["--max-slice-nfr", "0.1"], "--max-slice-nfr needs slices"),
        (["--max-new-ece", "0.1"], "--max-new-ece needs labels, and logits or probabilities"),
        (["--max-noise-excess", "0.1"], "--max-noise-excess needs --noise"),
        (["--config", "none.toml"], "none.toml cannot be read"),
        (["--json", "-", "--markdown", "-"], "only one of --json and --markdown can go to stdout"),
        (["--json", "none/out.json"], "--json none/out.json cannot be written: there is no folder"),
        (["--junit", ".git"], "--junit .git is a folder"),
        (["--markdown", "good.csv/out.md"], "--markdown good.csv/out.md cannot be written"),
        (["--flips", "none/flips.csv"], "--flips none/flips.csv cannot be written"),
        (["--flips", "flips.txt"], "flips are written as .parquet, .csv, .jsonl"),
        (["--json", "good.csv"], "--json good.csv would overwrite good.csv"),
        (["--json", "./new.csv"], "--json ./new.csv would overwrite new.csv"),
        (["--json", "same", "--junit", "same"], "--junit same would overwrite what --json writes"),
        (["third.csv"], "unexpected extra argument"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_written(
    arguments: list[str], expected: str | None, folder: Path
) -> None:
    Path("new.csv").write_text(GOOD)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = run("compare", "good.csv", "new.csv", *arguments)
    if expected is None:
        assert result.exit_code == 0
    else:
        assert_refused(result, expected)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments", [["compar"], ["compare"], ["compare", "a.csv"], ["matrix"], ["--nope"], ["schema", "x"]]
)
def test_misuse_is_one_line_that_points_to_help(arguments: list[str]) -> None:
    result = run(*arguments)
    assert_refused(result, "--help.")


def test_a_mistake_in_flipguard_toml_is_refused() -> None:
    Path("flipguard.toml").write_text("[gate]\nmax_nrf = 0.1\n")
    expected = "flipguard.toml: [gate] has no key 'max_nrf'; did you mean 'max_nfr'?"
    assert_refused(run("compare", "good.csv", "good.csv"), expected)
    assert run("compare", "good.csv", "good.csv", "--no-config").exit_code == 0


def test_outputs_are_replaced_whole_and_through_links(folder: Path) -> None:
    Path("real.json").write_text("old" * 10_000)
    Path("link.json").symlink_to("real.json")
    assert run("compare", "good.csv", "good.csv", "--json", "link.json").exit_code == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("real.json").read_text())["n"] == 3
    assert {path.name for path in folder.iterdir()} == {".git", "good.csv", "real.json", "link.json"}


def test_a_name_that_is_no_text_is_refused() -> None:
    name = os.fsdecode(b"\xff.csv")
    Path(name).write_text(GOOD)
    assert_refused(run("compare", name, "good.csv"), "is not UTF-8")
    assert_refused(run("compare", "good.csv", "good.csv", "--json", name), "is not UTF-8")


def test_a_device_takes_output() -> None:
    assert run("compare", "good.csv", "good.csv", "--json", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


values = st.integers(0, 3)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[int], list[int | None], list[int | None], list[int | None]]:
    n = draw(st.integers(1, 23))
    column = st.lists(st.one_of(values, st.none()) if draw(st.booleans()) else values, min_size=n, max_size=n)
    return draw(st.permutations(range(n))), draw(column), draw(column), draw(column)


def write(path: Path, order: list[int], label: list[int | None], prediction: list[int | None]) -> None:
    columns = {
        "id": [f"s{i}" for i in order],
        "label": pa.array([label[i] for i in order], pa.int64()),
        "prediction": pa.array([prediction[i] for i in order], pa.int64()),
    }
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        lines = (",".join("" if cell is None else str(cell) for cell in row) for row in rows)
        path.write_text("\n".join(["id,label,prediction", *lines]) + "\n")


@settings(max_examples=40, deadline=None)
@given(pair=pairs(), endings=st.tuples(*[st.sampled_from([".csv", ".parquet"])] * 2))
def test_random_files_keep_the_identity(
    pair: tuple[list[int], list[int | None], list[int | None], list[int | None]], endings: tuple[str, str]
) -> None:
    order, label, first, second = pair
    with tempfile.TemporaryDirectory() as name:
        old, new = (Path(name) / f"{side}{ending}" for side, ending in zip(("old", "new"), endings, strict=True))
        write(old, sorted(order), label, first)
        write(new, order, label, second)
        result = run("compare", old, new, "--json", "-", "--no-config")
    if result.exit_code == 2:
        # A CSV column without a single value has no type, so it may hold no labels or predictions.
        assert_refused(result)
        assert all(v is None for v in first) or all(v is None for v in second) or all(v is None for v in label)
        return
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    right = [(label[i] is not None, first[i] == label[i], second[i] == label[i]) for i in order]
    assert found["n"] == len(order)
    assert found["negative_flips"] == sum(known and a and not b for known, a, b in right)
    if found["labelled"]:
        difference = found["negative_flip_rate"]["value"] - found["positive_flip_rate"]["value"]
        assert difference == pytest.approx(
            found["error_rate_new"]["value"] - found["error_rate_old"]["value"], abs=1e-12
        )


def good_bytes(ending: str) -> bytes:
    """A file with everything in it: text ids, labels, logits, a slice, a weight."""
    rng = np.random.default_rng(3)
    n = 29
    columns = {
        "id": np.array([f"s{i}" for i in range(n)]),
        "label": np.arange(n) % 3,
        "logits": rng.normal(size=(n, 3)),
        "site": np.array(["a", "b"])[np.arange(n) % 2],
        "weight": np.ones(n),
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"file{ending}"
        if ending == ".npz":
            np.savez(path, **columns)
        elif ending == ".parquet":
            pq.write_table(pa.table({**columns, "logits": list(columns["logits"])}), path, compression="none")
        else:
            rows = (
                f'{columns["id"][i]},{columns["label"][i]},"{columns["logits"][i].tolist()}",{columns["site"][i]},1.0'
                for i in range(n)
            )
            path.write_text("\n".join(["id,label,logits,site,weight", *rows]) + "\n")
        return path.read_bytes()


INTACT = {ending: good_bytes(ending) for ending in (".parquet", ".csv", ".npz")}


def test_the_files_to_be_mutated_are_good_to_begin_with(folder: Path) -> None:
    for ending, content in INTACT.items():
        (folder / f"a{ending}").write_bytes(content)
    for ending in INTACT:
        result = run("compare", "a.parquet", f"a{ending}", "--json", "-")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["nll_new"]["value"] > 0


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, bytes]:
    ending = draw(st.sampled_from(sorted(INTACT)))
    content = bytearray(INTACT[ending])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content) - 1))
        match draw(st.sampled_from(["change", "insert", "delete", "cut"])):
            case "change":
                content[place] = draw(st.integers(0, 255))
            case "insert":
                content[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "delete":
                del content[place : place + draw(st.integers(1, 40))]
            case "cut":
                del content[place:]
        if not content:
            break
    return ending, bytes(content)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(mutated=mutations())
def test_mutated_files_never_end_in_a_traceback(mutated: tuple[str, bytes]) -> None:
    ending, content = mutated
    with tempfile.TemporaryDirectory() as name, chdir(name):
        Path("intact.parquet").write_bytes(INTACT[".parquet"])
        Path(f"mutated{ending}").write_bytes(content)
        result = run("compare", "intact.parquet", f"mutated{ending}", "--json", "-", "--no-config", "--max-nfr", "0.5")
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.stderr
    if result.exit_code == 2:
        assert_refused(result)
    else:
        found = json.loads(result.stdout)
        rates = [found[key]["value"] for key in ("negative_flip_rate", "positive_flip_rate")]
        errors = [found[key]["value"] for key in ("error_rate_new", "error_rate_old")]
        assert rates[0] - rates[1] == pytest.approx(errors[0] - errors[1], abs=1e-12)
