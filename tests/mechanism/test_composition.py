"""Several mechanisms on the same data: exact cases, Monte Carlo, dp-accounting, order, refusals."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.accounting import Verified, gaussian_epsilon, poisson_epsilon
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.random_allocation.epsilon import random_allocation_epsilon
from anechoic.errors import MismatchError
from anechoic.mechanism import composition
from anechoic.mechanism.composition import Composition, compose
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.strategies import BLT, BandedToeplitz, Identity, Restarted
from tests.accounting.integration import verify
from tests.marks import slow

N = 24
BANDED = BandedToeplitz(N, [1.0, 0.5, 0.375])
QUICK = Verified(samples=100_000, failure=1e-7, seed=3)


@cache
def parts():
    return {
        "fixed": Mechanism(BANDED, FixedOrder(1200, 100, steps=N), 8.0),
        "other": Mechanism(Identity(10), FixedOrder(500, 50, steps=10), 3.0),
        "poisson": Mechanism(Identity(N), Poisson(1200, 100, N), 2.0),
        "cyclic": Mechanism(BANDED, CyclicPoisson(1200, 100, 4, N), 4.0),
        "bins": Mechanism(BANDED, BallsInBins(1200, 12, N), 5.0),
        "allocation": Mechanism(Identity(N), RandomAllocation(1200, 12, N), 3.0),
    }


@pytest.mark.slow
def test_what_rounding_may_add_is_added_for_every_run(monkeypatch):
    """BLTs on a grid never forget: what their memory may lose is made large, to be seen."""
    monkeypatch.setattr("anechoic.noise.rounding.drift.DRIFT_EPSILON", 0.01)
    monkeypatch.setattr("anechoic.noise.rounding.drift.DRIFT_DELTA", 0.1)
    plain = Mechanism(BLT(40, [0.3], [0.5]), BallsInBins(examples=400, bins=20, steps=40), 3.0, delta=1e-5)
    gridded = replace(plain, grid_bits=20)
    assert gridded.drift > 0.0 == plain.drift
    for count in (2, 5):
        without = compose(*[plain] * count).epsilon(1e-5 * 0.9**count)
        assert compose(*[gridded] * count).epsilon(1e-5) == pytest.approx(without + 0.01 * count, rel=1e-3)


def test_gaussians_are_exact():
    a, b = parts()["fixed"], parts()["other"]
    both = compose(a, b)
    assert both.gdp() == pytest.approx(math.hypot(a.gdp(), b.gdp()), rel=1e-14)
    assert both.rho() == pytest.approx(a.rho() + b.rho(), rel=1e-14)
    assert both.epsilon(1e-6) == pytest.approx(gaussian_epsilon(1e-6, both.gdp()), rel=1e-9)
    assert compose(a, times=9).gdp() == pytest.approx(3 * a.gdp(), rel=1e-14)
    assert not both.amplified
    assert compose(a).epsilon() == pytest.approx(a.epsilon(), rel=1e-9)


def test_restarts_within_one_run_are_one_mechanism_and_no_better_than_separate_runs():
    """Fifteen of a unit's steps in 3 blocks of the same strategy: three runs of one block each."""
    block = BandedToeplitz(8, [1.0, 0.5, 0.375])
    restarted = Mechanism(Restarted(block, 3), External(MinSep(8), 50, 24), 2.0)
    single = Mechanism(block, External(MinSep(8), 50, 8), 2.0)
    assert compose(restarted).gdp() == pytest.approx(compose(single, times=3).gdp(), rel=1e-12)


@pytest.mark.parametrize("times", [1, 2, 5, 60])
def test_poisson_runs_are_one_run_of_as_many_steps(times):
    known = poisson_epsilon(1e-6, 2.0, 100 / 1200, N * times)
    assert compose(parts()["poisson"], times=times).epsilon(1e-6) == pytest.approx(known, rel=2e-3)


@pytest.mark.slow
def test_poisson_against_dp_accounting_with_another_sampling_rate():
    import dp_accounting
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    other = Mechanism(Identity(10), Poisson(1200, 300, 10), 1.5)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for sigma, rate, steps in ((2.0, 1 / 12, N), (1.5, 0.25, 10)):
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(sampled, steps)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0 / parts()["other"].gdp()))
    known = accountant.get_epsilon(1e-6)
    found = compose(parts()["poisson"], other, parts()["other"]).epsilon(1e-6)
    assert found == pytest.approx(known, rel=2e-3)


def test_allocations_are_one_run_of_more_epochs():
    """Positions are drawn anew in every epoch, so that runs and epochs compose alike."""
    known = random_allocation_epsilon(1e-6, 3.0, 12, 4 * N)
    found = compose(parts()["allocation"], times=4).epsilon(1e-6)
    assert known * (1 - 1e-6) <= found <= 1.003 * known


