"""JUnit XML: a CI server shows each gate rule as a test."""

import re
from typing import Any
from xml.etree import ElementTree

from flipguard.comparison.result import Comparison, Figure
from flipguard.reports.wording import rule_name, verdict

# What XML 1.0 allows; anything else would make the file unreadable, even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def comparison_junit(comparison: Comparison) -> str:
    """One suite, one case per rule, a failure with its reason for each that is broken; the figures as properties."""
    rules = comparison.gate.rules
    counts = {"tests": str(max(len(rules), 1)), "failures": str(sum(not rule.passed for rule in rules))}
    counts.update({"errors": "0", "skipped": "0"})
    suites = ElementTree.Element("testsuites", {"name": "flipguard", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "flipguard.gate", **counts, "time": "0"})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(comparison):
        ElementTree.SubElement(properties, "property", {"name": name, "value": _legal(value)})
    for rule in rules:
        case = _case(suite, rule.name)
        if not rule.passed:
            failure = ElementTree.SubElement(
                case, "failure", {"message": _legal(f"{rule_name(rule)}: {rule.reason}"), "type": rule.name}
            )
            failure.text = _legal(f"{rule.reason}\n{verdict(comparison)}")
    if not rules:
        _case(suite, "compared")
    output = ElementTree.SubElement(suite, "system-out")
    output.text = _legal("\n".join([verdict(comparison), *comparison.notes]))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", {"classname": "flipguard.gate", "name": name, "time": "0"})


def _properties(comparison: Comparison) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [
        ("old", comparison.old.name),
        ("new", comparison.new.name),
        ("n", comparison.n),
        ("negative_flips", comparison.negative_flips),
        ("positive_flips", comparison.positive_flips),
    ]
    for name in type(comparison).model_fields:
        figure = getattr(comparison, name)
        if isinstance(figure, Figure):
            ends = ((name, figure.value), (f"{name}.low", figure.low), (f"{name}.high", figure.high))
            found += [(key, value) for key, value in ends if value is not None]
    if comparison.mcnemar_p is not None:
        found.append(("mcnemar_p", comparison.mcnemar_p))
    return found


def _legal(text: object) -> str:
    return _NOT_XML.sub("\ufffd", str(text))
