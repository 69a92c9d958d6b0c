"""Releases are made again from noisy rows, bit for bit: with a file, without, and by who reads it."""

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import CheckpointError

EDGES = np.linspace(-2, 2, 9)
STATISTICS = {
    "z count": streaming.Count(),
    "sum": streaming.Sum(2.0),
    "mean": streaming.Mean(-1, 1),
    "histogram": streaming.Histogram([0.5, 7, "AA"]),
    "distribution": streaming.Distribution(EDGES, noise="buckets"),
    "quantiles": streaming.Quantiles(EDGES, [0.1, 0.5]),
}
OVERS = [streaming.Running(), streaming.SlidingWindow(3), streaming.Decayed(0.7)]


def bytes_of(releases):
    return [release.to_bytes() for release in releases]


@pytest.mark.parametrize("over", OVERS, ids=lambda over: type(over).__name__)
@pytest.mark.slow
def test_every_statistic_is_read_from_its_file_as_it_was_published(tmp_path, over):
    options = {"epsilon": 20.0, "horizon": 9, "over": over, "state": tmp_path / "s"}
    with streaming.Stream(STATISTICS, **options) as stream:
        for step in range(7):
            stream.update(np.linspace(-1, 1, 50) + 0.1 * step)
            stream.release(None if step == 3 else step)
            assert stream.get().to_bytes() == bytes_of(stream.releases())[-1]
        made = bytes_of(stream.releases())
        assert bytes_of(streaming.read_releases(tmp_path / "s")) == made
        assert bytes_of(streaming.read_releases(tmp_path / "s", since=4)) == made[4:]
    with streaming.Stream(STATISTICS, **options) as stream:
        assert bytes_of(stream.releases()) == made and stream.get().to_bytes() == made[-1]
        band = stream.band(simultaneous=False)
        assert [one.step for one in band] == list(range(7))
    found = streaming.read_releases(tmp_path / "s")
    assert list(found[0]) == list(STATISTICS) and found[0].labels == stream.shared.labels


class Doubled(streaming.Count):
    def describe(self):
        return {"kind": "doubled"}


def test_a_statistic_of_your_own_is_to_be_given(tmp_path):
    with streaming.Stream({"n": Doubled()}, epsilon=1.0, horizon=3, state=tmp_path / "s") as stream:
        made = stream.steps([[1]])
    with pytest.raises(CheckpointError, match="give statistics="):
        streaming.read_releases(tmp_path / "s")
    assert bytes_of(streaming.read_releases(tmp_path / "s", statistics={"n": Doubled()})) == bytes_of(made)
    with pytest.raises(CheckpointError, match="other statistics"):
        streaming.read_releases(tmp_path / "s", statistics={"n": streaming.Count()})


@pytest.mark.parametrize("over", OVERS, ids=lambda over: type(over).__name__)
@pytest.mark.slow
def test_memory_keeps_the_last_ones(over):
    key, found = bytes(range(32)), []
    for keep in (None, 4):
        stream = streaming.Stream(STATISTICS, epsilon=1.0, horizon=20, over=over, keep=keep, key=key)
        for step in range(12):
            stream.update(np.linspace(-1, 1, 20), batch_id=f"{step}")
            stream.release()
        found.append((bytes_of(stream.releases()), bytes_of(stream.band(simultaneous=False))))
    for whole, kept in zip(*found, strict=True):
        assert kept == whole[-4:]
    assert len(stream._state._rows) == 4 + over.reach
    one = np.linspace(-1, 1, 20)
    assert stream.steps([one], batch_ids=["9"])[0].to_bytes() == found[0][0][9]
    with pytest.raises(ValueError, match="the last 4 releases are kept: give a larger keep"):
        stream.steps([one], batch_ids=["3"])
    begun = stream.releases()
    stream.steps([one] * 6)
    with pytest.raises(ValueError, match="not kept any more"):
        next(begun)


@pytest.mark.slow
def test_an_endless_stream_in_memory_forgets(monkeypatch, tmp_path):
    monkeypatch.setattr("anechoic.streaming.published.KEPT", 3)
    stream = streaming.Stream(streaming.Count(), epsilon=1.0)
    stream.steps([1] * 8)
    assert [made.step for made in stream.releases()] == [5, 6, 7] and stream.get().step == 7
    planned = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=20)
    planned.steps([1] * 8)
    assert len(list(planned.releases())) == 8
    with pytest.raises(ValueError, match="a state file keeps all"):
        streaming.Stream(streaming.Count(), epsilon=1.0, state=tmp_path / "s", keep=3)
    with pytest.raises(ValueError, match="keep=0"):
        streaming.Stream(streaming.Count(), epsilon=1.0, keep=0)