@pytest.mark.slow
def test_two_runs_of_bins_by_monte_carlo():
    """Two runs are one mixture over pairs of bins, whose means are orthogonal to each other's."""
    mech = parts()["bins"]
    gram = bins_gram(BANDED, 12)
    pairs = np.kron(gram, np.ones((12, 12))) + np.kron(np.ones((12, 12)), gram)
    epsilon = compose(mech, times=2).epsilon(1e-5)
    truth = verify(Mixture(pairs), epsilon, mech.noise_std, samples=100_000, failure=1e-3)
    assert 0.2e-5 < truth.delta < 1e-5


@pytest.mark.slow
def test_bins_and_a_gaussian_by_monte_carlo():
    mech, plain = parts()["bins"], parts()["fixed"]
    epsilon = compose(mech, plain).epsilon(1e-5)
    gram = bins_gram(BANDED, 12) + (plain.gdp() * mech.noise_std) ** 2
    truth = verify(Mixture(gram), epsilon, mech.noise_std, samples=100_000, failure=1e-3)
    assert 0.4e-5 < truth.delta < 1e-5


def test_the_sum_of_single_epsilons_at_equal_parts_of_delta_is_the_last_resort(monkeypatch):
    """Where the composed pair says nothing: each part has delta / 3, the Gaussians theirs together."""
    monkeypatch.setattr(composition, "composed_epsilon", lambda pairs, delta: math.inf)
    a, b = parts()["allocation"], parts()["fixed"]
    known = 2 * a.epsilon(1e-5 / 3) + b.epsilon(1e-5 / 3)
    assert compose(a, a, b).epsilon(1e-5) == pytest.approx(known, rel=1e-9)


NAMES = st.lists(
    st.sampled_from(["fixed", "poisson", "bins", "allocation", "cyclic"]), min_size=1, max_size=3
)


@settings(derandomize=True, max_examples=5, deadline=None)
@given(names=NAMES, extra=st.sampled_from(["other", "poisson", "allocation"]))
@pytest.mark.slow
def test_order_independent_and_growing_and_below_the_sum(names, extra):
    listed = [parts()[name] for name in names]
    whole = compose(*listed)
    assert (
        whole == compose(*reversed(listed)) == compose(compose(*listed[:1]), *listed[1:]) == compose(listed)
    )
    delta = 1e-5
    epsilon = whole.epsilon(delta)
    assert epsilon <= sum(part.epsilon(delta / len(listed)) for part in listed) * (1 + 1e-9)
    assert epsilon <= gaussian_epsilon(delta, whole.gdp()) * (1 + 1e-9)
    assert epsilon >= max(part.epsilon(delta) for part in listed) * (1 - 2e-3)
    assert compose(whole, parts()[extra]).epsilon(delta) >= epsilon * (1 - 2e-3)
    assert whole.epsilon(1e-7) >= epsilon


@pytest.mark.slow
def test_verified_parts_pay_for_their_failure():
    verified = Mechanism(BANDED, BallsInBins(1200, 12, N), 3.0, delta=1e-5, accounting=QUICK)
    plain = Mechanism(BANDED, BallsInBins(1200, 12, N), 3.0, delta=1e-5)
    both = compose(verified, parts()["other"])
    without = compose(plain, parts()["other"])
    assert both.epsilon(1e-5) < without.epsilon(1e-5)
    gram = bins_gram(BANDED, 12) + (parts()["other"].gdp() * 3.0) ** 2
    truth = verify(Mixture(gram), both.epsilon(1e-5), 3.0, samples=100_000, failure=1e-3, seed=9)
    assert truth.delta < 1e-5 - QUICK.failure
    assert "1e-07, which is a part of delta" in " ".join(both.report().split())
    # run twice, the same claim about the same samples fails once
    assert compose(verified, times=2).epsilon(1e-5) > 0
    # nothing of delta is left: as without samples
    assert both.epsilon(1e-7) == pytest.approx(without.epsilon(1e-7), rel=1e-6)


@pytest.mark.slow
def test_where_only_samples_amplify_the_points_are_composed():
    spread = Mechanism(BANDED, MinSepSampling(1200, 100, 6, N), 4.0, delta=1e-5, accounting=QUICK)
    found = compose(spread, times=2)
    single = spread.epsilon(1e-5 / 2)
    assert spread.epsilon(1e-5) < found.epsilon(1e-5) < 2.05 * single
    assert found.epsilon(1e-5) < 0.8 * gaussian_epsilon(1e-5, found.gdp())


