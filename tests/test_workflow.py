"""What CI calls exists: the targets named by .ci/run and by the GitHub workflow are the Makefile's."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_the_workflow_calls_targets_that_exist() -> None:
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    called = set()
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            for target in re.findall(r"^make (.+)$", step.get("run", ""), re.MULTILINE):
                called |= set(matrix["target"]) if "matrix.target" in target else {target}
    others = {"long", "demo", "docs", "integrations", "adapters", "kernels", "package", "ray", "storage", "audit"}
    assert called == {"check", "test"} | others
    assert called <= TARGETS


def test_the_script_calls_targets_that_exist() -> None:
    lines = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    called = [word for line in lines for word in line.split() if word.isalpha()]
    assert called == ["check", "test", "libraries", "kernels", "audit"]
    assert set(called) <= TARGETS
