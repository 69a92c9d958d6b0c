"""Between Flower's records and arrays by name: every array that comes from a client is read here."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

# Names of records in a message. The first two are those of Flower's own strategies.
ARRAYS = "arrays"
CONFIG = "config"
# What the server asks of the mod: stage, clip norm and so on.
ASK = "anechoic"
# What the mod answers.
UPDATE = "update"
COUNT = "count"
METRICS = "metrics"
# Names in a node's state that belong to the mod begin so.
HELD = "anechoic "
# Values of "stage" in what the server asks of the mod.
WHO = "who"
TRAIN = "train"
MASKED = "masked"

_LONGEST_HEADER = 10_000  # NumPy's own limit, beyond which parsing one could take long


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
        UnreadableError: for bytes that are not a plain array of exactly their length.
    """
    if array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
        raise UnreadableError("an array that NumPy did not write")
    stream = BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(stream, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # NumPy's parser passes on whatever Python's own raises
        raise UnreadableError("an array whose header cannot be read") from error
    size = 1
    for length in shape:
        size *= length
    start = stream.tell()
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise UnreadableError("an array that is not of plain numbers")
    if size * dtype.itemsize != len(array.data) - start:
        raise UnreadableError("an array whose bytes are not as many as its header says")
    found = np.frombuffer(array.data, dtype, count=size, offset=start)
    return found.reshape(shape, order="F" if fortran else "C")


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
