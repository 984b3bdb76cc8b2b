"""Which pages have blocks to run, and how a page is gone through."""

import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
from blocks import Block, blocks, run
from scratch import prepare

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
NEEDS = {f"docs/integrations/{name}.md": name for name in ("lightning", "transformers", "mlflow", "wandb")}
"""Pages whose library has an environment of its own: `make integrations` runs them."""


def blocks_of(page: str) -> list[Block]:
    return list(blocks((ROOT / page).read_text("utf-8")))


def trains(page: str) -> bool:
    """Whether a page trains networks by commands, or draws figures of them: `make docs` goes through those."""
    commands = ("flipguard train", "flipguard figure")
    return any(block.is_run and any(each in block.text for each in commands) for block in blocks_of(page))


RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]
QUICK, TRAINING = [page for page in RUN if not trains(page)], [page for page in RUN if trains(page)]


def go_through(page: str, folder: Path) -> None:
    """Run every block of the page, in order, in a folder of its own."""
    if page in NEEDS and find_spec(NEEDS[page]) is None:
        pytest.skip(f"needs {NEEDS[page]}: make integrations")
    environment, names = prepare(page, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            # A library's own deprecations are its readers' business.
            warnings.simplefilter("ignore" if page in NEEDS else "error")
            for block in blocks_of(page):
                run(block, folder, environment, names, page)
    finally:
        os.chdir(before)
