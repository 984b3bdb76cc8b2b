"""The options of a comparison, stated once for the commands that compare."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from flipguard.cli import options as o


def _comparison(
    by: o.By = None,
    labels: o.Labels = None,
    class_map: o.ClassMap = None,
    on_missing: o.OnMissing = None,
    split: o.Split = None,
    memory: o.Memory = None,
    confidence: o.Confidence = None,
    cluster: o.Cluster = None,
    noise: o.Noise = None,
    calibrate_on: o.CalibrateOn = None,
    correction: o.Correction = None,
    alpha: o.Alpha = None,
    cost_ratio: o.CostRatio = None,
    max_nfr: o.MaxNfr = None,
    max_relative_nfr: o.MaxRelativeNfr = None,
    max_new_error: o.MaxNewError = None,
    max_error_increase: o.MaxErrorIncrease = None,
    max_churn: o.MaxChurn = None,
    max_new_ece: o.MaxNewEce = None,
    max_noise_excess: o.MaxNoiseExcess = None,
    max_class_nfr: o.MaxClassNfr = None,
    max_slice_nfr: o.MaxSliceNfr = None,
    min_slice: o.MinSlice = None,
    gate_on: o.GateOn = None,
    config: o.Config = None,
    no_config: o.NoConfig = False,
) -> None:
    """What can be said of any comparison, in the order of the help."""


def comparing(command: Callable[..., int]) -> Callable[..., int]:
    """A command that can be told all of it besides its own options; it takes it as `**compared`."""
    own = signature(command)
    kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    shared = signature(_comparison).parameters
    command.__signature__ = own.replace(parameters=[*kept, *shared.values()])  # type: ignore[attr-defined]
    command.__annotations__ |= {name: each.annotation for name, each in shared.items()}
    return command


def together(own: dict[str, Any]) -> dict[str, Any]:
    """A command's `locals()`, with what came as `**compared` beside the rest.

    >>> together({"old": "a", "compared": {"by": None}})
    {'old': 'a', 'by': None}
    """
    given = {name: value for name, value in own.items() if name != "compared"}
    return {**given, **own["compared"]}


def named_files(given: dict[str, Any]) -> list[str]:
    """The files that these options name, which no output may overwrite.

    >>> named_files({"noise": ["n"], "calibrate_on": None, "class_map": "m", "config": None, "labels": "old"})
    ['n', 'm']
    """
    several = [file for name in ("noise", "calibrate_on") for file in given[name] or ()]
    single = [given[name] for name in ("class_map", "config") if given[name]]
    return [*several, *single, *labels_file(given["labels"])]


def labels_file(labels: str | None) -> list[str]:
    """`--labels` where it is a file."""
    return [] if labels in (None, "old", "new", "agree") else [str(labels)]
