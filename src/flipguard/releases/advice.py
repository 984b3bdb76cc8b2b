"""What a run tells before it begins: the way that was recommended, or could be where nobody named a method."""

from flipguard.releases.plan import TrainSpec, VersionPlan
from flipguard.releases.recommended import RECOMMENDED, Way, taken, way_for
from flipguard.releases.resolved import data_of


def advice(spec: TrainSpec, resolved: TrainSpec) -> list[str]:
    """A line for each version that was left to us, and one where an update is trained as if there were no old model."""
    given, done = _given(spec), resolved.versions or []
    told = [
        _told(f"'{after.name}' is made by {{}}, {after.train.epochs} epochs", taken(after.method))
        for before, after in zip(given, done, strict=True)
        if (before.method or spec.method).name == RECOMMENDED and after.method is not None and after.train is not None
    ]
    if len(given) > 1 and given[-1].model is not None and _names_no_method(spec):
        key = "new" if spec.versions is None else f"versions.{done[-1].name}"
        way = way_for(done[:-1], data_of(spec, given[-1]))
        told.append(
            _told(
                f"no method is named, so '{done[-1].name}' is trained without regard to '{done[-2].name}'. "
                f"{key}.method=recommended takes {{}}",
                way,
            )
        )
    return told


def _told(what: str, way: Way) -> str:
    return f"{what.format(way.name)}: {way.why} (docs/methods/{way.name}.md)."


def _given(spec: TrainSpec) -> list[VersionPlan]:
    return spec.versions if spec.versions is not None else [one for one in (spec.old, spec.new) if one is not None]


def _names_no_method(spec: TrainSpec) -> bool:
    return "method" not in spec.model_fields_set and all(version.method is None for version in _given(spec))
