"""Each method has a page, with what is written by hand and a place for what is generated."""

import re
from pathlib import Path

import pytest

from flipguard.methods import METHODS
from flipguard.training.given import objective_of
from flipguard.types import InputError

FOLDER = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*METHODS, "index"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_page_has_its_parts(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert text.startswith("# ")
    assert f"`{name}`" in text.partition("\n")[0]
    order = [text.index(part) for part in ("<!-- card -->", "## When to use it", "## Our figures", "<!-- figures -->")]
    assert order == sorted(order)
    assert len(text.split("## When to use it")[1].split("## Our figures")[0].split()) > 20


def test_the_page_of_lightning_names_the_methods_that_it_does_not_take() -> None:
    refused = set()
    for name in METHODS:
        try:
            objective_of(name)
        except InputError:
            refused.add(name)
    page = (FOLDER.parent / "integrations" / "lightning.md").read_text("utf-8")
    named = re.findall("`([a-z_]+)`", page.partition("every method but")[2].partition("\n```")[0])
    assert set(named) == refused
