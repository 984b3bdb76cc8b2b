"""`Comparison`: a finished tally with intervals and tests. The field names are the JSON's, the table's and Python's."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from flipguard._version import __version__


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Figure(_Record):
    """An estimate with its confidence interval, as a fraction and not in percent."""

    value: Annotated[float | None, Field(description="the estimate; null when nothing it is made of was observed")]
    low: Annotated[float | None, Field(description="lower end; null where no interval is given or it is unbounded")]
    high: Annotated[float | None, Field(description="upper end; null where no interval is given or it is unbounded")]

    def __float__(self) -> float:
        return float("nan") if self.value is None else self.value

    def __str__(self) -> str:
        """As it is printed.

        >>> print(Figure(value=5 / 897, low=0.00181, high=0.01296))
        0.005574 [0.00181, 0.01296]
        """
        value, low, high = ("–" if one is None else f"{one:.4g}" for one in (self.value, self.low, self.high))
        return value if self.low is None and self.high is None else f"{value} [{low}, {high}]"


OptionalFigure = Figure | None


class Figures(_Record):
    """Everything that is measured of a set of samples, all of them or one class or slice."""

    n: Annotated[int, Field(description="samples compared")]
    labelled: Annotated[int, Field(description="of them, samples with a label; all rates but churn rest on these")]
    negative_flips: Annotated[int, Field(description="old right, new wrong")]
    positive_flips: Annotated[int, Field(description="old wrong, new right")]
    missing_old: Annotated[int, Field(description="samples without a prediction of the old model (counted as wrong)")]
    missing_new: Annotated[int, Field(description="samples without a prediction of the new model (counted as wrong)")]
    error_rate_old: OptionalFigure = None
    error_rate_new: OptionalFigure = None
    error_difference: Annotated[OptionalFigure, Field(description="error_rate_new - error_rate_old, paired")] = None
    negative_flip_rate: OptionalFigure = None
    positive_flip_rate: OptionalFigure = None
    relative_negative_flip_rate: Annotated[
        OptionalFigure, Field(description="negative_flip_rate / ((1 - error_rate_old) * error_rate_new)")
    ] = None
    churn: Annotated[OptionalFigure, Field(description="share of samples whose prediction changed")] = None
    churn_correct: Annotated[OptionalFigure, Field(description="churn among samples the old model had right")] = None
    churn_incorrect: Annotated[OptionalFigure, Field(description="churn among samples the old model had wrong")] = None
    churn_bound: Annotated[
        OptionalFigure, Field(description="error_rate_old + error_rate_new; churn cannot exceed it")
    ] = None
    negative_flip_impact: Annotated[
        OptionalFigure, Field(description="share of the new errors that are negative flips")
    ] = None
    backward_trust_compatibility: Annotated[
        OptionalFigure, Field(description="share of the old model's successes kept")
    ] = None
    backward_error_compatibility: Annotated[
        OptionalFigure, Field(description="share of the new model's errors that the old one made too")
    ] = None
    weighted_error_rate_old: OptionalFigure = None
    weighted_error_rate_new: OptionalFigure = None
    weighted_negative_flip_rate: OptionalFigure = None
    weighted_positive_flip_rate: OptionalFigure = None
    flip_cost: Annotated[
        OptionalFigure, Field(description="cost_ratio * NFR - PFR, weighted if there are weights; above 0 is harm")
    ] = None
    surrogate_churn: Annotated[
        OptionalFigure,
        Field(
            description="half the mean L1 distance of the two models' (p / max p)^alpha: no share, but from 0 to C/2, "
            "with the C classes that both know, so it may exceed 1"
        ),
    ] = None
    nll_old: OptionalFigure = None
    nll_new: OptionalFigure = None
    nll_difference: Annotated[OptionalFigure, Field(description="nll_new - nll_old, paired")] = None
    ece_old: OptionalFigure = None
    ece_new: OptionalFigure = None
    cnll_old: Annotated[OptionalFigure, Field(description="nll_old after temperature scaling")] = None
    cnll_new: OptionalFigure = None
    cece_old: Annotated[OptionalFigure, Field(description="ece_old after temperature scaling")] = None
    cece_new: OptionalFigure = None
    prediction_confidence_old: Annotated[
        OptionalFigure, Field(description="mean difference of the two largest probabilities")
    ] = None
    prediction_confidence_new: OptionalFigure = None
    predictive_entropy_old: OptionalFigure = None
    predictive_entropy_new: OptionalFigure = None
    logit_displacement: Annotated[
        OptionalFigure, Field(description="mean L2 distance between the two logit vectors")
    ] = None
    logit_displacement_by_outcome: Annotated[
        dict[str, Figure] | None, Field(description="the same among each kind of outcome")
    ] = None
    flip_rank: Annotated[
        list[int] | None,
        Field(description="negative flips by the rank of the new, wrong class in the old logits: 1 to 10, then beyond"),
    ] = None
    mcnemar_p: Annotated[
        float | None, Field(description="two-sided p-value that both models err equally often (exact unless clustered)")
    ] = None


class Group(Figures):
    """One class or one value of a slice column."""

    value: Annotated[str | None, Field(description="class name or slice value; null for samples that have none")]
    simultaneous_negative_flip_rate: Annotated[
        OptionalFigure, Field(description="the interval widened so that those of all groups hold together")
    ] = None
    adjusted_p: Annotated[float | None, Field(description="mcnemar_p adjusted over the groups")] = None
    example: Annotated[int | str | None, Field(description="id of one negative flip")] = None


class FlippedSample(_Record):
    """A negative flip."""

    id: int | str
    label: str | None
    old: str | None
    new: str | None
    old_confidence: Annotated[float | None, Field(description="the old model's largest probability")] = None
    new_confidence: Annotated[float | None, Field(description="the new model's largest probability")] = None
    displacement: float | None = None
    rank: Annotated[int | None, Field(description="rank of the new prediction in the old logits")] = None


class File(_Record):
    """One side of the comparison, as far as its file tells."""

    name: str
    rows: int
    model: str | None = None
    version: str | None = None
    fingerprint: Annotated[str | None, Field(description="of ids and labels, as the file states it")] = None


class Noise(_Record):
    """The flips that retraining alone causes, from retrained copies of the old model."""

    copies: int
    negative_flip_rate: Annotated[Figure, Field(description="mean over the copies, each against the old model")]
    rates: Annotated[list[float], Field(description="one per copy")]
    excess: Annotated[Figure, Field(description="this update's negative flip rate minus the copies'")]
    p: Annotated[
        float | None,
        Field(description="one-sided p-value that the update flips no more than retraining does; null of one copy"),
    ]
    exceeds: Annotated[bool, Field(description="whether the excess is above 0 with the given confidence")]


class Rule(_Record):
    """One threshold and how it came out."""

    name: str
    limit: float
    figure: str
    value: float | None
    judged: Annotated[float | None, Field(description="the number that was held against the limit")]
    passed: bool
    group: Annotated[str | None, Field(description="for slices: the worst one, as column=value")] = None
    samples_needed: Annotated[
        int | None,
        Field(description="labelled samples at which this value would pass; null if it passed or never would"),
    ] = None
    reason: str


class Gate(_Record):
    """The verdict: null without rules, else whether every rule passed."""

    passed: bool | None
    judged_on: Annotated[str, Field(description="interval or value")]
    rules: list[Rule]


SHOWN = (
    "negative_flip_rate",
    "positive_flip_rate",
    "relative_negative_flip_rate",
    "churn",
    "error_rate_old",
    "error_rate_new",
    "error_difference",
)
"""What a comparison prints of itself."""


class Comparison(Figures):
    """Two models on the same samples: what changed, how surely, where, and whether it may be released."""

    old: File
    new: File
    confidence: float
    cluster: str | None = None
    surrogate_churn_alpha: float = 1.0
    cost_ratio: float | None = None
    temperature_old: float | None = None
    temperature_new: float | None = None
    correction: Annotated[str, Field(description="how p-values and slice intervals are adjusted: holm or bh")] = "holm"
    old_classes: Annotated[
        Figures | None, Field(description="over samples of the old model's classes only, when the new one knows others")
    ] = None
    classes: list[Group] = []
    slices: dict[str, list[Group]] = {}
    worst_flips: list[FlippedSample] = []
    noise: Noise | None = None
    samples_to_significance: Annotated[
        int | None,
        Field(
            description="samples at which this difference in error would be significant with power 0.8, if it is not"
        ),
    ] = None
    gate: Gate = Gate(passed=None, judged_on="interval", rules=[])

    notes: Annotated[
        list[str], Field(description="what a reader should know: dropped rows, missing predictions, …")
    ] = []
    flipguard_version: str = __version__

    def __str__(self) -> str:
        """What matters most, by the fields' names; `flipguard compare` prints all of it.

        >>> nothing = Figures(n=7, labelled=0, negative_flips=0, positive_flips=0, missing_old=0, missing_new=0)
        >>> old, new = (File(name=name, rows=7) for name in ("v1", "v2"))
        >>> print(Comparison(old=old, new=new, confidence=0.95, **nothing.model_dump(exclude_none=True)))
        v1 → v2: 7 samples, negative flips 0, positive flips 0
        """
        names = [" ".join(filter(None, (side.model, side.version))) or side.name for side in (self.old, self.new)]
        flips = f"negative flips {self.negative_flips:,}, positive flips {self.positive_flips:,}"
        lines = [f"{' → '.join(names)}: {self.n:,} samples, {flips}"]
        shown = {name: getattr(self, name) for name in SHOWN}
        shown["mcnemar_p"] = None if self.mcnemar_p is None else f"{self.mcnemar_p:.4g}"
        lines += [f"  {name:<27} {figure}" for name, figure in shown.items() if figure is not None]
        if self.gate.passed is not None:
            broken = ", ".join(dict.fromkeys(rule.name for rule in self.gate.rules if not rule.passed))
            lines.append(f"  {'gate':<27} {'passed' if self.gate.passed else f'refused: {broken}'}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows."""
        printer.text(str(self))

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)


class Matrix(_Record):
    """A chain of versions, each against each."""

    versions: list[str]
    n: int
    error_rate: list[Figure]
    negative_flip_rate: Annotated[list[list[Figure]], Field(description="row: the old version, column: the new one")]
    churn: list[list[Figure]]
    negative_flips: list[list[int]]
    sum_negative_flips: Annotated[int, Field(description="ΣNF over the consecutive updates")]
    mean_negative_flip_rate: Annotated[float | None, Field(description="ΣNF / (n * updates)")]
    mean_pairwise_negative_flip_rate: Annotated[float | None, Field(description="over all pairs, older to newer")]
    confidence: float
    notes: list[str] = []
    flipguard_version: str = __version__

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)


def json_schema(kind: type[BaseModel] = Comparison) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `compare --json` writes."""
    schema = kind.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
