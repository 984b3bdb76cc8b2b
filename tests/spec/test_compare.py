from pathlib import Path

import pytest

from flipguard.comparison import GateSettings
from flipguard.spec import CompareSettings, Spec, find_config, merge, read_spec
from flipguard.types import InputError


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "flipguard.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_both_tables_are_read(tmp_path: Path) -> None:
    spec = read_spec(
        spec_file(tmp_path, '[gate]\nmax_nfr = 0.01\nmin_slice = 7\n[compare]\nby = ["country"]\nconfidence = 0.9\n')
    )
    assert spec.gate == GateSettings(max_nfr=0.01, min_slice=7)
    assert spec.compare == CompareSettings(by=["country"], confidence=0.9)


def test_the_example_in_the_docs_names_every_key() -> None:
    path = Path(__file__).parents[2] / "docs" / "flipguard.toml"
    read_spec(path)
    text = path.read_text(encoding="utf-8")
    assert "max_nfr" in text
    for key in (*GateSettings.model_fields, *CompareSettings.model_fields):
        assert f"\n{key} = " in text or f"\n# {key} = " in text, key


def test_shares_may_be_in_percent(tmp_path: Path) -> None:
    text = "[gate]\nmax_nfr = '1%'\nmax_relative_nfr = '150 %'\n[compare]\nconfidence = '99%'"
    spec = read_spec(spec_file(tmp_path, text))
    assert (spec.gate.max_nfr, spec.gate.max_relative_nfr, spec.compare.confidence) == (0.01, 1.5, 0.99)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gate]\nmax_nrf = 0.01", "[gate] has no key 'max_nrf'; did you mean 'max_nfr'?"),
        ("[gate]\nconfidence = 0.9", "[gate] has no key 'confidence'; it belongs under [compare]."),
        ("[gate]\nzzz = 1", "[gate] has no key 'zzz'; known: max_nfr, "),
        ("[gates]\nmax_nfr = 0.01", "there is no table 'gates'; did you mean 'gate'?"),
        ("[qqqq]\nmax_nfr = 0.01", "there is no table 'qqqq'; known: compare, gate."),
        ("max_nfr = 0.01", "'max_nfr' stands outside a table; it belongs under [gate]."),
        ("gate = 3", "[gate] must be a table of settings."),
        ("[gate]\nmax_nfr = -0.1", "[gate] max_nfr must be at least 0, it is -0.1."),
        ("[gate]\nmax_nfr = 1.5", "[gate] max_nfr must be at most 1, it is 1.5. Write a share as 0.01 or '1%'."),
        ("[gate]\nmax_nfr = '1'", "[gate] max_nfr must be a number, it is '1'. Write a share as 0.01 or '1%'."),
        ("[gate]\nmax_nfr = 'one%'", "[gate] max_nfr must be a number, it is 'one%'. Write a share as 0.01 or '1%'."),
        (
            "[gate]\nmax_nfr = '1e999999999999999999%'",
            "[gate] max_nfr must be a number, it is '1e999999999999999999%'.",
        ),
        ("[compare]\ncost_ratio = '1%'", "[compare] cost_ratio must be a number, it is '1%'."),
        ("[gate]\nmax_nfr = '150%'", "[gate] max_nfr must be at most 1, it is "),
        ("[gate]\nmax_nfr = true", "[gate] max_nfr must be a number, it is True."),
        ("[gate]\nmax_relative_nfr = nan", "[gate] max_relative_nfr must be at least 0, it is nan."),
        ("[gate]\ngate_on = 'luck'", "[gate] gate_on must be 'interval' or 'value', it is 'luck'."),
        ("[gate]\nmin_slice = 0", "[gate] min_slice must be at least 1, it is 0."),
        ("[compare]\nby = 'country'", "[compare] by must be a valid list, it is 'country'."),
        ("[compare]\nconfidence = 95", "[compare] confidence must be below 1, it is 95."),
        ("[compare]\non_missing = 'keep'", "[compare] on_missing must be 'error' or 'drop', it is 'keep'."),
        ("[gate\n", "is not valid TOML: "),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read_spec(spec_file(tmp_path, text))
    message = str(caught.value)
    assert expected in message
    assert "flipguard.toml" in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_not_text_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_spec(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_spec(tmp_path)


def test_the_nearest_file_is_found_and_none_above_the_repository(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "a" / "b"
    inner.mkdir(parents=True)
    outside = spec_file(tmp_path, "")
    assert find_config(inner) == outside
    (tmp_path / "repository" / ".git").mkdir()
    assert find_config(inner) is None
    root = spec_file(tmp_path / "repository", "")
    assert find_config(inner) == root
    near = spec_file(inner, "")
    assert find_config(inner) == near
    assert find_config(inner.parent) == root


def test_the_command_line_wins_over_the_file() -> None:
    spec = Spec(
        compare=CompareSettings(confidence=0.9, by=["a"], split="test"), gate=GateSettings(max_nfr=0.5, min_slice=7)
    )
    settings = merge(spec, {"confidence": 0.8, "by": None}, {"max_nfr": 0.1, "min_slice": None, "gate_on": "value"})
    assert settings.compare == {"confidence": 0.8, "by": ["a"], "split": "test"}
    assert settings.gate == GateSettings(max_nfr=0.1, min_slice=7, gate_on="value")


@pytest.mark.parametrize(
    ("compare", "gate", "expected"),
    [
        ({}, {"max_slice_nfr": -1.0}, "--max-slice-nfr must be at least 0, it is -1.0."),
        ({"confidence": 1.0}, {}, "--confidence must be below 1, it is 1.0."),
        ({"alpha": 0.0}, {}, "--alpha must be above 0, it is 0.0."),
        ({"cost_ratio": -2.0}, {}, "--cost-ratio must be at least 0, it is -2.0."),
        ({"correction": "none"}, {}, "--correction must be 'holm' or 'bh', it is 'none'."),
    ],
)
def test_a_bad_option_is_named_as_it_was_typed(
    compare: dict[str, object], gate: dict[str, object], expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        merge(Spec(), compare, gate)
    assert str(caught.value).startswith(expected)
