"""plan(): the candidates it compares, the choice and its reason, budgets, and refusals."""

import numpy as np
import pytest

from anechoic import workloads
from anechoic.losses import error
from anechoic.mechanism import Mechanism
from anechoic.participation import MinSep, Single
from anechoic.planning import TOLERANCE, plan
from anechoic.sampling import CyclicPoisson, External, FixedOrder, Poisson
from anechoic.strategies import BLT, Identity


def test_one_pass_in_time_order():
    """The flights: 1,278 steps, one participation, no amplification."""
    chosen = plan(
        examples=327_346,
        batch_size=256,
        epochs=1,
        epsilon=0.3,
        delta=1e-6,
        random_sampling=False,
        drop_last=True,
    )
    assert chosen.mechanism.sampling == FixedOrder(327_346, 256, epochs=1, drop_last=True)
    assert chosen.mechanism.steps == 1278
    assert chosen.mechanism.epsilon() <= 0.3
    independent = next(row for row in chosen.rows if isinstance(row.mechanism.strategy, Identity))
    best = next(row for row in chosen.rows if row.chosen)
    # independent noise: sqrt((n + 1) / 2) = 25.3; the best Toeplitz is near 3.1
    assert independent.rms_error == pytest.approx(25.3, abs=0.05)
    assert best.predicted < independent.predicted / 7


@pytest.mark.parametrize("random_sampling", [True, False])
def test_rows_are_ranked_and_the_choice_is_among_the_best(random_sampling):
    result = plan(
        examples=6000,
        batch_size=100,
        epochs=4,
        epsilon=2.0,
        delta=1e-6,
        dimension=1000,
        random_sampling=random_sampling,
    )
    predicted = [row.predicted for row in result.rows]
    assert predicted == sorted(predicted)
    (chosen,) = [row for row in result.rows if row.chosen]
    assert chosen.mechanism == result.mechanism
    assert chosen.predicted <= predicted[0] * (1 + TOLERANCE)
    schemes = [row.mechanism.sampling for row in result.rows]
    # as many groups as steps in a pass would sample with probability 1: that is a fixed order
    assert all(isinstance(s, (Poisson, CyclicPoisson) if s.amplified else FixedOrder) for s in schemes)
    assert all(s.rate < 1 for s in schemes if s.amplified)
    assert random_sampling == any(s.amplified for s in schemes)
    for row in result.rows:
        assert row.mechanism.epsilon() <= 2.0
        assert row.memory == 4 * 1000 * row.history
        assert row.mechanism.strategy.structure.bands <= 60 or isinstance(row.mechanism.strategy, BLT)
    text = str(result)
    assert "→" in text and result.reason in " ".join(text.split())
    assert all(len(line) <= 120 for line in text.splitlines())


def test_sampling_helps_small_epsilon_and_correlation_large():
    """Small epsilon: amplified independent noise is hard to beat; large epsilon: many bands win."""
    small, large = (
        plan(
            examples=6000, batch_size=100, epochs=4, epsilon=epsilon, delta=1e-6
        ).mechanism.strategy.structure.bands
        for epsilon in (0.05, 20.0)
    )
    assert small <= 2
    assert large >= 16


def test_memory_budget_bounds_the_rows_of_noise_state():
    def bands(budget):
        result = plan(
            examples=6000,
            batch_size=100,
            epochs=4,
            epsilon=8.0,
            delta=1e-6,
            dimension=1000,
            memory_budget=budget,
            random_sampling=False,
        )
        assert all(row.memory <= budget for row in result.rows)
        return max(row.history for row in result.rows)

    assert bands(4 * 1000 * 7) == 7
    assert bands(3999) == 0  # not even one row: independent noise
    with pytest.raises(ValueError, match="raise the budget"):
        plan(
            examples=6000,
            batch_size=100,
            epochs=4,
            epsilon=8.0,
            delta=1e-6,
            dimension=1000,
            memory_budget=3999,
            strategy="blt",
            random_sampling=False,
        )


