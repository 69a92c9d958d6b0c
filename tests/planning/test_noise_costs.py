"""What the noise of a step costs: bytes that are kept, and milliseconds by given or measured speeds."""

import numpy as np
import pytest

from anechoic.noise import NoiseStream
from anechoic.planning import noise_costs as costs
from anechoic.planning.compare import plan
from anechoic.planning.memory_budget import FRESH, Room
from anechoic.planning.noise_costs import noise_costs
from anechoic.planning.on_grid import on_grid
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


@pytest.mark.slow
def test_a_plan_makes_again_what_its_budget_has_no_room_for():
    shape = {"examples": 100, "batch_size": 10, "epochs": 1, "random_sampling": False, "dimension": M}
    options = {"epsilon": 3.0, "delta": 1e-3, "strategy": "output"}
    stored, made = (plan(**shape, **options, memory_budget=4 * M * rows) for rows in (2, 1))
    assert stored.mechanism == made.mechanism
    row = made.chosen
    assert (stored.chosen.way, stored.chosen.history, stored.chosen.memory) == ("store", 2, 8 * M)
    assert (row.way, row.history, row.memory) == ("regenerate", 0, 0)
    assert made.mechanism.stream(M, memory=row.way).memory_bytes == 0
    assert row.seconds == pytest.approx(2 * FRESH * 1e-9 * M) and row.seconds > stored.chosen.seconds
    text = str(made)
    assert "again: no noise state" in text and "again: no noise state" not in str(stored)
    assert any("→" in line and " again " in line for line in text.splitlines())
    assert "rows are made again in each step, in 1.9 times the time" in " ".join(text.split())
    wide = {rows: on_grid(stored, M, 3.0, 20, 8 * M * rows).chosen for rows in (2, 1)}
    assert [(one.way, one.memory) for one in wide.values()] == [("store", 16 * M), ("regenerate", 0)]
    assert wide[1].seconds == row.seconds
    assert on_grid(made, M, 3.0, 20, 10**9).chosen.way == "regenerate"


def test_many_fresh_rows_are_not_made_again():
    """Of 17 bands the noise of a step would take longer than many a step: only who asks a stream has it."""
    space = Room(0, M)
    few, many = (BandedInverse(40, np.r_[1.0, np.full(k, -0.01)]).recurrence() for k in (15, 16))
    assert space.kept(few) == ("regenerate", 0) and space.kept(many) == ("store", 17)
    assert Room(17, M).kept(many) == ("store", 17) and Room(16, M).kept(few) == ("store", 16)
    assert space.kept(BandedToeplitz(20, [1.0, 0.5]).recurrence()) == ("store", 2)
    assert Room(16, M).kept(few, 24) == ("regenerate", 0)  # on a grid, with sums made ahead


@pytest.mark.slow
def test_the_least_that_would_fit_is_named():
    shape = {"examples": 100, "batch_size": 10, "epochs": 1, "random_sampling": False, "dimension": M}
    with pytest.raises(ValueError, match=f"raise the budget .the least of them takes {4 * M} bytes"):
        plan(**shape, epsilon=3.0, delta=1e-3, strategy="blt", memory_budget=4 * M - 1)
