"""What a comparison is asked for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from flipguard import statistics
from flipguard._shares import as_share
from flipguard.comparison.gate import GateSettings, gate_settings
from flipguard.types import InputError


@dataclass(frozen=True)
class Options:
    """What a comparison is asked for; the arguments of `compare`."""

    by: tuple[str, ...] | None = None
    confidence: float = 0.95
    labels: Any = "agree"
    class_map: Mapping[str, str] | str | Path | None = None
    on_missing: str = "error"
    cluster: str | None = None
    noise: tuple[Any, ...] = ()
    calibrate_on: tuple[Any, ...] = ()
    split: str | None = None
    correction: statistics.Correction = "holm"
    alpha: float = 1.0
    cost_ratio: float | None = None
    gate: GateSettings = field(default_factory=GateSettings)
    flips: str | Path | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        share = as_share(self.confidence)
        if not isinstance(share, Real):
            raise InputError(f"the confidence must be a number such as 0.95, or '95%', it is {self.confidence!r}.")
        object.__setattr__(self, "confidence", float(share))
        if not 0 < self.confidence < 1:
            raise InputError(f"the confidence must lie between 0 and 1, it is {self.confidence:g}.")
        if self.on_missing not in ("error", "drop"):
            raise InputError(f"on_missing must be error or drop, not '{self.on_missing}'.")
        if self.correction not in ("holm", "bh"):
            raise InputError(f"the correction must be holm or bh, not '{self.correction}'.")
        if not 0 < self.alpha < math.inf:
            raise InputError(f"alpha, the exponent of surrogate churn, must be above 0, it is {self.alpha:g}.")
        if self.cost_ratio is not None and not 0 <= self.cost_ratio < math.inf:
            raise InputError(f"the cost ratio must not be negative, it is {self.cost_ratio:g}.")
        if len(self.calibrate_on) > 2:
            raise InputError(
                "calibrate_on takes one file of ids, or two prediction files: the old model's, the new one's."
            )


def options_of(
    *,
    by: Sequence[str] | None = None,
    noise: Any = (),
    calibrate_on: Any = (),
    gate: GateSettings | Mapping[str, Any] | None = None,
    **given: Any,
) -> Options:
    """The options of `compare` in one object, single values as lists of one."""
    return Options(
        by=None if by is None else (by,) if isinstance(by, str) else tuple(by),
        noise=_several(noise),
        calibrate_on=_several(calibrate_on),
        gate=gate if isinstance(gate, GateSettings) else gate_settings(gate or {}),
        **given,
    )


def _several(sources: Any) -> tuple[Any, ...]:
    """A single source stands for a list of one: a path or a dict would otherwise come apart into letters or keys."""
    return tuple(sources) if isinstance(sources, list | tuple) else (sources,)
