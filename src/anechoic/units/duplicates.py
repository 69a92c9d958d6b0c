"""Whether data are what a statement about a privacy unit supposes: no copies, no unit behind the units."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


def find_duplicates(arrays: Any) -> list[Indices]:
    """Return the groups of examples that are equal in all arrays.

    Args:
        arrays: one array of N rows, or several (features and labels), compared bit by bit.

    Returns:
        One ascending array of at least two indices for each group, in order of first appearance.

    Raises:
        ValueError: if the arrays have different numbers of rows, or none.
    """
    given = [np.asarray(a) for a in (arrays if isinstance(arrays, (list, tuple)) else [arrays])]
    lengths = {len(a) if a.ndim else -1 for a in given}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError(f"arrays have {sorted(lengths)} rows: give one or several, of the same length.")
    groups: dict[bytes, list[int]] = {}
    for i, row in enumerate(zip(*map(_rows, given), strict=True)):
        groups.setdefault(hashlib.sha256(b"".join(row)).digest(), []).append(i)
    return [np.asarray(group, dtype=np.int64) for group in groups.values() if len(group) > 1]


def check_schema(
    unit: str, *, units: Any = None, duplicates: Sequence[Indices] = (), adjacency: str = "zero_out"
) -> None:
    """Refuse a statement about `unit` that would not cover what the data are.

    Args:
        unit: what the statement says is protected.
        units: who owns what, `Units` or labels that make some; None where every example is its own unit.
        duplicates: groups of equal examples, from `find_duplicates`.
        adjacency: see `Mechanism`.

    Raises:
        MismatchError: if units of several examples would be stated as single examples, or if equal examples
            belong to different units.
        UnsupportedError: if an example has several owners and the adjacency is not zero-out.
        ValueError: for labels of which no `Units` can be made.
    """
    if units is not None and not isinstance(units, Units):
        units = Units(units)
    if units is not None and unit == "example" and not units.single_examples:
        raise MismatchError(
            f"unit='example', but {int((units.sizes > 1).sum())} of {units.count} units own several examples"
            f" (the largest {units.largest}) and {units.shared} examples have several owners: a statement"
            " about single examples would not cover a unit. Name the unit (unit='user'), or leave unit_ids"
            " out."
        )
    if units is not None and units.shared and adjacency != "zero_out":
        raise UnsupportedError(
            f"adjacency={adjacency!r}, and {units.shared} examples have several owners: who owns what is"
            " fixed there, so a unit can neither be replaced nor removed without changing what others own."
            " Use 'zero_out', or give each example one owner."
        )
    apart = [g for g in duplicates if units is None or not _one_owner(units, g)]
    if apart:
        rest = sum(len(group) for group in apart)
        raise MismatchError(
            f"{len(apart)} groups of equal examples ({rest} examples, such as"
            f" {apart[0][:4].tolist()}) are not one {unit} each: what is in several copies is protected as if"
            " it were in one, so it is covered less than stated. Drop the copies, give them one unit_id"
            " (Units), or make every owner of a copy an owner of all."
        )


def _one_owner(units: Units, group: Indices) -> bool:
    offsets, owners = units.owners
    first = owners[offsets[group[0]] : offsets[group[0] + 1]]
    return all(np.array_equal(first, owners[offsets[i] : offsets[i + 1]]) for i in group[1:])


def _rows(array: NDArray[Any]) -> Iterator[bytes]:
    """The bytes of each row, as many for each; of objects digests."""
    if array.dtype.kind == "O":
        return (hashlib.sha256(_text(row).encode()).digest() for row in array.tolist())
    return (row.tobytes() for row in array)


def _text(value: Any) -> str:
    """A text that is equal for equal objects; that of a large array alone leaves out its middle."""
    if hasattr(value, "__array__") and hasattr(value, "tolist"):
        return f"{value.dtype} {value.tolist()!r}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return repr(value)
