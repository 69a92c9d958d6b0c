"""Rounded numbers for people: guarantees towards privacy, times, bytes."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal


def round_up(value: float, digits: int = 4) -> str:
    """`value` rounded up to `digits` significant digits: a printed epsilon is never too small."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    exponent = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**exponent
    nearest = round(scaled)
    # a value that is already short, such as 1.0000000000000002, is not pushed to the next digit
    rounded = nearest if math.isclose(scaled, nearest, rel_tol=1e-12) else math.ceil(scaled)
    return f"{rounded / 10.0**exponent:.{max(exponent, 0)}f}"


def shortened(value: float) -> float:
    """The least number of six significant digits that is not below `value` >= 0, as a float."""
    if value == 0 or not math.isfinite(value):
        return value
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 5), rounding=ROUND_CEILING))


def duration(seconds: float) -> str:
    """A time for people: 0.0123 is 12 ms."""
    for unit in ("s", "ms"):
        if seconds >= 1:
            return f"{seconds:.2g} {unit}"
        seconds *= 1000
    return f"{seconds:.2g} µs"


def size(count: float) -> str:
    """Bytes for people: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
