"""How the contract compares numbers, and what it raises where they differ."""

from __future__ import annotations

import numpy as np

from anechoic.strategies import Strategy

ROUNDING = 1e-9  # relative to the largest entry compared
ZERO = 1e-12  # entries of C and C^T C below this, relative to the largest, count as zero


class ContractError(AssertionError):
    """A strategy breaks the contract; the message names the strategy, the rule and both numbers."""


def require(strategy: Strategy, held: bool, rule: str) -> None:
    """Raise ContractError unless `held`."""
    if not held:
        raise ContractError(f"{strategy!r}: {rule}")


def close(
    strategy: Strategy, found: object, expected: object, rule: str, *, scale: float | None = None
) -> None:
    """Raise ContractError unless both have one shape and differ by rounding, relative to `scale`."""
    a, b = np.asarray(found), np.asarray(expected)
    require(strategy, a.shape == b.shape, f"{rule}: shape {a.shape}, expected {b.shape}")
    size = float(max(np.abs(b).max(initial=0.0), 1e-300)) if scale is None else scale
    error = float(np.abs(a - b).max(initial=0.0))
    require(strategy, error <= ROUNDING * size, f"{rule}: off by {error} (largest entry {size})")
