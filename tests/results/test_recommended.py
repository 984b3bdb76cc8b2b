"""What is recommended, in words and in its lines, is what was measured on digits."""

from held import ROOT, check_lines, percent, rows_of, section

from flipguard.bench.tables import Row, paired_p

HEADING = "What is recommended, on digits"
ERROR, FLIPS, RELATIVE = "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate"


def test_each_line_is_its_row() -> None:
    def made(row: Row) -> list[str]:
        old, new, flips, relative = percent(row, "error_rate_old", ERROR, FLIPS, RELATIVE)
        return [f"{row.training_cost:.1f}", f"{old:.2f}", f"{new:.2f}", f"{flips:.2f}", f"{relative:.1f}"]

    check_lines("digits_recommended", HEADING, made)
    rows = rows_of("digits_recommended")
    assert f"{len(rows)} rows, {len(rows[0].seeds)} seeds" in section(HEADING)
    assert {row.seeds for row in rows} == {tuple(range(10, 20))}


def test_the_words_are_the_record() -> None:
    rows, front = ({row.name: row for row in rows_of(name)} for name in ("digits_recommended", "cifar100_front"))
    text = section(HEADING)

    def mean(name: str, figure: str, digits: int = 2) -> str:
        return f"{percent(rows[name], figure)[0]:.{digits}f}"

    def p(one: str, other: str, figure: str) -> float:
        chance = paired_p(rows[one].cells[figure].values, rows[other].cells[figure].values)
        assert chance is not None
        return chance

    def apart(one: str, other: str) -> float:
        return percent(rows[one], ERROR)[0] - percent(rows[other], ERROR)[0]

    error = f"({mean('scion', ERROR)} and {mean('elodi', ERROR)}, p = {p('scion', 'elodi', ERROR):.2f})"
    flips = f"(relative NFR {mean('scion', RELATIVE, 1)} and {mean('elodi', RELATIVE, 1)}, p = "
    assert f"`scion` has ELODI's error {error}" in text
    assert f"{flips}{p('scion', 'elodi', RELATIVE):.2f}; NFR p = {p('scion', 'elodi', FLIPS):.2f})" in text
    costs = [f"{rows[name].training_cost:.1f}" for name in ("scion", "elodi")]
    assert f"for {costs[0]} trainings instead of {costs[1]}." in text

    assert f"(NFR {mean('graft', FLIPS)} and {mean('none', FLIPS)}, p < 0.001)" in text
    assert p("graft", "none", FLIPS) < 0.001
    assert f"at {apart('graft', 'none'):.2f} points more error (p = {p('graft', 'none', ERROR):.3f}), a quarter" in text
    gain = percent(rows["none"], "error_rate_old")[0] - percent(rows["none"], ERROR)[0]
    assert 0.2 < apart("graft", "none") / gain < 0.3
    plain, branches = (percent(front[name], ERROR)[0] for name in ("none", "graft_low"))
    assert f"on CIFAR-100 it has {plain - branches:.1f} points less error than no treatment" in text

    readme = (ROOT / "README.md").read_text()
    assert f"points more error, {plain - branches:.1f} points less than no treatment, **for 2.9**" in readme
    assert f"half of the flips of no treatment at {apart('graft', 'none'):.2f} points more error than that" in readme

    told = f"relative NFR {mean('treated', RELATIVE, 1)}) at {mean('treated', ERROR)} % error, "
    above = [f"{apart('treated', other):.2f}" for other in ("elodi", "none")]
    assert f"{told}{above[0]} points above ELODI's and {above[1]} above no treatment's (p < 0.001 for both)." in text
    assert max(p("treated", other, ERROR) for other in ("elodi", "none")) < 0.001
    assert min(("elodi", "scion", "treated", "graft"), key=lambda name: rows[name].cells[RELATIVE].mean) == "treated"

    assert f"`heir` is behind `scion` in error here ({apart('heir', 'scion'):.2f} points)" in text
    before = percent(rows["fd_kl"], "error_rate_old")[0]
    assert f"({mean('fd_kl', ERROR)}; the old model has {before:.2f})" in text
