"""Links between the Markdown pages lead to files that are there, and to headings that are there."""

import os
import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *(p for d in ("docs", "results", "benchmarks", "fuzz") for p in sorted((ROOT / d).rglob("*.md"))),
    )
]
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCED = re.compile(r"^ *(`{3,}).*?^ *\1$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")


def links(text: str) -> list[str]:
    """Targets of the links of a page, without what stands in code."""
    return LINK.findall(CODE.sub("code", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """The headings of a page as a code host makes anchors of them.

    >>> sorted(anchors("# One\\n## Churn (X et al. 1–5)\\n# One"))
    ['churn-x-et-al-15', 'one', 'one-1']
    """
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", FENCED.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").lower()
        kept = "".join(c for c in plain if c in "-_ " or unicodedata.category(c)[0] in "LN")
        slug = kept.replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere; those to other hosts are not followed."""
    wrong = []
    for link in links(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / place)) if place else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="the source distribution has no results to lead to")
@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    assert broken(ROOT / page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A b\n[x](none.md) [y](#a-b) [z](#c) `[c](d)` [u](https://e.f)\n```\n[g](h)\n```\n")
    assert broken(page) == ["none.md", "#c"]
