"""A real S3 server on this machine, `rclone serve s3`, whose buckets are folders: objects can be damaged under it."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

RCLONE = shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
KEYS = {"AWS_ACCESS_KEY_ID": "flip", "AWS_SECRET_ACCESS_KEY": "guard-guard-guard", "AWS_DEFAULT_REGION": "us-east-1"}


class ObjectStore:
    """`environment` is what a client needs to find it, `url` a place in its one bucket, `folder` where that lies."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder, self.url = home, home / "bucket/kept", "s3://bucket/kept"
        (home / "bucket").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert RCLONE is not None
        keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
        address = f"127.0.0.1:{self.port}"
        command = [RCLONE, "serve", "s3", "--config=", f"--addr={address}", f"--auth-key={keys}", str(self.home)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        """At once, in whatever it is at."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flip(self, pattern: str) -> Path:
        """One bit in the middle of the only object of that name."""
        (path,) = self.home.glob(f"bucket/**/{pattern}")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        stamp = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        return path
