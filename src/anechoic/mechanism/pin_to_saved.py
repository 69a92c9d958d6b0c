"""Pinning of a run to the mechanism that it began with, also where a plan ends in other last digits."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anechoic._serialize import decode
from anechoic.mechanism.mechanism import Mechanism

logger = logging.getLogger("anechoic")

#: How far numbers of one plan may be apart, of the largest beside them: two processors came to .003.
_APART = 0.01
#: How far its epsilons may be apart, relatively: see `calibrate`.
_EPSILON = 1e-4


def pin_to_saved(planned: Mechanism, written: str | None) -> Mechanism:
    """The mechanism in `written` where `planned` is the same plan made again, and `planned` elsewhere.

    Optimisers end at other digits on other processors, and a mechanism with other digits is another one. A
    plan is the same where everything that a caller says of a mechanism is the same, epsilon is, and the
    numbers of C and of the noise, which follow from these, are close. What is returned states its own
    guarantee, so taking it for the same is a matter of intent and never of privacy.

    Args:
        planned: what the script made.
        written: what `to_json` of the run's mechanism gave, or None where nothing is known of one.

    Raises:
        MismatchError: if this version of the library computes another guarantee for such a plan, or the
            record was edited.
    """
    if written is None:
        return planned
    own, record = planned._fields(), _record(written)
    try:
        close = record.get("fingerprint") != planned.fingerprint and _close(own, record)
    except ValueError:  # from a damaged array, as above
        close = False
    if not close:
        return planned
    begun = Mechanism.from_json(written)
    if not math.isclose(begun.epsilon(), planned.epsilon(), rel_tol=_EPSILON):
        return planned
    logger.warning(
        "the run goes on with its own mechanism, %.12s…: this script planned %.12s…, the same but for last"
        " digits, at which optimisers end otherwise on other processors.",
        begun.fingerprint,
        planned.fingerprint,
    )
    return begun


def _record(written: str) -> Mapping[str, Any]:
    try:
        found = json.loads(written)
    except ValueError:  # damaged, as whoever opens the run will say
        return {}
    return found if isinstance(found, dict) else {}


def _close(own: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether two records differ in numbers of the strategy and its noise alone, and in these by little."""
    numbers = ("strategy", "noise_std")
    stated = ("states", "fingerprint")
    said = {name: value for name, value in record.items() if name not in (*numbers, *stated)}
    return {name: value for name, value in own.items() if name not in numbers} == said and all(
        _near(own[name], record.get(name)) for name in numbers
    )


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if "float64" in one and "float64" in other:
            x, y = decode(one), decode(other)
            most = _APART * float(np.abs(x).max(initial=0.0))
            return x.shape == y.shape and bool(np.allclose(x, y, rtol=0.0, atol=most))
        return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_APART)
    return bool(one == other)
