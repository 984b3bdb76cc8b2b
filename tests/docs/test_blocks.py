"""Every code block of the README and of docs/ runs, on real files, in the order of its page."""

from pathlib import Path

import pytest
from blocks import NOT_RUN, RUN, SHOWN, blocks, run
from pages import PAGES, QUICK, TRAINING, blocks_of, go_through
from scratch import prepare


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in RUN + SHOWN, f"{page}:{block.line}: '{block.language}' is none of {RUN + SHOWN}"
        assert "not run" not in block.mark or NOT_RUN.fullmatch(block.mark), f"{page}:{block.line}: {block.mark}"


@pytest.mark.parametrize("page", QUICK)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    go_through(page, tmp_path)


def test_the_pages_that_train_are_left_to_make_docs() -> None:
    assert "README.md" in TRAINING
    assert "docs/tutorials/monthly-retrainer.md" in TRAINING
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    assert "pytest -n 2 tests/docs/training_pages.py" in makefile


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    environment, names = prepare("", tmp_path)
    pages = {
        "sh": "```sh\nflipguard compare old.parquet none.parquet\n```",
        "status": "<!-- exits 1 -->\n```sh\nflipguard --version\n```",
        "console": "```console\n$ echo 2\n3\n```",
        "python": "```python\nassert 1 + 1 == 3\n```",
    }
    for text in pages.values():
        with pytest.raises(AssertionError):
            [run(block, tmp_path, environment, names, "page") for block in blocks(text)]
    for kept in ("<!-- not run: no such server -->\n```sh\nfalse\n```", '```sh title="written.sh"\nfalse\n```'):
        [run(block, tmp_path, environment, names, "page") for block in blocks(kept)]
    assert (tmp_path / "written.sh").read_text() == "false\n"
