"""The pages whose blocks train networks: `make docs` runs them, as they take a minute or two."""

from pathlib import Path

import pytest
from pages import TRAINING, go_through


@pytest.mark.parametrize("page", TRAINING)
def test_the_blocks_of_a_page_that_trains_run(page: str, tmp_path: Path) -> None:
    go_through(page, tmp_path)
