"""One file with nothing beside it: what is packed into the page, and the policy that allows that and nothing else."""

import base64
import gzip
import hashlib
import importlib
import json
import re
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

from flipguard.types import MissingExtra

_STYLE_TEXT = re.compile(
    r"""createElement\("style"\);(?:(?!createElement).){0,200}?\.textContent='((?:[^'\\]|\\.)*)'"""
)


def needed(name: str) -> ModuleType:
    """A library of the `report` extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the report needs {error.name}: pip install 'flipguard[report]'") from error


def with_torch(name: str) -> ModuleType:
    """A room that needs torch, which only the samples of a data set do."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"--data needs {error.name}: pip install 'flipguard[train]'") from error


def digest(text: str) -> str:
    """A source of a content-security policy that allows exactly this text.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def packed(text: str) -> str:
    """Compressed and in base64, which no HTML parser can take for markup. Equal texts give equal bytes."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def packed_json(value: Any) -> str:
    """What JSON cannot hold (NaN, half a surrogate pair) is an error, or becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return packed(text.encode(errors="replace").decode())


def static(name: str) -> str:
    return files("flipguard.reports.html").joinpath("static", name).read_text(encoding="utf-8")


@cache
def plotly() -> str:
    script: str = needed("plotly.offline").get_plotlyjs()
    return script


@cache
def packed_plotly() -> str:
    """A third of its size: it unpacks in the browser."""
    return packed(plotly())


@cache
def policy() -> str:
    """No network at all, and only the scripts that are ours or plotly's, by their hashes; nothing evaluates text.

    plotly positions its labels by style attributes and adds a style element, empty or with the text that its source
    holds, when it loads: these hashes are allowed and no other.
    """
    styles = ["", static("report.css"), *_STYLE_TEXT.findall(plotly())]
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {digest(static('report.js'))} {digest(plotly())}",
            f"style-src-elem {' '.join(map(digest, styles))}",
            "style-src-attr 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
