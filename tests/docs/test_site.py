"""The parts of the site's making that need nothing installed: links that leave docs/, and requests to other hosts."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from flipguard.methods import METHODS

ROOT = Path(__file__).parents[2]


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "_site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_what_a_page_fetches_is_found(tmp_path: Path) -> None:
    (tmp_path / "fine.html").write_text(
        '<a href="https://a.b">a</a><img src="c.png"><link rel="canonical" href="https://d.e"><script src="f.js">'
    )
    assert module("offline").fetched(tmp_path) == []
    (tmp_path / "page.html").write_text('<script async src="https://g.h/i.js"></script><link href="//j.k" rel="icon">')
    (tmp_path / "style.css").write_text('@import "https://l.m"; a { background: url(https://n.o/p.png) }')
    found = module("offline").fetched(tmp_path)
    assert [line.partition(":")[0] for line in found] == ["page.html"] * 2 + ["style.css"] * 2


def test_links_out_of_the_docs_lead_to_pages_of_the_site() -> None:
    inward = module("repository").inward
    said = (
        "[a](../results/README.md#faults) [b](../examples/scikit_learn.py) [c](../recipes) [d](ci.md) [e](https://f.g)"
    )
    assert inward(ROOT, "report.md", said) == (
        "[a](repository/results/README.md#faults) [b](repository/examples/scikit_learn.py.md) "
        "[c](repository/recipes/index.md) [d](ci.md) [e](https://f.g)"
    )
    assert inward(ROOT, "methods/kd.md", "[a](../figures.md) [b](../../results)") == (
        "[a](../figures.md) [b](../repository/results/README.md)"
    )
    assert inward(ROOT, "repository/results/README.md", "[a](../docs/ci.md)") == "[a](../../ci.md)"


def test_every_file_that_is_led_to_becomes_a_page() -> None:
    made = module("repository").pages(ROOT, ["repository/SECURITY.md"])
    assert {"repository/SECURITY.md", "repository/results/README.md", "repository/examples/gitlab-ci.yml.md"} <= set(
        made
    )
    assert made["repository/examples/gitlab-ci.yml.md"].startswith("# gitlab-ci.yml\n\n````yaml\n")
    assert not [name for name in made if name.startswith("repository/docs/")]


def test_the_table_of_methods_and_each_page_say_what_the_method_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_site")
    made = module("methods").with_card
    heading, line, *rows = made("methods/index.md", "<!-- cards -->").splitlines()
    assert heading.startswith("| method | what it does |")
    assert {row.count("|") for row in (heading, line, *rows)} == {7}
    for row, (name, card) in zip(rows, METHODS.items(), strict=True):
        assert row.startswith(f"| [`{name}`]({name}.md) | {card.summary} |")
        assert made(f"methods/{name}.md", "<!-- card -->").startswith(f"{card.summary}\n\n")


@pytest.mark.parametrize("name", METHODS)
def test_each_method_s_page_has_figures_of_our_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_site")
    site = module("methods")
    text = site.with_card(f"methods/{name}.md", "<!-- figures -->")
    assert "| row | training |" in text or "| treatment |" in text
    rows = [name, *(row for row, method in site.EARLIER.items() if method == name)]
    assert any(f"| {row}" in text for row in rows)
