"""Closed forms over BLT coefficients, against the coefficients, mpmath, and the printed lemma."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anechoic.algebra import toeplitz
from anechoic.algebra.exponentials import (
    geometric,
    geometric_moment,
    prefix_decoder,
    remaining,
    remaining_moment,
)
from anechoic.losses.dispatch import error
from anechoic.strategies import BLT
from anechoic.workloads import prefix_sum
from tests.marks import each_once, in_turn


def sums_of(strategy):
    """Largest column norm, and max and RMS error for prefix sums, in closed form."""
    squares = prefix_decoder(strategy.scale, strategy.decay).squared_errors(strategy.n)
    return np.array([strategy.largest_column_norm(), *np.sqrt(squares)])


def materialised(strategy):
    c, n = strategy.coefficients, strategy.n
    b = toeplitz.solve(c, np.ones(n))
    mean = np.square(b) @ (n - np.arange(n)) / n
    return np.sqrt([np.square(c).sum(), np.square(b).sum(), mean])


def comb_by_columns(strategy, separation, count):
    total = np.zeros(strategy.n)
    for j in range(count):
        total[j * separation :] += strategy.coefficients[: strategy.n - j * separation]
    return float(np.square(total).sum())


NASTY = [
    ([0.3, 0.2], [0.9, 0.5]),
    ([0.4], [0.0]),
    ([0.2, 0.3], [0.0, 0.3]),
    ([0.9], [0.5]),  # the decay of the inverse is negative
    ([0.5, 0.4], [0.6, 0.1]),
    ([1e-5, 0.1, 0.3], [1 - 1e-9, 1 - 3e-9, 0.7]),
    ([1e-7, 1e-7, 0.3], [1 - 1e-9, 1 - 1.0000001e-9, 0.7]),
    ([0.3, 0.2], [0.5, 0.5 + 1e-12]),
    ([1e-14, 0.2], [0.9, 0.8]),
    ([0.4], [1 - 2**-53]),
    ([0.1, 0.2, 0.1, 0.05], [1 - 1e-3, 1 - 1e-6, 0.3, 0.01]),
    ([0.1, 0.2], [1e-20, 2e-20]),
    ([1e-5, 1e-5, 0.2], [1 - 1e-9, 1 - 1.001e-9, 0.3]),  # near 1, and 1e-12 apart
    ([0.1, 0.1, 0.1], [0.7, 0.7 * (1 + 1e-12), 0.7 * (1 + 1e-15)]),
    ([1e-12, 0.3, 1e-12], [0.6 + 1e-12, 0.6, 0.6 - 1e-12]),
]


@pytest.mark.parametrize(("scale", "decay"), NASTY)
@in_turn("n", [1, 2, 3, 17, 1000, 10**5])
@pytest.mark.few(6)
def test_agrees_with_coefficients(scale, decay, n):
    strategy = BLT(n, scale, decay)
    np.testing.assert_allclose(sums_of(strategy), materialised(strategy), rtol=1e-9)


@pytest.mark.parametrize(
    ("n", "separation", "count", "scale", "decay"),
    each_once(
        [
            (1, 1, 1),
            (2, 1, 2),
            (7, 1, 7),
            (23, 5, 5),
            (25, 5, 5),
            (23, 5, 2),
            (23, 22, 2),
            (10**4, 333, 31),
            (10**5, 10**4, 10),
        ],
        [*NASTY, ([0.5, -0.2], [0.9, 0.3])],
    ),
)
def test_comb_agrees_with_columns(scale, decay, n, separation, count):
    strategy = BLT(n, scale, decay)
    expected = comb_by_columns(strategy, separation, count)
    assert strategy.comb_norm_squared(separation, count) == pytest.approx(expected, rel=1e-9)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    rates=st.lists(st.floats(-8, 2), min_size=1, max_size=4, unique=True),
    shares=st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4),
    total=st.floats(1e-3, 1.0),
    n=st.integers(1, 300),
    data=st.data(),
)
@pytest.mark.slow
def test_any_falling_blt(rates, shares, total, n, data):
    decay = np.unique(np.exp(-(10.0 ** np.array(rates))))
    scale = np.array(shares[: len(decay)])
    strategy = BLT(n, total * scale / scale.sum(), decay)
    np.testing.assert_allclose(sums_of(strategy), materialised(strategy), rtol=1e-9)
    separation = data.draw(st.integers(1, n))
    count = data.draw(st.integers(1, -(-n // separation)))
    expected = comb_by_columns(strategy, separation, count)
    assert strategy.comb_norm_squared(separation, count) == pytest.approx(expected, rel=1e-9)


def exact_sums(scale, decay, n, separation, count):
    """The same norms by mpmath with 60 digits: polynomial roots, partial fractions, geometric series."""
    alpha, lam = ([mpmath.mpf(float(x)) for x in xs] for xs in (scale, decay))

    def poly(roots):
        out = [mpmath.mpf(1)]
        for root in roots:
            out = [a - root * b for a, b in zip([*out, 0], [0, *out], strict=True)]
        return out

    def series(q, terms):
        return mpmath.mpf(terms) if q == 1 else (1 - q**terms) / (1 - q)

    def left(q):
        return mpmath.mpf(n) * (n + 1) / 2 if q == 1 else (n - q * series(q, n)) / (1 - q)

    zeros = poly(lam)
    for i, a in enumerate(alpha):
        rest = [mpmath.mpf(0), *poly(lam[:i] + lam[i + 1 :])]
        zeros = [x + a * y for x, y in zip(zeros, rest, strict=True)]
    poles = [mpmath.mpf(1), *mpmath.polyroots(zeros, maxsteps=2000, extraprec=600)]
    weights = [
        mpmath.fprod(p - x for x in lam) / mpmath.fprod(p - q for q in poles if q is not p) for p in poles
    ]

    def double(ws, rs, f):
        return sum(ws[i] * ws[j] * f(rs[i] * rs[j]) for i in range(len(ws)) for j in range(len(ws)))

    column = 1 + double(alpha, lam, lambda q: series(q, n - 1))
    largest = double(weights, poles, lambda q: series(q, n)).real
    mean = double(weights, poles, left).real / n
    comb = mpmath.mpf(0)
    for piece in range(count):
        length = separation if piece < count - 1 else n - (count - 1) * separation
        earlier = [sum((x ** (q * separation) for q in range(piece)), mpmath.mpf(0)) for x in lam]
        heads = [a * s for a, s in zip(alpha, earlier, strict=True)]
        comb += (1 + sum(h * x ** (separation - 1) for h, x in zip(heads, lam, strict=True))) ** 2
        scales = [a * (s + x ** (piece * separation)) for a, s, x in zip(alpha, earlier, lam, strict=True)]
        comb += double(scales, lam, lambda q, length=length: series(q, length - 1))
    return np.array([float(mpmath.sqrt(x)) for x in (column, largest, mean, comb)])


@in_turn(("scale", "decay"), [NASTY[i] for i in (0, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14)])
@in_turn(("n", "separation", "count"), [(1001, 100, 11), (10**9, 10**8, 10)])
@pytest.mark.slow
def test_no_digits_are_lost_near_one_or_near_coincidence(scale, decay, n, separation, count):
    strategy = BLT(n, scale, decay)
    found = [*sums_of(strategy), math.sqrt(strategy.comb_norm_squared(separation, count))]
    with mpmath.workdps(60):
        expected = exact_sums(scale, decay, n, separation, count)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@in_turn(
    ("function", "term"),
    [
        (geometric, lambda n, t: 1),
        (geometric_moment, lambda n, t: t),
        (remaining, lambda n, t: n - t),
        (remaining_moment, lambda n, t: t * (n - t)),
    ],
)
@in_turn("n", [1, 2, 3, 50])
def test_geometric_sums_at_every_scale(function, term, n):
    u = np.array([0.0, 1e-15, 1e-9, 1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0, 30.0, 300.0])
    with mpmath.workdps(50):
        expected = [sum(term(n, t) * mpmath.exp(-mpmath.mpf(x) * t) for t in range(n)) for x in u.tolist()]
        expected = np.array([float(value) for value in expected])
    largest = max(term(n, t) for t in range(n))
    np.testing.assert_allclose(function(u, n), expected, rtol=1e-13, atol=1e-15 * min(1, largest))


def test_mixed_signs_have_no_decoder_of_this_form():
    assert prefix_decoder(np.array([0.5, -0.2]), np.array([0.9, 0.3])) is None
    assert prefix_decoder(np.array([1.7]), np.array([0.5])) is None  # C^-1 grows


@pytest.mark.parametrize(
    ("scale", "decay"), [([0.5, -0.2], [0.9, 0.3]), ([0.3, 0.2, -0.1], [1 - 1e-6, 0.9, 0.89])]
)
@pytest.mark.parametrize("n", [1, 2, 1000, 10**5])
def test_mixed_signs_by_doubling(scale, decay, n):
    strategy = BLT(n, scale, decay)
    found = error(prefix_sum(n), strategy)
    expected = materialised(strategy)
    assert strategy.largest_column_norm() == pytest.approx(expected[0], rel=1e-9)
    assert (found.max, found.rms) == pytest.approx(tuple(expected[1:]), rel=1e-9)


def test_decoder_coefficients():
    for scale, decay in NASTY:
        strategy = BLT(200, scale, decay)
        expected = toeplitz.solve(strategy.coefficients, np.ones(200))
        found = prefix_decoder(strategy.scale, strategy.decay).coefficients(200)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@example(n=10**9, d=2)
@settings(derandomize=True, deadline=None, max_examples=10)
@given(n=st.integers(10**6, 10**12), d=st.integers(1, 6))
def test_a_billion_steps_take_no_memory(n, d):
    decay = 1 - np.geomspace(1 / n, 0.9, d)
    strategy = BLT(n, np.full(d, 0.9 / d), decay)
    assert all(np.isfinite(sums_of(strategy)))
    assert strategy.comb_norm_squared(n // 10, 10) > strategy.largest_column_norm() ** 2
