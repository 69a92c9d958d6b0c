"""Comparison of numbers in contracts, and the error where they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from anechoic import _serialize

ROUNDING = 1e-9  # relative to the largest entry compared
ZERO = 1e-12  # entries of C and C^T C below this, relative to the largest, count as zero


S = TypeVar("S")


class ContractError(AssertionError):
    """Something breaks its contract; the message names the thing, the rule and both numbers."""


def require(subject: object, held: bool, rule: str) -> None:
    """Raise ContractError unless `held`."""
    if not held:
        raise ContractError(f"{subject!r}: {rule}")


def close(subject: object, found: object, expected: object, rule: str, *, scale: float | None = None) -> None:
    """Raise ContractError unless both have one shape and differ by rounding, relative to `scale`."""
    a, b = np.asarray(found), np.asarray(expected)
    require(subject, a.shape == b.shape, f"{rule}: shape {a.shape}, expected {b.shape}")
    size = float(max(np.abs(b).max(initial=0.0), 1e-300)) if scale is None else scale
    error = float(np.abs(a - b).max(initial=0.0))
    require(subject, error <= ROUNDING * size, f"{rule}: off by {error} (largest entry {size})")


def check_refused(subject: object, wrong: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Raise ContractError unless each of the calls raises ValueError."""
    for what, call in wrong:
        try:
            call()
        except ValueError:
            continue
        raise ContractError(f"{subject!r}: {what} is not refused with ValueError")


def json_round_trip(subject: object) -> Any:
    """What JSON gives back, of the same type."""
    again = _serialize.decode(json.loads(json.dumps(_serialize.encode(subject), allow_nan=False)))
    require(subject, type(again) is type(subject), f"JSON gave back a {type(again).__name__}")
    return again


def check_same_text(subject: object, again: object) -> None:
    """Raise ContractError unless both have the same JSON."""
    same = json.dumps(_serialize.encode(again)) == json.dumps(_serialize.encode(subject))
    require(subject, same, "JSON of what JSON gave back differs")


class Contract(Generic[S]):
    """Tests for pytest: each holds one rule against everything that the method of the name `gives` returns.

    Attributes:
        serialized: whether it must survive a round trip through JSON.
        seed: of what is drawn.
    """

    gives: ClassVar[str]
    serialized = True
    seed = 0

    def _each(self, check: Callable[[S], None]) -> None:
        for subject in getattr(self, self.gives)():
            check(subject)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)
