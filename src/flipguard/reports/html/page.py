"""`flipguard.report`: two models compared, as a page."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from flipguard._version import __version__
from flipguard.analysis.plots import Plot, read_plot
from flipguard.comparison.chain import matrix
from flipguard.comparison.detail import Detail
from flipguard.comparison.result import Comparison, Matrix
from flipguard.comparison.run import compare, compare_in_detail
from flipguard.predictions import Predictions, read_predictions
from flipguard.reports.html import assets, chains, charts, content, scores
from flipguard.reports.html.figures import figure_charts
from flipguard.reports.html.payload import FAR, NEAR, flip_payload, negative_flips
from flipguard.reports.html.samples import Samples, columns_of, pictures_in, samples_of
from flipguard.reports.wording import clean, rule_name, titles, verdict
from flipguard.reports.write import write_text
from flipguard.types import InputError

MAX_FLIPS = 20_000
GROUPS_SHOWN = 12
_SHARED = ("labels", "class_map", "on_missing", "split", "memory", "confidence")
_VERSIONS = ("numpy", "pyarrow", "duckdb", "plotly", "jinja2")


@dataclass(frozen=True)
class Look:
    """How the flips are shown and what stands beside the comparison; the arguments of `report`."""

    images: str | Path | None = None
    data: Any = None
    data_folder: str | Path | None = None
    show: Sequence[str] | None = None
    candidates: Sequence[Any] = ()
    chain: Sequence[Any] = ()
    figures: Sequence[Any] = ()
    max_flips: int = MAX_FLIPS
    command: str | None = None

    def __post_init__(self) -> None:
        for name in ("show", "candidates", "chain", "figures"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, list | tuple):
                # A single source stands for a list of one: a path would otherwise come apart into letters.
                object.__setattr__(self, name, (given,))
        if self.images is not None and self.data is not None:
            raise InputError("--images and --data both say where the samples are: give one of them.")
        if self.max_flips < 1:
            raise InputError(f"--max-flips must be at least 1, it is {self.max_flips}.")


@dataclass(frozen=True)
class Page:
    """Everything that the template shows."""

    detail: Detail
    sides: tuple[Predictions, Predictions]
    look: Look
    candidates: list[Comparison] = field(default_factory=list)
    chain: Matrix | None = None
    figures: list[Plot] = field(default_factory=list)


def report(
    old: Any,
    new: Any,
    out: str | Path,
    *,
    images: str | Path | None = None,
    data: Any = None,
    data_folder: str | Path | None = None,
    show: Sequence[str] | None = None,
    candidates: Sequence[Any] = (),
    chain: Sequence[Any] = (),
    figures: Sequence[Any] = (),
    max_flips: int = MAX_FLIPS,
    command: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare two models and write what there is to see as one HTML file that needs nothing beside it.

    `old`, `new` and the further options are those of `compare`, whose comparison is returned.

    images       a folder with an image file per id, shown as thumbnails
    data         where the samples are instead: a `DataSet`, or what `load_data` takes (this needs torch)
    data_folder  the folder that `load_data` looks in
    show         columns of the prediction files to show with a flip, such as a text; by default those with too many
                 values to slice by
    candidates   predictions of other new models, set against the same old one
    chain        predictions of the versions before `old`, oldest first
    figures      figures to show besides: each a `Plot` of `flipguard.analysis`, or the .json of `flipguard figure`
    max_flips    how many flips the page holds, the surest first
    command      the command to say that the page was made by
    """
    check_extra()
    look = Look(images, data, data_folder, show, candidates, chain, figures, max_flips, command)
    page = gathered(compare_in_detail(old, new, **options), old, new, look, options)
    write_text(Path(out), html(page))
    return page.detail.comparison


def check_extra() -> None:
    """An error now rather than after a long comparison, if what draws the page is not installed."""
    for name in ("jinja2", "plotly.offline"):
        assets.needed(name)


def gathered(detail: Detail, old: Any, new: Any, look: Look, options: dict[str, Any]) -> Page:
    """A finished comparison with its rivals and its forebears; `options` are those it was made with."""
    shared = {name: options[name] for name in _SHARED if options.get(name) is not None}
    rivals = [compare(old, rival, by=(), **shared) for rival in look.candidates]
    versions = [*look.chain, old, new]
    return Page(
        detail=detail,
        sides=(_read(old, "old"), _read(new, "new")),
        look=look,
        candidates=[detail.comparison, *rivals] if rivals else [],
        chain=matrix(versions, **shared) if look.chain else None,
        figures=[figure if isinstance(figure, Plot) else read_plot(figure) for figure in look.figures],
    )


def _read(source: Any, name: str) -> Predictions:
    return read_predictions(source, name=None if isinstance(source, str | Path) else name)


