"""Minimum separation: the theorem that applies, or the smallest of the bounds."""

from __future__ import annotations

from anechoic.participation import MinSep
from anechoic.sensitivity import (
    bounds,
    chain,
    comb,
    cyclic,
    falling_gram,
    full_batch,
    scheduling,
    single,
    theorems,
    trees,
)
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.gram import Gram, gram_of
from anechoic.sensitivity.limits import TIGHT
from anechoic.sensitivity.patterns import or_listed
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy


def min_sep(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    """sens(C, min-sep) with at most `count` participations, (count - 1) separation < n, 2 <= count.

    Exact where C is Toeplitz and non-increasing (Lemma 3.16 c), where C^T C vanishes at lags >= separation
    (Algorithm 3.2), where C >= 0 is Toeplitz and C^T C falls from lag = separation on (`falling_gram`), for
    whole trees (`nodes`), and where C^T C vanishes at lags >= 2 separation or count = 2 (`chain`), unless the
    programme is too long; otherwise a bound, or the list of all patterns where these are at most 2,000.
    """
    structure = strategy.structure
    if structure.nonincreasing:
        return comb.early_and_often(strategy, separation, count)
    if structure.gram_bands <= separation:
        return scheduling.scheduled(strategy, separation, count)
    squared = trees.best_pattern(strategy, separation, count)
    if squared is not None:
        return Sensitivity.of_squared(
            squared, True, "Lemma 3.15(b) (dynamic programme over nodes of a tree)", theorems.TREES
        )
    known: list[Sensitivity] = []
    if structure.toeplitz and falling_gram.work(strategy, separation, count) <= bounds.WORK // 4:
        known = [falling_gram.later_and_farther(strategy, separation, count)]
        if known[0].exact:
            return known[0]
    gram = gram_of(strategy)
    if gram is not None and (squared := _neighbours_only(gram, separation, count)) is not None:
        method = "dynamic programme (only neighbouring participations interact)"
        return Sensitivity.of_squared(squared, True, method, theorems.NEIGHBOURS)
    best = min([*known, *bounds.min_sep_bounds(strategy, gram, separation, count)], key=float)
    if structure.nonnegative and count * separation >= strategy.n:  # every cycle is one of the patterns
        lower = cyclic.cyclic(strategy, separation, gram)
        if lower.exact and lower.value >= (1 - TIGHT) * best.value:
            return Sensitivity(best.value, True, f"{best.method}, attained by a cycle", best.theorem)
    return or_listed(best, strategy, MinSep(separation, count))


def _neighbours_only(gram: Gram, separation: int, count: int) -> float | None:
    """sens^2 where at most neighbouring participations interact and the programme is not too large."""
    if count == 2 and gram.n * gram.bandwidth <= chain.WORK:
        return chain.best_pair(gram, separation)
    if gram.bandwidth <= 2 * separation and gram.fits_band:
        work = chain.separated_chain_work(gram.n, gram.bandwidth, separation, count)
        if work <= chain.WORK:
            return chain.best_separated_chain(gram.band(), separation, count)
    return None


@sensitivity_of.register
def _(participation: MinSep, strategy: Strategy) -> Sensitivity:
    count = participation.max_participations_in(strategy.n)
    if count == 1:
        return single.single(strategy)
    if participation.separation == 1 and count == strategy.n:
        return full_batch.full_batch(strategy)
    return min_sep(strategy, participation.separation, count)
