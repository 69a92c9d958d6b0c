"""Arrays from clients: read without believing what they say of themselves, and without NumPy's parser."""

import random
import warnings

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from anechoic.flower.records import (
    UnreadableError,
    arrays_of,
    narrowest,
    read,
    record_of,
    vector_of,
    vector_record,
)
from tests.flower.app import evil


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16", "?", ">i4", ">f8"]
)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3), (1,) * 32], ids=str)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.few(100)
def test_every_plain_array_is_read_as_it_was(dtype, shape, order):
    array = np.asarray(np.random.default_rng(1).integers(0, 2, shape), dtype=dtype, order=order)
    [found] = arrays_of(record_of({"a": array})).values()
    assert found.dtype == array.dtype and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


def test_reads_what_flower_wrote():
    np.testing.assert_array_equal(arrays_of(ArrayRecord([np.arange(3.0)]))["0"], np.arange(3.0))


def _sent(text, size, stype="numpy.ndarray"):
    line = text.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + bytes(size)
    return evil.Array("int32", (7,), stype, data)


PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }"


@pytest.mark.parametrize(
    "text",
    [
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({'1, ' * 65}), }}",
        "{'descr': ('<i8', (2,)), 'fortran_order': False, 'shape': (1,), }",
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': (0, {10**17}), }}",
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': (0, {10**30}), }}",
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**12},), }}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (True, 7), }",
        "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-7,), }",
        PLAIN.replace("7", "8"),
        PLAIN.replace("7", "6"),
    ],
)
def test_heads_that_numpy_parses_and_no_update_has_are_unreadable(text):
    for size in (0, 8, 16, 28):
        with pytest.raises(UnreadableError):
            read(_sent(text, size))


def test_another_serialisation_is_unreadable():
    assert read(_sent(PLAIN, 28)).shape == (7,)
    with pytest.raises(UnreadableError):
        read(_sent(PLAIN, 28, stype="pickle"))


@pytest.mark.slow
def test_three_thousand_hostile_headers_are_arrays_or_unreadable():
    draw, found, refused = random.Random(1), 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3000):
            array = evil.array(draw)
            try:
                seen = read(array)
            except UnreadableError:
                refused += 1
            else:
                found += 1
                assert seen.nbytes <= len(array.data) and not seen.flags.writeable
                assert seen.dtype.kind in "iuf"
                seen.sum()
    assert found > 5 and refused > 2000


def test_no_content_of_an_update_is_anything_but_integers_or_unreadable():
    draw = random.Random(2)
    for _ in range(1000):
        content = evil.contents(draw)
        if isinstance(content, RecordDict):
            try:
                assert vector_of(content).dtype.kind == "i"
            except UnreadableError:
                continue


@pytest.mark.parametrize("bits", [1, 6, 7, 14, 15, 24, 30, 31, 40, 62])
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
