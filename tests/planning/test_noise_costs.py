"""What the noise of a step costs: bytes that are kept, and milliseconds by given or measured speeds."""

import pytest

from anechoic.noise import NoiseStream
from anechoic.planning import noise_costs as costs
from anechoic.planning.compare import plan
from anechoic.planning.noise_costs import noise_costs
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, Identity

M = 1000


@pytest.mark.parametrize(
    ("strategy", "moved", "sources"),
    [
        (Identity(20), 1, None),  # its own row, which no memory goes into
        (BandedToeplitz(20, [1.0, 0.5, 0.2]), 5, None),
        (BLT(20, [0.2, 0.1], [0.9, 0.5]), 5, None),
        (BandedInverse(20, [1.0, -0.5, 0.1]), 5, 3),
    ],
)
def test_bytes_are_those_of_streams_and_times_those_of_speeds(strategy, moved, sources):
    ways = noise_costs(strategy.recurrence(), M, 4, bandwidth=1e9, keystream="2GB")
    assert ways[0].way == "store"
    assert ways[0].memory == NoiseStream(strategy, M).memory_bytes
    assert ways[0].milliseconds == pytest.approx(1e3 * (8 * M / 2e9 + moved * 4 * M / 1e9))
    assert len(ways) == (1 if sources is None else 2)
    for way in ways[1:]:
        assert way.way == "regenerate"
        assert way.memory == NoiseStream(strategy, M, memory=way.way).memory_bytes == 0
        assert way.milliseconds == pytest.approx(1e3 * (sources * 8 * M / 2e9 + 4 * M / 1e9))


def test_speeds_are_measured_where_none_are_given(monkeypatch):
    recurrence = BandedInverse(20, [1.0, -0.5]).recurrence()
    costs.copied_per_second.cache_clear()
    costs.drawn_per_second.cache_clear()
    monkeypatch.setattr(costs, "_MEASURED", 2**14)
    found = noise_costs(recurrence, M)
    assert all(way.milliseconds > 0 for way in found)
    copied, drawn = costs.copied_per_second(), costs.drawn_per_second()
    assert found == noise_costs(recurrence, M, bandwidth=copied, keystream=drawn)
    costs.copied_per_second.cache_clear()  # what follows measures for itself
    costs.drawn_per_second.cache_clear()


@pytest.mark.parametrize("name", ["bandwidth", "keystream"])
def test_speeds_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}="):
        noise_costs(Identity(3).recurrence(), M, **{name: 0.0})
    with pytest.raises(ValueError, match="dimension="):
        noise_costs(Identity(3).recurrence(), 0)


@pytest.mark.slow
def test_a_plan_tells_the_costs_of_its_choice():
    shape = {"examples": 100, "batch_size": 10, "epochs": 1, "random_sampling": False}
    found = plan(**shape, epsilon=3.0, delta=1e-3, strategy="output", dimension=M)
    stored, made = found.noise_costs(M, bandwidth=1e9, keystream=1e9)
    assert (stored.memory, made.memory) == (2 * 4 * M, 0)
    assert str(made) == f"memory='regenerate': 0 B, {made.milliseconds:.3g} ms a step"
    assert "With memory='regenerate' a stream keeps none of it" in found.reason
