"""Flipped bits, files cut short: found, named, and made again when asked, nothing else touched."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import CHAIN, flip_bit, same_run
from typer.testing import CliRunner, Result

from flipguard.checkpoints import load_checkpoint
from flipguard.cli.app import app
from flipguard.releases import load_release
from flipguard.types import DamagedFile

Copy = Callable[[], Path]


def train(run: Path, *options: str) -> Result:
    arguments = ["train", str(run.parent / "chain.yaml"), "--out", str(run), *options]
    return CliRunner().invoke(app, arguments, prog_name="flipguard")


def only_touched(run: Path, whole: Path, path: Path) -> bool:
    """Whether of all weights and predictions only this one was written since it was copied."""
    newer = {
        file.relative_to(run)
        for file in run.rglob("*")
        if file.suffix in (".safetensors", ".parquet")
        and file.stat().st_mtime_ns != (whole / file.relative_to(run)).stat().st_mtime_ns
    }
    return newer <= {path.relative_to(run)}


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_prediction_file_with_a_flipped_bit(part: str, copy: Copy, whole: Path) -> None:
    run = copy()
    broken = run / f"versions/b/predictions/{part}.parquet"
    flip_bit(broken, 100)
    if part == "test":
        refused = train(run)
        assert refused.exit_code == 2
        hint = "The same command with --repair makes it again, and nothing else."
        assert refused.stderr == f"flipguard: {broken} is damaged: its content does not fit its checksum. {hint}\n"
    mended = train(run, "--repair")
    assert mended.exit_code == 0, mended.stderr
    assert f"{broken.name} was damaged, and is made again" in " ".join(mended.stdout.split())
    assert same_run(whole, run) is None
    assert only_touched(run, whole, broken)


def test_weights_with_a_flipped_bit(copy: Copy, whole: Path) -> None:
    run = copy()
    broken = run / "versions/b/model.safetensors"
    flip_bit(broken, -100)
    with pytest.raises(DamagedFile, match=r"versions/b/model\.safetensors is damaged"):
        load_release(run, "b")
    predicted = CliRunner().invoke(
        app, ["predict", str(run), "--version", "b", "--data", "name=digits", "--out", str(run.parent / "x.parquet")]
    )
    assert predicted.exit_code == 2
    assert "model.safetensors is damaged" in predicted.stderr
    mended = train(run, "--repair")
    assert mended.exit_code == 0, mended.stderr
    assert "c: epoch" not in mended.stdout
    assert same_run(whole, run) is None


def test_a_member_with_a_flipped_bit(copy: Copy, whole: Path) -> None:
    run = copy()
    broken, other = sorted(run.glob("members/*/member.safetensors"))
    kept = other.stat().st_mtime_ns
    flip_bit(broken, -100)
    (run / "versions/b/model.json").unlink()
    refused = train(run)
    assert refused.exit_code == 2
    assert f"{broken} is damaged" in refused.stderr
    assert "--repair" in refused.stderr
    mended = train(run, "--repair")
    assert mended.exit_code == 0, mended.stderr
    assert same_run(whole, run) is None
    assert other.stat().st_mtime_ns == kept


def test_a_member_of_a_finished_run(copy: Copy, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing needs it now; repair looks at it all the same."""
    run = copy()
    broken = min(run.glob("members/*/member.safetensors"))
    flip_bit(broken, -100)
    assert train(run).exit_code == 0
    assert train(run, "--repair").exit_code == 0
    assert f"{broken} was damaged, and is made again." in caplog.messages
    assert same_run(whole, run) is None
    assert only_touched(run, whole, broken)


def test_a_state_with_a_flipped_bit(copy: Copy, whole: Path) -> None:
    """A version that had not ended: its state is thrown away, and it begins again."""
    run = copy()
    home = run / "versions/c"
    state = home / "state.safetensors"
    state.write_bytes((home / "model.safetensors").read_bytes())
    (home / "model.json").unlink()
    flip_bit(state, -100)
    refused = train(run)
    assert refused.exit_code == 2
    assert f"{state} is damaged" in refused.stderr
    assert train(run, "--repair").exit_code == 0
    assert same_run(whole, run) is None


def test_a_card_with_a_flipped_bit(copy: Copy) -> None:
    run = copy()
    card = run / "versions/c/model.json"
    text = card.read_text()
    card.write_text(text.replace('"digits"', '"eigits"'))
    with pytest.raises(DamagedFile, match=r"model\.json is damaged"):
        load_release(run)
    assert train(run, "--repair").exit_code == 0
    assert card.read_text() == text
    card.write_text("{")
    assert train(run, "--repair").exit_code == 0
    assert card.read_text() == text


@pytest.mark.parametrize("keep", [0, 11, -7])
def test_files_that_are_cut_short(keep: int, copy: Copy, whole: Path) -> None:
    """As a machine that lost its power may leave them."""
    run = copy()
    for path in (run / "versions/a/predictions/test.parquet", run / "versions/a/model.safetensors", run / "run.json"):
        path.write_bytes(path.read_bytes()[:keep])
    assert train(run).exit_code == 2
    mended = train(run, "--repair")
    assert mended.exit_code == 0, mended.stderr
    assert same_run(whole, run) is None


def test_nothing_to_repair_is_nothing_done(copy: Copy, whole: Path) -> None:
    run = copy()
    assert train(run, "--repair").exit_code == 0
    assert same_run(whole, run) is None
    assert only_touched(run, whole, run / "spec.yaml")


def test_times_of_files_decide_nothing(copy: Copy, whole: Path) -> None:
    """Files from the future and from 1970, in no order: what was done is still known to be."""
    run = copy()
    state = run / "versions/c"
    (state / "model.json").unlink()
    chance = random.Random(31)
    for path in sorted(run.rglob("*")):
        seconds = chance.choice([0, 10**9, 4 * 10**9]) + chance.randrange(1000)
        os.utime(path, (seconds, seconds))
    again = train(run)
    assert again.exit_code == 0, again.stderr
    assert again.stdout.count("was there already") == len(CHAIN["versions"]) - 1
    assert same_run(whole, run) is None
    assert load_checkpoint(run / "versions/c/model.safetensors")[1]["version"] == "c"
