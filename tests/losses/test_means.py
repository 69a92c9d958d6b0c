"""Means of order p of the errors: by definition, at both ends, and as expectations."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from anechoic import error, loss, workloads
from anechoic.losses.means import expected_lp_norm, lp_error, lp_loss
from anechoic.participation import Cyclic, Single
from anechoic.strategies import BLT, BandedToeplitz, Identity, Tree
from tests.marks import in_turn

STRATEGIES = [Identity(1), Identity(7), BLT(9, [0.3], [0.8]), Tree(13), BandedToeplitz(11, [1.0, -0.5])]
ORDERS = [0.25, 0.5, 1, 1.5, 2, 3, 4, 17.5, 600.0]


@in_turn("strategy", STRATEGIES)
@in_turn("p", ORDERS)
def test_by_definition(strategy, p):
    found = error(workloads.prefix_sum(strategy.n), strategy)
    logs = np.log(found.per_step)
    expected = math.exp((np.logaddexp.reduce(p * logs) - math.log(strategy.n)) / p)
    assert lp_error(found, p) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_both_ends_and_between(strategy):
    workload = workloads.momentum(strategy.n, 0.5)
    for schema in (Single(), Cyclic(3)):
        losses = [lp_loss(workload, strategy, schema, p) for p in [*ORDERS, math.inf]]
        assert losses[ORDERS.index(2)] == pytest.approx(loss(workload, strategy, schema, "rms"), rel=1e-9)
        assert losses[-1] == pytest.approx(loss(workload, strategy, schema, "max"), rel=1e-9)
        assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(losses))


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.5])
@pytest.mark.few(2)
def test_the_expected_norm_is_an_expectation(p):
    found = error(workloads.prefix_sum(6), Tree(6))
    moments = [
        2 * integrate.quad(lambda x, s=s: x**p * stats.norm.pdf(x, scale=s), 0, 40)[0] for s in found.per_step
    ]
    assert expected_lp_norm(found, p) == pytest.approx(sum(moments) ** (1 / p), rel=1e-7)


def test_the_expected_two_norm_is_the_frobenius_norm():
    found = error(workloads.prefix_sum(6), Identity(6))
    assert expected_lp_norm(found, 2) == pytest.approx(math.sqrt(6 * 7 / 2))


@pytest.mark.parametrize("p", [0, -1.0, math.nan, "2", True, -math.inf])
def test_orders_that_are_none(p):
    with pytest.raises(ValueError, match=r"p=.* must be a"):
        lp_loss(workloads.prefix_sum(3), Identity(3), Single(), p)


def test_an_infinite_order_has_no_closed_form():
    with pytest.raises(ValueError, match="has no closed form"):
        expected_lp_norm(error(workloads.prefix_sum(3), Identity(3)), math.inf)
