"""Guarantees as events of dp_accounting, whose own accountants know nothing of ours."""

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import anechoic as an
from anechoic.accounting import epsilon_of
from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import BallsInBins, CyclicPoisson, FixedOrder, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from tests.marks import each_once

N, B, STEPS, DELTA = 600, 60, 20, 1e-5
BANDS = BandedToeplitz(STEPS, [1.0, 0.5, 0.3])

SETTINGS = {
    "fixed order": (BANDS, FixedOrder(N, B, 2), 3.0),
    "Poisson": (Identity(STEPS), Poisson(N, B, STEPS), 1.1),
    "everybody": (Identity(STEPS), Poisson(N, N, STEPS), 20.0),
    "cyclic": (BANDS, CyclicPoisson(N, B, 4, STEPS, "independent"), 1.3),
}


def made(name, adjacency):
    return Mechanism(*SETTINGS[name], adjacency=adjacency)


@pytest.mark.parametrize(
    ("adjacency", "name"), each_once(["zero_out", "replace_one", "add_or_remove"], SETTINGS)
)
def test_an_event_has_the_epsilon_of_its_mechanism(name, adjacency):
    if name == "fixed order" and adjacency == "add_or_remove":
        pytest.skip("no guarantee: batches of others would move")
    mechanism = made(name, adjacency)
    theirs = epsilon_of(mechanism.dp_event(), DELTA, adjacency=adjacency)
    assert theirs == pytest.approx(mechanism.epsilon(DELTA), rel=5e-3)


def test_events_are_composed_with_those_of_others():
    mechanism = made("Poisson", "add_or_remove")
    other = dp_accounting.LaplaceDpEvent(2.0)
    accountant = PLDAccountant()
    accountant.compose(mechanism.dp_event()).compose(other)
    assert accountant.get_epsilon(DELTA) > mechanism.epsilon(DELTA)
    rdp = RdpAccountant().compose(mechanism.dp_event())
    assert rdp.get_epsilon(DELTA) >= mechanism.epsilon(DELTA) * (1 - 1e-3)
    both = an.compose(mechanism, made("everybody", "add_or_remove"), times=2)
    assert epsilon_of(both.dp_event(), DELTA) == pytest.approx(both.epsilon(DELTA), rel=2e-2)


def test_what_has_no_event_says_so():
    bins = Mechanism(Identity(STEPS), BallsInBins(N, B, STEPS), 1.0)
    with pytest.raises(UnsupportedError, match=r"BallsInBins.*anechoic.compose.*gdp"):
        bins.dp_event()
    apart = an.compose(made("Poisson", "zero_out"), made("cyclic", "zero_out"), disjoint=True)
    with pytest.raises(UnsupportedError, match="disjoint"):
        apart.dp_event()
    event = dp_accounting.SampledWithReplacementDpEvent(9, 3, dp_accounting.GaussianDpEvent(1.0))
    with pytest.raises(UnsupportedError, match="no privacy loss distribution"):
        epsilon_of(event, DELTA)
    with pytest.raises(ValueError, match="adjacency='add'"):
        epsilon_of(dp_accounting.GaussianDpEvent(1.0), DELTA, adjacency="add")
