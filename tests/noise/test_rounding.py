"""Rows rounded to integers: exactly what rational arithmetic gives, for every kind of recurrence."""

import hashlib
import itertools
from fractions import Fraction

import numpy as np
import pytest

from anechoic import strategies as s
from anechoic.errors import GuaranteeError
from anechoic.noise.filter_choice import rounded_filter
from anechoic.noise.recurrence import Autoregressive, Buffered, MovingAverage, Nested, Recurrence
from anechoic.noise.rounding.base import PAD, advance
from anechoic.noise.rounding.exact import nearest, nearest_of
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from tests.marks import every_other
from tests.zoo import ONE_OF_EACH, STRATEGIES

M = 40


class Given:
    """Fresh rows with 256 digits of their own, whose float64 entries are off by as much as they may be."""

    error = 2.0**-48

    def __init__(self, seed=0, push=1.0, spread=6.0):
        self.seed, self.push, self.spread = seed, push, spread

    def up_to(self, step):
        self.step = step
        return self

    def exact(self, step, coordinate):
        digest = hashlib.shake_256(f"{self.seed} {step} {coordinate}".encode()).digest(32)
        uniform = Fraction(int.from_bytes(digest, "little"), 2**256)
        return Fraction(self.spread) * (2 * uniform - 1)

    def fill(self, out, start, weights):
        assert weights.tolist() == [1.0]
        for i in range(len(out)):
            value = float(self.exact(self.step, start + i))
            sign = 1.0 if hashlib.sha256(f"{self.step} {start + i}".encode()).digest()[0] % 2 else -1.0
            out[i] = value + self.push * sign * (self.error - 2.0**-50)

    def enclosure(self, step, coordinate, bits):
        return int(self.exact(step, coordinate) * 2**bits // 1), bits


def in_slices(*cuts):
    """An `each` that works in the given slices, last one first."""

    def each(work, length):
        ends = [0, *[cut for cut in cuts if cut < length], length]
        return [work(slice(a, b)) for a, b in reversed(list(itertools.pairwise(ends)))]

    return each


def rows_of(recurrence, std, fresh, *, m=M, each=None, steps=None):
    """(rows, entries that were decided exactly)."""
    rounded = rounded_filter(recurrence, std)
    memory = np.full((rounded.rows, m + PAD), np.nan)
    rows, count = [], 0
    for t in range(recurrence.n if steps is None else steps):
        out = np.zeros(m, np.int64)
        count += advance(rounded.plan(t), t, memory, fresh.up_to(t), out, each or in_slices())
        rows.append(out)
    return np.array(rows), count


def by_definition(system: Recurrence, std, z, emitted):
    """Row t before rounding as a Fraction, from its definition and the rows emitted before."""

    def gain(t):
        return Fraction(system.gain(t))

    t = len(emitted)
    begin = t - system.local(t)
    x = [Fraction(int(emitted[u])) / (Fraction(std) * gain(u)) for u in range(begin, t)]
    zs = z[begin : t + 1]
    local = t - begin
    if isinstance(system, Autoregressive):
        row = [Fraction(float(c)) for c in system.row(local)]
        value = (zs[-1] - sum((c * x[local - j] for j, c in enumerate(row) if j), Fraction(0))) / row[0]
    elif isinstance(system, MovingAverage):
        value = sum(
            (Fraction(float(c)) * zs[local - j] for j, c in enumerate(system.row(local))), Fraction(0)
        )
    elif isinstance(system, Buffered):
        value = zs[-1]
        for scale, decay in zip(system.scale, system.decay, strict=True):
            value -= Fraction(float(scale)) * sum(
                (Fraction(float(decay)) ** (local - 1 - u) * x[u] for u in range(local)), Fraction(0)
            )
    elif isinstance(system, Nested):
        row, k = [Fraction(float(c)) for c in system.row(local)], system.branching
        value = row[0] * zs[-1]
        for g in range(system.height(local)):
            node = local // k ** (g + 1) * k ** (g + 1)
            value += row[1 + g] * sum(x[node : local // k**g * k**g], Fraction(0))
    else:
        d = len(system.readout)
        state = [Fraction(0)] * d
        for u in range(local):
            moved = [
                sum((Fraction(float(system.transition[i, k])) * state[k] for k in range(d)), Fraction(0))
                for i in range(d)
            ]
            state = [moved[i] + Fraction(float(system.input[i])) * x[u] for i in range(d)]
        value = (
            zs[-1]
            - sum((Fraction(float(u)) * m for u, m in zip(system.readout, state, strict=True)), Fraction(0))
        ) / Fraction(system.first)
    return Fraction(std) * gain(t) * value


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "long", "long-scaled-restarted", "long-inverse"])
@pytest.mark.few(9)
def test_every_row_is_the_rounded_one(name):
    """At 2**34 cells float64 is off by up to a thousandth of one, so that some entries need more."""
    recurrence, fresh, std = (KINDS | STRATEGIES)[name].recurrence(), Given(), 3.7 * 2.0**32
    rows, _ = rows_of(recurrence, std, fresh, m=6)
    for i in range(6):
        z = [fresh.exact(t, i) for t in range(recurrence.n)]
        for t in range(recurrence.n):
            assert rows[t, i] == nearest(by_definition(recurrence, std, z[: t + 1], rows[:t, i])), (t, i)


KINDS = {
    "banded": s.BandedToeplitz(40, [1.0, 0.5, 0.4, 0.3]),
    "scaled": s.ColumnNormalized(s.BandedToeplitz(40, [1.0, 0.5, 0.4, 0.3])),
    "long": s.BandedToeplitz(40, [1.0, *(0.3 / np.arange(1, 11))]),
    "long-scaled-restarted": s.Restarted(
        s.ColumnNormalized(s.BandedToeplitz(17, [1.0, *(-0.3 / np.arange(1, 9))])), 3, 40
    ),
    "inverse": s.BandedInverse(40, [1.3, -0.6, 0.2, -0.1]),
    "long-inverse": s.BandedInverse(40, [1.3, *(-0.2 / np.arange(1, 9))]),
    "blt": s.BLT(40, [0.2, 0.15, 0.1], [0.99, 0.7, 0.3]),
    "recurrent": ConstantRecurrent(40, [0.5, 0.1], [[0.24, -0.87], [0.87, 0.24]], [1.0, 0.3], 1.4),
    "tree": s.Tree(40),
    "scaled-tree": s.ColumnNormalized(s.Tree(40)),
    "identity": s.Identity(40),
}


@pytest.mark.parametrize("name", every_other(KINDS))
@pytest.mark.few(1)
def test_slices_and_errors_of_float64_leave_no_trace(name):
    """The float64 variates are moved up and down by all that is permitted, and rows cut in several ways."""
    recurrence, std = KINDS[name].recurrence(), 2.0**37
    expected, first = rows_of(recurrence, std, Given(push=1.0))
    for push, cuts in ((-1.0, ()), (0.0, (1, 2, 17)), (1.0, (8, 16, 24, 32))):
        rows, count = rows_of(recurrence, std, Given(push=push), each=in_slices(*cuts))
        assert np.array_equal(rows, expected)
    assert first + count > 0, "some entries must have needed exact arithmetic"


@pytest.mark.parametrize("name", every_other(KINDS))
@pytest.mark.few(4)
def test_rows_stay_as_near_to_the_noise_as_rounding_permits(name):
    """x' = C^-1 (z + c_tt r) with |r| <= 1/2, so C x' is within half a diagonal entry of z."""
    strategy, fresh, std = KINDS[name], Given(), 2.0**20
    rows, _ = rows_of(strategy.recurrence(), std, fresh)
    z = np.array([[float(fresh.exact(t, i)) for i in range(M)] for t in range(40)])
    noise = strategy.solve(z) * std if strategy.rows == strategy.n else None
    if noise is not None:
        assert np.abs(rows - noise).max() < 40
        inverse = strategy.solve(np.eye(40))
        diagonal = 1 / np.diagonal(inverse)
        off = np.linalg.solve(inverse, (rows - noise)) / diagonal[:, None]
        if name.endswith("inverse"):
            off = rows - noise
        assert np.abs(off).max() <= 0.5 + 1e-6


@pytest.mark.slow
def test_without_exact_arithmetic_some_entries_would_be_wrong(monkeypatch):
    recurrence, std = KINDS["banded"].recurrence(), 2.0**40
    expected, _ = rows_of(recurrence, std, Given(), m=300)
    monkeypatch.setattr("anechoic.noise.rounding.base.error_bound", lambda *_: -1.0)
    rows, count = rows_of(recurrence, std, Given(), m=300)
    assert count == 0 and not np.array_equal(rows, expected)


def test_a_grid_too_fine_for_float64_is_refused():
    with pytest.raises(GuaranteeError, match="fewer grid_bits"):
        rows_of(KINDS["banded"].recurrence(), 2.0**48, Given())


def test_memory_that_grows_is_refused():
    growing = s.BandedToeplitz(200, [1.0, 2.5]).recurrence()
    with pytest.raises(GuaranteeError, match="does not grow"):
        rows_of(growing, 2.0**20, Given(), m=2)
    fading = ConstantRecurrent(200, [1.0], [[0.5]], [2.0]).recurrence()
    with pytest.raises(GuaranteeError, match="does not grow"):
        rows_of(fading, 2.0**20, Given(), m=2)


def test_drift_is_bounded_before_the_run():
    assert rounded_filter(KINDS["blt"].recurrence(), 1.0, 10**6).drift() < 2.0**-40
    assert rounded_filter(KINDS["recurrent"].recurrence(), 1.0, 10**6).drift() < 2.0**-40
    assert rounded_filter(KINDS["scaled-tree"].recurrence(), 1.0, 10**6).drift() < 2.0**-40
    assert rounded_filter(KINDS["tree"].recurrence(), 1.0, 10**6).drift() == 0
    wide = ConstantRecurrent(2**17 + 1, [0.5], [[0.9]], [1.0]).recurrence()
    with pytest.raises(GuaranteeError, match="too many to bound"):
        rounded_filter(wide, 1.0, 1).drift()
    endless = s.BLT(2**62, [0.2], [1 - 2.0**-40]).recurrence()
    with pytest.raises(GuaranteeError, match="fades faster"):
        rounded_filter(endless, 1.0, 10**6).drift()


class TestNearest:
    def test_half_goes_up_and_integers_pass_through(self):
        halves = [Fraction(k, 2) for k in range(-7, 8)]
        assert [nearest(h + 10**30) - 10**30 for h in halves] == [nearest(h) for h in halves]
        assert [nearest(Fraction(k, 2)) for k in (-3, -1, 1, 3)] == [-1, 0, 1, 2]

    def test_bits_are_taken_until_the_answer_is_known(self):
        asked = []

        def enclosure(step, coordinate, bits):
            asked.append(bits)
            # one half and 2**-200 more
            return (2**bits // 2, bits) if bits < 200 else (2**bits // 2 + 2 ** (bits - 200), bits)

        assert nearest_of(Fraction(0), [(0, Fraction(-1))], 5, enclosure) == -1
        assert asked == [96, 192, 384]

    def test_broken_enclosures_are_refused(self):
        with pytest.raises(GuaranteeError, match="broken"):
            nearest_of(Fraction(0), [(0, Fraction(1))], 5, lambda *_: (0, 1))
