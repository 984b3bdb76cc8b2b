"""Compare an environment's packages with published advisories; it never passes because nobody answered.

    python .ci/audit.py .venv/bin/python [--if-reachable]

pip-audit asks the index for each package and, without --strict, takes no answer for a good one. Here the advisories of
an old Jinja2 are asked for first: an index that knows none is a mirror without them, or no index at all. That is exit
2; with `--if-reachable` it is said in a line and left at that. Exit 1 means that a package has an advisory, or could
not be looked up.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

KNOWN = "https://pypi.org/pypi/jinja2/2.4.1/json"


def silence() -> str | None:
    """Why the service cannot be asked; None when it answers as it should."""
    try:
        with urllib.request.urlopen(KNOWN, timeout=15) as answer:
            return None if json.load(answer).get("vulnerabilities") else "it lists no advisories"
    except (OSError, ValueError) as error:
        return str(error)


def installed(python: str) -> str:
    """What an environment holds, pinned; a build's local version (2.13.0+cpu) is the index's own."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "freeze", "--exclude-editable"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return "".join(f"{line.partition('+')[0]}\n" for line in lines if "==" in line)


def main() -> int:
    python, flags = sys.argv[1], sys.argv[2:]
    reason = silence()
    if reason is not None:
        print(f"audit: NOT DONE. {KNOWN.split('/pypi/')[0]} cannot be asked for advisories from here ({reason}).")
        return 0 if "--if-reachable" in flags else 2
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "installed.txt"
        pinned.write_text(installed(python))
        command = [sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--no-deps", "-r", str(pinned)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
