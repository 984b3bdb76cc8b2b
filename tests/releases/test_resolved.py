"""A spec with nothing left open."""

from collections.abc import Callable
from dataclasses import fields

import pytest

from flipguard.ensembles.perturbations import Perturbation
from flipguard.methods import METHODS
from flipguard.releases import TrainSpec, resolve
from flipguard.releases.plan import TrainPlan
from flipguard.releases.resolved import as_dict
from flipguard.releases.settled import build
from flipguard.releases.yaml_text import as_yaml, parse_yaml
from flipguard.spec import parse_training_spec
from flipguard.training import Recipe
from flipguard.types import InputError

Make = Callable[..., TrainSpec]


def test_the_training_settings_are_the_recipe_s_with_its_defaults() -> None:
    plan = TrainPlan()
    given = {each.name: getattr(plan, each.name) for each in fields(Recipe)}
    # What YAML writes as a list.
    assert given | {"scales": tuple(plan.scales)} == {each.name: each.default for each in fields(Recipe)}


@pytest.mark.parametrize("method", METHODS)
def test_resolving_twice_changes_nothing_also_through_a_file(method: str, small: Make) -> None:
    once = resolve(small(f"method.name={method}", "old.data.per_class=7", "new.train.epochs=5"))
    written = as_yaml(as_dict(once))
    again = resolve(parse_training_spec(parse_yaml(written, "spec.yaml")))
    assert as_yaml(as_dict(again)) == written


@pytest.mark.parametrize("method", METHODS)
def test_the_first_version_takes_the_method_only_if_it_can_do_without_an_old_model(method: str, small: Make) -> None:
    plans = [version.method for version in resolve(small(f"method.name={method}")).versions or [] if version.method]
    card = METHODS[method]
    asks_old = ["old" in getattr(build(plan), "needs", METHODS[plan.name].references) for plan in plans]
    # Averaged networks start from the old one, whatever they are mixed with afterwards.
    targeted = asks_old[1] or card.kind == "post-hoc"
    first = method if card.first or not targeted else "elodi" if card.heritage else "none"
    assert [plan.name for plan in plans] == [first, method]
    assert not asks_old[0]


def test_every_option_is_written_out_and_groups_are_filled(small: Make) -> None:
    versions = resolve(small("method.name=elodi", "method.difference.k=3", "train.label_smoothing=0.1")).versions or []
    method = versions[1].method
    assert method is not None
    assert method.options["difference"] == {**METHODS["elodi"].parameters()["difference"], "k": 3}
    assert method.options["label_smoothing"] == 0.1
    assert method.ensemble is not None
    assert method.ensemble.model == [versions[1].model]
    assert method.ensemble.train is not None
    assert method.ensemble.train.epochs == 3


@pytest.mark.parametrize("given", ["tdiv", "{kind: tdiv, size: 0.01}"])
def test_a_perturbation_goes_by_its_kind_or_its_options(given: str, small: Make) -> None:
    spec = resolve(small("method.name=elodi", f"method.perturbation={given}"))
    # Through the file that a run folder keeps, too.
    again = parse_training_spec(parse_yaml(as_yaml(as_dict(spec)), "spec.yaml"))
    for version in (spec.versions or [])[1], (resolve(again).versions or [])[1]:
        assert version.method is not None
        made = build(version.method).perturbation
        assert made == Perturbation("tdiv", size=1 / 255 if given == "tdiv" else 0.01)
    with pytest.raises(InputError, match=r"method: a perturbation is one of .*, got 'tdif'"):
        resolve(small("method.name=elodi", "method.perturbation=tdif"))


def test_training_settings_lie_over_one_another(small: Make) -> None:
    spec = small(
        "method.name=elodi", "new.train.epochs=5", "method.ensemble.train.epochs=2", "new.train.learning_rate=0.01"
    )
    old, new = resolve(spec).versions or []
    found = [
        (version.train.epochs, version.train.learning_rate, version.method.ensemble.train.learning_rate)  # type: ignore[union-attr]
        for version in (old, new)
    ]
    assert found == [(3, 0.05, 0.05), (5, 0.01, 0.01)]
    assert {version.method.ensemble.train.epochs for version in (old, new)} == {2}  # type: ignore[union-attr]


