"""Code that a file names: it runs only when the user says that it may."""

from flipguard.models.adapters import names_code
from flipguard.releases.plan import TrainSpec
from flipguard.types import InputError


def check_name(name: str, place: str, *, trust: bool) -> None:
    """Refuse a network whose name is a module and a factory of its own, unless that is trusted.

    >>> check_name("zoo:tiny", "runs/a", trust=False)
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: runs/a names code that would be run, zoo:tiny: look at it, and allow it with --trust (in Python, trust=True).
    """  # noqa: E501
    if not trust and names_code(name):
        raise InputError(
            f"{place} names code that would be run, {name}: look at it, and allow it with --trust (in Python, "
            "trust=True)."
        )


def check_spec(spec: TrainSpec, *, trust: bool) -> None:
    """Every network that a resolved spec names."""
    for version in spec.versions or []:
        ensemble = version.method.ensemble if version.method is not None else None
        models = [version.model, version.factory, *((ensemble.model or []) if ensemble is not None else [])]
        for model in models:
            if model is not None:
                check_name(model.name, f"version {version.name}", trust=trust)
