"""Warnings of a delta or epsilon that is too large to promise anything."""

from __future__ import annotations

import math

from anechoic.sampling.base import Sampling, plural

#: Epsilons beyond which a guarantee says next to nothing, and below which next to nothing can be learned.
LARGE, SMALL = 100.0, 1e-3
#: What N * delta is where nobody gave a delta.
SHARE = 0.01
#: From which N * delta on a statement says what delta permits.
DOUBTFUL = 0.1


def examples_of(sampling: Sampling | None) -> int | None:
    """N of a scheme, None where nobody said."""
    return getattr(sampling, "examples", None)


def default_delta(count: int) -> float:
    """1 / (100 N): not even the worst mechanism of this delta shows a record in more than 1 of 100 releases.

    That mechanism publishes each of N records whole with probability delta, so one or more of them with at
    most N delta. Under N^-1.1, which is usual, that is 0.54 for 442 records, and 0.25 for a million.

    Args:
        count: N >= 1, of what is protected.
    """
    return SHARE / count


def weak_delta(delta: float, examples: int | None, unit: str = "example", *, least: float = 1.0) -> str:
    """What to say of a delta that publishing whole records would satisfy; "" where there is nothing to say.

    Whoever publishes one record of N, drawn at random, is (0, 1/N)-DP, so that a guarantee with delta >= 1/N
    does not rule it out. Below that it is done with probability N delta.

    Args:
        delta: in (0, 1); of others something else is wrong.
        examples: N, of `unit`; None where nobody knows it, which is then taken for 2.
        unit: what is protected.
        least: the N * delta from which on it is said, in (0, 1]; 1 where nobody knows N.

    Returns:
        One sentence, without a full stop.
    """
    count = 2 if examples is None else examples
    if not delta < 1 or count < 2 or delta * count < (1.0 if examples is None else least):
        return ""
    of = f"1/N for N={count} {plural(unit)}" if examples is not None else "1/2"
    said, often = f"at least {of}", ""
    if delta * count < 1:
        share = math.floor(100 * delta * count) / 100
        said, often = f"{share:g} times {of}", f" with probability {share:g}"
    example = f", such as {default_delta(count):.2g}" if examples else ""
    return (
        f"delta={delta:g} is {said}: publishing one of them as it is, drawn at random,{often} would keep this"
        f" guarantee too; take a delta far below 1/N{example}"
    )


def odd_epsilon(epsilon: float | None) -> str:
    """What to say of an epsilon that nobody can mean; "" where there is nothing to say.

    Returns:
        One sentence, without a full stop.
    """
    if epsilon is not None and epsilon > LARGE:
        return (
            f"epsilon={epsilon:g} promises next to nothing: what is released may be e^{epsilon:g} times as"
            " likely with a record as without it; values from 0.1 to 10 are usual"
        )
    if epsilon is not None and 0 < epsilon < SMALL:  # others are refused
        return (
            f"epsilon={epsilon:g} asks for so much noise that next to nothing can be learned; values from 0.1"
            " to 10 are usual"
        )
    return ""
