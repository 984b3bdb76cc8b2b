"""Which room may import which, and that the right side of the house needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flipguard

ROOMS = (
    "types",
    "files",
    "metrics",
    "statistics",
    "predictions",
    "comparison",
    "losses",
    "models",
    "data",
    "checkpoints",
    "ensembles",
    "methods",
    "training",
    "releases",
    "analysis",
    "reports",
    "spec",
    "bench",
    "demo",
    "cli",
    "integrations",
)
FREE = {"_heap", "_lazy", "_nearest", "_reach", "_shares", "_version", "__version__"}
WITHOUT_TORCH = {*ROOMS[:6], "reports", "spec", "cli"}
ROOT = Path(flipguard.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The full names of what is imported anywhere in the tree; `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that their direction can be read"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def outside_functions(tree: ast.Module) -> ast.Module:
    """The tree without the bodies of functions and without what only a type checker sees."""

    class Remover(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    stripped = Remover().visit(tree)
    assert isinstance(stripped, ast.Module)
    return stripped


def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def rooms_imported(path: Path) -> set[str]:
    names = [name.split(".") for name in imported(parse(path))]
    return {parts[1] for parts in names if parts[0] == "flipguard" and len(parts) > 1} - FREE


def test_every_file_lies_in_a_room() -> None:
    known = {*ROOMS, "_heap", "_lazy", "_nearest", "_reach", "_shares", "_version", "__init__", "__main__"}
    assert {room_of(path) for path in FILES} <= known
    assert {"types", "metrics", "statistics", "predictions", "comparison"} <= {room_of(path) for path in FILES}


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in ROOMS], ids=str)
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    place = ROOMS.index(room_of(path))
    allowed = {*ROOMS[: place + 1]} - ({"integrations"} if room_of(path) != "integrations" else set())
    # Names that flipguard itself offers would hide which room they come from.
    assert rooms_imported(path) <= allowed


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in {*WITHOUT_TORCH, "__init__"}], ids=str)
def test_the_right_side_imports_no_torch(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(outside_functions(parse(path)))} & {"torch", "torchmetrics"}


def test_the_checks_see_what_they_should() -> None:
    lazy = "if TYPE_CHECKING:\n    import jax\ndef f():\n    import numpy\n"
    source = f"import torch.nn\nfrom flipguard.cli import app\n{lazy}"
    assert set(imported(ast.parse(source))) == {"torch.nn", "flipguard.cli.app", "jax", "numpy"}
    assert set(imported(outside_functions(ast.parse(source)))) == {"torch.nn", "flipguard.cli.app"}


def loaded_after(code: str, folder: Path) -> set[str]:
    program = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=True)
    return set(done.stdout.split())


# Not pandas: where it is installed, pyarrow itself imports it for the first array it makes.
HEAVY = {"torch", "torchmetrics", "polars", "pyspark", "sklearn", "scipy.stats", "matplotlib"}
COMPARE = """
import flipguard
columns = {"id": [1, 2, 3], "label": [0, 1, 1], "prediction": [0, 1, 0], "logits": [[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]]}
assert flipguard.compare(columns, columns, gate={"max_nfr": 1.0}).n == 3
assert flipguard.matrix([columns, columns]).n == 3
"""


def test_a_comparison_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = loaded_after(COMPARE, tmp_path)
    assert "flipguard.comparison.run" in loaded
    assert not loaded & HEAVY


def test_the_bare_import_loads_next_to_nothing(tmp_path: Path) -> None:
    loaded = loaded_after("import flipguard", tmp_path)
    assert not loaded & {*HEAVY, "pandas", "numpy", "pyarrow", "duckdb", "pydantic", "narwhals"}


def test_a_report_and_a_run_folder_s_files_are_read_without_torch(tmp_path: Path) -> None:
    """What `pip install 'flipguard[report]'` promises; the list of benches too."""
    code = "import flipguard.analysis.epochs, flipguard.analysis.runs, flipguard.bench.read, flipguard.cli.report"
    assert "torch" not in loaded_after(code, tmp_path)
