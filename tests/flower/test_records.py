"""Arrays from clients: read without believing what they say of themselves."""

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from anechoic.flower.records import (
    UnreadableError,
    arrays_of,
    narrowest,
    read,
    record_of,
    vector_of,
    vector_record,
)


def header(descr, shape, fortran=False):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return stream.getvalue()


def sent(data, stype="numpy.ndarray"):
    return Array(dtype="float32", shape=(1,), stype=stype, data=data)


@pytest.mark.parametrize(
    "array",
    [
        np.float32(3.5),
        np.zeros((0, 3)),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([1.0, 2.0], ">f4"),
    ],
)
def test_round_trip(array):
    [found] = arrays_of(record_of({"a": np.asarray(array)})).values()
    assert found.shape == np.shape(array)
    assert found.dtype == np.asarray(array).dtype
    np.testing.assert_array_equal(found, array)


def test_reads_what_flower_wrote():
    record = ArrayRecord([np.arange(3.0)])
    np.testing.assert_array_equal(arrays_of(record)["0"], np.arange(3.0))


def test_another_serialisation_is_unreadable():
    with pytest.raises(UnreadableError):
        read(sent(header("<f4", (1,)) + bytes(4), stype="pickle"))


@pytest.mark.parametrize("bits", [1, 6, 7, 14, 15, 30, 31, 52])
def test_the_narrowest_type_holds_both_ends(bits):
    ends = np.array([-(2**bits), 2**bits], np.int64)
    record = vector_record(ends, bits)
    np.testing.assert_array_equal(vector_of(RecordDict({"update": record})), ends)
    assert narrowest(bits)().itemsize == next(size for size in (1, 2, 4, 8) if bits < 8 * size - 1)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"update": ConfigRecord()},
        {"update": ArrayRecord()},
        {"update": record_of({"update": np.zeros(3)})},
        {"update": record_of({"update": np.zeros(3, np.uint64)})},
        {"arrays": record_of({"update": np.zeros(3, np.int64)})},
    ],
    ids=["nothing", "config", "none", "floats", "unsigned", "another name"],
)
def test_what_is_no_update(content):
    with pytest.raises(UnreadableError):
        vector_of(RecordDict(content))
