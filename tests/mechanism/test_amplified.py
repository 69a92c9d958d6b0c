"""Mechanisms under balls in bins, min-sep sampling and random allocation: guarantee, record, refusals."""

import json
import math
from functools import cache

import numpy as np
import pytest

from anechoic.accounting import Verified, gaussian_epsilon
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.min_sep.pair import MinSepPair
from anechoic.accounting.poisson.accountant import PoissonAccountant
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import BallsInBins, CyclicPoisson, FixedOrder, MinSepSampling, RandomAllocation
from anechoic.strategies import BLT, BandedToeplitz, Dense, Identity, Toeplitz
from tests.accounting.integration import verify
from tests.marks import in_turn, slow

N = 24
BANDED = BandedToeplitz(N, [1.0, 0.5, 0.375])
BINS = BallsInBins(1200, 12, N)
QUICK = Verified(samples=300_000, failure=1e-6, seed=3)


SPREAD, ALLOCATED = MinSepSampling(1200, 100, 6, N), RandomAllocation(1200, 9, N)
NEGATIVE = Dense(np.eye(N) - 0.1 * np.eye(N, k=-1))
BLT_2 = BLT(N, [0.3, 0.2], [0.9, 0.3])
SETTINGS = {
    "bins": (BANDED, BINS, {}),
    "bins, BLT": (BLT_2, BINS, {"adjacency": "add_or_remove"}),
    "bins, verified": (BANDED, BINS, {"accounting": QUICK}),
    "min-sep": (BANDED, SPREAD, {"accounting": QUICK}),
    "allocation": (Identity(N), RandomAllocation(1200, 9, N), {}),
}


@cache
def made(name):
    strategy, sampling, options = SETTINGS[name]
    return calibrate(strategy, sampling=sampling, epsilon=1.0, delta=1e-4, **options)


@pytest.fixture(params=["bins", *slow("bins, BLT"), "bins, verified", *slow("min-sep"), "allocation"])
def mech(request):
    return made(request.param)


@pytest.mark.slow
def test_calibration_keeps_its_promise_and_beats_a_fixed_order(mech):
    assert mech.amplified
    assert 0.9 < mech.epsilon() <= 1.0
    assert gaussian_epsilon(1e-4, mech.gdp()) > 1.0
    text = mech.report()
    assert "amplified by" in text and "without amplification" in text
    assert ("Monte Carlo samples (seed 3)" in " ".join(text.split())) == (mech.accounting == QUICK)


@pytest.mark.slow
def test_record_round_trip(mech):
    again = Mechanism.from_json(mech.to_json())
    assert again == mech
    assert again.fingerprint == mech.fingerprint
    assert again.accounting == mech.accounting
    assert again.epsilon() == pytest.approx(mech.epsilon(), rel=1e-9)
    record = json.loads(mech.to_json())
    assert ("accounting" in record) == isinstance(mech.accounting, Verified)
    record["states"]["epsilon"] = 0.5
    with pytest.raises(MismatchError, match=r"states epsilon=0\.5"):
        Mechanism.from_json(json.dumps(record))


@pytest.mark.slow
def test_the_record_of_the_samples_is_a_part_of_the_fingerprint():
    record = json.loads(made("bins, verified").to_json())
    record["accounting"]["seed"] = 4
    with pytest.raises(MismatchError, match="edited"):
        Mechanism.from_json(json.dumps(record))


@pytest.mark.parametrize("name", ["bins, verified", *slow("min-sep")])
@pytest.mark.slow
def test_verified_epsilon_is_a_guarantee_and_close(name):
    """Against ten times as many samples of another seed; failure is inside of delta."""
    mech = made(name)
    pair = Mixture(bins_gram(BANDED, 12)) if name.startswith("bins") else MinSepPair(BANDED, mech.sampling)
    truth = verify(pair, mech.epsilon(), mech.noise_std, samples=1_000_000, failure=1e-3, seed=17)
    assert truth.delta < 1e-4 - QUICK.failure
    less = verify(pair, mech.epsilon(), 0.96 * mech.noise_std, samples=300_000, failure=1e-3, seed=17)
    assert less.delta > 1e-4
    if name.startswith("bins"):
        assert mech.noise_std < made("bins").noise_std


