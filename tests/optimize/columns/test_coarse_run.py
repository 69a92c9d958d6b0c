"""Many bands by way of a coarse run: near the search over all columns, in a fraction of its time."""

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.optimize.columns import coarse_run
from anechoic.optimize.columns.banded import _columns
from anechoic.participation import Cyclic, MinSep
from anechoic.strategies import Banded


@pytest.mark.parametrize(("n", "bands", "count"), [(320, 64, 4), (303, 61, 4), (200, 50, 4), (200, 30, None)])
@pytest.mark.slow
def test_interpolated_columns_are_near_those_of_a_search(n, bands, count, monkeypatch):
    workload, schema, weights = workloads.prefix_sum(n), MinSep(64, count), np.full(n, 1.0 / n)
    searched = _columns(workload, bands, schema, weights)
    monkeypatch.setattr(coarse_run, "WORK", 1.0)
    columns, evaluations = coarse_run.refine_coarse_run(
        workload, weights, bands, schema, _searched(monkeypatch)
    )
    reached = loss(workload, Banded(n, columns), schema, "rms")
    assert evaluations < coarse_run.ROUNDS
    assert reached <= 1.01 * loss(workload, Banded(n, searched), schema, "rms")


def _searched(monkeypatch):
    def optimise(*arguments):
        monkeypatch.setattr(coarse_run, "WORK", 1e9)
        found = _columns(*arguments)
        monkeypatch.setattr(coarse_run, "WORK", 1.0)
        return found

    return optimise


def test_what_has_no_coarse_run():
    assert coarse_run.grain(workloads.prefix_sum(2000), 400, MinSep(400, 4)) == 10
    for workload, bands, schema in [
        (workloads.prefix_sum(2000), 400, Cyclic(400)),
        (workloads.prefix_sum(2000), 400, MinSep(400, 1)),
        (workloads.prefix_sum(2000), 40, MinSep(400, 4)),
        (workloads.momentum(2000, 0.9), 400, MinSep(400, 4)),
        (workloads.prefix_sum(10**6), 400, MinSep(400, 4)),
    ]:
        assert coarse_run.grain(workload, bands, schema) == 1


@pytest.mark.slow
def test_federated_runs_are_certified_to_two_per_cent():
    """The setting of published federated deployments."""
    found = optimize.banded(workloads.prefix_sum(2000), bands=400, participation=MinSep(400, 4))
    assert found.gap < 0.0175
    assert found.bound_covers == "every factorisation"
    assert found.loss < 6.85
