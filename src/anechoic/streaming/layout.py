"""What workers have to know of a stream to add up for it: text without its key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.participation import FullBatch
from anechoic.participation.base import Participation
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.reading import statistic_of

#: Of accumulators, and of what describes them.
FORMAT = 1


@dataclass(frozen=True, eq=False)
class StreamLayout:
    """What a worker has to know of a stream to add up for it: statistics, grid, and how ids are digested.

    Attributes:
        text: all of it, as JSON.
        shared: the statistics, as they share a release.
        stream: that it is of, and no other.
        per_step: records of one unit that count in a step.
        secret: of the digests of units; None where every record is a unit of its own.
        every_step: whether a unit may take part in every step, so that no ledger need know of it.
    """

    text: str
    shared: SharedRelease
    stream: str
    per_step: int
    secret: bytes | None
    every_step: bool

    @classmethod
    def of(
        cls,
        shared: SharedRelease,
        stream: str,
        per_step: int,
        secret: bytes | None,
        participation: Participation | None,
    ) -> StreamLayout:
        """Of a stream.

        Raises:
            UnsupportedError: for statistics that encode records by what was released.
        """
        if shared.adaptive:
            raise UnsupportedError(
                f"{shared.adaptive[0]!r} encodes records by earlier releases, which workers do not have: give"
                " its records to update."
            )
        every = isinstance(participation, FullBatch)
        said = {
            "format": FORMAT,
            "stream": stream,
            **shared.describe(),
            "bits": shared.bits,
            "encoding": shared.encoding,
            "secret": None if secret is None else secret.hex(),
            "every_step": every,
        }
        return cls(json.dumps(said, sort_keys=True), shared, stream, per_step, secret, every)

    @property
    def mark(self) -> str:
        """What tells it from others."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=16)
def _read_layout(text: str) -> StreamLayout:
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}, where this version has {FORMAT}")
        statistics = {name: statistic_of(said["statistics"][name]) for name in said["order"]}
        shared = SharedRelease(statistics, said["weights"], said["per_step"], said["bits"])
        secret = None if said["secret"] is None else bytes.fromhex(said["secret"])
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
    return StreamLayout(text, shared, said["stream"], said["per_step"], secret, said["every_step"])


def layout_of(of: Any) -> StreamLayout:
    """That of a stream, or of what its `accumulator_spec` gave.

    Raises:
        ValueError: for something else.
    """
    found = _read_layout(of) if isinstance(of, str) else getattr(of, "layout", of)
    if not isinstance(found, StreamLayout):
        raise ValueError(
            f"of={of!r:.60} must be a Stream, or the text of its accumulator_spec()."
            " An OpenHistogram takes its records by update alone."
        )
    return found


def check_same(stream: str, mark: str, layout: StreamLayout) -> None:
    """Refuse sums of another stream or statistic.

    Raises:
        MismatchError: for such.
    """
    if stream != layout.stream:
        raise MismatchError(
            "sums of another stream: they count in the one whose accumulator_spec() they were made with."
        )
    if mark != layout.mark:
        raise MismatchError("sums of other statistics, bounds or units than these: they cannot be added.")
