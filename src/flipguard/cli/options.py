"""The options that commands share, each with its one line of help."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from flipguard._shares import as_share

OUTPUT, DATA, STATISTICS, GATE, SETTINGS = "Output", "Data", "Statistics", "Gate", "Settings"


def _option(
    flag: str, help: str, panel: str, metavar: str | None = None, parser: Callable[[str], Any] | None = None
) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        flag, help=help, rich_help_panel=panel, metavar=metavar, show_default=False, parser=parser
    )
    return found


def _share(text: str) -> float:
    try:
        return float(as_share(text))
    except ValueError as error:
        raise typer.BadParameter(f"it is '{text}', and takes a number such as 0.05, or 5%.") from error


Json = Annotated[str | None, _option("--json", "Write everything as JSON; - is stdout.", OUTPUT, "FILE|-")]
Markdown = Annotated[str | None, _option("--markdown", "Write a pull-request comment; - is stdout.", OUTPUT, "FILE|-")]
Junit = Annotated[str | None, _option("--junit", "Write JUnit XML, a test case per gate rule.", OUTPUT, "FILE")]
Flips = Annotated[
    str | None,
    _option("--flips", "Write every changed prediction (.parquet, .csv or .jsonl).", OUTPUT, "FILE"),
]
Html = Annotated[str | None, _option("--html", "Write a page to look at: one file, no network.", OUTPUT, "FILE")]
Plain = Annotated[bool, _option("--plain", "No colour, 100 columns; the default when stdout is no terminal.", OUTPUT)]
Trust = Annotated[bool, _option("--trust", "Run code that the spec or the run names (module:factory).", SETTINGS)]
Debug = Annotated[bool, _option("--debug", "Show the traceback of an error.", OUTPUT)]

By = Annotated[
    list[str] | None,
    _option(
        "--by", "Slice by this column; repeatable. Default: every column with at most 100 values.", DATA, "COLUMN…"
    ),
]
Labels = Annotated[
    str | None,
    _option("--labels", "Whose labels hold where they differ, or a file with id and label.", DATA, "old|new|FILE"),
]
ClassMap = Annotated[
    str | None,
    _option("--class-map", "Old class names to new ones: a JSON object, or a CSV file old,new.", DATA, "FILE"),
]
OnMissing = Annotated[
    str | None,
    _option("--on-missing", "An id in one file only is an error (default), or dropped.", DATA, "error|drop"),
]
Split = Annotated[str | None, _option("--split", "Compare only the rows of this split.", DATA, "NAME")]
Memory = Annotated[
    str | None, _option("--memory", "What DuckDB may use before it spills to disk, such as 4GB.", DATA, "SIZE")
]

Spark = Annotated[
    str | None,
    _option("--spark", "OLD and NEW are tables of this Spark, also as the first argument.", DATA, "spark://HOST:PORT"),
]

Confidence = Annotated[
    float | None,
    _option("--confidence", "Confidence of the intervals: 0.9, or 90%. Default: 0.95.", STATISTICS, "SHARE", _share),
]
Cluster = Annotated[
    str | None,
    _option(
        "--cluster", "Rows with an equal value here are not independent (a video, a customer).", STATISTICS, "COLUMN"
    ),
]
Noise = Annotated[
    list[str] | None,
    _option(
        "--noise",
        "Predictions of retrained copies of OLD: the flips that retraining alone causes. Repeatable.",
        STATISTICS,
        "FILE…",
    ),
]
CalibrateOn = Annotated[
    list[str] | None,
    _option(
        "--calibrate-on",
        "Fit temperatures on these ids; or, given twice, on old's and new's validation predictions.",
        STATISTICS,
        "FILE…",
    ),
]
Correction = Annotated[
    str | None,
    _option("--correction", "Adjust p-values over classes and over slices. Default: holm.", STATISTICS, "holm|bh"),
]
Alpha = Annotated[
    float | None, _option("--alpha", "The exponent of surrogate churn. Default: 1.", STATISTICS, "NUMBER")
]
CostRatio = Annotated[
    float | None,
    _option("--cost-ratio", "What a negative flip costs, in positive flips: adds the flip cost.", STATISTICS, "NUMBER"),
]


def _limit(flag: str, help: str) -> typer.models.OptionInfo:
    return _option(flag, help, GATE, "SHARE", _share)


MaxNfr = Annotated[float | None, _limit("--max-nfr", "Refuse a larger negative flip rate: 0.01, or 1%.")]
MaxRelativeNfr = Annotated[float | None, _limit("--max-relative-nfr", "Refuse a larger relative negative flip rate.")]
MaxNewError = Annotated[float | None, _limit("--max-new-error", "Refuse a larger error of the new model.")]
MaxErrorIncrease = Annotated[
    float | None, _limit("--max-error-increase", "Refuse an error that rises by more than this.")
]
MaxChurn = Annotated[float | None, _limit("--max-churn", "Refuse more changed predictions.")]
MaxNewEce = Annotated[float | None, _limit("--max-new-ece", "Refuse a larger calibration error of the new model.")]
MaxNoiseExcess = Annotated[
    float | None, _limit("--max-noise-excess", "Refuse an NFR further above that of the --noise copies.")
]
MaxClassNfr = Annotated[float | None, _limit("--max-class-nfr", "Refuse if a class is shown to flip more.")]
MaxSliceNfr = Annotated[float | None, _limit("--max-slice-nfr", "Refuse if a slice is shown to flip more.")]
MinSlice = Annotated[
    int | None,
    _option("--min-slice", "Classes and slices with fewer labelled rows do not gate. Default: 30.", GATE, "ROWS"),
]
GateOn = Annotated[
    str | None,
    _option("--gate-on", "Judge the interval's upper end (default), or the value itself.", GATE, "interval|value"),
]

Config = Annotated[
    str | None,
    _option("--config", "Settings to use. Default: the nearest flipguard.toml, here or above.", SETTINGS, "FILE"),
]
NoConfig = Annotated[bool, _option("--no-config", "Use no flipguard.toml.", SETTINGS)]
