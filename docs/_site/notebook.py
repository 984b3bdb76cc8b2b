"""The notebook: written as a script of cells, run here, shown with what it printed and drew."""

import re
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter


def pages(source: Path) -> dict[str, str | bytes]:
    """The page, its pictures, and the notebook itself to download; a cell that fails ends the build."""
    book = jupytext.read(source)
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    exporter = MarkdownExporter()
    body, resources = exporter.from_notebook_node(book, resources={"output_files_dir": f"{source.stem}_files"})
    title, _, rest = re.sub(r"\n{3,}", "\n\n", body).lstrip().partition("\n")
    link = f"[Download the notebook]({source.stem}.ipynb) with its output."
    folder = source.parent.name
    made: dict[str, str | bytes] = {f"{folder}/{source.stem}.md": f"{title}\n\n{link}\n{rest}"}
    made |= {f"{folder}/{name}": picture for name, picture in resources["outputs"].items()}
    made[f"{folder}/{source.stem}.ipynb"] = jupytext.writes(book, fmt="ipynb")
    return made
