"""`flipguard figure NAME`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.figure_sources import Sources
from flipguard.cli.outputs import check_outputs, say
from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.analysis.plots import Plot

EPILOG = """Examples:

  flipguard figure epochs runs/plain runs/focal --out f.svg

  flipguard figure error-against-flips --old old.parquet --new plain.parquet focal.parquet elodi.parquet --out f.svg

  flipguard figure ensemble-size --old small_*.parquet --new large_*.parquet --sizes 1 2 4 8 --out f.svg

  flipguard figure against-parameter runs/alpha_* --key method.alpha --out f.json

  flipguard figure two-class --out f.svg"""


def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which figure; an unknown name lists them all.")],
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]…", help="Run folders: the last version is new, the one before old."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="A .svg, .png or .pdf picture, or .json data; always needed.", metavar="FILE")
    ] = None,
    old: Annotated[
        list[str] | None, typer.Option(help="Predictions of the old model or members.", metavar="FILE…")
    ] = None,
    new: Annotated[
        list[str] | None, typer.Option(help="Predictions of the new models or members.", metavar="FILE…")
    ] = None,
    treated: Annotated[
        list[str] | None,
        typer.Option(help="For uncertainty-of-flips: new models of a second training.", metavar="FILE…"),
    ] = None,
    outside: Annotated[
        list[str] | None, typer.Option(help="For entropy: predictions on foreign samples.", metavar="FILE…")
    ] = None,
    values: Annotated[
        list[float] | None,
        typer.Option(help="One per NEW: what sets them apart; equal for runs of one setting.", metavar="NUMBER…"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="What sets runs apart: a dotted key of the spec's versions.", metavar="KEY"),
    ] = None,
    sizes: Annotated[
        list[int] | None, typer.Option(help="Members of the ensembles to draw.", metavar="NUMBER…")
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option(help="For displacements: ids, a panel each.", metavar="ID…")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", help="Use these numbers per row, such as features, for logits.", metavar="COLUMN"),
    ] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="For entropy, confidence: each NEW is a model, not a member of one.")
    ] = False,
    same: Annotated[
        bool, typer.Option("--same", help="OLD and NEW are of one architecture: their means agree.")
    ] = False,
    debug: o.Debug = False,
) -> int:
    """Draw one of the papers' figures from prediction files or run folders.

    Exit status: 0 written, 2 bad input.
    """
    given = {key: value for key, value in locals().items() if key not in ("name", "out", "debug")}
    if name not in FIGURES:
        raise InputError(f"there is no figure '{name}'; there are {', '.join(FIGURES)}.")
    # Only now, so that an unknown name lists them all, whatever else is given.
    if out is None:
        raise InputError(f"the figure {name} needs --out FILE: a .svg, .png or .pdf picture, or .json data.")
    told: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    sources = Sources(name, **told)
    check_outputs({"--out": out}, [str(file) for file in sources.files()])
    plot = FIGURES[name](sources)
    if out.lower().endswith(".json"):
        from flipguard.reports.write import write_text

        write_text(Path(out), plot.to_json())
    else:
        from flipguard.analysis.draw import draw

        draw(plot, out)
    from flipguard.reports.wording import clean

    facts = "".join(f"{clean(fact)}: {value:.4g}\n" for fact, value in plot.facts.items())
    say(f"{facts}{clean(out, 200)}: {clean(plot.source, 200)}\n")
    return 0


def _error_against_flips(sources: Sources) -> "Plot":
    from flipguard.analysis.rates import error_against_flips

    return error_against_flips(sources.updates())


def _gain_against_flips(sources: Sources) -> "Plot":
    from flipguard.analysis.rates import gain_against_flips

    zoo, options = sources.versions()
    return gain_against_flips(zoo, **options)


def _chain(sources: Sources) -> "Plot":
    from flipguard.analysis.rates import over_the_chain
    from flipguard.comparison.chain import matrix

    versions, options = sources.versions(of_one_run=True)
    return over_the_chain(matrix(versions, **options))


def _against_parameter(sources: Sources) -> "Plot":
    from flipguard.analysis.rates import against_parameter

    return against_parameter(sources.valued(), name=sources.key or "parameter")


def _epochs(sources: Sources) -> "Plot":
    from flipguard.analysis.epochs import flips_over_epochs

    if not sources.runs:
        raise InputError("the figure epochs needs run folders: flipguard figure epochs RUN… --out FILE.")
    return flips_over_epochs(sources.groups())


def _ensemble_size(sources: Sources) -> "Plot":
    from flipguard.analysis.ensembles import ensemble_size

    return ensemble_size({"": sources.members()}, **sources.chosen_sizes())


def _uncertainty(sources: Sources) -> "Plot":
    from flipguard.analysis.ensembles import uncertainty_of_flips
    from flipguard.analysis.members import read_members

    old, new = sources.members()
    treated = read_members(sources.treated, like=old) if sources.treated else None
    return uncertainty_of_flips(old, new, treated=treated)


def _ranks(sources: Sources) -> "Plot":
    from flipguard.analysis.ensembles import wrong_class_ranks

    return wrong_class_ranks(*sources.members(), **sources.chosen_sizes())


def _logit_arrows(sources: Sources) -> "Plot":
    from flipguard.analysis.planes import logit_arrows

    return logit_arrows(*sources.members(), **sources.chosen_sizes())


def _logit_members(sources: Sources) -> "Plot":
    from flipguard.analysis.planes import logit_members

    old, new = sources.members()
    return logit_members(old, new, size=sources.sizes[0] if sources.sizes else 3)


def _feature_arrows(sources: Sources) -> "Plot":
    from flipguard.analysis.planes import feature_arrows

    return feature_arrows(*sources.embedded(), **sources.chosen_sizes())


def _norms(sources: Sources) -> "Plot":
    from flipguard.analysis.displacement import displacement_norms

    old, new = sources.members()
    chosen = {**sources.chosen_sizes(), **sources.chosen_samples(old)}
    return displacement_norms(old, new, centred=sources.same, of=_of(sources), **chosen)


def _density(sources: Sources) -> "Plot":
    from flipguard.analysis.density import displacement_density

    old, new = sources.members()
    return displacement_density(old, new, of=_of(sources), **sources.chosen_sizes(), **sources.chosen_samples(old))


def _of(sources: Sources) -> str:
    return "logit" if sources.column is None else sources.column.removesuffix("s")


def _entropy(sources: Sources) -> "Plot":
    from flipguard.analysis.confidence import entropy_in_and_out

    return entropy_in_and_out(*sources.models())


def _confidence(sources: Sources) -> "Plot":
    from flipguard.analysis.confidence import prediction_confidence

    if sources.runs or sources.apart:
        return prediction_confidence(sources.models()[0])
    old, new = sources.members()
    return prediction_confidence({"old": old, "new": new})


def _churn(sources: Sources) -> "Plot":
    from flipguard.analysis.churn import churn_against_coefficient

    return churn_against_coefficient(sources.sweeps())


def _trade_off(sources: Sources) -> "Plot":
    from flipguard.analysis.churn import accuracy_against_churn

    return accuracy_against_churn(sources.sweeps())


def _losses(sources: Sources) -> "Plot":
    with_torch("torch", "the losses", "train")
    from flipguard.analysis.confidence import regularised_losses

    return regularised_losses()


def _line(sources: Sources) -> "Plot":
    room: Any = with_torch("flipguard.analysis.released", "the line between networks", "train")
    if not sources.runs:
        raise InputError("the figure line needs run folders: flipguard figure line RUN… --out FILE.")
    plot: Plot = room.line_of_runs({name: group[0] for name, group in sources.groups().items()})
    return plot


def _two_class(sources: Sources) -> "Plot":
    train = with_torch("flipguard.analysis.trained", "the two-class example", "train").digit_members
    from flipguard.analysis.density import displacement_density
    from flipguard.analysis.planes import least_decided, logit_arrows, logit_members
    from flipguard.analysis.plots import joined

    old, new = (train(12, width=8, digits=(3, 8), rows=20, seed=seed) for seed in (0, 1000))
    arrows, around = logit_arrows(old, new, **sources.chosen_sizes()), logit_members(old, new)
    density = displacement_density(old, new, samples=(least_decided(old, new),), **sources.chosen_sizes())
    return joined("two-class", "Two-class logits, old to new", "ELODI Fig. 3", [arrows, around, density])


def _three_class(sources: Sources) -> "Plot":
    train = with_torch("flipguard.analysis.trained", "the three-class example", "train").digit_embeddings
    from flipguard.analysis.density import displacement_density
    from flipguard.analysis.planes import feature_arrows
    from flipguard.analysis.plots import joined

    chosen: dict[str, Any] = {"digits": ("3", "5", "8"), "per_class": 20, "epochs": 60}
    old, new = (train(12, seed=seed, **chosen) for seed in (0, 1000))
    density = displacement_density(old.as_members(), new.as_members(), of="feature")
    plots = [feature_arrows(old, new, **sources.chosen_sizes()), density]
    return joined("three-class", "Two-dimensional features of three classes, old to new", "ELODI Fig. 11", plots)


FIGURES: dict[str, Callable[[Sources], "Plot"]] = {
    "error-against-flips": _error_against_flips,
    "gain-against-flips": _gain_against_flips,
    "chain": _chain,
    "against-parameter": _against_parameter,
    "epochs": _epochs,
    "ensemble-size": _ensemble_size,
    "wrong-class-ranks": _ranks,
    "uncertainty-of-flips": _uncertainty,
    "logit-arrows": _logit_arrows,
    "logit-members": _logit_members,
    "feature-arrows": _feature_arrows,
    "displacement-norms": _norms,
    "displacement-density": _density,
    "entropy": _entropy,
    "confidence": _confidence,
    "churn": _churn,
    "churn-trade-off": _trade_off,
    "losses": _losses,
    "line": _line,
    "two-class": _two_class,
    "three-class": _three_class,
}
