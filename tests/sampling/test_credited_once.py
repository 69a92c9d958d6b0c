"""No random choice of batches is credited twice, and none that the library does not make is credited."""

import pytest

from anechoic import Mechanism, accounting, calibrate, compose, participation
from anechoic.accounting import Verified
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.strategies import BandedToeplitz, Identity

DELTA = 1e-5
SCHEMES = {
    "poisson": Poisson(400, 8, 24),
    "cyclic": CyclicPoisson(400, 8, 3, 24),
    "bins": BallsInBins(400, 6, 24),
    "allocation": RandomAllocation(400, 6, 24),
    "min-sep": MinSepSampling(400, 8, separation=6, steps=24),
}


def unamplified(mech):
    return accounting.gaussian_epsilon(DELTA, mech.sensitivity.value / mech.noise_std)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_participation_of_a_sampling_scheme_carries_no_credit(name):
    """Batches that somebody else drew at random: they promise who takes part, not how it came about."""
    promised = External(SCHEMES[name].participation, 8, 24)
    assert not promised.amplified
    for strategy in (Identity(24), BandedToeplitz(24, [1.0, 0.5])):
        mech = Mechanism(strategy, promised, 2.0)
        assert not mech.amplified
        assert mech.accountant is None
        assert mech.epsilon(DELTA) == pytest.approx(unamplified(mech), rel=1e-12)


@pytest.mark.parametrize(
    "scheme",
    [External(participation.MinSep(6), 8, 24), FixedOrder(192, 8, steps=24)],
    ids=("external", "order"),
)
@pytest.mark.parametrize("accounted", ["verified", Verified(samples=10**5, failure=1e-7, seed=1)], ids=str)
def test_no_accounting_can_be_asked_to_credit_what_is_not_drawn(scheme, accounted):
    with pytest.raises(ValueError, match="accounting="):
        calibrate(Identity(24), sampling=scheme, epsilon=1.0, delta=DELTA, accounting=accounted)


@pytest.mark.parametrize("grouping", ["balanced", "independent"])
def test_being_in_a_group_at_random_is_not_credited_besides_sampling_within_it(grouping):
    """Cyclic Poisson sampling with b groups is Poisson sampling at rate B b / N over n / b steps: no less."""
    groups, steps, std = 4, 12, 1.3
    mech = Mechanism(Identity(steps), CyclicPoisson(400, 8, groups, steps, grouping), std)
    within = Mechanism(Identity(steps // groups), Poisson(100, 8, steps // groups), std)
    assert mech.epsilon(DELTA) == pytest.approx(within.epsilon(DELTA), rel=1e-9)
    over_all = Mechanism(Identity(steps // groups), Poisson(400, 8, steps // groups), std)
    assert mech.epsilon(DELTA) > 1.5 * over_all.epsilon(DELTA)


def test_a_part_of_the_data_counts_as_all_of_it():
    """N of a scheme is what it draws from: to have drawn these N from more data earns nothing."""
    few, many = (Mechanism(Identity(4), Poisson(n, 8, 4), 1.3) for n in (100, 1000))
    assert few.epsilon(DELTA) > 3 * many.epsilon(DELTA)
    assert few.sampling.rate == 8 / 100


def test_disjoint_parts_earn_the_weakest_and_no_credit_for_the_split():
    mech = Mechanism(Identity(4), Poisson(100, 8, 4), 1.3)
    other = Mechanism(Identity(4), Poisson(100, 8, 4), 1.4)
    assert compose(mech, other, disjoint=True).epsilon(DELTA) == pytest.approx(mech.epsilon(DELTA), rel=1e-6)
