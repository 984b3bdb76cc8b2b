"""What is known of a method before it is built: where it comes from, what it costs, what it can be given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from flipguard.types import InputError

Kind = Literal["objective", "post-hoc", "paragon"]


@dataclass(frozen=True)
class Card:
    """A method in a line: what it does, its kind, where it comes from, what it costs, and how it is built.

    `summary` says in one plain sentence what its defaults do. `training_cost` is in single-model trainings, a forward
    pass counted as a third of a step; m is the number of members. `references` are the names of those it needs with its
    defaults: `old`, `ensemble`. `fixed` are the options that make this method out of its factory, and cannot be given;
    `defaults` those in which it only starts from other values. With `heritage` its `old` is the ensemble that the
    version before learned from. `first` are the options with which it makes a first version, which has none before it;
    without them that one is trained in another way. `settings` are the paper's options by data set, where it has
    several. `departures` are what all objectives have in common (the tests' list of invariances) and this one has not,
    each with its reason.
    """

    name: str
    summary: str
    kind: Kind
    paper: str
    equation: str
    training_cost: str
    factory: Callable[..., Any]
    references: tuple[str, ...] = ()
    inference_cost: str = "1"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    heritage: bool = False
    first: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    departures: Mapping[str, str] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """What the method can be given, with the defaults; a group of parameters is a dict of its own."""
        plain = self.factory(**self.fixed, **self.defaults)
        return {name: value for name, value in _defaults(plain).items() if name not in self.fixed}

    def build(self, **options: Any) -> Any:
        """The method with these options. A group may be given as a mapping, as a spec has it."""
        known = self.parameters()
        for name in options:
            if name not in known:
                raise InputError(f"the method '{self.name}' has no option '{name}'. Options: {', '.join(known)}.")
        given = {name: self._given(name, value) for name, value in options.items()}
        return self.factory(**self.fixed, **{**self.defaults, **given})

    def _given(self, name: str, value: Any) -> Any:
        default = getattr(self.factory(), name)
        if not isinstance(value, Mapping) or not is_dataclass(default) or isinstance(default, type):
            return value
        known = _defaults(default)
        for inner in value:
            if inner not in known:
                raise InputError(f"{self.name}.{name} has no option '{inner}'. Options: {', '.join(known)}.")
        return type(default)(**{**known, **value})

    def as_dict(self) -> dict[str, Any]:
        """What a user chooses by, ready for JSON."""
        return {
            "name": self.name,
            "summary": self.summary,
            "kind": self.kind,
            "paper": self.paper,
            "equation": self.equation,
            "training_cost": self.training_cost,
            "inference_cost": self.inference_cost,
            "references": list(self.references),
            "parameters": self.parameters(),
            "settings": {data: dict(options) for data, options in self.settings.items()},
        }


def _defaults(method: Any) -> dict[str, Any]:
    # What all methods share stands last.
    entries = sorted(fields(method), key=lambda entry: bool(entry.kw_only))
    found = {entry.name: getattr(method, entry.name) for entry in entries}
    return {name: _defaults(value) if is_dataclass(value) else value for name, value in found.items()}
