"""Labels of privacy units as people write them, read so that no two people become one, nor one person two.

A label counts by equality. What is compared by identity (an object without `__eq__`, a torch scalar left
as it is) would make every example a unit of its own; 1 beside "1", or "nan" for whoever has no label, would
split or merge people. So such labels are refused, and scalars of NumPy and torch are taken for their values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.units.batch import Indices

#: What a missing label becomes where somebody made strings of the labels.
MISSING_WORDS = ("", "nan", "NaN", "None", "NaT", "<NA>")
_OWN = "give every example a label, an own one where it belongs to nobody else"
_INTEGERS = ' One missing label makes integers floats: read them as such, astype("Int64") in pandas.'


def ownership(unit_ids: Any) -> tuple[Indices, Indices, int]:
    """(offsets, owners, number of units): the owners of example i are owners[offsets[i] : offsets[i + 1]].

    Args:
        unit_ids: see `Units`.

    Returns:
        Owners are numbered by first appearance, ascending and once for each example.

    Raises:
        ValueError: for labels that are missing, ambiguous or of the wrong shape.
    """
    if isinstance(unit_ids, (str, bytes, Mapping, Set)):
        raise ValueError(
            f"unit_ids is a {type(unit_ids).__name__}: it must be an array or list with one label for each"
            " example, in the order of the data."
        )
    labels = _array(unit_ids) if hasattr(unit_ids, "__array__") else _items(unit_ids)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iubUSfmM":
        owners, count = _numbered(labels)
        rows = [1] * len(labels)
    else:
        owners, rows, count = _listed(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    if not rows:
        raise ValueError("unit_ids is empty: give one label an example.")
    return np.concatenate([[0], np.cumsum(rows)]).astype(np.int64), owners, count


def _items(unit_ids: Any) -> list[Any]:
    try:
        return list(unit_ids)
    except TypeError as error:
        raise ValueError(
            f"unit_ids={unit_ids!r} is no list: give one label for each example, in the order of the data."
        ) from error


def _array(unit_ids: Any) -> NDArray[Any]:
    """An array, of one or two dimensions, in which nothing is missing."""
    if np.ma.is_masked(unit_ids):
        masked = np.argwhere(np.ma.getmaskarray(unit_ids))[:1].tolist()
        raise ValueError(f"unit_ids{masked[0] if masked else ''} is masked: {_OWN}.")
    labels = _plain_array(unit_ids)
    if labels.ndim not in (1, 2):
        raise ValueError(f"unit_ids has shape {labels.shape}; (N,) or (N, owners) is needed.")
    if labels.dtype.kind == "V":
        raise ValueError(
            f"unit_ids is a structured array of {labels.dtype}: make one label of its fields, a string for"
            " instance."
        )
    if labels.dtype.kind in "fcmM" and (labels != labels).any():
        i = int(np.argwhere(labels != labels)[0][0])
        raise ValueError(f"unit_ids[{i}] is not a number: {_OWN}.{_INTEGERS}")
    if labels.dtype.kind == "f" and (np.abs(labels) >= 2.0 ** np.finfo(labels.dtype).nmant).any():
        raise ValueError(f"unit_ids are {labels.dtype}, and too large for it to tell units apart.{_INTEGERS}")
    if labels.dtype.kind in "US":
        words = np.array(MISSING_WORDS).astype(labels.dtype.kind)
        for place in np.argwhere(np.isin(labels, words))[:1].tolist():
            _check_word(place[0], labels[tuple(place)].item())
    return labels


def _plain_array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor, on whatever device
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"unit_ids cannot be read as an array: {error}. Give a list of labels.") from error


def _numbered(labels: NDArray[Any]) -> tuple[Indices, int]:
    found, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(found), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(found))
    return rank[inverse], len(found)


def _listed(labels: list[Any]) -> tuple[Indices, list[int], int]:
    nested = [_is_group(label) for label in labels]
    if any(nested) and not all(nested):
        i = nested.index(not nested[0])
        raise ValueError(
            f"unit_ids[{i}]={labels[i]!r} and unit_ids[0]={labels[0]!r} are of two kinds: give one label for"
            " every example, or one list of labels for every example."
        )
    numbers = _LabelNumbers()
    owners: list[int] = []
    sizes: list[int] = []
    for i, label in enumerate(labels):
        group = _group(i, label) if nested[0] else [label]
        if not group:
            raise ValueError(
                f"unit_ids[{i}] names no owner, so nobody would be charged for the example: give it a label"
                " of its own, or leave it out of the data."
            )
        row = sorted({numbers.of(i, one) for one in group})
        owners.extend(row)
        sizes.append(len(row))
    return np.asarray(owners, dtype=np.int64), sizes, numbers.count


def _is_group(label: Any) -> bool:
    if isinstance(label, (list, tuple, set, frozenset)):
        return True
    return hasattr(label, "__array__") and bool(getattr(label, "shape", ()))


def _group(i: int, label: Any) -> list[Any]:
    if isinstance(label, (set, frozenset)):  # the order of a set differs between processes
        return sorted(label, key=lambda one: (type(one).__name__, repr(one)))
    if isinstance(label, (list, tuple)):
        return list(label)
    if np.ma.is_masked(label):
        raise ValueError(f"unit_ids[{i}] has masked entries: {_OWN}.")
    array = _plain_array(label)
    if array.ndim != 1:
        raise ValueError(f"unit_ids[{i}] has shape {array.shape}: give one list of labels for each example.")
    return list(array)


class _LabelNumbers:
    """Numbers of labels, by first appearance; all labels must be of one kind."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._kind = ""
        self._first: tuple[int, Any] = (0, None)

    @property
    def count(self) -> int:
        return len(self._numbers)

    def of(self, i: int, label: Any) -> int:
        """The number of the label of example i.

        Raises:
            ValueError: if it is missing, is no label, or is of another kind than the first.
        """
        value, kind = _value(i, label)
        if not self._kind:
            self._kind, self._first = kind, (i, value)
        elif kind != self._kind:
            j, first = self._first
            raise ValueError(
                f"unit_ids[{i}]={value!r} is of kind {kind}, unit_ids[{j}]={first!r} of kind {self._kind}:"
                " one unit under two kinds of label would be taken for two (1 and '1'). Make all labels of"
                " one kind; join a label of several parts to one string (a tuple lists several owners)."
            )
        try:
            return self._numbers.setdefault(value, len(self._numbers))
        except TypeError as error:
            raise ValueError(f"unit_ids[{i}]={value!r} cannot be a label: {error}.") from error


