"""Between Flower's records and arrays by name: every array that comes from a client is read here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

# Names of records in a message. The first two are those of Flower's own strategies.
ARRAYS = "arrays"
CONFIG = "config"
# What the server asks of the mod: stage, clip norm and so on.
ASK = "anechoic"
# What the mod answers.
UPDATE = "update"
# Values of "stage" in what the server asks of the mod.
WHO = "who"
TRAIN = "train"

# What NumPy writes for an array of plain numbers, letter by letter. Anything else is nobody's array: no
# parser of Python's or NumPy's sees what a client sent.
_HEADER = re.compile(
    rb"\{'descr': '([<>|](?:[iu][1248]|f[248]|c(?:8|16)|b1))', 'fortran_order': (True|False),"
    rb" 'shape': \((|[0-9]{1,18},|[0-9]{1,18}(?:, [0-9]{1,18}){1,31})\), \} *\n"
)
_MAGIC = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}  # and bytes of the header's length
_LONGEST_HEADER = 10_000
_MOST_ENTRIES = 2**48  # of a shape without its zeros: NumPy has no larger one, not even empty


class UnreadableError(ValueError):
    """Bytes that a client sent are not the array that they have to be."""


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Arrays by name as Flower sends them; a 0-d array stays one."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Arrays by name, read-only, over the bytes of the record.

    Raises:
        UnreadableError: for bytes that are not a plain array of exactly their length.
    """
    return {name: read(array) for name, array in record.items()}


def read(array: Array) -> NDArray[Any]:
    """One array, read-only, over its own bytes.

    NumPy's reader believes the header and makes room for what it announces. This one counts first.

    Raises:
        UnreadableError: for bytes that are not a plain array of exactly their length; nothing else.
    """
    data = array.data
    if array.stype != "numpy.ndarray" or not isinstance(data, bytes):
        raise UnreadableError("an array that NumPy did not write")
    width = _MAGIC.get(data[:8], 0)
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    found = _HEADER.fullmatch(data, 8 + width, min(start, _LONGEST_HEADER)) if width else None
    if found is None:
        raise UnreadableError("an array whose header cannot be read")
    dtype = np.dtype(found[1].decode())
    shape = tuple(map(int, re.findall(rb"[0-9]+", found[3])))
    if math.prod(length for length in shape if length) > _MOST_ENTRIES:
        raise UnreadableError("an array of more entries than there can be")
    size = math.prod(shape)
    if size * dtype.itemsize != len(data) - start:
        raise UnreadableError("an array whose bytes are not as many as its header says")
    entries = np.frombuffer(data, dtype, count=size, offset=start)
    return entries.reshape(shape, order="F" if found[2] == b"True" else "C")


def vector_record(vector: NDArray[np.int64], grid_bits: int) -> ArrayRecord:
    """A vector on the grid in the narrowest integers that hold every such vector.

    Args:
        vector: shape (dimension,), of norm at most 2**grid_bits.
        grid_bits: of the server.
    """
    return record_of({UPDATE: vector.astype(narrowest(grid_bits))})


def narrowest(grid_bits: int) -> type[np.signedinteger[Any]]:
    """The type of integers that holds -2**grid_bits to 2**grid_bits."""
    for kind in (np.int8, np.int16, np.int32):
        if grid_bits < np.iinfo(kind).bits - 1:
            return kind
    return np.int64


def vector_of(content: RecordDict) -> NDArray[np.signedinteger[Any]]:
    """The vector on the grid that a client answered with, shape and type as sent; read-only.

    Raises:
        UnreadableError: where there is none, or not of integers.
    """
    record = content.get(UPDATE)
    if not isinstance(record, ArrayRecord) or list(record) != [UPDATE]:
        raise UnreadableError(
            "no clipped update; is the mod anechoic.flower.client.clipped_update_mod missing?"
        )
    vector = read(record[UPDATE])
    if vector.dtype.kind != "i":
        raise UnreadableError(f"an update of {vector.dtype}, not of integers")
    return vector.astype(vector.dtype.newbyteorder("="), copy=False)


def asked_of(content: RecordDict) -> ConfigRecord | None:
    """What the server asks of the mod, or None where it asks nothing."""
    record = content.get(ASK)
    return record if isinstance(record, ConfigRecord) else None
