"""Fences around doctests, for mkdocstrings' reference of the API."""

from typing import Any

from fences import fenced
from griffe import Extension


class Doctests(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
