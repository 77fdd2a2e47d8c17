"""Charts: what is shown, what is cut, and that names are text."""

import math

import pytest

from idiolect.report.charts import Chart, Line
from idiolect.report.page import environment, make_page

ROUNDS = [1.0, 2.0, 3.0, 4.0]


def chart(*lines, mark=math.nan):
    return Chart("c", "Scores", "How to read.", "round", "score", lines, lambda value: f"{value:.2f}", mark)


def drawn(made):
    page = environment().from_string('{% from "parts.html" import show_chart with context %}{{ show_chart(chart) }}')
    return page.render(chart=made)


def test_an_outlier_is_cut_at_the_edge_and_named():
    good = [Line(f"m{n}", ROUNDS, [3.0, 2.0, 1.0 + n / 10, 1.0]) for n in range(4)]
    made = chart(*good, Line("<b>wild</b>", ROUNDS, [3.0, 1e6, 1e9, math.nan]))
    assert made.axis.high <= 4
    assert made.cut == ["<b>wild</b>"]
    assert [side for *_, side in made.strokes()[4].beyond] == [1, 1]
    text = drawn(made)
    assert "Cut at the edge, where an arrow stands: &lt;b&gt;wild&lt;/b&gt;." in text
    assert "<b>" not in text


def test_what_can_be_read_beside_the_rest_is_not_cut():
    made = chart(Line("a", ROUNDS, [0.1, 0.9, 0.91, 0.92]), Line("b", ROUNDS, [0.1, 0.4, 0.5, 0.6]))
    assert made.cut == []


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_beside_an_axis_do_not_touch_its_title(tmp_path, chromium, width):
    lines = Line("a", ROUNDS, [52_000.0, 14_000.0, -30_000.0, 3_858.0])
    (tmp_path / "page.html").write_text(make_page("live.html", title="A", every=0, now=drawn(chart(lines))))
    chromium.open(tmp_path / "page.html", width=width)
    edges = "[...document.querySelectorAll('.grid text[%s]')].map(text => text.getBoundingClientRect().%s)"
    numbers, titles = edges % ("text-anchor=end", "left"), edges % ("transform", "right")
    assert min(chromium.evaluate(numbers)) > max(chromium.evaluate(titles))


@pytest.mark.parametrize("values", [[math.nan] * 4, [0.5] * 4, [math.inf, -math.inf, 0.5, 0.6], [1.0, 10.0, 1e3, 1e6]])
def test_any_values_can_be_drawn(values):
    text = drawn(chart(Line("a", ROUNDS, values), Line("none", [], []), mark=0.5))
    assert "nan" not in text.split("<svg")[1].partition(">")[2]
    assert "inf" not in text.split("<svg")[1].partition(">")[2].partition("figcaption")[0]


def test_a_missing_value_is_a_gap_and_cannot_be_asked_for():
    made = chart(Line("a", ROUNDS, [0.5, math.nan, 0.7, 0.8]))
    assert made.strokes()[0].path.count("M") == 2
    assert '"2"' not in made.points


def test_values_of_all_sizes_are_on_a_logarithmic_axis():
    made = chart(
        *(Line(f"m{n}", ROUNDS, [10.0**n, 10.0 ** (n + 1), 10.0 ** (n + 2), 10.0 ** (n + 3)]) for n in range(4))
    )
    assert made.axis.is_logarithmic
    tops = [top for top, _ in made.y_ticks()]
    assert tops == sorted(tops, reverse=True)
