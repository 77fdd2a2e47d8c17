"""The page: what it says, what it may overwrite, and how it behaves in a real browser."""

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import idiolect
from idiolect.comparison.conclusion import summarize
from idiolect.comparison.tables import leaderboard_tables
from idiolect.core.errors import RunFolderError
from idiolect.report import write_report
from idiolect.report.page import MARK, render
from idiolect.report.scores import mean_curve

SETTINGS = {"clients": 4, "rounds": 2, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The folder of one run."""
    folder = tmp_path_factory.mktemp("single") / "fedavg"
    idiolect.run("fedavg", "digits", out=folder, **SETTINGS)
    return folder


# -- what it says -------------------------------------------------------------------------------------------


def test_it_states_the_protocol_and_every_method(page, study):
    text = page.read_text()
    assert "dirichlet(alpha=0.3)" in text
    assert all(f'<th scope="row" data-value="{method}"' in text for method in study.methods)
    for hash in study.comparison.protocol["partition"]["hashes"].values():
        assert hash in text


def test_its_numbers_are_those_of_the_comparison(page, comparison):
    text = page.read_text()
    for each in json.loads((comparison / "comparison.json").read_text())["methods"]:
        assert f'data-value="{100 * each["selected"]["mean"]}"' in text
        assert f"{100 * each['selected']['mean']:.2f} ± {100 * each['selected']['half']:.2f}" in text


def test_it_asks_for_nothing_outside(page):
    text = page.read_text()
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_it_says_how_to_run_it_again(page, comparison):
    text = page.read_text()
    assert f"idiolect compare {comparison}/comparison.yaml" in text
    assert f"idiolect report {comparison} --baseline fedavg" in text
    assert f"torch {torch.__version__}" in text


def test_every_id_is_there_once(page):
    ids = re.findall(r' id="([^"]+)"', page.read_text())
    assert len(ids) == len(set(ids))


def test_what_was_left_out_is_said(comparison, tmp_path, single):
    shutil.copytree(single, tmp_path / "runs" / "a")
    shutil.copytree(single, tmp_path / "runs" / "b")
    (tmp_path / "runs" / "b" / "summary.json").unlink()
    study = write_report([tmp_path / "runs"], tmp_path / "r.html")
    assert "runs/b is left out" in study.notes[0]
    assert "runs/b is left out" in (tmp_path / "r.html").read_text()


def test_whatever_it_shows_is_escaped(study, tmp_path):
    spoiled = replace(study, notes=["<script>alert('a & b')</script>"])
    text = render(spoiled, [tmp_path], 0.9, lambda title: None)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#39;a &amp; b&#39;)&lt;/script&gt;" in text


def test_the_leaderboard_is_the_one_of_the_terminal(page, study):
    text = re.sub(r"<wbr>|</?\w[^>]*>", "", page.read_text())
    for table in leaderboard_tables(study.comparison):
        assert all(cell.text in text for row in table.rows for cell in row[:2])


def test_it_begins_with_what_came_out_and_how_sure_it_is(page, study):
    text = page.read_text()
    places = [text.index(part) for part in (f"</strong> {idiolect.__version__}", 'class="verdict"', 'id="differences"')]
    places += [text.index(part) for part in ('id="table-leaderboard"', "<details", 'class="protocol"', 'id="curves"')]
    assert places == sorted(places)
    assert summarize(study.comparison).startswith("Over 2 seeds, fedavg has")


def test_a_method_that_failed_is_named_with_its_reason(folder, tmp_path):
    values = json.loads((folder / "comparison.json").read_text())
    values["failed"] = {"fedprox(mu=9)": "nothing that clients sent can be used <b>"}
    (folder / "comparison.json").write_text(json.dumps(values))
    write_report([folder], tmp_path / "r.html")
    assert (
        "failed fedprox(<wbr>mu=9): nothing that clients sent can be used &lt;b&gt;"
        in (tmp_path / "r.html").read_text()
    )


# -- the command ------------------------------------------------------------------------------------------------


def test_a_single_run_has_a_report_without_tests(call, single, tmp_path):
    code, out, _ = call("report", single, "--out", tmp_path / "r.html")
    assert code == 0
    assert out.strip().endswith("r.html")
    text = (tmp_path / "r.html").read_text()
    assert "1 method, 4 clients" in text
    assert "table-against" not in text
    assert "Cost per run" in text
    assert "One seed says nothing of chance." in text
    assert "best (by test, optimistic)" in text
    assert "a constant per client" in text
    assert 'id="course"' in text


def test_scores_that_are_better_when_lower(call, tmp_path):
    clients = [(torch.randn(30, 3), torch.randn(30, 1)) for _ in range(3)]
    settings = {"model": torch.nn.Linear(3, 1), "rounds": 2, "engine": "loop", "seeds": 2}
    board = idiolect.compare("local, fedavg", clients, out=tmp_path / "a", **settings)
    code, out, _ = call("report", tmp_path / "a", "--out", tmp_path / "r.html")
    assert code == 0
    assert "they were given in Python" in " ".join(out.split())
    text = (tmp_path / "r.html").read_text()
    assert "(lower is better)" in text
    assert f"{min(board.rows, key=lambda row: row.selected.mean).method} " in re.sub(r"<[^>]*>", "", text)
    assert "<h1>Own data, clients as they are</h1>" in text


def test_a_report_is_replaced_and_nothing_else(call, single, tmp_path):
    path = tmp_path / "r.html"
    path.write_text(f"an earlier report {MARK}")
    write_report([single], path)
    assert "an earlier report" not in path.read_text()
    path.write_text("my own page")
    with pytest.raises(RunFolderError, match="exists and is no report"):
        write_report([single], path)
    assert path.read_text() == "my own page"
    code, _, err = call("report", single, "--out", tmp_path)
    assert code == 2
    assert "is a folder" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "nothing"), "there is no folder nothing"),
        (("report", "."), "holds no runs"),
        (("report",), "Missing argument"),
        (("figures", "nothing", "--format", "bmp"), "there is no format 'bmp'"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_figures_says_how_many_files_it_wrote(call, single, tmp_path):
    code, out, _ = call("figures", single, "--out", tmp_path / "f", "--format", "svg, png")
    assert code == 0
    assert f"written: {len(list((tmp_path / 'f').iterdir()))} files" in out


def test_without_matplotlib_it_is_said_what_to_install(call, single, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call("report", single, "--out", tmp_path / "r.html")
    assert code == 2
    assert "pip install idiolect[plot]" in err


# -- in a browser -----------------------------------------------------------------------------------------------


def test_it_loads_without_requests_and_complaints(page, chromium):
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.open(page)
    assert [url for url in chromium.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert chromium.complaints == []


def test_tables_are_sorted_by_a_click(page, chromium):
    chromium.open(page)
    values = "[...document.querySelectorAll('#table-leaderboard tbody tr')].map(r => Number(r.cells[%d].dataset.value))"
    click = "document.querySelectorAll('#table-leaderboard th button')[%d].click()"
    for column, first in ((1, "descending"), (6, "ascending")):
        for direction in (first, "ascending" if first == "descending" else "descending"):
            chromium.evaluate(click % column)
            shown = chromium.evaluate(values % column)
            assert shown == sorted(shown, reverse=direction == "descending")
            state = chromium.evaluate(
                f"document.querySelectorAll('#table-leaderboard th')[{column}].getAttribute('aria-sort')"
            )
            assert state == direction


def test_names_sort_as_text_and_missing_numbers_stay_last(page, chromium):
    chromium.open(page)
    names = "[...document.querySelectorAll('#table-against tbody tr')].map(r => r.cells[0].dataset.value)"
    chromium.evaluate("document.querySelector('#table-against th button').click()")
    shown = chromium.evaluate(names)
    assert shown == sorted(shown)
    chromium.evaluate("document.querySelectorAll('#table-targets th button')[1].click()")
    cells = chromium.evaluate(
        "[...document.querySelectorAll('#table-targets tbody tr')].map(r => r.cells[1].dataset.value)"
    )
    assert cells == sorted(cells, key=lambda each: (each == "", float(each or 0)))


def test_figures_are_drawn(page, chromium):
    chromium.open(page)
    sizes = chromium.evaluate(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height, s.querySelectorAll('path, use').length])"
    )
    assert len(sizes) > 15
    assert all(width > 300 and height > 80 and marks > 4 for width, height, marks in sizes)


LINES = "[...document.querySelectorAll('#curve-rounds g[data-line]')].filter(g => !g.hasAttribute('data-hidden'))"


def test_a_click_on_a_name_hides_its_line_in_every_chart(page, chromium, study):
    chromium.open(page)
    names = f"{LINES}.map(g => g.dataset.line)"
    press = "document.querySelector('.legend button').click()"
    assert chromium.evaluate(names) == study.methods
    chromium.evaluate(press)
    assert chromium.evaluate(names) == study.methods[1:]
    hidden = "[...document.querySelectorAll('.chart [data-hidden]')].map(g => getComputedStyle(g).display)"
    assert chromium.evaluate(hidden) == ["none"] * 3
    assert chromium.evaluate("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    chromium.evaluate(press)
    assert chromium.evaluate(names) == study.methods


def test_a_chart_says_its_values_to_the_pointer_and_to_the_arrow_keys(page, chromium, study):
    chromium.open(page)
    chromium.evaluate(
        "document.querySelector('#curve-rounds svg').scrollIntoView({behavior: 'instant', block: 'center'})"
    )
    x, y = chromium.evaluate(
        "(() => { const box = document.querySelector('#curve-rounds circle').getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    chromium.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"
    text = chromium.evaluate(said)
    assert text.startswith("round 1")
    for method in study.methods:
        assert f"{method}: {mean_curve(study, method, 'rounds').mean[0]:.2f}" in text
    chromium.evaluate("document.querySelector('#curve-rounds svg').focus()")
    for key in ("ArrowRight", "ArrowRight"):
        chromium.send("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert chromium.evaluate(said).startswith("round 2")
    chromium.send("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert chromium.evaluate(said) == ""


def test_everything_that_acts_can_be_reached_by_the_keyboard_and_has_a_name(page, chromium):
    chromium.open(page)
    wrong = chromium.evaluate(
        "[...document.querySelectorAll('table')].filter(t => !t.caption.textContent || !t.tHead"
        " || [...t.tBodies[0].rows].some(r => r.cells[0].scope !== 'row')).length"
        " + [...document.querySelectorAll('svg[role=img]')].filter(s => !s.getAttribute('aria-label')).length"
        " + [...document.querySelectorAll('button, .scroll, .chart svg')].filter(e => e.tabIndex < 0).length"
    )
    assert wrong == 0


CONTRAST = """(() => {
  const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number)
    .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const of = (element) => { const ink = light(getComputedStyle(element).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); };
  const texts = [...document.querySelectorAll('p, td, th, a, summary, li, h1, h2, h3, figcaption, .legend button')];
  return [Math.min(...texts.map(of)), Math.min(...[...document.querySelectorAll('.line')].map(of))];
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_have_enough_contrast(page, chromium, dark):
    chromium.open(page, dark=dark)
    text, lines = chromium.evaluate(CONTRAST)
    assert text >= 4.5
    assert lines >= 3


def test_heat_maps_that_are_white_somewhere_are_turned_around_in_the_dark(page, chromium):
    filters = "[...document.querySelectorAll('#wins [id*=\"-light\"]')].map(e => getComputedStyle(e).filter)"
    for dark, wanted in ((False, "none"), (True, "invert(1) hue-rotate(180deg)")):
        chromium.open(page, dark=dark)
        assert wanted in chromium.evaluate(filters)


def test_it_follows_the_colours_of_the_reader(page, chromium):
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg')).color]"
    found = {}
    for dark in (False, True):
        chromium.open(page, dark=dark)
        found[dark] = chromium.evaluate(colours)
    assert found[False] == ["rgb(255, 255, 255)", "rgb(27, 28, 30)"]
    assert found[True] == ["rgb(22, 24, 27)", "rgb(230, 232, 235)"]


def test_on_a_phone_nothing_is_wider_than_the_screen(page, chromium):
    chromium.open(page, width=390, height=844)
    assert chromium.evaluate("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
    assert chromium.evaluate(f"{wide}.length") > 0
    assert chromium.evaluate(f"{wide}.every(s => getComputedStyle(s).backgroundImage.includes('gradient'))")
    assert chromium.evaluate(
        "[...document.querySelectorAll('.chart svg, .drawing')].every(s => s.getBoundingClientRect().right <= 391)"
    )


EDGE = "getComputedStyle(document.querySelector('%s')).backgroundImage"


@pytest.mark.parametrize(("dark", "shade"), [(False, "rgba(0, 0, 0,"), (True, "rgba(255, 255, 255,")])
def test_the_edge_of_what_scrolls_stands_out_against_the_page(page, chromium, dark, shade):
    chromium.open(page, width=390, height=844, dark=dark)
    assert all(shade in chromium.evaluate(EDGE % place) for place in (".scroll", "pre"))


def test_a_picture_that_is_wider_than_a_phone_says_so(page, chromium):
    chromium.open(page, width=390, height=844)
    told = chromium.evaluate(
        "[...document.querySelectorAll('figure:has(.drawing)')].map(each => ["
        "each.querySelector('.drawing').scrollWidth > each.querySelector('.drawing').clientWidth + 1,"
        " getComputedStyle(each.querySelector('figcaption'), '::before').content.includes('Scrolls')])"
    )
    assert [True, True] in told
    assert all(wide == says for wide, says in told)


def test_on_paper_it_is_dark_on_white_and_whole(page, chromium):
    chromium.open(page, dark=True, media="print")
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_on_paper_no_table_is_wider_than_the_sheet(page, chromium):
    chromium.open(page, width=688, media="print")  # A4 within its margins
    chromium.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert chromium.evaluate("[...document.querySelectorAll('details')].every(each => each.open)")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 688