def test_no_two_networks_of_a_run_or_of_two_runs_draw_alike(small: Make) -> None:
    drawn = [
        version.seeds.order + member  # type: ignore[union-attr]
        for seed in (0, 1, 7)
        for version in resolve(small(f"seed={seed}")).versions or []
        for member in range(901)
    ]
    assert len(set(drawn)) == len(drawn)


def test_one_stream_can_be_held_fixed_alone(small: Make) -> None:
    spec = small(seeds={"initialisation": 0, "order": 5, "augment": 0})
    old, _ = resolve(spec).versions or []
    assert old.seeds is not None
    assert (old.seeds.initialisation, old.seeds.order, old.seeds.augment) == (0, 5_000_000, 0)
    own = resolve(small("old.seed=17")).versions or []
    assert own[0].seeds is not None
    assert own[0].seeds.order == 17


REFUSED = {
    "unknown method": (["method.name=eldoi"], "method.name: there is no method 'eldoi'; did you mean 'elodi'?"),
    "unknown option": (["method.name=kd", "method.alhpa=1"], "method has no key 'alhpa'; did you mean 'alpha'?"),
    "unknown inner option": (
        ["method.name=elodi", "method.difference.kk=1"],
        "method.difference has no key 'kk'; did you mean 'k'?",
    ),
    "option of another type": (["method.name=kd", "method.alpha=high"], "method.alpha must be a valid number"),
    "inner option of another type": (
        ["method.name=elodi", "method.difference.k=two"],
        "method.difference.k must be a valid integer",
    ),
    "a group that is a number": (["method.name=elodi", "method.difference=3"], "method.difference must be a mapping"),
    "option out of range": (["method.name=kd", "method.alpha=1.5"], "method: alpha must lie between 0 and 1, got 1.5."),
    "unknown data": (["data.name=digit"], "data.name: there is no data set 'digit'; did you mean 'digits'?"),
    "unknown data key": (["data.validaton=3"], "data has no key 'validaton'; did you mean 'validation'?"),
    "unknown key of a version's data": (["old.data.per_clas=3"], "old.data has no key 'per_clas'"),
    "no such recipe": (["train.epochs=0"], "train.epochs must be at least 1, got 0."),
    "no such recipe of a version": (["new.train.batch_size=0"], "new.train.batch_size must be at least 1"),
    "nothing to train": (["new.model=null"], "new needs a model to train, or run, checkpoint, factory or"),
    "two forms of a version": (["old.run=a", "old.predictions=b"], "old has run and predictions"),
    "a given version with training": (["old.run=a", "old.model=null", "old.seed=3"], "old has run, so it is not"),
    "a checkpoint of what": (["old.model=null", "old.checkpoint=a.safetensors"], "old.model is missing"),
    "an ensemble nobody asked for": (["method.ensemble.members=3"], "method.ensemble has no meaning: none is not"),
    "a calibrated paragon": (
        ["method.name=paragon", "method.ensemble.calibrated=true"],
        "method.ensemble.calibrated has no meaning: paragon is not held to the ensemble.",
    ),
    "a paragon of several kinds": (
        ["method.name=paragon", "method.ensemble.model=[mlp, cnn]"],
        "method.ensemble.model: paragon releases its ensemble, all of it of one network.",
    ),
    "a first version with an old one": (["old.method.name=kd"], "old is the first version, and kd needs an old one"),
    "classes of no checkpoint": (["old.classes=[a, b]"], "old.classes are those of a checkpoint"),
    "two kinds of seed": (["new.seed=3", "new.seeds.order=2"], "new has seed and seeds"),
    "a name twice": (["new.name=OLD"], "two versions are called 'OLD'"),
    "a name that is a path": (["new.name=../x"], "'../x' cannot name a version"),
    "smoothing of no method": (["method.name=naive", "train.label_smoothing=1.5"], "method: label_smoothing must"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_room_can_do_is_refused_with_its_place(kind: str, small: Make) -> None:
    changes, expected = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        resolve(small(*changes))
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
