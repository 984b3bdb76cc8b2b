"""Faults, fuzzing, and figures of speed in words are their records."""

import json
import re

from held import ROOT


def test_the_faults_in_words_are_the_records() -> None:
    found = json.loads((ROOT / "results" / "faults.json").read_text())["faults"].values()
    tried, survived = (sum(each[key] for each in found) for key in ("tried", "survived"))
    for page in ("results/README.md", "docs/faults.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"\b{tried} (faults )?tried(,| and) {survived} survived", text), page
    page = (ROOT / "results" / "README.md").read_text()
    rows = page[page.index("| fault | tried | survived |") :].split("\n\n")[0].splitlines()[2:]
    counts = [[int(cell) for cell in row.split("|")[2:4]] for row in rows]
    assert [sum(column) for column in zip(*counts, strict=True)] == [tried, survived]


def test_the_fuzzing_in_words_is_the_record() -> None:
    found = json.loads((ROOT / "results" / "fuzzing.json").read_text())
    text = (ROOT / "results" / "README.md").read_text().split("## Fuzzing")[1]
    minutes, executions = (sum(each[key] for each in found.values()) for key in ("seconds", "executions"))
    assert f"{len(found)} readers, {minutes / 60:.0f} minutes, {executions / 1e6:.1f} million executions" in text
    assert not any(each["broken"] for each in found.values())
    assert {path.name for path in (ROOT / "fuzz" / "corpus").iterdir()} == {*found}


def test_loading_in_words_is_its_record() -> None:
    record = json.loads((ROOT / "results" / "loading.json").read_text())
    one, eight, sixteen = (f"{record['decoded_per_second'][workers]:,.0f}" for workers in ("1", "8", "16"))
    trained, share = record["trained_per_second"], record["decoded_per_second"]["16"] / record["trained_per_second"]
    benchmarks, scale = ((ROOT / page).read_text() for page in ("benchmarks/README.md", "docs/imagenet-scale.md"))
    assert f"{one}, {eight} and {sixteen} images a second with 1, 8 and 16 workers, and {trained:,.0f} in" in benchmarks
    assert f"16 workers come to {share:.2f} of it" in benchmarks
    assert (
        f"decoded {sixteen} images a second, and ResNet-50 took {trained:,.0f} in training steps: {share:.2f} of"
        in scale
    )


def test_a_fed_card_in_words_is_its_record() -> None:
    benchmarks, scale = ((ROOT / page).read_text() for page in ("benchmarks/README.md", "docs/imagenet-scale.md"))
    shares = []
    for run in json.loads((ROOT / "results" / "loading_fed.json").read_text()):
        steps = run["trained_per_second"]
        for images in (run, run["packed"]):
            [(workers, fed)] = images["trained_while_decoding"].items()
            decoded = images["decoded_per_second"][workers]
            core = images["decoded_per_core_second"]
            shares.append((workers, f"{fed / steps:.2f}", f"{decoded / steps:.2f}"))
            assert f"| {core:.0f} | {decoded:,.0f} | {steps:,.0f} | {fed:,.0f} | {fed / steps:.2f} |" in benchmarks
    assert [workers for workers, _, _ in shares] == ["16", "16", "15", "15"]
    sixteen, small, fifteen, smaller = (share for _, share, _ in shares)
    assert f"trained at {sixteen} of its rate on images that are already there, with 15 at {fifteen}" in scale
    assert f"it was {small} with 16 workers; from 256 pixels {smaller} with 15" in scale
    assert f"decode {shares[3][2]} times as fast as the card takes them" in scale


def test_the_figures_of_members_in_words_are_the_records() -> None:
    """Rows of the table in benchmarks/README.md: ours, the plain loop, and their ratio."""
    jobs = json.loads((ROOT / "results" / "members.json").read_text())["jobs"]
    update = json.loads((ROOT / "results" / "update.json").read_text())
    wide, small = jobs["resnet18_w32_b512"], jobs["resnet18_w32_b128"]
    larger, teachers = jobs["resnet18_w64_b512"], wide["teachers_8"]
    whole = sum(run["seconds"]["all"] for run in update["captured"]) / len(update["captured"])
    pairs = [
        (wide["paired_8"]["ms"], wide["plain_1"]["ms"]),
        (small["paired_8"]["ms"], small["plain_1"]["ms"]),
        (larger["captured_8"]["ms"], larger["plain_1"]["ms"]),
        (teachers["quick_ms"], teachers["plain_ms"]),
        (wide["student_captured_8"]["ms"], wide["student_plain_8"]["ms"]),
        (whole, update["plain"]["seconds"]["all"]),
    ]
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = page[page.index("| job | wanted | ours |") :].split("\n\n")[0].splitlines()[2:]
    found = [[float(row.split("|")[column]) for column in (3, 5, 6)] for row in table]
    rounded = [[round(ours, 1 if ours > 10 else 2), round(plain, 1 if plain < 100 else 0)] for ours, plain in pairs]
    assert [row[:2] for row in found] == rounded
    assert [row[2] for row in found] == [round(plain / ours, 1) for ours, plain in pairs]
    assert len(update["captured"]) == len(wide["paired_8"]["runs"]) == len(teachers["runs"]) == 3