def test_replacing_one():
    sampling = CyclicPoisson(1200, 100, 4, N)
    a = Mechanism(BANDED, sampling, 8.0, adjacency="replace_one")
    b = Mechanism(BANDED, FixedOrder(1200, 100, steps=N), 16.0, adjacency="replace_one")
    both = compose(a, b)
    assert both.adjacency == "replace_one"
    assert a.epsilon(1e-6) < both.epsilon(1e-6) < gaussian_epsilon(1e-6, both.gdp())


@pytest.mark.slow
def test_disjoint_units_have_the_weakest_part():
    a, b = parts()["bins"], parts()["fixed"]
    apart = compose(a, b, disjoint=True)
    assert apart.epsilon(1e-6) == pytest.approx(max(a.epsilon(1e-6), b.epsilon(1e-6)), rel=1e-9)
    assert apart.gdp() == pytest.approx(max(a.gdp(), b.gdp()), rel=1e-9)
    assert "no example takes part in more than one of the runs" in " ".join(apart.report().split())
    assert compose(compose(a, disjoint=True), b).runs == 2  # one part alone is no composition yet
    with pytest.raises(ValueError, match="disjoint mechanisms cannot be a part"):
        compose(apart, a)
    with pytest.raises(ValueError, match="disjoint mechanisms cannot be a part"):
        compose(compose(a, b), a, disjoint=True)
    for repeated in (compose(a, times=8), compose(a, a)):  # one mechanism, and more than one run
        for others in ((), (b,)):
            with pytest.raises(ValueError, match="disjoint mechanisms cannot be a part"):
                compose(repeated, *others, disjoint=True)
    with pytest.raises(ValueError, match="take part in every repetition"):
        compose(a, b, times=3, disjoint=True)


def test_fields_are_frozen_and_merged():
    whole = Composition(((parts()["fixed"], 1), (parts()["fixed"], 2)))
    assert whole.parts == ((parts()["fixed"], 3),)
    with pytest.raises(AttributeError, match="cannot assign"):
        whole.parts = ()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: compose(), ValueError, "needs at least one mechanism"),
        (lambda: compose(parts()["fixed"], times=0), ValueError, "times=0 must be at least 1"),
        (lambda: compose([parts()["fixed"], "x"]), ValueError, "'x' cannot be composed"),
        (
            lambda: compose(
                parts()["fixed"],
                Mechanism(BANDED, FixedOrder(1200, 100, steps=N), 8.0, adjacency="replace_one"),
            ),
            MismatchError,
            r"adjacency='(zero_out|replace_one)' of [0-9a-f]{12}… and adjacency='(zero_out|replace_one)' of",
        ),
        (
            lambda: compose(
                parts()["fixed"], Mechanism(BANDED, External(MinSep(3), 100, N), 8.0, unit="user")
            ),
            MismatchError,
            "unit='(user|example)' of .* and unit='(user|example)' of .* one unit",
        ),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.slow
def test_report_in_every_format_carries_what_the_parts_assume(tmp_path):
    whole = compose(parts()["fixed"], parts()["poisson"])
    record = json.loads(whole.report("json"))
    assert record["guarantee"]["epsilon"] == pytest.approx(whole.epsilon(), rel=1e-9)
    assert {part["fingerprint"] for part in record["parts"]} == {part.fingerprint for part, _ in whole.parts}
    pages = {proof["page"] for proof in record["proofs"]}
    assert {
        "amplification.md#composition",
        "amplification.md#poisson-sampling",
        "amplification.md#gaussian-mechanism",
    } <= pages
    for format, heading in (("text", "Runs:"), ("markdown", "| Runs |"), ("html", "<dt>Runs</dt>")):
        found = whole.report(format, out=tmp_path / format)
        assert heading in found
        assert "nobody learns which batches one example joined" in " ".join(found.split())
        assert (tmp_path / format).read_text().strip() == found.strip()


@pytest.mark.parametrize("noise", [1e-12, 1e12, *slow(1e-6, 0.1, 1.0, 1e6)])
def test_any_noise_has_an_epsilon(noise):
    drawn = (Poisson(100, 10, 10), FixedSize(100, 10, 10), FixedSize(100, 99, 10))
    for sampling in (*drawn, BallsInBins(100, 5, 10), RandomAllocation(100, 5, 10)):
        part = Mechanism(Identity(10), sampling, noise, delta=1e-5)
        values = [compose(part, times=2).epsilon(delta) for delta in (1e-5, 0.5, 0.999999)]
        assert values == sorted(values, reverse=True)
        assert 0.0 <= values[0] < math.inf
