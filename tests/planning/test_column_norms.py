"""Lengths of columns over several passes: sensitivity 1, the best for independent noise, and of use."""

import numpy as np
import pytest
import scipy.optimize

from anechoic import sensitivity, workloads
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.planning.column_norms import POWERS, norms_over_passes
from anechoic.planning.designs import Designs
from anechoic.planning.objective import PlanObjective
from anechoic.planning.update import UpdateRule, with_schedule
from anechoic.strategies import Identity
from anechoic.strategies.column_scaled import ColumnScaled

SGD = UpdateRule()
SEVERAL = [Cyclic(4), Cyclic(5), FullBatch(), MinSep(4), MinSep(5, 2), MinSep(3, 3)]


def objective(n, rule=SGD, scheduler=None, keep="last"):
    return PlanObjective.of(with_schedule(rule, scheduler, "step").workload(n, n), keep)


@pytest.mark.parametrize("schema", SEVERAL)
@pytest.mark.parametrize("scheduler", [None, "cosine", np.linspace(0.1, 1.0, 13)])
@pytest.mark.parametrize("power", POWERS)
def test_norms_have_sensitivity_1(schema, scheduler, power):
    n = 13
    found = norms_over_passes(objective(n, scheduler=scheduler), schema, power)
    worst = sensitivity(ColumnScaled(Identity(n), found), schema)
    assert worst.exact and worst.value == pytest.approx(1.0)
    # banded columns of one unit are orthogonal: the same there
    designs = Designs(objective(n, scheduler=scheduler))
    for strategy in designs.scaled_over_passes(designs.toeplitz(3), schema):
        if schema != FullBatch():
            assert sensitivity(strategy, schema).value == pytest.approx(1.0)


@pytest.mark.parametrize("schema", [Single(), Cyclic(13), MinSep(13), OncePerEpoch(5)])
def test_other_schemas_have_columns_of_one_length(schema):
    assert norms_over_passes(objective(13), schema) is None


@pytest.mark.parametrize("period", [3, 5])
@pytest.mark.parametrize("keep", ["all", "last", 0.9])
@pytest.mark.parametrize("scheduler", [None, "cosine"])
def test_they_are_the_best_for_independent_noise(period, keep, scheduler):
    n = 11
    problem = objective(n, scheduler=scheduler, keep=keep)
    q = problem.weights @ np.square(problem.workload.to_dense())
    cycle = np.arange(n) % period

    def value(logs):
        squares = np.exp(logs)
        return np.log((q / (squares / np.bincount(cycle, squares)[cycle])).sum())

    best = scipy.optimize.minimize(value, np.zeros(n), method="BFGS", options={"gtol": 1e-9}).fun
    found = norms_over_passes(problem, Cyclic(period))
    assert problem.measure(ColumnScaled(Identity(n), found)) ** 2 == pytest.approx(np.exp(best), rel=1e-6)


def test_rates_of_zero_weight_leave_no_column_without_length():
    found = norms_over_passes(PlanObjective.of(workloads.prefix_sum(12), 1.0), Cyclic(4))
    assert found.min() > 0.0
