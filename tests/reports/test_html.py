"""The page as a text: complete, self-contained, escaped, readable without eyes and without scripts."""

import base64
import gzip
import io
import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

import flipguard
from flipguard import InputError, Predictions
from flipguard.comparison import Comparison
from flipguard.reports.html.assets import digest, plotly, static
from flipguard.reports.html.charts import safe
from flipguard.reports.html.payload import quantile
from flipguard.reports.html.samples import pictures_in
from flipguard.reports.wording import outcome_counts, verdict
from one_process import in_turn

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
Side = dict[str, Any]


def sides(n: int = 211, seed: int = 3) -> tuple[Side, Side]:
    """Two models with logits on the same samples, with a slice and a text."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % 7
    old = rng.normal(size=(n, 7)) + 2.5 * np.eye(7)[label]
    new = old + 1.2 * rng.normal(size=(n, 7))
    shared = {"id": [f"img_{i}" for i in range(n)], "label": label, "classes": CLASSES}
    country = np.array(["de", "fr", "it"])[rng.integers(0, 3, n)]
    text = [f"sample number {i} of the set" for i in range(n)]
    return {**shared, "logits": old}, {**shared, "logits": new, "country": country, "text": text}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Comparison]:
    old, new = sides()
    out = tmp_path_factory.mktemp("page") / "report.html"
    rival, before = sides(seed=5)[1], sides(seed=7)[1]
    options: Any = {"gate": {"max_nfr": 0.001, "max_churn": 0.9}, "noise": [sides(seed=11)[1]]}
    found = flipguard.report(
        old, new, out, candidates=[rival], chain=[before], command="flipguard report a b", **options
    )
    return out.read_text(encoding="utf-8"), found


def unpacked(page: str) -> dict[str, Any]:
    (packed,) = re.findall(r'<script type="text/plain" id="payload">([A-Za-z0-9+/=]+)</script>', page)
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


class Tags(HTMLParser):
    """Every tag with its attributes, and the tags that were open around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", page))).split())


def test_the_verdict_comes_first_and_the_sections_follow_in_order(compared: tuple[str, Comparison]) -> None:
    page, found = compared
    text = text_of(page)
    assert verdict(found) in text
    sections = [tag["id"] for tag in Tags(page).of("section")]
    assert sections == [
        "verdict",
        "outcomes",
        "candidates",
        "classes",
        "slices",
        "flips",
        "scores",
        "chain",
        "made",
    ]
    assert text.index("The gate refuses") < text.index("Negative flip rate") < text.index("Where the samples went")
    assert "Retraining the old model alone flips" in text


def test_it_returns_the_comparison_of_compare(tmp_path: Path) -> None:
    old, new = sides(101)
    assert flipguard.report(old, new, tmp_path / "r.html") == flipguard.compare(old, new)


def test_the_page_carries_every_negative_flip_with_its_figures(compared: tuple[str, Comparison]) -> None:
    page, found = compared
    flips = unpacked(page)["flips"]
    old, new = sides()
    said = [columns["logits"].argmax(1) for columns in (old, new)]
    expected = {i for i in range(211) if said[0][i] == old["label"][i] != said[1][i]}
    assert {int(name.removeprefix("img_")) for name in flips["id"]} == expected
    assert len(expected) == found.negative_flips
    sure = flips["numbers"]["new_confidence"]
    assert sure == sorted(sure, reverse=True)
    for place, name in enumerate(flips["id"]):
        i = int(name.removeprefix("img_"))
        assert flips["classes"][flips["label"][place]] == CLASSES[old["label"][i]]
        assert flips["classes"][flips["new"][place]] == CLASSES[said[1][i]]
        moved = np.linalg.norm(old["logits"][i] - new["logits"][i])
        assert flips["numbers"]["displacement"][place] == pytest.approx(moved, abs=6e-4)
        assert flips["columns"]["text"][place] == new["text"][i]
        (country,) = flips["slices"]
        assert country["values"][country["codes"][place]] == new["country"][i]


