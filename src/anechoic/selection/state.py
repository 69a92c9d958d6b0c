"""State of a selection: in memory, or in a file from which it resumes after its process was killed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.runs.state_file import StateFile

_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)  # nobody can change them
_HEAD = 8  # bytes that say how long the JSON before a result is


class BestRun(NamedTuple):
    """The best run so far.

    Attributes:
        place: of its candidate in the list.
        score: not NaN.
        result: as `train` returned it; in a file, as bytes.
    """

    place: int
    score: float
    result: Any


class SelectionInMemory:
    """A selection that ends with its process.

    Attributes:
        key: 32 bytes, from which all is drawn.
        runs: K; None where it is not drawn yet.
        done: runs so far.
        best: of these.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.runs: int | None = None
        self.done = 0
        self.best: BestRun | None = None
        self._last: Any = None

    def begin(self, runs: int) -> None:
        """Begin so many runs."""
        self.runs = runs
        self._store()

    def note(self, place: int, score: float, result: Any) -> None:
        """Record one more run.

        Raises:
            GuaranteeError: where its result is the object of an earlier run, in memory.
            UnsupportedError: where a file cannot hold it.
        """
        kept = self._kept(result)
        # of equal scores the first is kept, which the proof reads as a tie broken at random
        if self.best is None or score > self.best.score:
            self.best = BestRun(place, score, kept)
        self.done += 1
        self._store()

    def _kept(self, result: Any) -> Any:
        before = (self._last, None if self.best is None else self.best.result)
        if not isinstance(result, _PLAIN) and any(result is other for other in before):
            raise GuaranteeError(
                f"train returned the same {type(result).__name__} as in an earlier run, so what the best run"
                " made was overwritten, or runs know of one another, which the guarantee does not cover:"
                " build a new model in train, and return that."
            )
        self._last = result
        return result

    def _store(self) -> None:
        """Nothing outlives the process."""

    def result(self) -> Any:
        """Of the best run."""
        return None if self.best is None else self.best.result

    def close(self) -> None:
        """Close nothing."""


class SelectionFile(StateFile, SelectionInMemory):
    """A selection that goes on after its process was killed; see `StateFile` and `SelectionInMemory`.

    The number of runs, how many are made, and the best of them stand in one row, which each run replaces as a
    whole.

    Args:
        path, identity, key, adopt: see `StateFile`.

    Raises:
        CheckpointError, GuaranteeError, MismatchError, ReplayError: as `StateFile`.
    """

    KIND = "selection"
    SHOWN: ClassVar[tuple[str, ...]] = ()
    NEW_RUN = "Start a new selection in another file, whose epsilon adds to this one's."
    AGAIN = "call run again with the same state and key"
    OTHERWISE = (
        "Go on with the mechanisms, the law of repetitions and the candidates that it was begun with; another"
        " selection has another file, and its epsilon adds to this one's."
    )

    def __init__(self, path: str | os.PathLike[str], **how: Any) -> None:
        StateFile.__init__(self, path, **how)
        SelectionInMemory.__init__(self, self.key)
        held = self.held()
        if held is not None:
            self._load(held)

    def result(self) -> Any:
        return None if self.best is None else _unpacked(self.best.result)

    def _kept(self, result: Any) -> bytes:
        return _packed(result)

    def _store(self) -> None:
        best = self.best
        head = {
            "runs": self.runs,
            "done": self.done,
            "place": None if best is None else best.place,
            "score": None if best is None else best.score,
        }
        written = json.dumps(head).encode()
        content = [len(written).to_bytes(_HEAD, "little"), written, b"" if best is None else best.result]
        with self.transaction():
            self.keep(b"".join(content))

    def _load(self, held: bytes) -> None:
        end = _HEAD + int.from_bytes(held[:_HEAD], "little")
        head = json.loads(held[_HEAD:end])
        self.runs, self.done = int(head["runs"]), int(head["done"])
        if head["place"] is not None:
            self.best = BestRun(int(head["place"]), float(head["score"]), held[end:])


def plain_candidates(candidates: Sequence[Any]) -> list[Any]:
    """Candidates as data by which a file knows them again.

    Raises:
        UnsupportedError: for other candidates.
    """
    try:
        found: list[Any] = json.loads(json.dumps(list(candidates), sort_keys=True))
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"with state, candidates must be plain data, by which the file knows them again ({error}): give"
            " numbers, texts, lists and mappings of these (of an array, its tolist()), or names of settings"
            " that `train` looks up."
        ) from error
    return found


def _packed(result: Any) -> bytes:
    if isinstance(result, bytes | bytearray):
        return b"b" + bytes(result)
    try:
        return b"j" + json.dumps(result).encode()
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"with state, the result of train must be bytes or plain data for JSON, and is of type"
            f" {type(result).__name__}: of a model, return the bytes of its state (torch.save into an"
            " io.BytesIO, then getvalue())."
        ) from error


def _unpacked(stored: bytes) -> Any:
    return stored[1:] if stored[:1] == b"b" else json.loads(stored[1:])


def as_score(score: Any) -> float:
    """A score as a number, NaN as the least.

    Raises:
        ValueError: for something else, without showing it.
    """
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"train returned a score of type {type(score).__name__}, which is no float: return (result,"
            " score), the larger score being better."
        ) from error
    return -math.inf if math.isnan(value) else value
