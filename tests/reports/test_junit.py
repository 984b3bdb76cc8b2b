from xml.etree import ElementTree

import pytest

from flipguard.comparison import Comparison, Gate
from flipguard.reports.junit import comparison_junit


def parsed(comparison: Comparison) -> ElementTree.Element:
    return ElementTree.fromstring(comparison_junit(comparison).encode())


def test_each_rule_is_a_case_and_each_broken_one_a_failure(comparison: Comparison) -> None:
    (suite,) = parsed(comparison)
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [rule.name for rule in comparison.gate.rules]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    for rule in comparison.gate.rules:
        failure = cases[rule.name].find("failure")
        assert (failure is None) == rule.passed
        if failure is not None:
            assert rule.reason in str(failure.get("message"))


def test_the_figures_are_properties(comparison: Comparison) -> None:
    properties = {p.get("name"): p.get("value") for p in parsed(comparison).iter("property")}
    rate = comparison.negative_flip_rate
    assert rate is not None
    assert float(str(properties["negative_flip_rate"])) == rate.value
    assert float(str(properties["negative_flip_rate.high"])) == rate.high
    assert properties["n"] == "997"


def test_without_rules_one_case_passes(comparison: Comparison) -> None:
    free = comparison.model_copy(update={"gate": Gate(passed=None, judged_on="interval", rules=[])})
    (suite,) = parsed(free)
    (case,) = suite.iter("testcase")
    assert case.get("name") == "compared"
    assert list(case) == []
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


@pytest.mark.parametrize("odd", ["\x00", "\x0b", "\ufffe", "\udc80", "]]>", "<&\"'>", "🦊"])
def test_any_name_makes_readable_xml(comparison: Comparison, odd: str) -> None:
    rule = comparison.gate.rules[0].model_copy(update={"reason": f"why {odd}", "passed": False})
    gate = Gate(passed=False, judged_on="interval", rules=[rule])
    root = parsed(comparison.model_copy(update={"gate": gate, "notes": [f"note {odd}"]}))
    failure = next(root.iter("failure"))
    assert str(failure.get("message")).startswith("max_nfr 1.00%: why ")
    legal = odd.isprintable() and odd != "\udc80"
    assert (odd in str(failure.text)) == legal


def test_a_comparison_of_hostile_names_is_readable(hostile: Comparison) -> None:
    failures = list(parsed(hostile).iter("failure"))
    assert len(failures) == 2
