"""Each method has a page, with what is written by hand and a place for what is generated."""

from pathlib import Path

import pytest

from flipguard.methods import METHODS

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
