"""The training spec as a file: YAML, changes on the command line, and what is said about mistakes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flipguard.releases.yaml_text import as_yaml
from flipguard.spec import parse_training_spec, read_training_spec, training_schema
from flipguard.spec.training import changed, read_data_plan
from flipguard.types import InputError

GOOD: dict[str, Any] = {"data": "digits", "old": "runs/a", "new": {"model": "mlp"}}


def test_short_forms_and_numbers_without_a_point(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("data: digits\nold: runs/a\nnew: {model: mlp}\nmethod: kd\ntrain: {weight_decay: 5e-4}\n")
    spec = read_training_spec(path)
    assert spec.data.name == "digits"
    assert spec.old is not None
    assert spec.old.run == "runs/a"
    assert spec.method.name == "kd"
    assert spec.train.weight_decay == 0.0005


def test_changes_reach_every_depth_and_make_what_is_missing() -> None:
    raw = changed(
        {**GOOD, "versions": [{"name": "a"}]},
        ["train.epochs=3", "new.model.width=64", "method=elodi", "method.ensemble.members=2", "versions.0.seed=5"],
    )
    assert raw["train"] == {"epochs": 3}
    assert raw["new"] == {"model": {"name": "mlp", "width": 64}}
    assert raw["method"] == {"name": "elodi", "ensemble": {"members": 2}}
    assert raw["versions"] == [{"name": "a", "seed": 5}]
    assert GOOD["new"] == {"model": "mlp"}


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "a typo at the top": ({**GOOD, "methd": "kd"}, "a spec has no key 'methd'; did you mean 'method'?"),
    "in train": ({**GOOD, "train": {"epoch": 3}}, "train has no key 'epoch'; did you mean 'epochs'?"),
    "in new": ({**GOOD, "new": {"modle": "mlp"}}, "new has no key 'modle'; did you mean 'model'?"),
    "in a version": (
        {"data": "digits", "versions": [{"model": "mlp"}, {"modle": "mlp"}]},
        "versions.1 has no key 'modle'; did you mean 'model'?",
    ),
    "in the gate": ({**GOOD, "gate": {"max_nrf": 0.1}}, "gate has no key 'max_nrf'; did you mean 'max_nfr'?"),
    "in seeds": ({**GOOD, "seeds": {"ordr": 1}}, "seeds has no key 'ordr'; did you mean 'order'?"),
    "in the ensemble": (
        {**GOOD, "method": {"name": "elodi", "ensemble": {"member": 3}}},
        "method.ensemble has no key 'member'; did you mean 'members'?",
    ),
    "in augment": (
        {**GOOD, "data": {"name": "digits", "augment": {"flips": True}}},
        "data.augment has no key 'flips'; did you mean 'flip'?",
    ),
    "a text for a number": ({**GOOD, "train": {"epochs": "3"}}, "train.epochs must be a valid integer, it is '3'."),
    "a number for a switch": ({**GOOD, "train": {"nesterov": 1}}, "train.nesterov must be a valid boolean, it is 1."),
    "a word that is none of": (
        {**GOOD, "train": {"schedule": "cosin"}},
        "train.schedule must be 'constant', 'step', 'cosine' or 'one_cycle', it is 'cosin'.",
    ),
    "a list for a mapping": ({**GOOD, "new": []}, "new must be a mapping, it is []."),
    "no data": ({"new": {"model": "mlp"}}, "'data' is missing."),
    "no name": ({**GOOD, "new": {"model": {}}}, "'new.model.name' is missing."),
    "no versions": ({"data": "digits"}, "a spec needs `new` (and `old`), or a list of `versions`."),
    "both forms": ({**GOOD, "versions": [{"model": "mlp"}]}, "a spec has `old` and `new`, or `versions`, not both."),
    "an empty chain": ({"data": "digits", "versions": []}, "`versions` is empty: list at least one."),
    "both kinds of seed": ({**GOOD, "seed": 1, "seeds": {}}, "a spec has `seed` or `seeds`, not both."),
    "a seed that is a text": ({**GOOD, "seed": "a"}, "seed must be a whole number"),
    "a seed twice": ({**GOOD, "seed": [3, 3]}, "seed must be different numbers, one for each run, it is [3, 3]."),
    "too few members": (
        {**GOOD, "method": {"name": "elodi", "ensemble": {"members": 0}}},
        "method.ensemble.members must be at least 1, it is 0.",
    ),
    "a limit in percent": ({**GOOD, "gate": {"max_nfr": 5}}, "gate.max_nfr must be at most 1, it is 5."),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_mistake_is_said_in_one_line_with_its_place(kind: str) -> None:
    raw, expected = PROBLEMS[kind]
    with pytest.raises(InputError) as caught:
        parse_training_spec(raw, "spec.yaml")
    assert str(caught.value).startswith(f"spec.yaml: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n- b\n", "spec.yaml must be a mapping with data, old and new, it is a list."),
        ("", "spec.yaml must be a mapping with data, old and new, it is empty."),
        ("data: [", "spec.yaml is not valid YAML: expected the node content"),
        ("data: digits\ndata: npz\n", "spec.yaml is not valid YAML: 'data' stands twice (line 2, column 1)."),
        ("data: !!python/object/apply:os.getcwd []\n", "spec.yaml is not valid YAML: could not determine"),
        ("\x00", "spec.yaml is not valid YAML"),
    ],
)
def test_what_is_no_spec(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_training_spec(tmp_path / "spec.yaml")
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("epochs", "'epochs' is no key=value: write, for example, train.epochs=3."),
        ("train..epochs=3", "'train..epochs=3' is no key=value"),
        ("data.name.x=3", "data.name is a text: it has no keys to set."),
        ("versions.b.seed=3", "versions.b: there is no entry 'b' in a list of 1."),
        ("train.epochs=[", "train.epochs is not valid YAML"),
    ],
)
def test_a_change_that_cannot_be_made(change: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        changed({"data": {"name": "digits"}, "versions": [{"name": "a"}]}, [change])
    assert str(caught.value).startswith(expected)


def test_the_data_alone_from_a_spec_from_its_own_file_or_from_the_command_line(tmp_path: Path) -> None:
    whole, alone = tmp_path / "spec.yaml", tmp_path / "data.yaml"
    whole.write_text(as_yaml({**GOOD, "data": {"name": "digits", "validation": 7}}))
    alone.write_text(as_yaml({"name": "digits", "validation": 7}))
    plans = [read_data_plan(given) for given in ([str(whole)], [str(alone)], ["name=digits", "validation=7"])]
    assert plans[0] == plans[1] == plans[2]
    assert read_data_plan([str(whole), "validation=11"]).validation == 11
    assert read_data_plan(["digits", "validation=7"]) == plans[0]
    with pytest.raises(InputError, match=r"digits\.yaml cannot be read"):
        read_data_plan(["digits.yaml"])
    with pytest.raises(InputError, match="'name' is missing"):
        read_data_plan(["validation=7"])


def test_the_schema_accepts_what_the_types_accept_and_refuses_a_typo() -> None:
    schema = training_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    short = {**GOOD, "method": {"name": "elodi", "ensemble": {"model": "mlp"}}}
    chain = {"data": "digits", "versions": ["runs/a", {"model": "mlp", "method": "kd"}], "method": "none", "seed": [1]}
    for raw in (GOOD, short, chain):
        jsonschema.validate(raw, schema)
        jsonschema.validate(parse_training_spec(raw).model_dump(mode="json", exclude_unset=True), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**raw, "trian": {}}, schema)
    for limit in (0.01, "1%", None):
        jsonschema.validate({**GOOD, "gate": {"max_nfr": limit}}, schema)
    for limit in (5, -0.1, "lots"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**GOOD, "gate": {"max_nfr": limit}}, schema)


def test_a_spec_is_read_without_torch(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(as_yaml(GOOD))
    program = """
import sys
from flipguard.spec import read_training_spec, training_schema
read_training_spec("spec.yaml", ["train.epochs=3"]), training_schema()
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training-spec.md").read_text()
    schema = training_schema()
    kinds = [schema, *schema["$defs"].values()]
    keys = {key for kind in kinds for key in kind["properties"]}
    assert len(keys) > 50
    assert [key for key in sorted(keys) if f"`{key}`" not in page and f"`ensemble.{key}`" not in page] == []
