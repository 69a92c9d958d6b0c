"""Strategies and schemes from outside compete with a plan's own ones; names restrict it."""

import numpy as np
import pytest

from anechoic import plan
from anechoic.extend import register_strategies
from anechoic.federated import MinSeparation, plan_rounds
from anechoic.optimize import banded
from anechoic.participation import Cyclic, MinSep
from anechoic.planning import user_choices
from anechoic.planning.update import UpdateRule
from anechoic.sampling import CyclicPoisson, FixedOrder, RandomAllocation
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Dense, Identity
from anechoic.streaming.clock import Running
from anechoic.streaming.mechanisms import planned_mechanism

RUN = {"examples": 600, "batch_size": 20, "epochs": 2, "delta": 1e-5}
N, PERIOD = 60, 30


def good():
    """The square root in 24 bands."""
    from anechoic.algebra import toeplitz

    return ColumnNormalized(BandedToeplitz(N, toeplitz.sqrt(np.ones(24), 24)))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(user_choices, "_REGISTERED", {})
    return user_choices._REGISTERED


def names(found):
    return {row.sampling for row in found.rows}


def test_a_strategy_competes_as_it_is():
    found = plan(**RUN, epsilon=4.0, random_sampling=False, strategy=["identity", good()])
    assert found.mechanism.strategy.describe() == good().describe()
    assert found.mechanism.epsilon() <= 4.0 * (1 + 1e-12)
    assert {type(row.mechanism.strategy).__name__ for row in found.rows} == {"Identity", "ColumnScaled"}
    alone = plan(**RUN, epsilon=4.0, random_sampling=False, strategy=Dense(np.eye(N)))
    assert alone.rows[0].predicted == pytest.approx(found.rows[-1].predicted)


def test_what_is_good_is_chosen_and_what_is_bad_is_not():
    bad = BandedToeplitz(N, [1.0, -0.5])
    best = plan(**RUN, epsilon=4.0, random_sampling=False, strategy="banded_toeplitz")
    found = plan(**RUN, epsilon=4.0, random_sampling=False, strategy=["banded_toeplitz", bad])
    assert found.mechanism.to_json() == best.mechanism.to_json()


@pytest.mark.slow
def test_where_batches_are_drawn_its_bands_decide():
    found = plan(**RUN, epsilon=1.0, strategy=["identity", BandedToeplitz(N, [1.0, 0.4])])
    assert {"CyclicPoisson", "FixedOrder"} <= names(found)
    bins = plan(**RUN, epsilon=1.0, strategy=BandedToeplitz(N, [1.0, 0.4]), sampling="balls_in_bins")
    assert names(bins) == {"BallsInBins"} and bins.mechanism.epsilon() <= 1.0 * (1 + 1e-9)
    for row in found.rows:
        assert row.mechanism.epsilon() <= 1.0 * (1 + 1e-9)


def test_schemes_are_named():
    assert names(plan(**RUN, epsilon=2.0, strategy="identity", sampling="poisson")) == {"Poisson"}
    both = plan(**RUN, epsilon=2.0, strategy="identity", sampling=["poisson", "fixed_order"])
    assert names(both) == {"Poisson", "FixedOrder"}
    both = plan(**RUN, epsilon=2.0, strategy="identity", sampling=["poisson", "fixed_size"])
    assert names(both) == {"Poisson", "FixedSize"} and both.chosen.sampling == "Poisson"
    assert all(row.mechanism.epsilon() <= 2.0 for row in both.rows)
    assert "FixedSize" not in names(plan(**RUN, epsilon=2.0, strategy="identity"))
    with pytest.raises(ValueError, match="no 'identity' strategy is covered under sampling='fixed_size'"):
        plan(**RUN, epsilon=2.0, strategy="identity", sampling="fixed_size", random_sampling=False)


