"""The papers' ImageNet and iNaturalist updates, from end to end on small shards in the real format."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from flipguard.cli.app import app
from flipguard.releases import load_release

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["data.size=32", "data.workers=0", "train.epochs=2", "train.batch_size=8", "train.precision=float32"]
SHORT += [
    "old.model.width=4",
    "new.model.width=4",
    "train.device=cpu",
    "train.processes=1",
    "train.learning_rate=0.005",
]
torch.set_num_threads(1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


def write_shards(folder: Path, name: str, classes: int, rows: dict[str, int]) -> None:
    """Photographs of different sizes in two shards of each part; the colour tells the class."""
    rng = np.random.default_rng(0)
    for part, number in rows.items():
        for shard in range(2):
            with tarfile.open(folder / f"{name}-{part}-{shard:06d}.tar", "w") as tar:
                for i in range(shard, number, 2):
                    code, file = i % classes, io.BytesIO()
                    pixels = rng.integers(0, 60, (40 + i % 7, 50 - i % 5, 3)) + 180 * (np.arange(3) == code % 3)
                    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
                    for extension, content in (("jpg", file.getvalue()), ("cls", str(code).encode())):
                        member = tarfile.TarInfo(f"{name}_{part}_{i:04d}.{extension}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


def test_imagenet_and_fine_tuning_on_inaturalist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path, "imagenet", 3, {"train": 26, "val": 11})
    write_shards(tmp_path, "inaturalist", 5, {"train": 34, "val": 13})
    shards = "data.folder=."
    start = run("train", RECIPES / "imagenet_elodi.yaml", shards, *SHORT, "method=none", "--out", "runs/imagenet")
    assert start.exit_code == 0, start.stderr
    more = ["method.ensemble.members=2", "method.difference.k=2"]
    for recipe, classes, rows in (("imagenet_elodi", 3, 11), ("inaturalist_elodi", 5, 13)):
        done = run("train", RECIPES / f"{recipe}.yaml", shards, *SHORT, *more)
        assert done.exit_code == 0, done.stderr
        assert json.loads(Path(f"runs/{recipe}/comparison.json").read_text())[0]["n"] == rows
        release = load_release(f"runs/{recipe}")
        assert len(release.classes) == classes
        assert release.model.name == "resnet50"
    grown = run(
        "train",
        RECIPES / "inaturalist_elodi.yaml",
        shards,
        *SHORT,
        *more,
        "old.data.classes=0.5",
        "--dry-run",
        "--out",
        "runs/grown",
    )
    assert grown.exit_code == 0, grown.stderr
