"""Releases of a state file, read while a stream writes it: the file describes its statistics."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.rows import grid_bits
from anechoic.runs.release_chain import reading
from anechoic.runs.settings_check import MECHANISM
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.groups import Grouped
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.past import Past, Publisher
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Statistic, quantile
from anechoic.streaming.store import LABELS, Store
from anechoic.streaming.sums import Count, Histogram, Mean, Sum
from anechoic.streaming.window import Decayed, Over, Running, SlidingWindow


def read_releases(path: str | os.PathLike[str], *, since: int = 0) -> list[Release]:
    """What was released at step `since` and later, made again from the noisy rows that the file keeps.

    It needs no key. Nothing is changed; a stream that writes the file does not wait, nor does the reader.

    Args:
        path: of a state file, whether or not a stream has it open.
        since: first step.

    Raises:
        CheckpointError: if it is missing, damaged, or no such file, or has a statistic that is not known.
    """
    with reading(path, Store) as (meta, _, rows):
        return list(_releases(meta, rows, since))


def _releases(meta: Mapping[str, Any], rows: Iterator[tuple[str, bytes]], since: int) -> Iterator[Release]:
    identity = json.loads(meta["identity"])
    mechanism, over = Mechanism.from_json(meta[MECHANISM]), over_of(identity["over"])
    described = identity["statistics"]
    try:
        known = {name: statistic_of(described[name]) for name in identity["order"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its statistics are not all of this library ({error})") from error
    dimension = sum(one.dimension for one in known.values())
    shared = SharedRelease(known, identity["weights"], identity["per_step"], grid_bits(mechanism, dimension))
    shared.labels = {name: tuple(labels) for name, labels in json.loads(meta[LABELS]).items()}
    past = Past(Publisher(mechanism, over, quantile(identity["level"])), shared)
    kept = {}
    for step, (time, row) in enumerate(rows):
        kept[step] = json.loads(time), np.frombuffer(row, "<i8").astype(np.int64)
        past.advance(kept.__getitem__)
        kept.pop(step - over.reach, None)
        if step >= since:
            yield past.release()


_OVER: dict[str, type[Over]] = {one.__name__: one for one in (Running, SlidingWindow, Decayed)}


def _grouped(of: Mapping[str, Any], column: str, groups: list[Any]) -> Grouped:
    return Grouped(statistic_of(of), column, groups)


_KINDS: dict[str, Callable[..., Statistic]] = {
    "count": Count,
    "sum": Sum,
    "mean": Mean,
    "histogram": Histogram,
    "distribution": Distribution,
    "quantiles": Quantiles,
    "by group": _grouped,
}


def statistic_of(described: Mapping[str, Any]) -> Statistic:
    """The statistic that describes itself so.

    Raises:
        KeyError, TypeError, ValueError: for a description that is none of this library's statistics.
    """
    arguments = dict(described)
    return _KINDS[arguments.pop("kind")](**arguments)


def over_of(described: tuple[str, Mapping[str, Any]]) -> Over:
    """The sums over steps with a name and settings.

    Raises:
        KeyError, TypeError, ValueError: for others.
    """
    name, settings = described
    return _OVER[name](**settings)
