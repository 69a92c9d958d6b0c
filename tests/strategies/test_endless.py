"""Strategies without a horizon: the limiting sensitivity, what is refused, endless mechanisms and streams."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anechoic as an
from anechoic import _serialize
from anechoic.algebra import generating
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.endless import calibrate_endless
from anechoic.participation import Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, endless, make_endless
from anechoic.strategies.endless import EndlessInverse
from tests.floats import same_bits
from tests.marks import in_turn, slow

KEY = bytes(range(32))


FOUND = {
    "damped": endless.damped(0.05),
    "little-damped": endless.damped(1e-3),
    "rational": endless.rational(5, 300),
    "blt": make_endless(BLT(9, [0.3, 0.2], [0.99, 0.5])),
    "blt-mixed": make_endless(BLT(9, [0.9, -0.8], [0.9, 0.85])),
    "bands": make_endless(BandedToeplitz(11, [1.0, -0.5, 0.25])),
    "inverse": endless.series([2.0, -1.9]),
    "inverse-mixed": make_endless(BandedInverse(7, [1.0, 0.5, -0.3])),
    "inverse-1": endless.series([2.0]),
}
STREAMED = ["rational", "blt", "blt-mixed", "bands", "inverse", "inverse-mixed", "inverse-1"]


@pytest.mark.parametrize("name", FOUND)
class TestLimit:
    def test_it_bounds_every_horizon_and_is_reached(self, name):
        strategy = FOUND[name]
        norms = [strategy.at(n).largest_column_norm() for n in (1, 2, 3, 10, 100, 1000, 20000)]
        assert (np.diff(norms) >= -1e-15).all()
        assert norms[-1] < strategy.limiting_norm < norms[-1] * (1 + 3e-9)
        found = sensitivity(strategy.at(100), Single())
        assert found.value <= strategy.limiting_norm


def test_limits_in_closed_form():
    # sum_t lambda^(2t); 1 + alpha^2 / (1 - lambda^2); a sum of squares
    inverse = endless.series([1.0, -0.9])
    assert inverse.limiting_norm == pytest.approx(1 / math.sqrt(1 - 0.81), rel=1e-11)
    blt = make_endless(BLT(1, [0.5], [0.9]))
    assert blt.limiting_norm == pytest.approx(math.sqrt(1 + 0.25 / 0.19), rel=1e-11)
    assert make_endless(BandedToeplitz(2, [3.0, 4.0])).limiting_norm == pytest.approx(5.0)
    # sqrt(2/pi K(m)) at m = (1 - 1e-9)^2, by mpmath with 30 digits
    assert endless.damped(1e-9).limiting_norm == pytest.approx(2.69412828088100012474, rel=2e-12)


def test_the_integral_is_the_sum_for_minimum_phase_only():
    # DESIGN 8: for (1, -2) the integral of |C^-1|^-2 is 1/3, while the sum of 4^t diverges
    angles = 2 * math.pi * np.arange(4096) / 4096
    assert np.mean(np.abs(1 - 2 * np.exp(1j * angles)) ** -2.0) == pytest.approx(1 / 3)
    assert generating.stable_norm_squared(np.array([1.0, -2.0])) is None
    # mirrored at the unit circle, |r| is the same, and the sum is 1/3
    assert generating.stable_norm_squared(np.array([2.0, -1.0])) == pytest.approx(1 / 3)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1.2, 1.2), min_size=1, max_size=5), st.floats(0.3, 3.0))
@pytest.mark.slow
def test_zeros_are_located_exactly(reflections, lead):
    """Polynomials made from reflection coefficients: stable if and only if all are below 1 in modulus."""
    r = np.array([1.0])
    for k in reflections:
        r = np.append(r, 0.0) + k * np.append(r, 0.0)[::-1]
    if r[0] == 0 or np.abs(np.abs(reflections) - 1).min() < 1e-6 or abs(reflections[-1]) < 1e-12:
        return
    inside = np.abs(np.roots(r[::-1])).min() <= 1
    found = generating.stable_norm_squared(lead * r / r[0])
    assert (found is None) == bool(inside)
    if found is not None and np.abs(reflections).max() < 0.9:
        c = BandedInverse(10**5, lead * r / r[0]).coefficients
        assert found == pytest.approx(float(c @ c), rel=1e-9)


class TestRefusals:
    @pytest.mark.parametrize(
        "coefficients", [[1.0, -2.0], [1.0, -1.0], [1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.5, 1.0]]
    )
    def test_zeros_in_the_closed_disc(self, coefficients):
        with pytest.raises(ValueError, match="zero in the closed unit disc"):
            endless.series(coefficients)
        if min(abs(np.roots(coefficients[::-1]))) < 1:
            return
        # the same damped is accepted
        found = endless.series(np.array(coefficients) * 0.9 ** np.arange(len(coefficients)))
        assert found.limiting_norm < 10


def calibrated(name, **changed):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "batch_size": 32} | changed
    return calibrate_endless(FOUND[name], **arguments)


class TestMechanism:
    @in_turn("name", FOUND)
    @in_turn("adjacency", ["zero_out", "replace_one"])
    def test_epsilon_is_never_above_the_one_asked_for(self, name, adjacency):
        mechanism = calibrated(name, adjacency=adjacency)
        assert 1 - 1e-9 < mechanism.epsilon() <= 1.0
        for n in (1, 7, 500):
            finite = mechanism.at(n)
            assert finite.steps == n and same_bits(finite.noise_std, mechanism.noise_std)
            assert finite.epsilon() <= mechanism.epsilon() and finite.gdp() <= mechanism.gdp()

    @pytest.mark.parametrize("name", FOUND)
    def test_files(self, name):
        mechanism = calibrated(name, clip_norm=0.5, unit="client")
        read = an.EndlessMechanism.from_json(mechanism.to_json())
        assert read == mechanism and hash(read) == hash(mechanism)
        assert read.strategy.limiting_norm == mechanism.strategy.limiting_norm
        assert _serialize.encode(read.strategy) == _serialize.encode(mechanism.strategy)
        assert read.report() == mechanism.report()

    def test_damaged_files_are_refused(self):
        for change in (
            lambda r: r.update(noise_std=r["noise_std"] / 2),
            lambda r: r.update(endless_format=2),
            lambda r: r["strategy"].update(damping=0.0),
            lambda r: r.pop("delta"),
            lambda r: r.update(surplus=1),
        ):
            record = json.loads(calibrated("damped").to_json())
            change(record)
            with pytest.raises(MismatchError, match="Do not rely on it"):
                an.EndlessMechanism.from_json(json.dumps(record))

    def test_refusals(self):
        wrong = {"epsilon": -1.0, "delta": 0.0, "batch_size": 0, "clip_norm": 0, "unit": ""}
        for name, value in {**wrong, "adjacency": "add_or_remove"}.items():
            with pytest.raises(ValueError, match=f"{name}="):
                calibrated("damped", **{name: value})
        for changed in ({"epsilon": None}, {"noise_multiplier": 1.0}):
            with pytest.raises(ValueError, match="exactly one of the two"):
                calibrated("damped", **changed)


def rows(stream, count):
    state, found = stream.init(), []
    for _ in range(count):
        row, state = stream.next(state)
        found.append(row)
    return np.array(found)


class TestStreams:
    @pytest.mark.parametrize("name", STREAMED)
    def test_rows_are_those_of_every_horizon(self, name):
        mechanism = calibrated(name, clip_norm=0.5)
        stream = mechanism.stream(3, key=KEY, dtype=np.float64)
        found = rows(stream, 40)
        std = mechanism.noise_std * 0.5
        for n in (1, 2, 17, 40):
            strategy = mechanism.strategy.at(n)
            z = np.array([stream.fresh(t) for t in range(n)])
            assert np.allclose(found[:n], std * strategy.solve(z), rtol=1e-10, atol=1e-12)
            finite = an.noise.NoiseStream(strategy, 3, std=std, key=KEY, dtype=np.float64)
            assert np.array_equal(rows(finite, n), found[:n])
        assert stream.memory_bytes <= mechanism.strategy.window * 3 * 8

    def test_without_a_recurrence_a_horizon_is_needed(self):
        mechanism = calibrated("damped")
        with pytest.raises(UnsupportedError, match="memory without end"):
            mechanism.stream(3)
        stream = mechanism.stream(3, key=KEY, dtype=np.float64, horizon=12)
        found, z = rows(stream, 12), np.array([stream.fresh(t) for t in range(12)])
        expected = mechanism.noise_std * mechanism.strategy.at(12).solve(z)
        assert np.allclose(found, expected, rtol=1e-10)
        with pytest.raises(an.errors.HorizonError):
            rows(stream, 13)


# Functions whose terms hide between the points of a grid. For 1 - a x^N the sum of squares is 1 / (1 - a^2).


@pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 8))])
@pytest.mark.few(2)
def test_the_certificate_of_long_polynomials(seed):
    rng = np.random.default_rng(seed)
    r = np.append(1.0, 0.2 * rng.standard_normal(int(rng.integers(64, 300))))
    r *= 0.95 ** np.arange(len(r))
    if np.abs(np.roots(r[::-1])).min() <= 1 - 1e-9:
        with pytest.raises(ValueError, match="not proven"):
            EndlessInverse(r)
        r *= (0.9 * np.abs(np.roots(r[::-1])).min()) ** np.arange(len(r))
    found = EndlessInverse(r)
    norm = found.at(20_000).largest_column_norm()
    assert norm < found.limiting_norm < norm * (1 + 1e-8)


@pytest.mark.parametrize("terms", [3, 300])
def test_the_certificate_agrees_with_exact_arithmetic(terms):
    r = np.pad([1.0, -1.8, 0.9], (0, terms - 3))
    r[-1] += 1e-300  # not a short polynomial in disguise
    exact = math.sqrt(generating.stable_norm_squared(np.array([1.0, -1.8, 0.9])))
    assert exact < generating.certified_norm(r) < exact * (1 + 3e-9)
    # errors whose sum is 1e-6 may raise the norm by 1e-6 sum |c|, and the bound must leave room
    larger = generating.stable_norm_squared(np.array([1.0 - 1e-6, -1.8, 0.9]))
    assert generating.certified_norm(r, 1e-6) > math.sqrt(larger)
    assert generating.certified_norm(r, 0.1) is None
    assert generating.certified_norm(np.array([1.0, -2.0, 0.5])) is None
