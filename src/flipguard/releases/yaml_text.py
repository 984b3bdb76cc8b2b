"""YAML as people write it: numbers such as 5e-4 are numbers, and a key that stands twice is a mistake.

What people do not write is refused before it can fill the memory: texts of megabytes, and a few aliases of aliases that
stand for billions of values.
"""

import re
from typing import Any

import yaml

from flipguard.types import InputError

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    """The safe loader: plain values only, nothing in the text is code."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a text or a number", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands twice", key.start_mark)
            seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


# YAML 1.1 takes 5e-4 for a text, as its numbers need a point; YAML 1.2 and everyone who writes it do not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """The value that a YAML text stands for; what is no YAML is an error in one line.

    >>> parse_yaml("rate: 5e-4", "spec.yaml")
    {'rate': 0.0005}
    >>> parse_yaml("rate: 1\\nrate: 2", "spec.yaml")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: spec.yaml is not valid YAML: 'rate' stands twice (line 2, column 1).
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{source} has {len(text):,} characters; YAML of more than {MOST_CHARACTERS:,} is refused.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _values(node, {})
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise InputError(f"{source} is not valid YAML: {error.problem or error.context}{place}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid YAML: {' '.join(str(error).split())[:200]}.") from error


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for with every alias written out."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias stands for a value that holds it", node.start_mark
            )
        return known[id(node)]
    known[id(node)] = 0
    inner = node.value if isinstance(node, yaml.CollectionNode) else []
    parts = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
    total = 1 + sum(_values(part, known) for part in parts)
    if total > MOST_VALUES:
        raise yaml.constructor.ConstructorError(
            None, None, f"written out, it has more than {MOST_VALUES:,} values", node.start_mark
        )
    known[id(node)] = total
    return total


def as_yaml(value: Any) -> str:
    """A plain value as YAML, keys in their own order."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text
