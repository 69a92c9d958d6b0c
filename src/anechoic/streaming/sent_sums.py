"""Sums as bytes, for another process: what is read is held to what so many records can add."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anechoic._validate import positive_int
from anechoic.errors import CheckpointError
from anechoic.streaming.layout import FORMAT, StreamLayout, SumsLayout, check_same
from anechoic.streaming.statistic import Integers
from anechoic.streaming.stream_state import MOST
from anechoic.units.ids import DIGEST

_MAGIC, _CHECK = b"anechoic sums\0\0\0", 16


@dataclass(frozen=True, eq=False)
class SentSums:
    """What an accumulator holds.

    Attributes:
        step: that its records belong to, or None.
        count: of its records.
        remarks: how many of them were changed or left out, by reason.
        sums: shape (dimension,).
        units: digests in order, one for each row.
        rows: what records of units add, a sparse array of int64, shape (units, dimension).
    """

    step: int | None
    count: int
    remarks: Mapping[str, int]
    sums: Integers
    units: NDArray[np.bytes_]
    rows: Any


def enveloped(head: Mapping[str, Any], body: bytes, layout: SumsLayout) -> bytes:
    """As bytes, with a checksum."""
    said = json.dumps({"stream": layout.stream, "layout": layout.mark, **head}).encode()
    sizes = FORMAT.to_bytes(4, "little") + len(said).to_bytes(8, "little")
    content = b"".join([_MAGIC, sizes, said, body])
    return content + hashlib.blake2b(content, digest_size=_CHECK).digest()


def written(sent: SentSums, layout: StreamLayout) -> bytes:
    """As bytes, with a checksum."""
    head = {
        "step": sent.step,
        "count": sent.count,
        "remarks": sent.remarks,
        "units": len(sent.units),
        "entries": int(sent.rows.nnz),
    }
    parts = [
        sent.sums.astype("<i8").tobytes(),
        sent.units.tobytes(),
        np.diff(sent.rows.indptr).astype("<i8").tobytes(),
        sent.rows.indices.astype("<i8").tobytes(),
        sent.rows.data.astype("<i8").tobytes(),
    ]
    return enveloped(head, b"".join(parts), layout)


Sent = TypeVar("Sent")


def opened(content: bytes, layout: SumsLayout, read: Callable[[Mapping[str, Any], bytes], Sent]) -> Sent:
    """What `read` makes of head and body that `enveloped` got for this layout.

    Raises:
        CheckpointError, MismatchError: see `Accumulator.from_bytes`.
    """
    begin = len(_MAGIC)
    if content[:begin] != _MAGIC:
        raise CheckpointError("these bytes are no accumulator: give what to_bytes() gave.")
    version = int.from_bytes(content[begin : begin + 4], "little")
    if version != FORMAT:
        raise CheckpointError(
            f"an accumulator of format {version}, where this version reads {FORMAT}: let workers and"
            " stream have the same version of anechoic."
        )
    content, check = content[:-_CHECK], content[-_CHECK:]
    if hashlib.blake2b(content, digest_size=_CHECK).digest() != check:
        raise CheckpointError("the bytes of an accumulator are damaged or cut short: send them again.")
    place = begin + 12 + int.from_bytes(content[begin + 4 : begin + 12], "little")
    try:
        head = json.loads(content[begin + 12 : place])
        stream, mark = str(head["stream"]), str(head["layout"])
    except (KeyError, TypeError, ValueError) as error:
        raise wrong(f"its head cannot be read ({error})") from error
    check_same(stream, mark, layout)
    try:
        return read(head, content[place:])
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise error if isinstance(error, CheckpointError) else wrong(str(error).rstrip(".")) from error


def read_sums(content: bytes, layout: StreamLayout) -> SentSums:
    """What `written` gave for this layout.

    The checksum is no secret: whoever made these bytes, a row is at most what one record adds, and sums are
    at most what so many records add, or they are refused.

    Raises:
        CheckpointError, MismatchError: see `Accumulator.from_bytes`.
    """
    return opened(content, layout, lambda head, body: _checked(_read(body, head, layout), layout))


def _read(body: bytes, head: Mapping[str, Any], layout: StreamLayout) -> SentSums:
    units, entries, dimension = number_of(head, "units"), number_of(head, "entries"), layout.shared.dimension
    sizes = 8 * dimension, DIGEST * units, 8 * units, 8 * entries, 8 * entries
    if len(body) != sum(sizes):
        raise wrong(f"{len(body)} bytes, where its head says {sum(sizes)}")
    ends = np.cumsum(sizes).tolist()
    parts = [body[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    sums, lengths, indices, values = (np.frombuffer(parts[i], "<i8").astype(np.int64) for i in (0, 2, 3, 4))
    if (lengths < 0).any() or (lengths > dimension).any() or lengths.sum() != entries:
        raise wrong("the lengths of its rows are none")
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    falls = np.ones(
        entries + 1, bool
    )  # whether an entry is the first of its row, or stands after a larger one
    falls[1:-1] = indices[1:] <= indices[:-1]
    falls[pointers] = False
    if falls.any() or (indices < 0).any() or (indices >= dimension).any():
        raise wrong("a row names a number twice, or one that is none")
    return SentSums(
        step=None if head["step"] is None else number_of(head, "step"),
        count=number_of(head, "count"),
        remarks={name: number_of(head["remarks"], name) for name in head["remarks"]},
        sums=sums,
        units=np.frombuffer(parts[1], f"S{DIGEST}"),
        rows=sparse.csr_array((values, indices, pointers), shape=(units, dimension)),
    )


def _checked(sent: SentSums, layout: StreamLayout) -> SentSums:
    """Refuse what so many records cannot add."""
    shared, units = layout.shared, sent.units
    if shared.reach(sent.count) >= MOST or len(units) > sent.count:
        raise wrong(f"{sent.count} records are too many, or too few for {len(units)} rows")
    if layout.secret is not None and sent.sums.any():
        raise wrong("sums without units, in a stream that tells units by ids")
    if len(units) and layout.secret is None:
        raise wrong("units, in a stream whose records are units")
    if (units[1:] < units[:-1]).any() or (units[layout.per_step :] == units[: -layout.per_step]).any():
        raise wrong(f"units out of order, or more than {layout.per_step} records of one")
    values, starts = sent.rows.data, sent.rows.indptr[:-1][np.diff(sent.rows.indptr) > 0]
    for numbers, begins, records in ((sent.sums, np.zeros(1, int), sent.count), (values, starts, 1)):
        norms = np.add.reduceat(numbers.astype(np.float64) ** 2, begins) if len(begins) else np.zeros(0)
        largest = math.sqrt(norms.max(initial=0.0))
        if largest > records * shared.largest or np.abs(numbers).max(initial=0) > shared.reach(records):
            raise wrong("its sums are more than its records add")
    return sent


def number_of(of: Mapping[str, Any], name: str) -> int:
    return positive_int(name, of[name], minimum=0)


def wrong(why: str) -> CheckpointError:
    return CheckpointError(f"an accumulator is damaged, or no worker of this version made it: {why}.")
