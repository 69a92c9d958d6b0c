"""The embedded flights are what PROVENANCE.md says, and the design matrix is what it says."""

import hashlib
import re
from importlib import resources

import numpy as np
import pytest

from anechoic.demo.flights import flights, flights_design

FLIGHTS = 327_346
FOLDER = resources.files("anechoic.demo")


@pytest.fixture(scope="module")
def data():
    return flights()


def test_the_file_and_every_field_are_those_of_the_provenance_note(data):
    content, note = (
        FOLDER.joinpath("flights.npz").read_bytes(),
        FOLDER.joinpath("PROVENANCE.md").read_text("utf-8"),
    )
    assert hashlib.sha256(content).hexdigest() == re.search(r"`([0-9a-f]{64})`", note)[1]
    assert f"{len(content):,} bytes" in note
    for name, values in data.items():
        kind = "str" if values.dtype.kind == "U" else values.dtype.name
        row = re.search(rf"^\| `{name}` \| {kind} \|.*\| (.*) \|$", note, re.MULTILINE)
        assert row, f"{name} ({kind}) has no row in PROVENANCE.md"
        if kind != "str":
            low, high = row[1].replace("−", "-").split("–")
            assert (int(low), int(high)) == (values.min(), values.max())


def test_one_entry_a_flight_in_time_order_and_indices_point_to_names(data):
    names = {"carrier_names", "origin_names", "dest_names"}
    assert all(len(values) == FLIGHTS for name, values in data.items() if name not in names)
    key = ("month", "day", "hour", "minute")
    departure = sum(data[name].astype(np.int64) * 100 ** (3 - i) for i, name in enumerate(key))
    assert (np.diff(departure) >= 0).all()
    for field, count in (("carrier", 16), ("origin", 3), ("dest", 104)):
        assert len(data[f"{field}_names"]) == count
        assert np.array_equal(np.unique(data[field]), np.arange(count))
    assert np.array_equal(np.unique(data["tail"]), np.arange(4037))
    assert [int(data[name][0]) for name in ("month", "day", "weekday")] == [1, 1, 1]  # a Tuesday
    other = flights()
    other["hour"][:] = 0
    assert flights()["hour"][0] == data["hour"][0] != 0  # each call gives fresh arrays


def test_the_design_has_one_column_a_value_and_the_target_is_later_than_15_minutes(data):
    features, target = flights_design()
    assert features.shape == (FLIGHTS, 46) and target.shape == (FLIGHTS,)
    assert features.dtype == target.dtype == np.float32
    blocks = {"hour": (0, 19, 5), "carrier": (19, 16, 0), "origin": (35, 3, 0), "weekday": (38, 7, 0)}
    for name, (start, width, first) in blocks.items():
        block = features[:, start : start + width]
        assert np.array_equal(np.unique(block), [0.0, 1.0]) and (block.sum(axis=1) == 1).all()
        assert np.array_equal(block.argmax(axis=1) + first, data[name])
        assert (block.sum(axis=0) > 0).all(), f"a column of {name} is never used"
    np.testing.assert_allclose(features[:, 45] * 1000, data["distance"], rtol=1e-6)
    assert np.array_equal(target == 1, data["arr_delay"] > 15)