def _value(i: int, label: Any) -> tuple[Any, str]:
    """The label without its wrapping of NumPy or torch, and what kind it is of."""
    if type(label) is int:
        return label, "number"
    if isinstance(label, (tuple, frozenset)):
        parts = [_value(i, part) for part in label]
        kinds = ", ".join(kind for _, kind in parts)
        if isinstance(label, frozenset):
            return frozenset(part for part, _ in parts), "frozenset"
        return tuple(part for part, _ in parts), f"({kinds})"
    if np.ma.is_masked(label):
        raise ValueError(f"unit_ids[{i}] is masked: {_OWN}.")
    label = _scalar(i, label)
    if label is None or type(label).__name__ == "NAType" or _differs_from_itself(i, label):
        raise ValueError(f"unit_ids[{i}]={label!r} is missing: {_OWN}.")
    if isinstance(label, (str, bytes)):
        nul: Any = "\0" if isinstance(label, str) else b"\0"
        label = label.rstrip(nul) if label.endswith(nul) else label  # arrays of NumPy drop them
        _check_word(i, label)
        return label, "str" if isinstance(label, str) else "bytes"
    if isinstance(label, Number):
        return label, "number"
    if isinstance(label, (np.datetime64, np.timedelta64)):  # equal times of two resolutions may hash apart
        return label, str(label.dtype)
    hashed: Any = type(label).__hash__
    if hashed is object.__hash__:
        raise ValueError(
            f"unit_ids[{i}]={label!r}: objects of {type(label).__name__} are compared by identity, so one"
            " unit could count as many. Give a number or a string that names the unit."
        )
    return label, type(label).__name__


def _scalar(i: int, label: Any) -> Any:
    """The Python value of a scalar, or array of one element, of NumPy, torch and the like."""
    shape = getattr(label, "shape", None)
    if shape is None or isinstance(label, (np.datetime64, np.timedelta64)) or not hasattr(label, "item"):
        return label
    if tuple(shape) in ((), (1,)):
        return label.item()
    raise ValueError(f"unit_ids[{i}] holds a label of shape {tuple(shape)}: a label is one number or string.")


def _differs_from_itself(i: int, label: Any) -> bool:
    try:
        return bool(label != label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"unit_ids[{i}]={label!r} cannot be a label: {error}.") from error


def _check_word(i: int, label: Any) -> None:
    word = label.decode("latin-1") if isinstance(label, bytes) else label
    if word in MISSING_WORDS:
        raise ValueError(
            f"unit_ids[{i}]={label!r} is what a missing label is turned into, and all examples with it would"
            f" be one unit: {_OWN}. Where a unit really has that name, write it otherwise ('user {word}')."
        )
