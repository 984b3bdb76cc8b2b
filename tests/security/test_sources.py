"""What the source must not contain, whatever a test happens to reach: ways to run what a file says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import flipguard

ROOT = Path(flipguard.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
UNPICKLER = Path("data/unpickle.py")
FORBIDDEN = {
    *("pickle.load", "pickle.loads", "cPickle.load", "marshal.load", "marshal.loads", "shelve.open", "dill.load"),
    *("joblib.load", "pandas.read_pickle", "pd.read_pickle", "numpy.fromregex", "torch.hub.load", "torch.jit.load"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"),
    *("os.system", "os.popen", "shutil.unpack_archive", "eval", "exec", "compile", "__import__"),
}
UNPACKING = {"extractall", "extract"}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def faults(source: str) -> list[str]:
    """The calls in a source that it must not have."""
    found = []
    for name, call in calls(ast.parse(source)):
        keywords = {one.arg: ast.unparse(one.value) for one in call.keywords}
        if name in FORBIDDEN or name.rpartition(".")[2] in UNPACKING:
            found.append(name)
        if name in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
            found.append(name)
        if name == "torch.load" and keywords.get("weights_only") != "True":
            found.append(name)
        if keywords.get("shell") == "True" or keywords.get("trust_remote_code") == "True":
            found.append(name)
    return found


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nothing_runs_what_a_file_says(path: Path) -> None:
    # torch.jit.load reads back what export itself has just written.
    allowed = {"torch.jit.load"} if path == Path("releases/export.py") else set()
    assert set(faults((ROOT / path).read_text(encoding="utf-8"))) <= allowed


def test_only_the_restricted_reader_subclasses_an_unpickler() -> None:
    users = [path for path in FILES if "Unpickler" in (ROOT / path).read_text(encoding="utf-8")]
    assert users == [UNPICKLER]


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(f)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "tar.extractall(x)",
        "yaml.load(t, Loader=L)",
        "run(x, shell=True)",
    ],
)
def test_the_check_sees_what_it_should(source: str) -> None:
    assert len(faults(source)) == 1
    assert faults("np.load(p, allow_pickle=False); torch.load(p, weights_only=True); model.eval()") == []