def test_schemes_that_nobody_asked_for_are_not_computed(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("of another scheme")

    monkeypatch.setattr("anechoic.planning.balls_in_bins_candidates.BallsInBinsCandidates.candidates", never)
    monkeypatch.setattr("anechoic.planning.amplified_candidates.random_allocation_noise_multiplier", never)
    assert names(plan(**RUN, epsilon=2.0, strategy="identity", sampling="fixed_order")) == {"FixedOrder"}
    with pytest.raises(AssertionError, match="another scheme"):
        plan(**RUN, epsilon=2.0, strategy="identity", sampling="random_allocation")


@pytest.mark.parametrize("steps", range(1, 11))
@pytest.mark.slow
def test_a_run_may_be_shorter_than_a_pass(steps):
    # 8 steps a pass: for 3 bands, 8 // (8 // 3) = 4 leave an example as many places, and are one too many
    found = plan(
        examples=256, batch_size=32, steps=steps, epsilon=4.0, delta=1e-4, optimizer=UpdateRule("sgd", 0.9),
        sampling=["fixed_order", "balls_in_bins"], strategy=["identity", "banded_toeplitz"],
    )  # fmt: skip
    assert found.mechanism.steps == steps
    assert found.mechanism.epsilon() <= 4.0 * (1 + 1e-9)
    bands = {row.mechanism.strategy.structure.bands for row in found.rows}
    assert max(bands) <= steps
    assert steps == 1 or max(bands) > 1


@pytest.mark.slow
def test_a_scheme_may_be_given():
    drawn = CyclicPoisson(600, 20, 4, N)
    found = plan(**RUN, epsilon=2.0, sampling=drawn)
    assert names(found) == {"CyclicPoisson"} and found.mechanism.sampling == drawn
    assert found.mechanism.epsilon() <= 2.0 * (1 + 1e-9)
    wide = plan(**RUN, epsilon=2.0, strategy=["identity", good()], sampling=RandomAllocation(600, PERIOD, N))
    assert f"{good().describe()} is not covered under RandomAllocation" in wide.reason
    ordered = plan(**RUN, epsilon=2.0, sampling=[FixedOrder(600, 20, epochs=2), "fixed_order"])
    assert ordered.mechanism.participation == Cyclic(PERIOD)


def test_a_registered_class_competes_in_every_plan(registered):
    asked = []

    @register_strategies("roots")
    def roots(workload, participation, loss):
        asked.append((workload.n, participation, loss))
        yield good()

    alone = plan(**RUN, epsilon=4.0, random_sampling=False, strategy="roots", keep="all")
    assert alone.mechanism.strategy.describe() == good().describe()
    ((n, participation, loss),) = asked
    assert (n, participation, loss) == (N, Cyclic(PERIOD), "rms")
    plan(**RUN, epsilon=4.0, random_sampling=False)
    assert len(asked) == 2  # "auto" asks it too
    plan(**RUN, epsilon=4.0, random_sampling=False, strategy="identity")
    assert len(asked) == 2
    for taken in ("roots", "tree", "blt"):
        with pytest.raises(ValueError, match=f"name='{taken}' must be new"):
            register_strategies(taken)
    register_strategies("wrong")(lambda workload, participation, loss: [3])
    with pytest.raises(ValueError, match="made 3, which is no Strategy"):
        plan(**RUN, epsilon=2.0, strategy="wrong")


def test_a_registered_class_competes_in_rounds_and_in_streams(registered):
    asked = []

    @register_strategies("ours")
    def ours(workload, participation, loss):
        asked.append((workload.n, participation))
        yield Identity(workload.n)

    rounds = {
        "rounds": 24,
        "clients": 5000,
        "clients_per_round": 50,
        "policy": MinSeparation(8, 3),
        "epsilon": 8.0,
        "dimension": 100,
    }
    plan_rounds(**rounds)
    assert type(plan_rounds(**rounds, mechanism="ours").strategy) is Identity
    assert type(plan_rounds(**rounds, mechanism=[Dense(np.eye(24))]).strategy) is Dense
    over = {"over": Running(), "participation": MinSep(8, 3), "epsilon": 8.0, "delta": 1e-6, "dimension": 1}
    planned_mechanism(**over, horizon=24)
    assert asked == [(24, MinSep(8, 3))] * 3
    with pytest.raises(ValueError, match="mechanism='theirs' is unknown"):
        plan_rounds(**rounds, mechanism="theirs")
    with pytest.raises(ValueError, match="no 'ours' mechanism fits 1 rows"):
        registered["ours"] = lambda workload, participation, loss: [BandedToeplitz(24, [1.0, 0.5, 0.2])]
        plan_rounds(**rounds, mechanism="ours", memory_budget=800)


@pytest.mark.slow
def test_a_better_class_is_chosen_in_rounds_and_in_streams(registered):
    made = []

    @register_strategies("ours")
    def ours(workload, participation, loss):  # columns that one unit touches may overlap
        made.append(banded(workload, bands=8, participation=participation, loss=loss).strategy)
        yield made[-1]

    found = plan_rounds(
        rounds=24, clients=5000, clients_per_round=50, policy=MinSeparation(8, 3), epsilon=8.0, dimension=100
    )
    assert found.strategy is made[0]
    over = {"over": Running(), "participation": MinSep(8, 3), "epsilon": 8.0, "delta": 1e-6, "dimension": 1}
    # streams compare free columns themselves: of two that are alike the first is taken
    chosen = planned_mechanism(**over, horizon=24).strategy
    assert chosen.to_dense() == pytest.approx(made[1].to_dense())