def test_the_policy_allows_the_scripts_of_the_page_and_no_network(compared: tuple[str, Comparison]) -> None:
    page, _ = compared
    (meta,) = [m for m in Tags(page).of("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(meta["content"]).split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in rules["script-src"] + rules["style-src-elem"]
    *_, script = re.findall(r"(?s)<script>(.*?)</script>", page)
    assert rules["script-src"].split() == [digest(script), digest(plotly())]
    (style,) = re.findall(r"(?s)<style>(.*?)</style>", page)
    assert digest(style) in rules["style-src-elem"]
    links = [tag.get(name) for _, tag in Tags(page).found for name in ("src", "href", "action") if name in tag]
    assert all(str(link).startswith(("#", "data:")) for link in links)


def test_the_page_is_valid_in_its_tables_headings_and_labels(compared: tuple[str, Comparison]) -> None:
    page, _ = compared
    tags = Tags(page)
    for table in re.findall(r"(?s)<table.*?</table>", page):
        assert "<caption" in table
        assert "<th" in table
        assert not re.search(r"<th(?![^>]*scope=)(?!ead)", table)
    ids = [str(attributes["id"]) for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tags.found:
        for name in ("aria-labelledby", "aria-describedby"):
            assert name not in attributes or attributes[name] in ids
    assert all(tag["aria-label"] for tag in tags.of("div") if tag.get("role") == "img")
    levels = [int(tag[1]) for tag, _ in tags.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    controls = tags.of("input") + tags.of("select")
    labelled = re.findall(r'(?s)<label[^>]*>.*?<(?:input|select)[^>]*id="([^"]+)"', page)
    assert {str(c["id"]) for c in controls} == set(labelled)


def test_every_chart_is_one_that_plotly_knows(compared: tuple[str, Comparison]) -> None:
    charts = unpacked(compared[0])["charts"]
    assert {"flow", "candidates", "confusion", "reliability", "confidence", "displacement", "ranks"} <= charts.keys()
    for spec in charts.values():
        colours = re.sub(r'"--[a-z-]+"', '"#123456"', json.dumps(spec))
        assert len(go.Figure(json.loads(colours)).data) == len(spec["data"])


def test_the_colours_of_the_charts_are_those_of_the_page(compared: tuple[str, Comparison]) -> None:
    used = set(re.findall(r'"(--[a-z-]+)"', json.dumps(unpacked(compared[0])["charts"]) + static("report.js")))
    assert used
    assert used <= set(re.findall(r"(--[a-z-]+):", static("report.css")))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["--ink", "--quiet", "--accent", "--harm", "--gain", "--unsure"])
@pytest.mark.parametrize("ground", ["--page", "--card", "--calm-soft"])
def test_text_has_the_contrast_of_aa(scheme: int, ink: str, ground: str) -> None:
    assert contrast(scheme, ink, ground) >= 4.5


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_numbers_in_the_darkest_cell_of_a_heat_map_can_be_read(scheme: int) -> None:
    assert contrast(scheme, "--ink", "--heat") >= 4.5


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("mark", ["--harm", "--gain", "--accent", "--calm", "--dull", "--heat"])
def test_lines_and_controls_stand_out_from_what_they_are_drawn_on(scheme: int, mark: str) -> None:
    """WCAG 1.4.11; --accent is the focus' outline, --dull the controls' edge."""
    assert contrast(scheme, mark, "--page") >= 3
    assert mark == "--heat" or contrast(scheme, mark, "--card") >= 3


def contrast(scheme: int, ink: str, ground: str) -> float:
    found = re.findall(r"(--[a-z-]+): (#[0-9a-f]{6});", static("report.css"))
    half = len(found) // 2
    light, dark = dict(found[:half]), dict(found[half:])
    assert light.keys() == dark.keys()
    colours = (light, dark)[scheme]
    first, second = sorted((luminance(colours[ink]), luminance(colours[ground])))
    return (second + 0.05) / (first + 0.05)


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e\x00"


def test_names_ids_texts_and_slices_from_data_are_never_markup(tmp_path: Path) -> None:
    old = {
        "id": [EVIL, "b", "c", "d"],
        "label": [0, 1, 1, 0],
        "prediction": [0, 1, 0, 0],
        "classes": [EVIL, "ok"],
        "model": EVIL,
    }
    new = {**old, "prediction": [1, 0, 1, 0], "s<i>": [EVIL] * 4, "text": [f"{EVIL}{i}" for i in range(4)]}
    flipguard.report(
        old, new, tmp_path / "r.html", show=["text"], command=EVIL, gate={"max_slice_nfr": 0.0, "min_slice": 1}
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert [tag.get("id") for tag in Tags(page).of("script")] == ["payload", "plotly", None]
    assert not re.search("[\x00\x1b\u202e]", page)
    payload = unpacked(page)
    assert EVIL in payload["flips"]["id"]
    assert not re.search("<(?!extra)(?!/extra)(?!br)", json.dumps(payload["charts"]))


def test_plotly_gets_no_markup_from_data() -> None:
    assert safe("<b>a</b>&lt;\x00") == "&lt;b&gt;a&lt;/b&gt;&amp;lt;"


def test_ten_thousand_flips_make_less_than_six_megabytes(tmp_path: Path) -> None:
    n = 10_007
    rng = np.random.default_rng(0)
    label = rng.integers(0, 97, n)
    base = {"id": [f"validation/img_{i:08}" for i in range(n)], "label": label}
    logits = rng.normal(size=(n, 97)).astype(np.float32)
    slices = {"country": rng.choice(["de", "fr", "it"], n), "device": rng.choice(["a", "b"], n)}
    new_logits = logits.copy()
    logits[np.arange(n), label] = 9.0
    new_logits[np.arange(n), (label + 1) % 97] = 9.0
    flipguard.report({**base, "logits": logits}, {**base, "logits": new_logits, **slices}, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 6e6
    assert len(unpacked((tmp_path / "r.html").read_text())["flips"]["id"]) == n


def test_more_flips_than_the_page_holds_are_said(tmp_path: Path) -> None:
    old, new = sides()
    found = flipguard.report(old, new, tmp_path / "r.html", max_flips=5)
    page = (tmp_path / "r.html").read_text()
    assert len(unpacked(page)["flips"]["id"]) == 5
    assert f"The 5 of {found.negative_flips} flips of which the new model is surest" in text_of(page)
    assert sum(map(sum, unpacked(page)["charts"]["confusion"]["data"][0]["z"])) == found.negative_flips


@pytest.mark.parametrize("kind", ["no scores", "no labels", "no flips"])
def test_less_information_makes_a_smaller_page(tmp_path: Path, kind: str) -> None:
    columns: Side = {"id": [1, 2, 3], "label": [0, 1, 1], "prediction": [0, 1, 1]}
    old, new = columns, {**columns, "prediction": [0, 0, 1]}
    if kind == "no labels":
        old, new = ({k: v for k, v in side.items() if k != "label"} for side in (old, new))
    flipguard.report(old, old if kind == "no flips" else new, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    sections = {str(tag["id"]) for tag in Tags(page).of("section")}
    assert ("outcomes" in sections) == (kind != "no labels")
    assert ("flips" in sections) == (kind == "no scores")
    assert "scores" not in sections
    links = {str(tag["href"])[1:] for tag in Tags(page).of("a")}
    assert links <= {str(a["id"]) for _, a in Tags(page).found if "id" in a}


def test_the_outcomes_add_up_to_the_labelled_samples(compared: tuple[str, Comparison]) -> None:
    counts = outcome_counts(compared[1])
    old, new = sides()
    right = [columns["logits"].argmax(1) == columns["label"] for columns in (old, new)]
    assert counts["stayed right"] == (right[0] & right[1]).sum()
    assert counts["stayed wrong"] == (~right[0] & ~right[1]).sum()
    assert sum(counts.values()) == 211


def test_a_quantile_is_the_upper_end_of_the_bin_that_reaches_it() -> None:
    counts = np.zeros(320, np.int64)
    counts[160], counts[168] = 19, 1
    assert quantile(counts, 0.95) == pytest.approx(2 ** (1 / 8))
    assert quantile(counts, 0.96) == pytest.approx(2 ** (1 + 1 / 8))
    assert quantile(counts * 0, 0.5) is None


def picture(path: Path, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.arange(size * size * 3, dtype=np.uint8).reshape(size, size, 3)).save(path)


def test_pictures_are_found_by_id_and_never_outside_of_their_folder(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "below" / "b.jpg", 200)
    picture(tmp_path / "secret.png")
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    ids = ["a", "a.png", "b", "../secret", str(tmp_path / "secret"), "broken", "none", "x" * 5000, "\x00"]
    found = pictures_in(tmp_path / "images", ids)
    assert [picture is not None for picture in found] == [True, True, True] + [False] * 6
    assert all(str(uri).startswith("data:image/webp;base64,") for uri in found[:3])
    assert len(str(found[2])) < 6000


def test_a_folder_without_a_matching_picture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file there is named after an id, such as a or a\.png"):
        pictures_in(tmp_path, ["a"])
    with pytest.raises(InputError, match="there is no such folder"):
        pictures_in(tmp_path / "none", ["a"])


def test_a_data_set_shows_its_own_samples(tmp_path: Path) -> None:
    from flipguard.data import load_data

    test = load_data("digits").test
    wrong = [(int(y) + 1) % 10 if i % 3 == 0 else int(y) for i, y in enumerate(test.y)]
    old = {"id": test.ids, "label": test.y.numpy(), "prediction": test.y.numpy()}
    flipguard.report(old, {**old, "prediction": wrong}, tmp_path / "r.html", data="digits", max_flips=13)
    pictures = unpacked((tmp_path / "r.html").read_text())["flips"]["pictures"]
    assert len(pictures) == 13
    image = Image.open(io.BytesIO(base64.b64decode(pictures[0].split(",")[1]))).convert("L")
    first = int(np.flatnonzero(test.ids == sorted(test.ids[::3])[0])[0])
    assert np.abs(np.asarray(image).astype(int) - test.x[first, 0].numpy()).max() <= 2


def test_the_command_shows_rows_of_a_table_of_one_s_own(tmp_path: Path) -> None:
    """By settings, and by a spec that has them, as `predict` takes them."""
    lines = [f"s{i},{i},{i * 1.5},{i % 2}" for i in range(7)]
    (tmp_path / "t.csv").write_text("\n".join(["name,a,b,label", *lines]))
    spec = "data: {name: table, train: t.csv, test: t.csv, id: name, features: [a, b]}"
    (tmp_path / "data.yaml").write_text(spec)
    for side, last in (("old", 0), ("new", 1)):
        rows = [f"s{i},{i % 2},{i % 2 if i < 6 else last}" for i in range(7)]
        (tmp_path / f"{side}.csv").write_text("\n".join(["id,label,prediction", *rows]))
    settings = ("name=table", "folder=.", "train=t.csv", "test=t.csv", "id=name", "features=[a,b]")
    both = ("report", "old.csv", "new.csv", "--out")
    *done, over = in_turn(
        tmp_path,
        (*both, "a.html", "--data", *settings),
        (*both, "b.html", "--data", "data.yaml", "--data-dir", "."),
        (*both, "data.yaml", "--data", "data.yaml", "--data-dir", "."),
    )
    assert [(one.code, one.stderr) for one in done] == [(0, ""), (0, "")]
    assert (over.code, (tmp_path / "data.yaml").read_text()) == (2, spec)
    assert "would overwrite data.yaml" in over.stderr
    for page in ("a.html", "b.html"):
        flips = unpacked((tmp_path / page).read_text())["flips"]
        assert "6, 9" in json.dumps(flips["columns"]), flips


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": ".", "data": "digits"}, "give one of them"),
        ({"max_flips": 0}, "at least 1"),
        ({"show": ["nothing"]}, "neither file has a column 'nothing'"),
        ({"data": "digits"}, "has none of the flips' ids, such as img_"),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    old, new = sides(53)
    with pytest.raises(InputError, match=re.escape(message)):
        flipguard.report(old, new, tmp_path / "r.html", **options)
    assert not list(tmp_path.iterdir())


def files(folder: Path) -> tuple[Path, Path]:
    paths = (folder / "old.parquet", folder / "new.parquet")
    for path, columns in zip(paths, sides(101), strict=True):
        columns = dict(columns)
        slices = {name: columns.pop(name) for name in ("country", "text") if name in columns}
        Predictions.from_arrays(**columns, slices=slices, model="net", version=path.stem).write(path)
    return paths


def run(*words: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flipguard", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_the_command_writes_the_page_and_says_how_it_was_made(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    done = run("report", old.name, new.name, "--max-nfr", 0.001, "--out", "a page.html", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "a page.html").read_text()
    text = text_of(page)
    assert "flipguard report old.parquet new.parquet --max-nfr 0.001 --out 'a page.html'" in text
    assert flipguard.read_predictions(old).data_fingerprint() in text
    assert "The gate refuses" in text
    assert f"{len(unpacked(page)['flips']['id'])} negative flips" in done.stdout


def test_compare_writes_the_page_beside_its_other_reports(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    (tmp_path / "flipguard.toml").write_text("[gate]\nmax_nfr = 0.001\n")
    done = run("compare", old, new, "--html", "r.html", "--json", "-", folder=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    page = (tmp_path / "r.html").read_text()
    assert len(unpacked(page)["flips"]["id"]) == found["negative_flips"]
    assert "settings from flipguard.toml." in found["notes"]
    assert "settings from flipguard.toml." in text_of(page)


def test_a_single_candidate_or_column_stands_for_a_list_of_one(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    flipguard.report(old, new, tmp_path / "r.html", candidates=old, chain=str(old), show="text")
    found = unpacked((tmp_path / "r.html").read_text())
    assert {"candidates", "chain-matrix", "chain-history"} <= found["charts"].keys()
    assert list(found["flips"]["columns"]) == ["text"]


def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    program = f"""
import sys
sys.modules["jinja2"] = None
import flipguard
try:
    flipguard.report({str(old)!r}, {str(new)!r}, "r.html")
except flipguard.FlipguardError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "the report needs jinja2: pip install 'flipguard[report]'\n"


def test_equal_inputs_make_equal_pages_but_for_the_time(tmp_path: Path) -> None:
    old, new = sides(53)
    pages = []
    for name in ("a.html", "b.html"):
        flipguard.report(old, new, tmp_path / name)
        pages.append(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", (tmp_path / name).read_text()))
    assert pages[0] == pages[1]
