"""The pages of the Python reference: one for each room that a user enters, its public names read from the source."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "flipguard"
ROOMS = {
    "flipguard": "Everyday names",
    "flipguard.predictions": "Prediction files",
    "flipguard.comparison": "Comparing and gating",
    "flipguard.metrics": "Metrics",
    "flipguard.statistics": "Statistics",
    "flipguard.losses": "Losses",
    "flipguard.methods": "Methods",
    "flipguard.ensembles": "Students and references",
    "flipguard.models": "Models",
    "flipguard.data": "Data",
    "flipguard.training": "Training",
    "flipguard.releases": "Releases",
    "flipguard.checkpoints": "Checkpoints",
    "flipguard.spec": "Specs and settings",
    "flipguard.analysis": "Figures",
    "flipguard.integrations": "Integrations",
    "flipguard.types": "Types and errors",
}
BY_MODULE = ("flipguard.analysis", "flipguard.integrations")


def navigation() -> list[dict[str, str]]:
    return [{title: f"api/{name}.md"} for name, title in ROOMS.items()]


def pages() -> dict[str, str]:
    return {f"api/{name}.md": _page(name, title) for name, title in ROOMS.items()}


def _page(name: str, title: str) -> str:
    head = f"# {title}\n\n`{name}`\n\n"
    if name not in BY_MODULE:
        return head + _directive(name)
    modules = sorted(path.stem for path in _file(name).parent.glob("*.py") if not path.stem.startswith("_"))
    return head + "\n".join(f"## `{name}.{module}`\n\n{_directive(f'{name}.{module}', level=3)}" for module in modules)


def _directive(name: str, level: int = 2) -> str:
    members = public_names(_file(name))
    chosen = f"      members: {members}\n" if members else ""
    return f"::: {name}\n    options:\n      heading_level: {level}\n{chosen}\n"


def _file(name: str) -> Path:
    place = SOURCE.joinpath(*name.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def public_names(path: Path) -> list[str]:
    """What `__all__` lists, read without importing."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    return []
