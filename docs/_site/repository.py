"""Links that lead out of docs/ are right on a code host; on the site the files they name become pages of it."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)\)")
PLACE = "repository"
SOURCES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def pages(root: Path, wanted: Iterable[str]) -> dict[str, str | bytes]:
    """Every file outside docs/ that the navigation or a page leads to, and what these lead to in turn."""
    queue = [root / each.removeprefix(f"{PLACE}/") for each in wanted if each.startswith(f"{PLACE}/")]
    queue += [root / "results" / path.name for path in (root / "results").glob("*.md")]
    for page in sorted((root / "docs").rglob("*.md")):
        queue += _leads(root, page, page.read_text("utf-8"))
    made: dict[str, str | bytes] = {}
    while queue:
        path = queue.pop()
        place = site_path(root, path)
        if place in made or path.is_relative_to(root / "docs"):
            continue
        made[place] = _content(path)
        if path.suffix == ".md":
            queue += _leads(root, path, path.read_text("utf-8"))
    return made


def inward(root: Path, page: str, text: str) -> str:
    """The page's links with what lies outside docs/ replaced by its page of the site."""
    source = root / page.removeprefix(f"{PLACE}/") if page.startswith(f"{PLACE}/") else root / "docs" / page
    here = PurePosixPath(page).parent

    def replaced(found: re.Match[str]) -> str:
        target = _target(root, source, found[1])
        if target is None:
            return found[0]
        return f"]({os.path.relpath(site_path(root, target), here)}{found[2]})"

    return LINK.sub(replaced, text)


def site_path(root: Path, path: Path) -> str:
    """Where a file of the repository lies among the site's sources."""
    if path.is_relative_to(root / "docs"):
        page = path.with_suffix(".md") if path.parent.name == "notebooks" else path
        return page.relative_to(root / "docs").as_posix()
    place = f"{PLACE}/{path.relative_to(root).as_posix()}"
    if path.is_dir():
        return f"{place}/index.md"
    return f"{place}.md" if path.suffix in SOURCES else place


def _target(root: Path, source: Path, link: str) -> Path | None:
    target = Path(os.path.normpath(source.parent / link))
    if not target.exists() or not target.is_relative_to(root):
        return None
    return target / "README.md" if (target / "README.md").is_file() else target


def _leads(root: Path, source: Path, text: str) -> Iterator[Path]:
    for found in LINK.finditer(text):
        target = _target(root, source, found[1])
        if target is not None and not target.is_relative_to(root / "docs"):
            yield target


def _content(path: Path) -> str | bytes:
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.suffix in SOURCES)
        return f"# {path.name}/\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"
    if path.suffix in SOURCES:
        return f"# {path.name}\n\n````{SOURCES[path.suffix]}\n{path.read_text('utf-8').rstrip()}\n````\n"
    return path.read_text("utf-8") if path.suffix == ".md" else path.read_bytes()
