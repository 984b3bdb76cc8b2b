"""One reader under atheris: `python fuzz/engine.py TARGET [libFuzzer's arguments]`. `fuzz/run.py` calls it."""

import shlex
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
# torch is too large to be instrumented in sensible time, and the readers' own code is what is looked at.
with atheris.instrument_imports(include=["flipguard", "targets"]):
    import targets

if __name__ == "__main__":
    target, *arguments = sys.argv[1:]
    # A merge starts this program again, through a shell, by what it finds as its name.
    again = shlex.join([sys.executable, __file__, target])
    atheris.Setup([again, *arguments], lambda data: targets.one(target, data) and None)
    atheris.Fuzz()
