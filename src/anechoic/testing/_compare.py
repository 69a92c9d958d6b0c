"""Comparison of numbers in contracts, and the error where they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
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


def check_no_blocks(subject: Any, n: int) -> None:
    """Raise ContractError unless blocks that do not exist are refused."""
    check_refused(subject, [(f"truncate({t})", partial(subject.truncate, t)) for t in (0, n + 1)])


def check_written(subject: object) -> None:
    """JSON and back gives the same type and the same numbers, bit for bit."""
    text = json.dumps(_serialize.encode(subject), allow_nan=False)
    again: Any = _serialize.decode(json.loads(text))
    require(subject, type(again) is type(subject), f"JSON gave back a {type(again).__name__}")
    if hasattr(again, "to_dense"):  # matrices are compared by their numbers
        same = np.array_equal(again.to_dense(), subject.to_dense())  # type: ignore[attr-defined]
    else:
        same = again == subject
    require(subject, bool(same), "JSON changed a number")
    same = json.dumps(_serialize.encode(again)) == text
    require(subject, same, "JSON of what JSON gave back differs")


def rule(check: Callable[..., None], *settings: str) -> Callable[[Any], None]:
    """Make a test: `check` holds everything that the contract's method `gives` returns to one rule.

    Args:
        settings: attributes of the contract that the check takes besides.
    """

    def test(self: Any) -> None:
        for subject in getattr(self, self.gives)():
            check(subject, *(getattr(self, name) for name in settings))

    return test


class Contract(Generic[S]):
    """Tests for pytest: each holds one rule against everything that the method of the name `gives` returns.

    Attributes:
        serialized: whether it must survive a round trip through JSON.
        seed: of what is drawn.
    """

    gives: ClassVar[str]
    serialized = True
    seed = 0

    def test_json_and_back_changes_nothing(self) -> None:
        if self.serialized:
            rule(check_written)(self)
