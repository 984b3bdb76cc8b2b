"""The readers of files from elsewhere, each as a function of bytes: it reads them, or says in one line why not.

`fuzz/run.py` calls them with what a fuzzer makes up; the tests call them with the corpus.
"""

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flipguard.checkpoints import load_checkpoint
from flipguard.comparison import compare
from flipguard.comparison.classes import read_class_map
from flipguard.data.archive import read_members
from flipguard.data.encoders import read_encoder
from flipguard.data.files import open_image
from flipguard.data.growth import Growth
from flipguard.data.idx import read_idx
from flipguard.data.npz import archive_data, read_npz
from flipguard.data.shards import OWN, load_webdataset
from flipguard.data.svhn import read_mat
from flipguard.data.table import read_table
from flipguard.data.tar import BLOCK
from flipguard.data.text import load_clinc150, read_news
from flipguard.data.unpickle import read_pickle
from flipguard.predictions import read_predictions
from flipguard.releases.folder import read_json
from flipguard.releases.resolved import resolve
from flipguard.releases.yaml_text import parse_yaml
from flipguard.spec import parse_training_spec, read_spec
from flipguard.training.storage import Storage
from flipguard.types import FlipguardError

FOLDER = Path(tempfile.mkdtemp(prefix="flipguard-fuzz-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def _predictions(path: Path) -> None:
    found = read_predictions(path)
    found.data_fingerprint()
    found.table()


def _comparison(path: Path) -> None:
    compare(path, path)


def _data_npz(path: Path) -> None:
    archive_data(read_npz(path), path, name="fuzz")


def _clinc(path: Path) -> None:
    load_clinc150(path.parent, file=path.name)


def _spec(path: Path) -> None:
    raw = parse_yaml(path.read_bytes().decode("utf-8", "replace"), path.name)
    if isinstance(raw, dict):
        resolve(parse_training_spec(raw))


def _pickle(path: Path) -> None:
    read_pickle(path.read_bytes(), name=path.name)


def _archive(path: Path) -> None:
    read_members(path, "cifar-10-batches-py", ("batches.meta",), md5=None)


def _shards(path: Path) -> None:
    """No fuzzer guesses a header's sum: whatever calls itself a header here is given the right one."""
    content = path.read_bytes()
    blocks = [content[place : place + BLOCK] for place in range(0, len(content), BLOCK)]
    path.write_bytes(b"".join(_summed(block) if block[257:262] == b"ustar" else block for block in blocks))
    data = load_webdataset(path.parent, train=path.name, test=path.name, size=3)
    data.train.x.batch(range(len(data.train.x)))


def _summed(header: bytes) -> bytes:
    blank = header[:148] + b" " * 8 + header[156:]
    return b"%s%06o\0 %s" % (header[:148], sum(blank), header[156:])


def _packed(path: Path) -> None:
    """What `flipguard shards` says of its folder, beside which there are no shards."""
    home = FOLDER / "packed"
    home.mkdir(exist_ok=True)
    path.replace(home / OWN)
    load_webdataset(home)


def _index(path: Path) -> None:
    """No fuzzer guesses a checksum: what is JSON is put into an index with the right one."""
    content, kept = path.read_bytes(), FOLDER / "kept"
    kept.mkdir(exist_ok=True)
    try:
        files = json.loads(content)
        text = json.dumps(files, sort_keys=True)
        content = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "files": files}).encode()
    except (ValueError, RecursionError):
        pass
    (kept / "index.000001.json").write_bytes(content)
    Storage(f"file://{kept}").fetch(FOLDER / "fetched")


TARGETS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "csv": (".csv", _predictions),
    "csv_gz": (".csv.gz", _predictions),
    "npz": (".npz", _predictions),
    "parquet": (".parquet", _predictions),
    "parquet_compare": (".parquet", _comparison),
    "arrow": (".arrow", _predictions),
    "checkpoint": (".safetensors", load_checkpoint),
    "idx": (".idx", lambda path: read_idx(path, dimensions=3)),
    "mat": (".mat", lambda path: read_mat(path, "test")),
    "pickle": (".pickle", _pickle),
    "archive": (".tar.gz", _archive),
    "shards": (".tar", _shards),
    "packed": (".json", _packed),
    "index": (".json", _index),
    "data_npz": (".npz", _data_npz),
    "data_csv": (".csv", read_table),
    "image": (".png", open_image),
    "news": (".csv", lambda path: read_news(path, "train", 4)),
    "clinc": (".json", _clinc),
    "words": (".json", read_encoder),
    "growth": (".json", Growth.read),
    "card": (".json", read_json),
    "class_map": (".json", read_class_map),
    "class_map_csv": (".csv", read_class_map),
    "spec": (".yaml", _spec),
    "settings": (".toml", read_spec),
}
"""A name, the ending of its files, and what reads them."""


def one(target: str, data: bytes) -> str | None:
    """What the reader says against the bytes, None when it takes them. Anything but a line of ours is a fault."""
    ending, read = TARGETS[target]
    path = FOLDER / f"{target}{ending}"
    path.write_bytes(data)
    try:
        read(path)
    except FlipguardError as error:
        said = str(error)
        if "\n" in said or not said:
            raise AssertionError(f"not one line: {said!r}") from error
        return said
    return None