def html(page: Page) -> str:
    """The page as text."""
    jinja = assets.needed("jinja2")
    environment = jinja.Environment(
        loader=jinja.PackageLoader("flipguard.reports.html"),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    text: str = environment.get_template("report.html.j2").render(_context(page))
    # A lone surrogate has no UTF-8, and one odd name is no reason to have no report.
    return text.encode(errors="replace").decode()


def _context(page: Page) -> dict[str, Any]:
    detail, comparison = page.detail, page.detail.comparison
    flips = negative_flips(detail, page.look.max_flips)
    flip_columns = flip_payload(detail, flips, _samples(page, flips))
    drawn = _charts(page, flip_columns["classes"])
    payload = {
        "flips": flip_columns,
        "charts": {chart.id: chart.spec for group in drawn.values() for chart in group},
        "file": f"flips-{_file_stem(comparison)}.csv",
    }
    return {
        "policy": assets.policy(),
        "style": assets.static("report.css"),
        "script": assets.static("report.js"),
        "plotly": assets.packed_plotly(),
        "payload": assets.packed_json(payload),
        "titles": titles(comparison),
        "comparison": comparison,
        "level": f"{100 * comparison.confidence:g}%",
        "verdict": verdict(comparison),
        "headline": content.headline(comparison),
        "noise": content.noise_sentence(comparison.noise),
        "tiles": list(content.tiles(comparison)),
        "rules": [(rule.passed, rule_name(rule), clean(rule.reason, 200)) for rule in comparison.gate.rules],
        "classes": content.class_rows(comparison, flip_columns["classes"]),
        "slices": content.slice_rows(comparison, [column["values"] for column in flip_columns["slices"]]),
        "shown": GROUPS_SHOWN,
        "models": content.model_rows(comparison),
        "charts": drawn,
        "facts": [_facts(plot) for plot in page.figures if plot.facts],
        "flips": flips,
        "near": NEAR,
        "far": FAR,
        "made": _made(page),
    }


def _charts(page: Page, classes: Sequence[str]) -> dict[str, list[charts.Chart]]:
    """By the section that shows them."""
    comparison = page.detail.comparison
    every = negative_flips(page.detail, len(page.detail.flips))
    return {
        "flow": [charts.flow(comparison)] if comparison.labelled else [],
        "candidates": [chains.candidates(page.candidates)] if page.candidates and comparison.labelled else [],
        "confusion": [charts.confusion(every, classes)] if len(every) else [],
        "scores": list(scores.score_charts(page.detail, every)),
        "chain": [chains.heat_map(page.chain), chains.history(page.chain)] if page.chain is not None else [],
        "figures": [chart for place, plot in enumerate(page.figures) for chart in figure_charts(plot, place)],
    }


def _facts(plot: Plot) -> tuple[str, list[tuple[str, str]]]:
    """A figure's title and the numbers of its caption."""
    return clean(plot.title, 120), [(clean(name, 120), f"{value:.4g}") for name, value in plot.facts.items()]


def _samples(page: Page, flips: pa.Table) -> Samples:
    look, ids = page.look, flips["id"].combine_chunks()
    names = list(look.show) if look.show is not None else _unsliced(page)
    columns = columns_of(page.sides, ids, names) if len(flips) else {}
    if not len(flips):
        return Samples()
    if look.images is not None:
        return Samples(pictures_in(look.images, ids.to_pylist()), columns)
    if look.data is not None:
        found = samples_of(_data_set(look), ids.to_pylist())
        return Samples(found.pictures, {**found.columns, **columns})
    return Samples(columns=columns)


def _data_set(look: Look) -> Any:
    if hasattr(look.data, "parts"):
        return look.data
    return assets.with_torch("flipguard.data.load").load_data(look.data, folder=look.data_folder)


def _unsliced(page: Page) -> list[str]:
    """Columns that are neither known nor sliced by: texts, file names, measurements."""
    names = dict.fromkeys(name for side in page.sides for name in side.slices)
    return [name for name in names if name not in page.detail.slices and name != page.detail.comparison.cluster]


def _file_stem(comparison: Comparison) -> str:
    names = "-".join(titles(comparison))
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in names)[:80].strip("-.") or "report"


def _made(page: Page) -> dict[str, Any]:
    """How the page came about."""
    return {
        "files": [
            {
                "side": side,
                "name": clean(p.name, 200),
                "model": clean(" ".join(filter(None, (p.model, p.version))) or "–"),
                "rows": f"{p.rows:,}",
                "fingerprint": p.data_fingerprint(),
                "stated": p.fingerprint,
            }
            for side, p in zip(("old", "new"), page.sides, strict=True)
        ],
        "versions": [("flipguard", __version__), ("Python", platform.python_version())]
        + [(name, version(name)) for name in _VERSIONS],
        "command": clean(page.look.command, 2000) if page.look.command else "",
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
