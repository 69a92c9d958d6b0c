"""Poisson sampling whose batches are cut: the tail, and (epsilon, delta) against enumeration of all draws."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

import anechoic as an
from anechoic.accounting.accountant import accountant_of
from anechoic.errors import UnsupportedError
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson
from anechoic.sampling.poisson import Truncated, binomial_tail, last_place, least_size
from anechoic.strategies import BandedToeplitz, Identity
from tests.marks import in_turn

GRID = np.linspace(-40.0, 40.0, 40_001)


def accountant(sampling, strategy=None, adjacency="zero_out"):
    return accountant_of(sampling, strategy or Identity(sampling.steps), adjacency, "deterministic")


@in_turn("count, rate", [(1, 0.5), (6, 0.1), (9, 0.4), (20, 0.9), (31, 1e-3), (12, 1.0)])
def test_the_tail_is_never_short(count, rate):
    p = Fraction(rate)
    for size in range(count + 2):
        exact = sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(size + 1, count + 1))
        found = binomial_tail(count, rate, size)
        assert exact <= Fraction(found) and found <= 1.0
        if size > 2 * count * rate:
            assert found <= 2 * float(exact)


def test_large_tails_are_close():
    for count, rate, size in [(10**6, 1e-3, 1300), (60_000, 4096 / 60_000, 4600), (10**9, 1e-6, 1200)]:
        assert (
            binom.sf(size, count, rate)
            <= binomial_tail(count, rate, size)
            <= 1.4 * binom.sf(size, count, rate)
        )


def laws(count, rate, size, others, mine):
    """{sum of what is kept: probability} of one batch of x (the first) and `others`, cut to `size`."""
    found = {}
    values = [mine, *others]
    for drawn in product([0, 1], repeat=count):
        inside = [i for i in range(count) if drawn[i]]
        chance = rate ** len(inside) * (1 - rate) ** (count - len(inside))
        kept = list(combinations(inside, size)) if len(inside) > size else [tuple(inside)]
        for some in kept:
            total = round(sum(values[i] for i in some), 12)
            found[total] = found.get(total, 0.0) + chance / len(kept)
    return found


def density(law, std, grid):
    return sum(chance * norm.pdf(grid, mean, std) for mean, chance in law.items())


def true_delta(epsilon, count, rate, size, others, std, steps=1):
    """The larger of both directions, by enumeration and quadrature: zero-out adjacency, one step or two."""
    grid = GRID if steps == 1 else np.linspace(-12.0, 12.0, 801)
    pair = [density(laws(count, rate, size, others, mine), std, grid) for mine in (1.0, 0.0)]
    if steps == 2:
        pair = [np.multiply.outer(one, one) for one in pair]
    step = (grid[1] - grid[0]) ** steps
    with_x, without = pair
    return max(
        float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * step)
        for a, b in ((with_x, without), (without, with_x))
    )


def _others(count):
    draw = np.random.default_rng(1)
    yield [0.0] * (count - 1)
    yield [-1.0] * (count - 1)
    yield [1.0] * (count - 1)
    yield [(-1.0) ** i for i in range(count - 1)]
    yield list(draw.uniform(-1, 1, count - 1))


CASES = [(4, 1.0, 0.02), (4, 2.0, 0.01), (4, 0.7, 0.05), (2, 1.0, 0.02), (2, 2.0, 0.005), (3, 0.7, 1e-3)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
@in_turn("size, std, delta", CASES)
def test_no_batch_of_others_shows_more_than_is_stated(size, std, delta, steps):
    count, rate = 7, 0.1
    sampling = Poisson(count, count * rate, steps).at_most(size)
    epsilon = accountant(sampling).bound(delta, std)
    unamplified = an.accounting.gaussian_epsilon(delta, steps**0.5 / std)
    assert epsilon < 0.97 * unamplified, "amplification is used"
    for others in _others(count):
        assert true_delta(epsilon, count, rate, size, others, std, steps) <= delta


@in_turn("count, rate, size", [(7, 0.1, 2), (7, 0.1, 3), (12, 0.2, 5), (9, 0.05, 2), (10, 0.05, 3)])
def test_the_last_place_against_enumeration(count, rate, size):
    """How many of the others are kept, and how often x is with them."""
    kept = {}
    for drawn in product([0, 1], repeat=count):
        inside = [i for i in range(count) if drawn[i]]
        chance = rate ** len(inside) * (1 - rate) ** (count - len(inside))
        with_x = (min(1.0, size / len(inside)) if inside else 0.0) if drawn[0] else 0.0
        for here, part in ((True, with_x), (False, 1.0 - with_x)):
            others = min(size, len(inside)) - here
            kept.setdefault(others, [0.0, 0.0])[here] += chance * part
    weight, higher = last_place(Poisson(count, count * rate, 1), size)
    for others, (absent, present) in kept.items():
        if not absent + present:
            continue
        share = present / (absent + present)
        if others == size - 1:
            assert absent + present <= weight <= 1.5 * (absent + present)
            assert share <= higher <= 2.0 * share
        else:
            assert share == pytest.approx(rate if others < size else 0.0)


WIDTH, REACH = 2e-3, 20_000


def shown(epsilon, classes, std, steps, *, forth):
    """A lower bound on delta of steps that tell their class (probability, rate): losses are rounded down."""
    grid = np.linspace(-60.0, 60.0, 48_001)
    loss = np.zeros(2 * REACH + 1)
    for weight, rate in classes:
        without = norm.pdf(grid, 0.0, std)
        pair = (1 - rate) * without + rate * norm.pdf(grid, 1.0, std), without
        p, q = pair if forth else pair[::-1]
        seen = (p > 1e-300) & (q > 1e-300)
        cells = np.floor(np.log(p[seen] / q[seen]) / WIDTH).astype(int)
        np.add.at(loss, np.clip(cells, -REACH, REACH) + REACH, weight * p[seen] * (grid[1] - grid[0]))
    whole = loss
    for _ in range(steps - 1):
        whole = fftconvolve(whole, loss)
    losses = (np.arange(len(whole)) - REACH * steps) * WIDTH
    return float((whole * -np.expm1(epsilon - losses))[losses > epsilon].sum())


@pytest.mark.slow
@in_turn("count, rate, size, std, delta, steps", [(9, 0.2, 3, 5.0, 1e-4, 1), (30, 0.1, 5, 2.0, 1e-3, 10)])
def test_whoever_knows_the_others_does_not_beat_the_statement(count, rate, size, std, delta, steps):
    """Contributions of others that lie far apart show in each step who of them was kept; nothing shows more.

    A statement that takes the rate of every step as it was before the cut would be beaten.
    """
    drawn = np.arange(size, count)
    one = binom.pmf(size - 1, count - 1, rate)
    rest = (binom.pmf(drawn, count - 1, rate) * size / (drawn + 1)).sum()
    tight, free = one + rate * rest, binom.cdf(size - 2, count - 1, rate)
    classes = [(free, rate), (tight, rate * (one + rest) / tight), (1 - free - tight, 0.0)]
    sampling = Poisson(count, count * rate, steps)
    for cut, beaten in ((sampling, True), (sampling.at_most(size), False)):
        epsilon = accountant(cut).bound(delta, std)
        found = max(shown(epsilon, classes, std, steps, forth=forth) for forth in (True, False))
        assert (found > 1.2 * delta) == beaten


def test_a_place_that_is_often_the_last_says_nothing():
    assert last_place(Poisson(6, 3.0, 1), 3) is None
    assert last_place(CyclicPoisson(60, 6.0, 2, 4, "independent"), 20) is None
    assert last_place(CyclicPoisson(60, 6.0, 2, 4), 30) == (0.0, 0.2)
    assert accountant(Poisson(6, 3.0, 1).at_most(3)).bound(0.01, 1.0) == pytest.approx(
        an.accounting.gaussian_epsilon(0.01, 1.0)
    )


def test_without_its_part_of_delta_the_statement_would_be_false():
    """A batch of one, of six who are drawn with probability 1/2: whoever knows the others sees who is in."""
    count, rate, size, std, delta = 6, 0.5, 1, 5.0, 1e-4
    plain = accountant(Poisson(count, count * rate, 1)).bound(delta, std)
    far = [1e3] * (count - 1)
    # others beyond the grid are seen for certain: only batches of x alone, or of nobody, are left
    assert true_delta(plain, count, rate, size, far, std) > 2 * delta
    cut = Truncated.__new__(Truncated)
    object.__setattr__(cut, "inner", Poisson(count, count * rate, 1))
    object.__setattr__(cut, "max_batch_size", size)
    assert true_delta(accountant(cut).bound(delta, std), count, rate, size, far, std) <= delta


@pytest.mark.slow
@in_turn(
    "sampling, strategy",
    [
        (Poisson(2000, 40, 12), Identity(12)),
        (CyclicPoisson(2000, 40, 4, 12), BandedToeplitz(12, [1.0, 0.5, 0.2])),
        (CyclicPoisson(2000, 40, 4, 12, "independent"), BandedToeplitz(12, [1.0, 0.5, 0.2])),
    ],
)
def test_what_is_added_to_delta_and_to_epsilon(sampling, strategy):
    plain = accountant(sampling, strategy)
    for size in (60, 90, 140):
        cut = accountant(sampling.at_most(size), strategy)
        tau = sampling.at_most(size).overflow
        found, least = cut.bound(1e-4, 2.0), plain.bound(1e-4, 2.0)
        assert found >= least
        unamplified = an.accounting.gaussian_epsilon(1e-4, plain.unamplified / 2.0)
        assert found <= unamplified * (1 + 1e-12)
        coupled = cut._by_coupling(1e-4, 2.0)
        if coupled < math.inf:  # delta pays for it
            assert plain.bound(1e-4 - tau * (1 + math.exp(coupled)), 2.0) <= coupled * (1 + 1e-12)
    assert found == pytest.approx(least, rel=1e-4), "batches of 140 never come"


@pytest.mark.slow
def test_a_calibrated_mechanism_keeps_its_epsilon():
    sampling = Poisson(2000, 40, 12).at_most(100)
    mechanism = an.calibrate(Identity(12), sampling=sampling, epsilon=1.0, delta=1e-5)
    plain = an.calibrate(Identity(12), sampling=sampling.inner, epsilon=1.0, delta=1e-5)
    assert 0.999 <= mechanism.epsilon() <= 1.0
    assert plain.noise_std <= mechanism.noise_std <= plain.noise_std * 1.001
    assert mechanism.epsilon(steps=6) < mechanism.epsilon()
    assert "keeps 100" in str(mechanism.report()) and "cut" in str(mechanism.report())
    again = an.Mechanism.from_json(mechanism.to_json())
    assert again.sampling.max_batch_size == 100 and again.fingerprint == mechanism.fingerprint
    assert mechanism.fingerprint != plain.fingerprint


@pytest.mark.slow
@in_turn("size, more", [(60, 1.1), (66, 1.04), (74, 1.015)])
def test_sizes_that_are_exceeded_now_and_then_cost_a_little_noise(size, more):
    """Four to five deviations above the mean: by coupling alone nothing would be shown."""
    sampling = Poisson(2000, 40, 300)
    cut = accountant(sampling.at_most(size))
    least = accountant(sampling).noise_std(1.0, 1e-6)
    found = cut.noise_std(1.0, 1e-6)
    assert cut._by_coupling(1e-6, found) > 1.0
    assert least <= found <= more * least and cut.bound(1e-6, found) <= 1.0


@pytest.mark.slow
def test_sizes_that_are_exceeded_too_often_are_refused_with_the_size_to_take():
    sampling = Poisson(2000, 40, 12)
    with pytest.raises(ValueError, match=r"With max_batch_size=\d+ next to no more") as error:
        an.calibrate(Identity(12), sampling=sampling.at_most(41), epsilon=1.0, delta=1e-6)
    size = int(str(error.value).split("max_batch_size=")[-1].split()[0])
    assert an.calibrate(Identity(12), sampling=sampling.at_most(size), epsilon=1.0, delta=1e-6).epsilon() <= 1
    assert least_size(sampling, 1e-9) < size
    with pytest.raises(ValueError, match="below the expected batch size 40"):
        sampling.at_most(39)
    with pytest.raises(ValueError, match="max_batch_size"):
        sampling.at_most(0)
    with pytest.raises(UnsupportedError, match="FixedOrder with batches of at most 9"):
        Truncated(FixedOrder(40, 8, steps=5), 9)


def test_adjacencies():
    """Where a batch is full, one more takes another's place: only what leaves the draw alone is covered."""
    sampling = Poisson(2000, 40, 3).at_most(120)
    with pytest.raises(UnsupportedError, match="removing a record would move others"):
        an.Mechanism(Identity(3), sampling, 2.0, adjacency="add_or_remove")
    replaced = an.Mechanism(Identity(3), sampling, 2.0, adjacency="replace_one")
    assert replaced.epsilon() > an.Mechanism(Identity(3), sampling, 2.0).epsilon()
    with pytest.raises(UnsupportedError):
        an.audit.audit_mechanism(an.Mechanism(Identity(3), sampling, 2.0))
