"""What a plan minimises: weights of the iterates, what an optimizer adds up, and that designs follow it."""

import math

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import error
from anechoic.planning.compare import plan
from anechoic.planning.designs import Designs
from anechoic.planning.objective import WEIGHT, PlanObjective
from anechoic.planning.update import LEAST_RATE, UpdateRule, with_schedule
from anechoic.strategies import BLT, BandedToeplitz, Identity

SETTING = {"examples": 600, "batch_size": 20, "epochs": 2, "epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.parametrize("keep", ["last", "all", "average", 0, 0.35, 1])
@pytest.mark.parametrize("rates", [None, "cosine"])
def test_the_objective_is_the_weighted_mean_of_the_rows(n, keep, rates):
    workload = with_schedule(UpdateRule("sgd", 0.8, 0.01), rates, "step").workload(n, n)
    found = PlanObjective.of(workload, keep)
    assert found.weights.sum() == pytest.approx(1.0) and found.weights.min() >= 0.0
    for strategy in (Identity(n), BandedToeplitz(n, [1.0, 0.4][:n]), BLT(n, [0.5], [0.9])):
        inverse = np.linalg.inv(strategy.to_dense())
        rows = np.square(workload.to_dense() @ inverse).sum(axis=1)
        assert found.measure(strategy) == pytest.approx(math.sqrt(found.weights @ rows))
        assert error(workload, strategy).of(found.loss) == pytest.approx(found.measure(strategy))


def test_what_is_kept_has_its_weight():
    workload = workloads.prefix_sum(10)
    assert PlanObjective.of(workload, "last").weights[-1] == pytest.approx(0.08 + WEIGHT)
    assert PlanObjective.of(workload, "all").weights == pytest.approx(np.full(10, 0.1))
    halves = PlanObjective.of(workload, "average").weights
    assert halves[:5] == pytest.approx(np.full(5, 0.08)) and halves[5:] == pytest.approx(np.full(5, 0.12))


def test_the_error_of_an_average_is_at_most_what_is_planned_for_it():
    n, strategy = 24, BandedToeplitz(24, [1.0, 0.5, 0.3])
    found = PlanObjective.of(workloads.momentum(n, 0.9), "average")
    noise = found.workload.to_dense() @ np.linalg.inv(strategy.to_dense())
    kept = np.square(noise[12:].mean(axis=0)).sum()
    planned = found.measure(strategy) ** 2 - (1 - WEIGHT) * np.square(noise).sum() / n
    assert WEIGHT * kept <= planned


@pytest.mark.parametrize("keep", ["all", "last", 0.9])
@pytest.mark.parametrize("update", [UpdateRule(), UpdateRule("sgd", 0.9), UpdateRule("sgd", 0.9, 0.02)])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.few(5)
def test_designs_are_near_the_best_of_all_matrices(keep, update, schedule):
    # much weight on the last iterate is what Toeplitz matrices cannot follow
    n = 40
    workload = with_schedule(update, schedule, "step").workload(n, n)
    objective = PlanObjective.of(workload, keep)
    best = optimize.dense(workload, loss=objective.loss)
    designs = Designs(objective)
    full = designs.error(n)
    assert best.lower_bound * (1 - 1e-9) <= full < (1.06 if keep != 0.9 else 1.4) * best.loss
    buffered = designs.of(designs.blt(4)) * designs.blt(4).largest_column_norm()
    assert best.lower_bound * (1 - 1e-9) <= buffered < (1.2 if keep != 0.9 else 1.7) * best.loss


# -- schedules -----------------------------------------------------------------------------------


def test_schedules_are_names_numbers_or_functions():
    n = 12
    cosine = 0.5 + 0.5 * np.cos(np.pi * np.arange(n) / n)
    for given in ("cosine", 3.0 * cosine, list(cosine), lambda steps: cosine[:steps]):
        found = with_schedule(UpdateRule(), given, "step").learning_rates(n, 4)
        assert found == pytest.approx(cosine)
    for given in (None, "constant", np.full(n, 0.3)):
        assert with_schedule(UpdateRule(), given, "step").learning_rates(n, 4) is None


def test_rates_of_epochs_last_for_all_of_their_steps():
    found = with_schedule(UpdateRule(), [4.0, 2.0, 1.0], "epoch").learning_rates(10, 4)
    assert found == pytest.approx([1.0] * 4 + [0.5] * 4 + [0.25] * 2)


def test_a_rate_of_nothing_is_planned_as_a_thousandth():
    found = with_schedule(UpdateRule(), [0.0, 1.0, 2.0], "step").learning_rates(3, 3)
    assert found == pytest.approx([LEAST_RATE, 0.5, 1.0])


# -- plans ---------------------------------------------------------------------------------------


def of_the_kept(mechanism, workload):
    """Error of the last iterate for the mechanism's noise."""
    return mechanism.noise_std * error(workload, mechanism.strategy).last


def test_a_plan_reads_momentum_and_schedule_and_what_is_kept():
    update = with_schedule(UpdateRule("sgd", 0.9), "cosine", "step")
    workload = update.workload(60, 30)
    fixed = {**SETTING, "random_sampling": False, "strategy": "banded_toeplitz"}
    plain = plan(**fixed, keep="all").mechanism
    aware = plan(**fixed, optimizer=UpdateRule("sgd", 0.9), scheduler="cosine", keep=0.9)
    assert aware.chosen.rms_error == pytest.approx(
        PlanObjective.of(workload, 0.9).measure(aware.mechanism.strategy)
    )
    assert of_the_kept(aware.mechanism, workload) < 0.97 * of_the_kept(plain, workload)
