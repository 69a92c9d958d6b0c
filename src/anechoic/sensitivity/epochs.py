"""Once per epoch, anywhere in it (reshuffled passes): exact where only adjacent epochs interact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.participation import OncePerEpoch
from anechoic.sensitivity import comb, full_batch, min_sep, single, theorems
from anechoic.sensitivity.chain import best_epoch_chain
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.gram import ENTRIES, Gram, gram_of
from anechoic.sensitivity.patterns import or_listed
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy

WORK = 1_000_000_000  # additions that one bound may take


def once_per_epoch(strategy: Strategy, period: int) -> Sensitivity:
    """sens(C, once per epoch) for at least two epochs of `period` >= 2 steps, the last one perhaps cut short.

    Exact where no two epochs interact (restarted mechanisms: sum over epochs of the largest squared column
    norm), and where only adjacent ones do (`chain`); otherwise the smallest of proven bounds.
    """
    n, structure = strategy.n, strategy.structure
    if structure.gram_bands == 1 or _separate(strategy, period):
        squared = float(np.maximum.reduceat(strategy.column_norms_squared(), np.arange(0, n, period)).sum())
        return Sensitivity.of_squared(
            squared, True, "sum over epochs (they do not interact)", theorems.ONCE_PER_EPOCH
        )
    gram = gram_of(strategy)
    neighbours = structure.gram_bands <= period + 1 or n <= 2 * period
    if neighbours and gram is not None and gram.fits_band:
        squared = best_epoch_chain(gram.band(), period)
        return Sensitivity.of_squared(
            squared, True, "dynamic programme (only adjacent epochs interact)", theorems.ONCE_PER_EPOCH
        )
    return or_listed(min(_bounds(strategy, gram, period), key=float), strategy, OncePerEpoch(period))


def _separate(strategy: Strategy, period: int) -> bool:
    """Whether no two epochs interact, for C >= 0: no row of C touches both.

    Two epochs differ in a binary digit of their numbers. For each digit, the images of the epochs that have
    it and of the others must have no row in common; sums of non-negative entries cannot cancel.
    """
    structure = strategy.structure
    if not structure.nonnegative or structure.toeplitz:  # a Toeplitz C that is not diagonal couples epochs
        return False
    epoch = np.arange(strategy.n) // period
    for digit in range(int(epoch[-1]).bit_length()):
        has = (epoch >> digit) & 1 == 1
        image = strategy.multiply(np.stack([has, ~has], axis=1).astype(np.float64))
        if ((image[:, 0] > 0) & (image[:, 1] > 0)).any():
            return False
    return True


def _bounds(strategy: Strategy, gram: Gram | None, period: int) -> Iterator[Sensitivity]:
    n = strategy.n
    count = -(-n // period)
    # steps of every other epoch are at least period + 1 apart
    halves = [_separated(strategy, period + 1, half) for half in (count - count // 2, count // 2)]
    yield Sensitivity(
        sum(half.value for half in halves),
        False,
        f"even and odd epochs apart, each by {halves[0].method}",
        theorems.ONCE_PER_EPOCH,
    )
    if n <= ENTRIES:
        norms = np.sqrt(strategy.column_norms_squared())
        value = float(np.maximum.reduceat(norms, np.arange(0, n, period)).sum())
        yield Sensitivity(value, False, "triangle inequality over epochs", theorems.ONCE_PER_EPOCH)
        if strategy.structure.toeplitz and n * count <= WORK:
            squared = float(_toeplitz_blocks(strategy, period).sum())
            yield Sensitivity.of_squared(
                squared, False, "largest |C^T C| of each pair of epochs", theorems.ONCE_PER_EPOCH
            )
    if gram is not None and gram.fits_band:
        squared = _adjacent_and_far(gram.band(), period)
        yield Sensitivity.of_squared(
            squared,
            False,
            "dynamic programme over adjacent epochs, largest |C^T C| of other pairs",
            theorems.ONCE_PER_EPOCH,
        )
    yield from epoch_bounds_of_class(strategy, period)


@singledispatch
def epoch_bounds_of_class(strategy: Strategy, period: int) -> Iterable[Sensitivity]:
    """Bounds of strategies that know more than their structure says; none for all others."""
    return ()


def _separated(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    return single.single(strategy) if count == 1 else min_sep.min_sep(strategy, separation, count)


def _toeplitz_blocks(strategy: Strategy, period: int) -> Array:
    """Largest entry of M of the non-increasing majorant in each pair of epochs, shape (epochs, epochs).

    It lies at the last step of the earlier epoch and the first of the later one, where the lag is smallest
    and the later step earliest.
    """
    n = strategy.n
    gram = gram_of(comb.majorant(strategy))
    count = -(-n // period)
    blocks = np.zeros((count, count))
    if gram is None:  # pragma: no cover - the caller limits n
        return np.full((count, count), np.inf)
    for apart in range(count):
        lag = max(0, (apart - 1) * period + 1) if apart else 0
        later = np.arange(apart, count)
        entries = gram.diagonal(lag)[later * period - lag]
        blocks[later, later - apart] = entries
        blocks[later - apart, later] = entries
    return blocks


def _adjacent_and_far(band: Array, period: int) -> float:
    """Adjacent epochs by dynamic programming, the others by the largest entry of their block."""
    width, n = band.shape
    count = -(-n // period)
    blocks = np.zeros((count, count))
    steps = np.arange(n)
    for lag in range(min(width, n)):
        earlier = steps[: n - lag]
        np.maximum.at(blocks, (earlier // period, (earlier + lag) // period), band[lag, : n - lag])
    far = float(np.triu(blocks, 2).sum())
    return best_epoch_chain(band, period) + 2 * far


@sensitivity_of.register
def _(participation: OncePerEpoch, strategy: Strategy) -> Sensitivity:
    if participation.max_participations_in(strategy.n) == 1:
        return single.single(strategy)
    if participation.period == 1:
        return full_batch.full_batch(strategy)
    return once_per_epoch(strategy, participation.period)
