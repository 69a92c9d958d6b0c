"""The picture of a stream: what was released, with both bands."""

import numpy as np
import pytest

from anechoic.streaming import Count, Histogram, Stream

pytest.importorskip("matplotlib")


def test_a_plot_has_the_estimates_and_both_bands():
    with Stream({"n": Count(), "h": Histogram(list("abcdef"))}, epsilon=2.0, horizon=12) as stream:
        with pytest.raises(ValueError, match="nothing was released yet"):
            stream.plot("n")
        stream.steps([["a", "b"]] * 12)
        made, wide = list(stream.releases()), stream.band()
        figure = stream.plot("n")
        (axes,) = figure.axes
        assert axes.get_lines()[0].get_ydata() == pytest.approx([float(one["n"].value) for one in made])
        for area, releases in zip(axes.collections, (wide, made), strict=True):
            drawn = area.get_paths()[0].vertices[:, 1]
            for bound in ("low", "high"):
                for one in releases:
                    assert np.abs(drawn - float(getattr(one["n"], bound))).min() < 1e-9
        assert "over 12 steps" in figure._repr_html_()
        assert len(stream.plot("h").axes) == 4, "a few of six, spread over them"
        with pytest.raises(ValueError, match="name=None is no statistic"):
            stream.plot()


def test_a_stream_of_one_statistic_needs_no_name():
    with Stream(Count(), epsilon=2.0, horizon=4) as stream:
        stream.steps([["a"]] * 4)
        assert len(stream.plot().axes) == 1
