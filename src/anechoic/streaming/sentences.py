"""The statement of a stream, for a privacy reviewer: that of its mechanism, in the words of streams."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.special import ndtr

from anechoic.mechanism.mechanism import Mechanism
from anechoic.statement.formats import render
from anechoic.statement.statement import Assumption, statement_of
from anechoic.streaming.stream import Stream

_OBSERVER = (
    "sees every release, all its digits; knows the code, the statistics, the mechanism and all records but"
    " those of one {unit}; does not know the keys, and cannot tell AES-256 from random bits"
)
_DUTIES = (
    "bounds, categories, edges, groups and weights are chosen without looking at the data",
    "keys and state files stay secret; of two copies of a state file only one goes on, and none is put back",
    "what leaves the stream are its releases and what is computed from them: no counts of records that were"
    " left out, no logs of records",
    "other releases from the same data add up with this one",
)
_NOT_COVERED = (
    "when steps end, and how many there are",
    "side channels, such as running time or memory",
    "choosing statistics or bounds by what they give on the same private data",
    "a deployment that departs from the assumptions above",
)


def best_guess(mechanism: Mechanism) -> str:
    """What epsilon means, in one sentence.

    All releases are mu-GDP: no test between two neighbouring inputs does better than one between N(0, 1) and
    N(mu, 1), whose best one is right with probability Phi(mu / 2) where both are as likely before.
    """
    share = math.ceil(1000 * float(ndtr(mechanism.gdp() / 2))) / 10
    what = "was replaced by another" if mechanism.adjacency == "replace_one" else "is in the data"
    return (
        f"Somebody knows everything else, and asks whether one unit ({mechanism.unit}) {what}, which is as"
        f" likely as not. With all {_number(mechanism.steps)} releases the guess is right with probability at"
        f" most {share:.1f}% (50% without them)."
    )


def _number(steps: int) -> str:
    return f"{steps:,}" if steps < 2**40 else "(however many)"


def statement(stream: Stream) -> str:
    """For a privacy reviewer, as text. It holds no secret and nothing of the data.

    Args:
        stream: whose releases are published.

    Returns:
        The statement of its mechanism, with what this stream releases and protects.
    """
    mechanism, shared, unit = stream.mechanism, stream.shared, stream.mechanism.unit
    whole = statement_of(mechanism)
    own = [
        ("Protected", protected(stream)),
        ("Released", f"{stream.over.describe()}, after each step; {stream.step} of {mechanism.steps} so far"),
        (
            "One unit a step",
            f"norm at most {shared.contribution:.9f} clip norms, whatever its records hold",
        ),
    ]
    for name, one in shared.statistics.items():
        described = {key: value for key, value in one.describe().items() if key not in ("kind", "column")}
        text = ", ".join(f"{key} {value!r:.60}" for key, value in described.items())
        own.append(("Statistic", f"{name}: {one.describe()['kind']}{', ' if text else ''}{text}"))
    theirs = [item for item in whole.items if item[0] not in ("Batches", "Divisor", "Privacy unit")]
    who = "the ledger of this stream" if stream.by_unit else "whoever feeds it"
    what = f"{mechanism.participation.describe()}; when steps end depends on no private value"
    told = replace(
        whole,
        items=(theirs[0], *own, *theirs[1:]),
        assumptions=(Assumption(who, what),),
        observer=_OBSERVER.format(unit=unit),
        duties=_DUTIES,
        not_covered=(*_floats(mechanism), *_NOT_COVERED),
    )
    return render(told, "text")


def _floats(mechanism: Mechanism) -> tuple[str, ...]:
    return (
        () if mechanism.grid_bits is not None else ("floating-point attacks: noise is not rounded exactly",)
    )


def protected(stream: Stream) -> str:
    """Whom a stream protects, and who sees to it."""
    unit = stream.mechanism.unit
    if not stream.by_unit:
        return f"one {unit}, which is one record: that no {unit} has several is a promise of whoever feeds it"
    return (
        f"one {unit}: {stream.participation.describe()}. Enforced: further records are left out, and more"
        f" than {stream.per_step} in one step"
    )
