"""Curves in files: they show what the charts of the page show."""

import pytest

from idiolect.report import curves as charts
from idiolect.report import read_study
from idiolect.report.figures import curves, picture
from idiolect.report.scores import MeanCurve, mean_curve

AT = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "values",
    [None, [3.0, 2.0, 1.5, 1.0], [1.0, 10.0, 1e3, 1e6], [0.5] * 4],
    ids=["as they are", "with an outlier in a band", "of all sizes", "all equal"],
)
def test_curves_are_cut_as_on_the_page(originals, monkeypatch, tmp_path, values):
    study, figures = read_study([originals]), []

    def curve(study, method, axis):
        if values is None:
            return mean_curve(study, method, axis)
        high = [3.0, 1e6, 1e9, 1e9] if values[1] == 2 and method == "ditto" else values
        return MeanCurve(AT, values, values, high)

    monkeypatch.setattr(charts, "mean_curve", curve)
    monkeypatch.setattr(curves, "mean_curve", curve)
    monkeypatch.setattr(picture, "save_figure", lambda figure, path: figures.append(figure))
    curves.curve_pictures(study, 0.9)[0].save(tmp_path / "curve.svg")
    shown, axes = charts.curve_charts(study, 0.9)[0].axis, figures[0].axes[0]
    assert axes.get_ylim() == pytest.approx(shown.edges)
    assert axes.get_yscale() == ("log" if shown.is_logarithmic else "linear")
    assert shown.is_logarithmic == (values is not None and values[-1] == 1e6)