@pytest.mark.slow
def test_the_failure_probability_is_a_part_of_delta():
    half = Verified(samples=300_000, failure=5e-5, seed=0)
    epsilon = Mechanism(BANDED, BINS, made("bins").noise_std, delta=1e-4, accounting=half).epsilon()
    truth = verify(
        Mixture(bins_gram(BANDED, 12)),
        epsilon,
        made("bins").noise_std,
        samples=300_000,
        failure=1e-3,
        seed=17,
    )
    assert 4e-5 < truth.delta < 5e-5


@pytest.mark.slow
def test_where_samples_show_nothing_the_bound_without_them_holds():
    few = Verified(samples=1000, failure=1e-9, seed=0)
    mech = Mechanism(BANDED, BINS, 4.0, delta=1e-8, accounting=few)
    assert mech.epsilon() == pytest.approx(Mechanism(BANDED, BINS, 4.0, delta=1e-8).epsilon(), rel=1e-9)
    assert mech.epsilon(1e-9) == pytest.approx(
        Mechanism(BANDED, BINS, 4.0).epsilon(1e-9), rel=1e-9
    )  # nothing left of delta
    spread = Mechanism(BANDED, MinSepSampling(1200, 100, 6, N), 4.0, delta=1e-8, accounting=few)
    assert spread.epsilon() == pytest.approx(gaussian_epsilon(1e-8, spread.gdp()), rel=1e-6)


def test_balls_in_bins_takes_more_bands_than_cyclic_poisson():
    """C of full width: refused by Theorem 3.21, covered by Lemma 3.2 of arXiv 2410.06266."""
    wide = Toeplitz(N, 0.9 ** np.arange(N))
    with pytest.raises(UnsupportedError, match="bands=24, which exceeds groups=12"):
        PoissonAccountant(wide, CyclicPoisson(1200, 100, 12, N), "zero_out", "deterministic")
    assert Mechanism(wide, BINS, 10.0, delta=1e-5).epsilon() < math.inf


@in_turn(
    ("strategy", "sampling", "options", "error", "words"),
    [
        (NEGATIVE, BINS, {}, UnsupportedError, r"Lemma 3\.2 of arXiv 2410\.06266"),
        (BANDED, BINS, {"adjacency": "replace_one"}, UnsupportedError, "against none"),
        (BANDED, ALLOCATED, {}, UnsupportedError, "bands=3 under"),
        (Identity(N), ALLOCATED, {"adjacency": "replace_one"}, UnsupportedError, "against none"),
        (BANDED, SPREAD, {}, UnsupportedError, "verified"),
        (BANDED, MinSepSampling(1200, 100, 2, N), {"accounting": QUICK}, UnsupportedError, "bands=3 exceeds"),
        (Identity(N), ALLOCATED, {"accounting": QUICK}, ValueError, "its accounting has no sampling error"),
        (BANDED, FixedOrder(1200, 100, steps=N), {"accounting": QUICK}, ValueError, "under FixedOrder"),
        (BANDED, BINS, {"accounting": "exact"}, ValueError, "accounting='exact' must be"),
    ],
)
def test_refusals(strategy, sampling, options, error, words):
    with pytest.raises(error, match=words):
        Mechanism(strategy, sampling, 1.0, **options).epsilon()


@in_turn(
    ("given", "words"),
    [({"samples": 10}, "samples=10"), ({"failure": 0.0}, "failure=0"), ({"seed": -1}, "seed=-1")],
)
def test_what_is_no_way_to_verify(given, words):
    with pytest.raises(ValueError, match=words):
        Verified(**given)


def test_a_failure_beyond_delta_cannot_be_calibrated():
    with pytest.raises(ValueError, match="failure=1e-06 must be below delta=1e-07"):
        calibrate(BANDED, sampling=BINS, epsilon=1.0, delta=1e-7, accounting=QUICK)
