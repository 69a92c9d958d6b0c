"""The statement of a stream, for a privacy reviewer: that of its mechanism, in the words of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from pathlib import Path
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling.base import counted
from anechoic.statement.formats import Format, render
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import Assumption, Statement, statement_of
from anechoic.statement.theorem import PROOFS, Theorem
from anechoic.streaming.base import StreamBase
from anechoic.streaming.distinct_counter import DistinctCounter
from anechoic.streaming.mechanisms import FOR_EVER
from anechoic.streaming.partition_selection import PartitionSelectionHistogram
from anechoic.streaming.release import SHOWN
from anechoic.streaming.stream import Stream

_OBSERVER = (
    "sees every release, all its digits; knows the code, the statistics, the mechanism and all records but"
    " those of one {unit}; does not know the keys, and cannot tell AES-256 from random bits"
)
_DUTIES = (
    "settings ignore the data: bounds, categories, edges, groups and weights are chosen without it",
    "keys and state files stay secret: of two copies of a state file only one goes on, and none is put back",
    "only releases, and what follows from them, leave: no counts of records left out, no logs of records",
    "other releases add up: those from the same data, with this one",
    "workers are trusted: sums that came by add_sums are those of records, each once",
)
_NOT_COVERED = (
    "when steps end: and how many there are",
    "side channels: running time, memory",
    "choosing statistics or bounds: by what they give on the same private data",
    "broken promises: a deployment that departs from the assumptions above",
)


def statement(
    stream: Stream | PartitionSelectionHistogram,
    format: Format = "text",
    *,
    data: str = "",
    out: str | Path | None = None,
    proofs: str = PROOFS,
) -> str:
    """Write the statement for a privacy reviewer. It holds no secret and nothing of the data.

    Args:
        stream: whose releases are published.
        format, out, proofs: see `statement.formats.render`.
        data: what the records are, in your words; else the line is to be filled in.

    Returns:
        The statement of its mechanism, with what this stream releases and protects, and who sees to it.

    Raises:
        ValueError: for another format.
        TypeError: for something that is no stream.
    """
    return render(statement_data(stream).about(data=data), format, out=out, proofs=proofs)


@singledispatch
def statement_data(stream: object) -> Statement:
    """Return the statement of a stream, as data."""
    raise TypeError(f"stream is a {type(stream).__name__}: give a Stream or a PartitionSelectionHistogram.")


@statement_data.register
def _(stream: Stream) -> Statement:
    shared = stream.shared
    words = (f"{name}: {_in_words(one.describe())}" for name, one in shared.statistics.items())
    own = [
        ("Released", f"{stream.over.describe()}, after each step; {_so_far(stream)}"),
        ("One unit a step", f"norm at most {shared.contribution:.9f} clip norms, whatever its records hold"),
        ("Statistics", "; ".join(words)),
    ]
    if shared.distinct_counter is None:
        return _statement_of(stream.mechanism, protected(stream), own, stream.by_unit)
    return _distinct_statement(stream, shared.distinct_counter, own)


def _distinct_statement(stream: Stream, rule: DistinctCounter, own: list[tuple[str, str]]) -> Statement:
    """Return that of a count of units, which come and leave: together that is one contribution."""
    _, (_, norm), described = own
    last = f"the last {rule.within} steps" if rule.within > 1 else "each step"
    released = f"how many units had a record in {last}, after each step; {_so_far(stream)}"
    coming = f"all that it changes by coming and leaving counts like one contribution of {norm}"
    mine = [("Released", released), ("One unit", coming), described]
    told = _statement_of(stream.mechanism, protected(stream), mine, True, rule)
    theirs = [item for item in told.items if item[0] not in ("Participation", "Clip norm")]
    page = Theorem("Units of the last steps", "streams.md#units-of-the-last-steps")
    return replace(told, items=tuple(theirs), proofs=(page, *told.proofs))


def _in_words(of: Mapping[str, Any]) -> str:
    """Return a description of a statistic in words."""
    column, edges, kind = of["column"] or "the record", of.get("edges"), of["kind"]
    if kind == "by group":
        return f"{_in_words(of['of'])}, by {column} ({_listed(of['groups'])})"
    if kind == "count":
        return "count" if "within" not in of else f"count of units in {of['within']} steps"
    if kind == "histogram":
        return f"count of each {column} ({_listed(of['categories'])})"
    if edges is not None:
        which = f" ({_listed(of['probabilities'])})" if kind == "quantiles" else ""
        return f"{kind} of {column}{which} by {len(edges) - 1} buckets from {edges[0]:g} to {edges[-1]:g}"
    limit = f"norm {of['bound']:g}" if kind == "sum" else f"{of['low']:g} … {of['high']:g}"
    return f"{kind} of {column}, clipped to {limit}"


def _one_record(unit: str) -> str:
    return f"one {unit}, which is one record: that no {unit} has several is a promise of whoever feeds it"


def _all(mechanism: Mechanism) -> str:
    steps = mechanism.steps
    return "all releases, however many," if steps == FOR_EVER else f"all {steps} releases"


def _so_far(stream: StreamBase) -> str:
    return f"{stream.step}{f' of {stream.horizon}' if stream.horizon < FOR_EVER else ''} so far"


def _listed(entries: Sequence[Any]) -> str:
    more = f" and {len(entries) - SHOWN:,} more" if len(entries) > SHOWN else ""
    return ", ".join(map(str, entries[:SHOWN])) + more


#: Deltas at which points of the curve are stated.
_POINTS = (0.1, 0.03, 0.01, 0.001)


@statement_data.register
def _(stream: PartitionSelectionHistogram) -> Statement:
    """That of its noise, with the probability that the choice of categories adds to delta, everywhere."""
    cost, last = stream.cost, min(stream.cost.mechanism.steps, 10**6) - 1
    mechanism, unit, besides = cost.mechanism, cost.unit, f"{cost.besides:.3g}"
    some = counted(stream.categories_per_unit, "category")
    what = f"in at most {some}, its first; in each: "
    whom = f"one {unit}: {what}{mechanism.participation.describe()}. Enforced: further records are left out"
    whom = whom if stream.by_unit else _one_record(unit)
    own = [
        ("Released", f"how many units were in each category so far, after each step; {_so_far(stream)}"),
        (
            "Statistics",
            "units by category; categories come from the data, and each is released from the step on at which"
            f" its noisy count exceeds a threshold, {stream.threshold(0):.4g} at the first step and"
            f" {stream.threshold(last):.4g} at step {last}; which others have records is not told",
        ),
        (
            "Parts of delta",
            f"{mechanism.delta:.3g} is the noise's, and {besides} bounds the probability that a category of"
            f" one {unit} alone is ever released",
        ),
    ]
    told = _statement_of(mechanism, whom, own, stream.by_unit)
    choice = f"; and an event of probability at most {besides}, the choice of categories, which adds to delta"
    notion = f"{dict(told.items)['Notion']}{choice}"
    epsilon, delta = cost.epsilon(), cost.delta
    changed = {
        "Guarantee": f"({round_up(epsilon)}, {delta!r})-differential privacy of {_all(mechanism)}"
        " together, the choice of categories included",
        "Notion": notion,
        "Also": f"but for the choice of categories, {dict(told.items)['Also']}",
    }
    guarantee = {key: value for key, value in told.record["guarantee"].items() if key not in ("mu", "rho")}
    points = [[mechanism.epsilon(part), part + cost.besides] for part in _POINTS if part > mechanism.delta]
    guarantee |= {"epsilon": epsilon, "delta": delta, "notion": notion, "mu": None, "profile": points}
    return replace(
        told,
        items=tuple((heading, changed.get(heading, text)) for heading, text in told.items),
        proofs=(Theorem("Categories that nobody listed", "streams.md#open-categories"), *told.proofs),
        record={**told.record, "guarantee": guarantee},
    )


def _statement_of(
    mechanism: Mechanism,
    whom: str,
    own: list[tuple[str, str]],
    by_unit: bool,
    rule: DistinctCounter | None = None,
) -> Statement:
    """Return what the statements of all streams say."""
    whole, unit = statement_of(mechanism), mechanism.unit
    said = f"all {mechanism.steps} releases"
    theirs = [
        (heading, text.replace(said, _all(mechanism)))
        for heading, text in whole.items
        if heading not in ("Batches", "Divisor", "Privacy unit")
    ]
    who, kept = ("the ledger of this stream", "enforced") if by_unit else ("whoever feeds it", "as promised")
    held = mechanism.participation if rule is None else rule
    inexact = mechanism.grid_bits is None
    floats = ("floating-point attacks: noise is not rounded exactly",) if inexact else ()
    what = f"participation is {kept}: {held.describe()}; when steps end depends on no private value"
    return replace(
        whole,
        items=(theirs[0], ("Privacy unit", whom), *own, *theirs[1:]),
        assumptions=(Assumption(who, what),),
        observer=_OBSERVER.format(unit=unit),
        duties=_DUTIES,
        not_covered=(*floats, *_NOT_COVERED),
        record={
            **whole.record,
            "batches": {**whole.record["batches"], "meaning": whom},
            "released": dict(own),
        },
    )


def protected(stream: Stream) -> str:
    """Say whom a stream protects, and who sees to it."""
    unit = stream.mechanism.unit
    if not stream.by_unit:
        return _one_record(unit)
    if stream.shared.distinct_counter is not None:
        return f"one {unit}: {stream.shared.distinct_counter.describe()}. Enforced: later visits are left out"
    return (
        f"one {unit}: {stream.participation.describe()}, {counted(stream.per_step, 'record')} each. Enforced:"
        " further records are left out"
    )
