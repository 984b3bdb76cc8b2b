"""Files of official archives, read from an extracted folder or straight out of the archive, and their checksums."""

import hashlib
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from flipguard.types import InputError

MAX_MEMBER_BYTES = 2**31
"""No member of a supported archive is larger; one that says so is refused before it is read."""


def check_md5(path: Path, expected: str) -> None:
    """Compare a file with the checksum that its publisher gives."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        raise InputError(
            f"{path} has MD5 {found}, and the published file {expected}: it is damaged or another version. "
            "Fetch it again, or pass verify=False to use it as it is."
        )


def read_files(folder: Path, names: Sequence[str], *, md5: Mapping[str, str]) -> dict[str, bytes]:
    """The named files of a folder, each checked against `md5` where that has it."""
    found = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} does not exist.")
        if name in md5:
            check_md5(path, md5[name])
        found[name] = path.read_bytes()
    return found


def read_members(archive: Path, folder: str, names: Sequence[str], *, md5: str | None) -> dict[str, bytes]:
    """The named members of folder/ in a tar.gz, read in one pass. Nothing is written to disk."""
    if md5 is not None:
        check_md5(archive, md5)
    wanted = {f"{folder}/{name}": name for name in names}
    found = {}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                if name is None:
                    continue
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None or member.size > MAX_MEMBER_BYTES:
                    raise InputError(f"{archive}: {member.name} is not a plain file of a size that can be read.")
                found[name] = stream.read()
    except InputError:
        raise
    except Exception as error:
        # TarError, OSError, EOFError, zlib.error; a header that is cut short is a TypeError.
        raise InputError(f"{archive} cannot be read as a tar.gz archive ({' '.join(str(error).split())}).") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{archive} has no member {folder}/{missing[0]}.")
    return found
