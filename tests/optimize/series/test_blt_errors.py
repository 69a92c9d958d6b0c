"""The objective of the BLT optimiser and its gradient: against mpmath, and one form by another."""

import mpmath
import numpy as np
import pytest

from anechoic import workloads
from anechoic.losses.norms import tail_weights
from anechoic.optimize.series.blt import _error_of
from anechoic.optimize.series.blt_errors import MaterialisedError, RecurrentError
from anechoic.optimize.series.blt_objective import BLTObjective, parameters
from anechoic.optimize.series.toeplitz_objective import quadratic_form
from anechoic.workloads.base import Workload
from tests.marks import in_turn


def exact_loss(gaps, n, separation, count, kind, poles=(1,)):
    """log(sensitivity * error) by mpmath: Lemma 4.13, partial fractions and geometric series.

    `gaps` and `poles` (of the workload 1 / prod (1 - pole x), pairwise distinct) are mpmath numbers.
    """

    def series(q, terms):
        return mpmath.mpf(terms) if q == 1 else (1 - q**terms) / (1 - q)

    def left(q):
        return mpmath.mpf(n) * (n + 1) / 2 if q == 1 else (n - q * series(q, n)) / (1 - q)

    def double(ws, rs, f):
        return sum(ws[i] * ws[j] * f(rs[i] * rs[j]) for i in range(len(ws)) for j in range(len(ws)))

    def rest(x, xs):
        return mpmath.fprod(x - y for y in xs if y is not x)

    y = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    lam, hat = ([mpmath.exp(-v) for v in part] for part in (y[0::2], y[1::2]))
    alpha = [mpmath.fprod(x - h for h in hat) / rest(x, lam) for x in lam]
    all_poles = [*map(mpmath.mpf, poles), *hat]
    weights = [
        p ** (len(poles) - 1) * mpmath.fprod(p - x for x in lam) / rest(p, all_poles) for p in all_poles
    ]
    error = double(weights, all_poles, lambda q: series(q, n) if kind == "max" else left(q) / n)
    comb = mpmath.mpf(0)
    earlier = [mpmath.mpf(0)] * len(lam)
    for piece in range(count):
        length = separation if piece < count - 1 else n - (count - 1) * separation
        heads = [a * e for a, e in zip(alpha, earlier, strict=True)]
        comb += (1 + sum(h * x ** (separation - 1) for h, x in zip(heads, lam, strict=True))) ** 2
        earlier = [e + x ** (piece * separation) for e, x in zip(earlier, lam, strict=True)]
        scales = [a * e for a, e in zip(alpha, earlier, strict=True)]
        comb += double(scales, lam, lambda q, length=length: series(q, length - 1))
    return mpmath.log(comb * error) / 2


# decays within 1e-9 of 1, pairs of decays that nearly coincide (relative 1e-12), and both
HARD = [
    [1e-9, 1e-9, 1e-9, 0.5],
    [1e-10, 1e-9, 0.3, 1e-9],
    [1e-9, 1e-21, 1e-21, 0.5],
    [0.1, 1e-13, 1e-13, 0.5],
    [0.1, 1e-13, 0.2, 1e-13],
    [1e-9, 3e-10, 1e-21, 1e-21, 0.1, 0.7],
    [1e-15, 1e-15],
]
PATTERNS = [(1001, 100, 11), (10**9, 10**8, 10), (10**9, 10**9, 1)]


def check_against_mpmath(objective, gaps, pattern, kind, poles=(1,), *, rel=1e-13, slope=1e-11):
    value, gradient = objective(np.array(gaps))
    with mpmath.workdps(100):
        exact = [mpmath.mpf(x) for x in gaps]
        expected = exact_loss(exact, *pattern, kind, poles)
        slopes = []
        for m, gap in enumerate(exact):
            step = gap * mpmath.mpf(10) ** -25
            up = exact_loss([*exact[:m], gap + step, *exact[m + 1 :]], *pattern, kind, poles)
            slopes.append(float((up - expected) / step * gap))
    assert np.exp(value - float(expected)) == pytest.approx(1.0, abs=rel * max(1.0, abs(value)))
    scale = max(np.abs(slopes).max(), 1e-2)
    np.testing.assert_allclose(gradient * gaps, slopes, rtol=0, atol=slope * scale)


