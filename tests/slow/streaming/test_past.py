"""Releases are made again from noisy rows, bit for bit: with a file, without, and by who reads it."""

import numpy as np
import pytest

from anechoic import streaming
from tests.streaming.released import bytes_of

EDGES = np.linspace(-2, 2, 9)
STATISTICS = {
    "z count": streaming.Count(),
    "sum": streaming.Sum(2.0),
    "mean": streaming.Mean(-1, 1),
    "histogram": streaming.Histogram([0.5, 7, "AA"]),
    "distribution": streaming.Distribution(EDGES),
    "quantiles": streaming.Quantiles(EDGES, [0.1, 0.5]),
}
OVERS = [streaming.Running(), streaming.SlidingWindow(3)]


def all_bytes(releases):
    return [*map(bytes_of, releases)]


@pytest.mark.parametrize("over", OVERS, ids=lambda over: type(over).__name__)
@pytest.mark.slow
def test_every_statistic_is_read_from_its_file_as_it_was_published(tmp_path, over):
    options = {"epsilon": 20.0, "horizon": 9, "over": over, "state": tmp_path / "s"}
    with streaming.Stream(STATISTICS, **options) as stream:
        for step in range(7):
            stream.update(np.linspace(-1, 1, 50) + 0.1 * step)
            stream.release(None if step == 3 else step)
            assert bytes_of(stream.get()) == all_bytes(stream.releases())[-1]
        made = all_bytes(stream.releases())
        assert all_bytes(streaming.read_releases(tmp_path / "s")) == made
        assert all_bytes(streaming.read_releases(tmp_path / "s", since=4)) == made[4:]
    with streaming.Stream(STATISTICS, **options) as stream:
        assert all_bytes(stream.releases()) == made and bytes_of(stream.get()) == made[-1]
        band = stream.band()
        assert [one.step for one in band] == list(range(7))
    found = streaming.read_releases(tmp_path / "s")
    assert list(found[0]) == list(STATISTICS) and found[0].labels == stream.shared.labels
