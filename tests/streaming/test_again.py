"""What was released, read over other steps: the sums are theirs, and the errors as stated."""

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import MismatchError
from tests.streaming.released import bytes_of
from tests.streaming.test_confidence_bands import KINDS, RUNS, N
from tests.streaming.test_stream import NoNoise

BATCHES = [[0.25] * n for n in (4, 0, 7, 2, 9, 1)]


@pytest.mark.slow
def test_differences_and_other_overs_without_noise_are_the_sums_of_those_steps():
    stream = NoNoise({"s": streaming.Sum(1.0)}, epsilon=1.0, horizon=9)
    stream.steps(BATCHES)
    sums = np.array([sum(batch) for batch in BATCHES])
    for begin, last in [(0, 0), (0, 5), (2, 4), (5, 5)]:
        found = stream.between(begin, last)
        assert np.isclose(found.estimate, sums[begin : last + 1].sum(), atol=1e-6) and found.step == last
    assert np.isclose(stream.between(3).estimate, sums[3:].sum(), atol=1e-6)
    for over in (streaming.Running(), streaming.SlidingWindow(2)):
        own = NoNoise({"s": streaming.Sum(1.0)}, epsilon=1.0, horizon=9, over=over)
        own.steps(BATCHES)
        again = [release.estimate for release in stream.releases_over(over)]
        assert np.allclose(again, [release.estimate for release in own.releases()], atol=1e-6)


@pytest.mark.parametrize("kind", ["planned", "endless", "tree"])
def test_errors_of_differences_and_other_overs_are_as_stated(kind):
    stream = streaming.Stream(streaming.Sum(bound=3.0, dimension=RUNS), key=bytes(32), **KINDS[kind])
    stream.steps([np.zeros((0, RUNS))] * N)
    found = [stream.between(begin, last) for begin, last in [(0, 3), (5, 9), (7, 7), (12, N - 1)]]
    found += list(stream.releases_over(streaming.SlidingWindow(4)))[::6]
    for release in found:
        ratio = np.sqrt(np.mean(np.square(release.estimate))) / release.standard_error[0]
        assert abs(ratio - 1) < 4.5 / np.sqrt(2 * RUNS)  # 4.5 standard deviations
        inside = (release.only.low <= 0) & (release.only.high >= 0)
        assert 0.93 < inside.mean() < 0.97
    independent = np.hypot(*(stream.standard_deviations(t)["sum"] for t in (11, N - 1)))
    assert found[3].standard_error[0] < independent


def test_what_has_no_difference_is_refused():
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    with pytest.raises(ValueError, match="0 of Running"):
        stream.between(0)
    stream.steps([1, 2])
    for begin, last in [(-1, 1), (1, 0), (0, 2), (0, -1)]:
        with pytest.raises(ValueError, match=r"must lie between|are released"):
            stream.between(begin, last)
    with pytest.raises(ValueError, match="needs running totals"):
        streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4, over=streaming.SlidingWindow(2)).between(
            0
        )


def test_partial_sums_are_batches():
    stream = NoNoise(
        {"n": streaming.Count("x"), "h": streaming.Histogram(["a"], "x")}, epsilon=1.0, horizon=4
    )
    parts = [
        streaming.Accumulator(stream).add({"x": letters}) for letters in (["aa", ""], ["a"], ["c", None])
    ]
    stream.update(parts[0].merge(parts[1]))
    stream.update(parts[2].merge(streaming.Accumulator(stream)))
    release = stream.release()
    assert release["n"].value == 5 and release["h"].value == 1
    assert stream.diagnostics() == {"h: unknown category": 4}
    other = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    with pytest.raises(MismatchError):
        other.update(parts[0])
    with pytest.raises(MismatchError):
        parts[0].merge(streaming.Accumulator(other).add([1]))


def read_again(stream):
    """Everything that is arithmetic on published rows."""
    found = [*stream.releases(), stream.get(), stream.between(1, 3), stream.between(2)]
    for over in streaming.SlidingWindow(2):
        found += stream.releases_over(over)
    return [*map(bytes_of, [*found, *stream.band(simultaneous=False)])]


@pytest.mark.slow
def test_groups_differences_and_partial_sums_go_on_from_a_file(tmp_path):
    statistics = {
        "n": streaming.Count(),
        "mean": streaming.Mean(-1, 1, "x"),
        "quantiles": streaming.Quantiles([-1, 0, 1], column="x"),
        "histogram": streaming.Histogram([0, "a"], "c"),
    }
    options = {"by": ("g", ["a", 7]), "epsilon": 9.0, "horizon": 9, "key": bytes(32)}
    batches = [{"g": ["a", 7, "b"] * n, "x": [0.1 * n] * 3 * n, "c": [0, "a", 2] * n} for n in range(6)]
    whole = streaming.Stream(statistics, **options)
    whole.steps(batches)
    for some in (batches[:4], batches[4:]):
        with streaming.Stream(statistics, **options, state=tmp_path / "s") as stream:
            stream.steps([streaming.Accumulator(stream).add(batch) for batch in some])
            made = read_again(stream)
    assert made == read_again(whole)
    with streaming.Stream(statistics, **options, state=tmp_path / "s") as stream:
        assert read_again(stream) == made
        labels = stream.get().labels
    found = streaming.read_releases(tmp_path / "s")
    assert [*map(bytes_of, found)] == made[:6] and found[0].labels == labels
    with pytest.raises(MismatchError, match="groups"):
        streaming.Stream(statistics, **{**options, "by": ("g", [7, "a"])}, state=tmp_path / "s")