@in_turn("kind", ["max", "rms"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("gaps", HARD)
@pytest.mark.few(7)
def test_prefix_sums_where_floats_are_hard(gaps, pattern, kind):
    check_against_mpmath(BLTObjective(*pattern, float(kind == "max")), gaps, pattern, kind)


@in_turn("kind", ["max", "rms"])
@in_turn("pattern", [PATTERNS[0], PATTERNS[2]])
@pytest.mark.parametrize("gaps", [HARD[i] for i in (0, 2, 3, 5)])
@pytest.mark.parametrize("momentum", [0.9, 0.5])
@pytest.mark.few(4)
def test_momentum_where_floats_are_hard(gaps, pattern, kind, momentum):
    decay = 0.0 if momentum == 0.9 else 1e-9
    workload = workloads.momentum(pattern[0], momentum, weight_decay=decay)
    error = RecurrentError.of(workload, 9, last=float(kind == "max"))
    objective = BLTObjective(*pattern, 0.0, error)
    check_against_mpmath(objective, gaps, pattern, kind, (1.0 - decay, momentum))


@pytest.mark.parametrize("gaps", [HARD[i] for i in (0, 3, 6)])
def test_a_workload_that_fades_faster_than_the_strategy(gaps):
    # the pole of the workload lies below those of C: the section in front cancels, to no more than this
    pattern = PATTERNS[1]
    error = RecurrentError.of(workloads.exponential_decay(pattern[0], 0.7), 9, last=1.0)
    objective = BLTObjective(*pattern, 1.0, error)
    check_against_mpmath(objective, gaps, pattern, "max", (0.7,), rel=1e-6, slope=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("workload", [workloads.prefix_sum(60), workloads.momentum(60, 0.9)])
def test_weight_on_the_last_step_has_the_cost_of_none(workload, share):
    # closed forms for a mean and a last step give what 60 coefficients give
    weights = np.full(60, (1.0 - share) / 60)
    weights[-1] += share
    kind, short = _error_of(workload, weights)
    assert kind == pytest.approx(share, abs=1e-12) and not isinstance(short, MaterialisedError)
    slow = MaterialisedError(workload.coefficients, quadratic_form(workload, weights)[1])
    for gaps in ([0.02, 0.3], [1e-3, 0.02, 0.1, 0.8]):
        value, gradient = BLTObjective(60, 20, 3, kind, short)(np.array(gaps))
        expected, slopes = BLTObjective(60, 20, 3, kind, slow)(np.array(gaps))
        assert value == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-9, atol=1e-12)


class Halved(Workload):
    """a_t = 2^-(t+1), as the fraction 1 / (2 - x)."""

    coefficients = property(lambda self: 0.5 ** np.arange(1.0, self.n + 1))
    fraction = property(lambda self: (np.ones(1), np.array([2.0, -1.0])))


WORKLOADS = {
    "halved": Halved(40),
    "prefix": workloads.prefix_sum(40),
    "momentum": workloads.momentum(40, 0.9, weight_decay=0.01),
    "double-pole": workloads.momentum(40, 0.9, weight_decay=0.1),
    "nesterov": workloads.nesterov(40, 0.8, weight_decay=0.1),
    "scaled": workloads.from_coefficients(3.0 * 0.7 ** np.arange(40)),
    "decay": workloads.exponential_decay(40, 0.6),
    "short": workloads.from_coefficients([2.0, 1.0, 0.5], 40),
    "one-step": workloads.momentum(1, 0.9),
    "two-steps": workloads.nesterov(2, 0.9),
}


@pytest.mark.parametrize("kind", ["max", "rms"])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.slow
def test_both_forms_are_the_error_of_the_dense_matrices(name, kind):
    workload = WORKLOADS[name]
    n = workload.n
    rng = np.random.default_rng(0)
    for points in (2, 4, 6):
        gaps = np.exp(rng.uniform(-4, 0, points))
        scale, decay = parameters(gaps)
        t = np.arange(n - 1)
        c = np.concatenate([[1.0], scale @ decay[:, None] ** t])
        column = np.linalg.solve(
            np.tril(c[np.subtract.outer(np.arange(n), np.arange(n))]), workload.to_dense()[:, 0]
        )
        expected = tail_weights(kind, n) @ np.square(column)
        forms = [MaterialisedError(workload.coefficients, quadratic_form(workload, kind)[1])]
        short = RecurrentError.of(workload, 45, last=0.0 if kind == "rms" else 1.0)
        if short is not None:
            forms.append(short)
        for form in forms:
            value, gradient = form(gaps)
            assert value == pytest.approx(expected, rel=1e-12)
            for m in range(points):
                step = np.zeros(points)
                step[m] = 1e-5 * gaps[m]
                slope = (form(gaps + step)[0] - form(gaps - step)[0]) / (2 * step[m])
                assert gradient[m] == pytest.approx(slope, rel=1e-6, abs=1e-6 * value)


def test_poles_of_the_workload_among_those_of_the_strategy():
    # nothing is divided by a distance between poles: one of the inverse moves over that of the workload
    n = 200
    values = []
    for shift in (-1e-6, -1e-12, 0.0, 1e-12, 1e-6):
        inverse = -np.log(0.9) + shift
        gaps = np.array([0.02, 0.02, 0.02, inverse - 0.06])
        values.append(RecurrentError.of(workloads.momentum(n, 0.9), 9, last=0.0)(gaps)[0])
    assert np.ptp(values) < 1e-4 * values[0] and np.ptp(values[1:4]) < 1e-10 * values[0]
