"""Archives are read in memory: whatever their members are called, nothing is written, and links are not followed."""

import io
import pickle
import tarfile
from pathlib import Path

import pytest

from flipguard.data.archive import read_members
from flipguard.types import InputError

NAME = "cifar-10-batches-py/batches.meta"
ESCAPING = ("../outside", "/tmp/flipguard-outside", "cifar-10-batches-py/../../outside", "..\\outside")


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    content = pickle.dumps({"label_names": ["a"]}, protocol=2)
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def test_names_that_lead_outside_are_not_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = archive(home / "a.tar.gz", *map(tarfile.TarInfo, (*ESCAPING, NAME)))
    before = sorted(tmp_path.rglob("*"))
    assert set(read_members(path, "cifar-10-batches-py", ("batches.meta",), md5=None)) == {"batches.meta"}
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/flipguard-outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_member_that_is_no_file(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo(NAME)
    member.type, member.linkname = kind, "/etc/passwd"
    path = archive(tmp_path / "a.tar.gz", member)
    with pytest.raises(InputError, match="is not a plain file of a size that can be read"):
        read_members(path, "cifar-10-batches-py", ("batches.meta",), md5=None)


def test_a_member_that_claims_gigabytes(tmp_path: Path) -> None:
    member = tarfile.TarInfo(NAME)
    path = archive(tmp_path / "a.tar.gz", member)
    member.size = 2**40
    header = member.tobuf(tarfile.GNU_FORMAT)
    import gzip

    path.write_bytes(gzip.compress(header + bytes(1024)))
    with pytest.raises(InputError, match="of a size that can be read"):
        read_members(path, "cifar-10-batches-py", ("batches.meta",), md5=None)