def test_federated_runs_take_a_blt():
    result = plan(
        examples=10_000,
        batch_size=50,
        steps=1000,
        epsilon=4.0,
        delta=1e-6,
        participation=MinSep(150, 4),
        unit="client",
    )
    assert isinstance(result.mechanism.strategy, BLT)
    assert result.mechanism.sampling == External(MinSep(150, 4), 50, 1000, 10_000)
    assert result.mechanism.sensitivity.exact
    assert "federated" in result.reason


def test_external_single_participation():
    result = plan(
        examples=10_000,
        batch_size=50,
        steps=200,
        epsilon=4.0,
        delta=1e-6,
        participation=Single(),
        strategy="blt",
    )
    assert {type(row.mechanism.strategy) for row in result.rows} == {BLT}


def test_batch_sizes_are_compared_by_the_error_of_means():
    result = plan(
        examples=6000, batch_size=[50, 200], steps=100, epsilon=1.0, delta=1e-6, random_sampling=False
    )
    assert {row.batch_size for row in result.rows} == {50, 200}
    # one participation at 50 (120 steps a pass), four at 200: the larger batch still wins
    assert result.mechanism.sampling.batch_size == 200


def test_every_step_full_batch():
    result = plan(examples=100, batch_size=100, epochs=20, epsilon=1.0, delta=1e-6, random_sampling=False)
    assert isinstance(result.mechanism.strategy, Identity)


def test_fixed_noise_multiplier():
    result = plan(
        examples=6000, batch_size=100, epochs=2, noise_multiplier=1.5, delta=1e-6, random_sampling=False
    )
    assert all(row.noise_multiplier == pytest.approx(1.5) for row in result.rows)


def test_the_chosen_mechanism_survives_a_file():
    result = plan(examples=6000, batch_size=100, epochs=2, epsilon=1.0, delta=1e-6, random_sampling=False)
    assert Mechanism.from_json(result.mechanism.to_json()) == result.mechanism


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 0}, "examples=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": []}, "batch_size is empty"),
        ({"batch_size": 6001}, "exceeds examples"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": None}, "give one of the two"),
        ({"steps": 7}, "give one of the two"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"dimension": 0}, "dimension=0"),
        ({"memory_budget": 100}, "needs dimension"),
        ({"strategy": "tree"}, "strategy='tree'"),
    ],
)
def test_refusals(change, message):
    good = {"examples": 6000, "batch_size": 100, "epochs": 2, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(ValueError, match=message):
        plan(**{**good, **change})


def test_the_workload_is_what_is_designed_for():
    setting = {"examples": 2000, "batch_size": 100, "epochs": 4, "epsilon": 2.0, "delta": 1e-5}
    plain = plan(**setting, random_sampling=False)
    heavy = plan(**setting, random_sampling=False, workload=lambda n: workloads.momentum(n, 0.9))
    given = plan(**setting, random_sampling=False, workload=workloads.momentum(80, 0.9))
    assert heavy.mechanism == given.mechanism != plain.mechanism
    momentum = workloads.momentum(80, 0.9)

    def error_of(mechanism):
        return mechanism.noise_std * error(momentum, mechanism.strategy).rms

    assert error_of(heavy.mechanism) < error_of(plain.mechanism)
    assert heavy.rows[0].rms_error == pytest.approx(error(momentum, heavy.rows[0].mechanism.strategy).rms)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (workloads.prefix_sum(7), "workload has n=7 steps but the run has 80"),
        (lambda n: workloads.momentum(n, 0.0, learning_rates=np.linspace(1, 2, n)), "Toeplitz workload"),
        (lambda n: n, "Toeplitz workload"),
    ],
)
def test_workloads_that_do_not_fit_are_refused(workload, message):
    with pytest.raises(ValueError, match=message):
        plan(
            examples=2000, batch_size=100, epochs=4, epsilon=2.0, delta=1e-5, workload=workload,
            random_sampling=False,
        )  # fmt: skip
