"""What the site has beyond the pages in docs/: generated references, an executed notebook, files of the repository."""

import html
import re
from pathlib import Path
from typing import Any

import api
import commands
import notebook
import repository
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import methods

ROOT = Path(__file__).parents[2]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
NOT_RUN = re.compile(r"^( *)<!-- not run: ([^>]*?) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The places in the navigation that stand for many pages."""
    filled = {"METHODS": methods.navigation(), "API": api.navigation()}

    def fill(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: fill(target) for title, target in entry.items()}
        if isinstance(entry, list):
            return [fill(each) for each in entry]
        return filled.get(entry, entry)

    config.nav = fill(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made: dict[str, str | bytes] = {"commands.md": commands.page()}
    made |= api.pages()
    made |= notebook.pages(ROOT / "docs" / "notebooks" / "first_update.py")
    made |= repository.pages(ROOT, _targets(config.nav))
    for path, content in made.items():
        if (existing := files.get_file_from_path(path)) is not None:
            files.remove(existing)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    text = methods.with_card(page.file.src_uri, markdown)
    text = NOT_RUN.sub(r'\1<p class="not-run">Not run by the tests: \2.</p>', text)
    return repository.inward(ROOT, page.file.src_uri, text)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a script."""
    return FORMULA.sub(lambda found: _mathml(html.unescape(found[2]).strip()), content)


def _mathml(formula: str) -> str:
    # A name that the converter does not know.
    return convert(formula.replace(r"\arg", r"\operatorname{arg}"))


def _targets(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        return [found for entry in nav.values() for found in _targets(entry)]
    if isinstance(nav, list):
        return [found for entry in nav for found in _targets(entry)]
    return [nav]
