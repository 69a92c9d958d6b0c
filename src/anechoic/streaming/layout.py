"""What workers have to know of a stream to add up for it: text without its key."""

from __future__ import annotations

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import CheckpointError, MismatchError
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.groups import Grouped
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.sums import Count, Histogram, Mean, Sum

#: Of accumulators, and of what describes them.
FORMAT = 1
_CHECK = 16


@dataclass(frozen=True, eq=False)
class SumsLayout(ABC):
    """The part of a stream that a worker has to know to add up for it.

    Attributes:
        stream: that it is of, and no other.
        secret: of the digests of units; None where every record is a unit of its own.
    """

    stream: str
    secret: bytes | None

    @cached_property
    def text(self) -> str:
        """Return all of it, as JSON."""
        secret = None if self.secret is None else self.secret.hex()
        said = {"format": FORMAT, "stream": self.stream, "secret": secret, **self.describe()}
        return json.dumps(said, sort_keys=True)

    @property
    def mark(self) -> str:
        """Return what tells it from others."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what it adds up, as plain data."""


@dataclass(frozen=True, eq=False)
class PartitionSelectionLayout(SumsLayout):
    """The layout of a `PartitionSelectionHistogram`, whose categories are not in it.

    Attributes:
        column: with the categories; None for the batch itself.
        one: what one record adds to its category, an integer.
    """

    column: str | None
    one: int

    def describe(self) -> dict[str, Any]:
        return {"open": {"column": self.column, "one": self.one}}

    @property
    def columns(self) -> dict[str, set[bool | None]]:
        """Return the columns that are read, and as what."""
        return {} if self.column is None else {self.column: {False}}

    @property
    def unread(self) -> list[str]:
        """Return the statistics that name no column."""
        return [] if self.column is not None else ["categories"]

    def reach(self, records: int) -> int:
        """Bound what so many records add to any entry of the sums, in size."""
        return records * self.one


@dataclass(frozen=True, eq=False)
class StreamLayout(SumsLayout):
    """The layout of a `Stream`: statistics, grid, and how ids are digested.

    Attributes:
        shared: the statistics, as they share a release.
        per_step: records of one unit that count in a step.
    """

    shared: SharedRelease
    per_step: int

    def describe(self) -> dict[str, Any]:
        return {**self.shared.describe(), "bits": self.shared.bits, "encoding": self.shared.encoding}

    @property
    def columns(self) -> dict[str, set[bool | None]]:
        return self.shared.columns

    @property
    def unread(self) -> list[str]:
        return [name for name, statistic in self.shared.statistics.items() if not statistic.reads]

    def reach(self, records: int) -> int:
        return self.shared.reach(records)


@lru_cache(maxsize=16)
def _read_layout(text: str) -> StreamLayout | PartitionSelectionLayout:
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}, where this version has {FORMAT}")
        secret = None if said["secret"] is None else bytes.fromhex(said["secret"])
        if "open" in said:
            return PartitionSelectionLayout(said["stream"], secret, **said["open"])
        statistics = {name: statistic_of(said["statistics"][name]) for name in said["order"]}
        shared = SharedRelease(statistics, said["weights"], said["per_step"], said["bits"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the description of a stream's sums cannot be read ({error}): take what accumulator_spec() of"
            " the stream gives, with the same version of anechoic, and statistics of this library."
        ) from error
    if shared.encoding != said["encoding"]:
        raise MismatchError(
            "this machine encodes records in another way than that of the stream (another processor or"
            " version of SciPy): add up on machines of one kind."
        )
    return StreamLayout(said["stream"], secret, shared, said["per_step"])


def layout_of(of: Any) -> Any:
    """Return the layout of a stream, or of what its `accumulator_spec` gave."""
    found = _read_layout(of) if isinstance(of, str) else getattr(of, "layout", of)
    if not isinstance(found, SumsLayout):
        raise ValueError(
            f"of={of!r:.60} must be a Stream or a PartitionSelectionHistogram, or the text of its"
            " accumulator_spec()."
        )
    return found


def check_same(stream: str, mark: str, layout: SumsLayout) -> None:
    """Refuse sums of another stream or statistic."""
    if stream != layout.stream:
        raise MismatchError(
            "sums of another stream: they count in the one whose accumulator_spec() they were made with."
        )
    if mark != layout.mark:
        raise MismatchError("sums of other statistics, bounds or units than these: they cannot be added.")


def packed(layout: SumsLayout, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return plain data and arrays as bytes, with a checksum first: the same bytes for the same content."""
    said = {"format": FORMAT, "stream": layout.stream, "layout": layout.mark, **head}
    file = io.BytesIO()
    held = np.frombuffer(json.dumps(said, sort_keys=True).encode(), np.uint8)
    np.savez(file, head=held, **arrays)  # type: ignore[arg-type]  # it has no argument of these names
    return _checksum(file.getvalue()) + file.getvalue()


def unpacked(content: bytes, layout: SumsLayout) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the plain data and the arrays of which `packed` made these bytes for this layout."""
    check, content = content[:_CHECK], content[_CHECK:]
    if _checksum(content) != check:
        raise CheckpointError(
            "these bytes are no accumulator, damaged or cut short: give what to_bytes() gave, once more."
        )
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    head = json.loads(arrays.pop("head").tobytes())
    if head["format"] != FORMAT:
        raise CheckpointError(
            f"an accumulator of format {head['format']}, where this version reads {FORMAT}: let workers and"
            " stream have the same version of anechoic."
        )
    check_same(head["stream"], head["layout"], layout)
    return head, arrays


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECK).digest()


_KINDS: dict[str, Callable[..., Statistic]] = {
    **{kind.name: kind for kind in (Count, Sum, Mean, Histogram, Distribution, Quantiles)},
    "by group": lambda of, column, groups: Grouped(statistic_of(of), column, groups),
}


def statistic_of(described: Mapping[str, Any]) -> Statistic:
    """Return the statistic that describes itself so.

    Raises:
        KeyError, TypeError, ValueError: for a description that is none of this library's statistics.
    """
    arguments = dict(described)
    return _KINDS[arguments.pop("kind")](**arguments)
