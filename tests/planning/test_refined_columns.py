"""Learning rates that differ over several passes: columns are freed, and no others' plans change."""

import numpy as np
import pytest

from anechoic import plan
from anechoic.federated import SGD, Cohorts, MinSeparation, plan_rounds
from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize.columns.banded import refine_columns
from anechoic.participation import Cyclic, MinSep
from anechoic.planning.designs import Designs
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.objective import PlanObjective
from anechoic.planning.update import UpdateRule, with_schedule
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Banded, BandedToeplitz
from tests.marks import slow


def cooldown(n):
    """A short warm-up, and a fall to 0 over the last fifth."""
    t = np.arange(n) / n
    return np.minimum(1.0, np.minimum(t / 0.05 + 0.01, (1 - t) / 0.2))


def compared(n, schema, *, scheduler="cosine", momentum=0.9, keep=0.2, rows=None):
    """Errors at sensitivity 1 of freed columns, the least one of all others that fit, and the workload."""
    update = UpdateRule("sgd", momentum)
    workload = (with_schedule(update, scheduler, "step") if scheduler else update).workload(n, n)
    designs = Designs(PlanObjective.of(workload, keep))
    found = FixedOrderCandidates(designs, schema, MemoryBudget(rows, 1)).of(
        frozenset({"identity", "banded_toeplitz", "blt"})
    )
    errors = {one: designs.of(one) * sensitivity(one, schema).value for one in found}
    free = {one: error for one, error in errors.items() if isinstance(one, Banded)}
    rest = {
        o: e for o, e in errors.items() if o not in free and MemoryBudget(rows, 1).fits(o.recurrence().rows)
    }
    return free, min(rest.values()), workload


@pytest.mark.slow
@pytest.mark.parametrize(
    ("momentum", "scheduler", "count", "most"),
    [
        (0.0, "cosine", 3, 0.95),
        (0.0, "cosine", 10, 0.975),
        (0.9, "cosine", 3, 0.88),
        (0.9, "cosine", 10, 0.89),
        (0.0, cooldown, 3, 0.97),
        (0.0, cooldown, 10, 0.99),
        (0.9, cooldown, 3, 0.945),
        (0.9, cooldown, 10, 0.98),
    ],
)
def test_freed_columns_win_over_several_passes(momentum, scheduler, count, most):
    """At most this part of the least error of all others, 600 steps."""
    free, least, _ = compared(600, Cyclic(600 // count), scheduler=scheduler, momentum=momentum)
    (error,) = free.values()
    assert error <= most * least


@pytest.mark.parametrize("schema", [Cyclic(9), *slow(MinSep(9), MinSep(15, 3))])
def test_the_error_and_the_sensitivity_are_those_of_the_matrix(schema):
    """Steps that no pass divides; by dense products, and over all patterns of `Cyclic`."""
    free, least, workload = compared(61, schema)
    ((strategy, error),) = free.items()
    assert error <= 0.97 * least
    c = strategy.to_dense()
    if isinstance(schema, Cyclic):
        worst = max(np.linalg.norm(c[:, j :: schema.period].sum(axis=1)) for j in range(schema.period))
        apart = max(np.sqrt(np.square(c[:, j :: schema.period]).sum()) for j in range(schema.period))
        # columns that one example touches are orthogonal, so that its signs do not matter
        assert worst == pytest.approx(apart, rel=1e-12)
        assert sensitivity(strategy, schema).value == pytest.approx(apart, rel=1e-12)
    b = np.linalg.solve(c.T, workload.to_dense().T).T
    squares = np.square(b).sum(axis=1)
    root = np.sqrt(0.8 * squares.mean() + 0.2 * squares[-1])
    assert error == pytest.approx(root * sensitivity(strategy, schema).value, rel=1e-9)


def test_no_other_choice_changes(monkeypatch):
    """One pass, equal rates, the largest error, a whole batch, long runs: nothing is freed."""
    calls = []
    monkeypatch.setattr(Designs, "refined", lambda *asked: calls.append(asked))
    compared(30, Cyclic(30))
    compared(30, Cyclic(6), scheduler=None)
    compared(30, Cyclic(6), keep="any")
    compared(30, Cyclic(1))
    compared(30, Cyclic(6), rows=1)
    compared(2100, Cyclic(4))
    assert not calls
    compared(30, Cyclic(6))
    assert len(calls) == 1


def test_they_stay_within_the_room():
    free, least, _ = compared(90, Cyclic(9), rows=7)
    ((strategy, error),) = free.items()
    assert strategy.recurrence().rows == 7 and error < least


def test_few_iterations_are_not_begun():
    update = with_schedule(UpdateRule("sgd", 0.9), "cosine", "step")
    c = BandedToeplitz(1200, 0.5 ** np.arange(320))
    assert refine_columns(update.workload(1200, 400), c, Cyclic(400), "rms") is None


def test_a_plan_with_freed_columns_keeps_its_goal_and_is_stored():
    asked = {"examples": 160, "batch_size": 20, "epochs": 10, "delta": 1e-5, "random_sampling": False}
    found = plan(**asked, epsilon=0.5, workload=_cosine)
    mechanism = found.mechanism
    assert isinstance(mechanism.strategy, Banded) and found.chosen.name == "Banded(bands=8)"
    assert mechanism.epsilon() == pytest.approx(0.5, rel=1e-6) and mechanism.epsilon() <= 0.5
    assert Mechanism.from_json(mechanism.to_json()) == mechanism


def _cosine(n):
    return with_schedule(UpdateRule("sgd", 0.9), "cosine", "step").workload(n, n)


@pytest.mark.parametrize("policy", slow(Cohorts(8), MinSeparation(8)))
def test_rounds_free_columns_too(policy):
    planned = plan_rounds(
        rounds=80, clients=2000, clients_per_round=50, policy=policy, epsilon=4.0, dimension=100,
        optimizer=SGD(lambda t: 1.0 + np.cos(np.pi * t / 80), momentum=0.9),
    )  # fmt: skip
    assert isinstance(planned.strategy, Banded) and planned.epsilon() <= 4.0
