"""`flipguard figure NAME`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.outputs import check_outputs, say
from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.analysis.plots import Plot

EPILOG = """Examples:

  flipguard figure error-against-flips --old old.parquet --new plain.parquet focal.parquet elodi.parquet --out f.svg

  flipguard figure ensemble-size --old small_*.parquet --new large_*.parquet --sizes 1 2 4 8 --out f.svg

  flipguard figure against-parameter --old old.parquet --new a.parquet b.parquet --values 0.2 0.8 --out f.json

  flipguard figure two-class --out f.svg"""


def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which figure; an unknown name lists them all.")],
    out: Annotated[str, typer.Option(help="A .svg, .png or .pdf picture, or .json data.", metavar="FILE")],
    old: Annotated[
        list[str] | None, typer.Option(help="Predictions of the old model or members.", metavar="FILE…")
    ] = None,
    new: Annotated[
        list[str] | None, typer.Option(help="Predictions of the new models or members.", metavar="FILE…")
    ] = None,
    outside: Annotated[
        list[str] | None, typer.Option(help="For entropy: predictions on foreign samples.", metavar="FILE…")
    ] = None,
    values: Annotated[
        list[float] | None, typer.Option(help="For against-parameter: one per NEW.", metavar="NUMBER…")
    ] = None,
    sizes: Annotated[
        list[int] | None, typer.Option(help="Members of the ensembles to draw.", metavar="NUMBER…")
    ] = None,
    sample: Annotated[str | None, typer.Option(help="For displacements: the id of the sample.", metavar="ID")] = None,
    column: Annotated[
        str | None, typer.Option(help="Use these numbers per row, such as features, for logits.", metavar="COLUMN")
    ] = None,
    same: Annotated[
        bool, typer.Option("--same", help="OLD and NEW are of one architecture: their means agree.")
    ] = False,
    debug: o.Debug = False,
) -> int:
    """Draw one of the papers' figures from prediction files.

    Exit status: 0 written, 2 bad input.
    """
    given = dict(locals())
    if name not in FIGURES:
        raise InputError(f"there is no figure '{name}'; there are {', '.join(FIGURES)}.")
    check_outputs({"--out": out}, [*(old or ()), *(new or ()), *(outside or ())])
    plot = FIGURES[name](given)
    if out.lower().endswith(".json"):
        from flipguard.reports.write import write_text

        write_text(Path(out), plot.to_json())
    else:
        from flipguard.analysis.draw import draw

        draw(plot, out)
    say("".join(f"{fact}: {value:.4g}\n" for fact, value in plot.facts.items()) + f"{out}: {plot.source}\n")
    return 0


def _needed(given: dict[str, Any], *options: str) -> None:
    for option in options:
        if not given[option]:
            raise InputError(f"the figure {given['name']} needs --{option}.")


def _sizes(given: dict[str, Any]) -> dict[str, Any]:
    return {"sizes": tuple(given["sizes"])} if given["sizes"] else {}


def _members(given: dict[str, Any]) -> tuple[Any, Any]:
    from flipguard.analysis.members import read_members

    _needed(given, "old", "new")
    old = read_members(given["old"], column=given["column"])
    return old, read_members(given["new"], like=old, column=given["column"])


def _sample(given: dict[str, Any], members: Any) -> dict[str, Any]:
    if given["sample"] is None:
        return {}
    ids = [str(id_) for id_ in members.ids]
    if given["sample"] not in ids:
        raise InputError(f"--sample {given['sample']}: no such id; the first is {ids[0]}.")
    return {"sample": ids.index(given["sample"])}


def _error_against_flips(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.rates import error_against_flips

    _needed(given, "old", "new")
    return error_against_flips(_one(given["old"]), given["new"])


def _one(files: list[str]) -> str:
    if len(files) != 1:
        raise InputError(f"the figure takes one --old, {len(files)} came.")
    return files[0]


def _gain_against_flips(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.rates import gain_against_flips

    _needed(given, "new")
    return gain_against_flips(given["new"])


def _against_parameter(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.rates import against_parameter

    _needed(given, "old", "new", "values")
    if len(given["values"]) != len(given["new"]) or len(set(given["values"])) < len(given["new"]):
        raise InputError(f"each of the {len(given['new'])} --new needs a value of its own: {given['values']} came.")
    return against_parameter(_one(given["old"]), dict(zip(given["values"], given["new"], strict=True)))


def _of_members(module: str, function: str, *, sized: bool = True) -> Callable[[dict[str, Any]], "Plot"]:
    def run(given: dict[str, Any]) -> "Plot":
        import importlib

        old, new = _members(given)
        further = _sizes(given) if sized else {}
        if module == "displacement":
            further |= _sample(given, old)
        if function == "displacement_norms":
            further["centred"] = given["same"]
        plot: Plot = getattr(importlib.import_module(f"flipguard.analysis.{module}"), function)(old, new, **further)
        return plot

    return run


def _entropy(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.confidence import entropy_in_and_out
    from flipguard.analysis.members import read_members

    _needed(given, "new")
    inside = read_members(given["new"])
    outside = {"model": read_members(given["outside"])} if given["outside"] else {}
    return entropy_in_and_out({"model": inside}, outside)


def _confidence(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.confidence import prediction_confidence

    old, new = _members(given)
    return prediction_confidence({"old": old, "new": new})


def _losses(given: dict[str, Any]) -> "Plot":
    from flipguard.analysis.confidence import regularised_losses

    return regularised_losses()


def _two_class(given: dict[str, Any]) -> "Plot":
    from flipguard.cli.demo import with_torch

    train = with_torch("flipguard.analysis.trained", "the two-class example", "train").digit_members
    arrows = with_torch("flipguard.analysis.ensembles", "the two-class example", "train").logit_arrows
    old, new = (train(12, width=8, digits=(3, 8), rows=20, seed=seed) for seed in (0, 1000))
    plot: Plot = arrows(old, new, **_sizes(given))
    return plot


FIGURES: dict[str, Callable[[dict[str, Any]], "Plot"]] = {
    "error-against-flips": _error_against_flips,
    "gain-against-flips": _gain_against_flips,
    "against-parameter": _against_parameter,
    "ensemble-size": _of_members("ensembles", "ensemble_size"),
    "wrong-class-ranks": _of_members("ensembles", "wrong_class_ranks"),
    "uncertainty-of-flips": _of_members("ensembles", "uncertainty_of_flips", sized=False),
    "logit-arrows": _of_members("ensembles", "logit_arrows"),
    "displacement-norms": _of_members("displacement", "displacement_norms"),
    "displacement-cloud": _of_members("displacement", "displacement_cloud"),
    "entropy": _entropy,
    "confidence": _confidence,
    "losses": _losses,
    "two-class": _two_class,
}
