"""Names that are imported when they are first used, so that `import flipguard` and `flipguard --help` stay fast."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package: `home` leads from each public name to the module that holds it."""

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        try:
            value = getattr(import_module(home[name]), name)
        except ModuleNotFoundError as error:
            from flipguard.types import MissingExtra

            # Whoever lacks a package has nothing of where it was looked for.
            raise MissingExtra(f"{package}.{name} needs {error.name}: pip install 'flipguard[train]'") from None
        setattr(sys.modules[package], name, value)
        return value

    return find
