"""A method's plan held against its card: options that exist, of the type they have, with every one written out."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from flipguard._nearest import nearest, shortened
from flipguard.methods import METHODS, RECOMMENDED, Card
from flipguard.releases.plan import MethodPlan, TrainPlan
from flipguard.types import InputError


def card_of(method: MethodPlan, place: str = "method") -> Card:
    """The method's card."""
    if method.name == RECOMMENDED:
        raise InputError(f"{place}: recommended is for the versions of a training spec: name a method here.")
    if method.name not in METHODS:
        close = nearest(method.name.lower(), [*METHODS, RECOMMENDED])
        raise InputError(f"{place}.name: there is no method '{shortened(method.name)}'{close}")
    return METHODS[method.name]


def build(method: MethodPlan, place: str = "method") -> Any:
    """The method itself, from its plan."""
    try:
        return card_of(method, place).build(**method.options)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def needs_of(method: MethodPlan, train: TrainPlan, place: str) -> tuple[str, ...]:
    """The references that the method needs with its options."""
    card = card_of(method, place)
    return tuple(getattr(build(settled(method, train, place), place), "needs", card.references))


def settled(plan: MethodPlan, train: TrainPlan, place: str) -> MethodPlan:
    """With every option of the method's card written out."""
    card = card_of(plan, place)
    known = card.parameters()
    options = plan.options
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{place} has no key '{name}'{nearest(name, [*known, *MethodPlan.model_fields])}")
        _check_option(card, name, value, known[name], f"{place}.{name}")
    if train.label_smoothing is not None and "label_smoothing" not in options:
        if "label_smoothing" in known:
            options["label_smoothing"] = train.label_smoothing
        elif card.kind == "objective":
            raise InputError(f"train.label_smoothing: the method {plan.name} has no label smoothing.")
    teachers = plan.ensemble.members if plan.ensemble and "members" in plan.ensemble.model_fields_set else None
    if one_teacher_each(card) and teachers is not None and options.setdefault("members", teachers) != teachers:
        raise InputError(
            f"{place}.members is {options['members']} and {place}.ensemble.members {teachers}: each member learns from "
            "a teacher of its own, so give one of them."
        )
    combination = plan.ensemble.combination if plan.ensemble is not None else None
    if combination == "probabilities" and "combination" not in known:
        raise InputError(f"{place}.ensemble.combination: {plan.name} looks at each member, and does not combine them.")
    if combination is not None and "combination" in known and "combination" not in options:
        options["combination"] = combination
    return MethodPlan.model_validate({"name": plan.name, **_filled(known, options)}, strict=True)


def one_teacher_each(card: Card) -> bool:
    """Whether the network has members, each of which learns from a teacher of its own."""
    return "ensemble" in card.references and "members" in card.parameters()


def _filled(known: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _filled(value, options[name])
        if isinstance(value, dict) and isinstance(options.get(name), dict)
        else options.get(name, value)
        for name, value in known.items()
    }


def _check_option(card: Card, name: str, value: Any, default: Any, place: str) -> None:
    """The option's type as the method's dataclass has it: a text is no number, also when it looks like one."""
    group = getattr(card.factory(), name, None)
    if is_dataclass(group) and isinstance(value, dict):
        for inner, given in value.items():
            if inner not in default:
                raise InputError(f"{place} has no key '{inner}'{nearest(inner, default)}")
            _check_type(type(group), inner, given, f"{place}.{inner}")
    elif is_dataclass(group):
        raise InputError(f"{place} must be a mapping, it is {shortened(repr(value))}.")
    else:
        _check_type(card.factory, name, value, place)


def _check_type(owner: Any, name: str, value: Any, place: str) -> None:
    hint = get_type_hints(owner).get(name, Any)
    if isinstance(value, str | dict) and any(is_dataclass(kind) for kind in get_args(hint)):
        # A perturbation by its kind or its options: the method itself makes one of it, or says what is wrong.
        return
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).replace("Input should be ", "")
        raise InputError(f"{place} must be {message}, it is {shortened(repr(value))}.") from error
