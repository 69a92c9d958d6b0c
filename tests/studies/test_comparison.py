import math
from dataclasses import replace

import pytest

import anechoic as an
from studies.comparison import words
from studies.comparison.study import Arm, Outcome, Study, best, gain

torch = pytest.importorskip("torch")
from studies.comparison.record import comparisons  # noqa: E402 - needs torch
from studies.comparison.task import Flights  # noqa: E402 - needs torch
from studies.tasks import FashionMNIST  # noqa: E402 - needs torch


def outcomes(arm, table):
    """Outcomes from {learning rate: metrics by seed}."""
    return [Outcome(arm, rate, seed, m, 1.0) for rate, ms in table.items() for seed, m in enumerate(ms)]


def test_best_is_per_arm_by_the_mean_over_seeds():
    # the best single run is at 1.0, the best mean at 0.5
    found = best(outcomes("a", {0.1: [0.5, 0.5], 0.5: [0.7, 0.7], 1.0: [0.9, 0.2]}))
    assert (found.learning_rate, found.mean, found.error) == (0.5, 0.7, 0.0)
    assert found.metrics == (0.7, 0.7)
    assert found.edge == ""


@pytest.mark.parametrize(("table", "edge"), [({0.1: [2], 1: [1]}, "lowest"), ({0.1: [1], 1: [2]}, "highest")])
def test_best_at_an_end_of_the_grid_says_so(table, edge):
    assert best(outcomes("a", table)).edge == edge


def test_best_of_several_arms_is_refused():
    with pytest.raises(ValueError, match="2 arms"):
        best(outcomes("a", {1.0: [0.5]}) + outcomes("b", {1.0: [0.5]}))
    with pytest.raises(ValueError, match="0 arms"):
        best([])


def test_gain_is_paired_by_seed():
    planned = best(outcomes("p", {1.0: [0.7, 0.8, 0.9]}))
    independent = best(outcomes("i", {1.0: [0.6, 0.7, 0.8]}))
    mean, error = gain(planned, independent)
    assert mean == pytest.approx(0.1)
    assert error == pytest.approx(0.0, abs=1e-12)  # every seed gains the same, though seeds differ
    once = best(outcomes("i", {1.0: [0.6]}))
    assert gain(planned, once) == (pytest.approx(0.2), pytest.approx(planned.error))


def test_a_comparison_says_what_its_choice_costs_and_what_one_rate_reaches_without():
    given = an.calibrate(
        an.strategies.Identity(4), sampling=an.sampling.FixedOrder(examples=40, batch_size=10, epochs=1),
        epsilon=50.0, delta=1e-6,
    )  # fmt: skip
    arms = [Arm(kind, "fixed", 1.0, 50.0, given.to_json()) for kind in ("independent", "planned")]
    study = Study(Flights(), tuple(arms), (0.5, 1.0), (0, 1), 4, 1e-6, taken=0.5)
    found = outcomes(arms[0].name, {0.5: [0.6, 0.6], 1.0: [0.5, 0.5]})
    found += outcomes(arms[1].name, {0.5: [0.7, 0.7], 1.0: [0.8, 0.8], 2.0: [0.7, 0.7]})
    (row,) = comparisons(study, found)
    three = an.select(given, mean=3, score_on="public").epsilon()
    assert row["chosen_epsilon"] == pytest.approx(three) and three > 50.0
    assert words.chosen_epsilon(row) == f"{math.ceil(1000 * three) / 1000:g}"
    assert (row["gain"], row["taken"]["gain"]) == (pytest.approx(0.2), pytest.approx(0.1))
    (cells,) = words.at_one_rate({"comparisons": [row], "arms": [], "task": {}})[1]
    assert cells[:2] == ["50", "0.5"] and cells[2].startswith("0.6000") and cells[3].startswith("0.7000")
    (alone,) = comparisons(replace(study, rates=(1.0,)), [o for o in found if o.learning_rate == 1.0])
    assert alone["taken"] is None and alone["chosen_epsilon"] == pytest.approx(given.epsilon())


def test_runs_are_arms_by_rates_by_seeds():
    arms = (Arm("clipped", "fixed", 1.0), Arm("planned", "fixed", 1.0, 0.3, "{}"))
    study = Study(Flights(), arms, (0.1, 1.0), (0, 1, 2), 10, 1e-6)
    runs = study.runs()
    # nothing random is left of the flights without noise: one seed tells it all
    assert [run.arm.kind for run in runs] == ["clipped"] * 2 + ["planned"] * 6
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.steps == 10 for run in runs)
    assert len(Study(FashionMNIST("x"), arms, (0.1, 1.0), (0, 1, 2), 10, 1e-6).runs()) == 12


@pytest.mark.parametrize("change", [{"rates": ()}, {"seeds": (1, 1)}, {"rates": (0.0,)}, {"steps": 0}])
def test_empty_repeated_or_bad_grids_are_refused(change):
    fields = {"task": Flights(), "arms": (Arm("plain", "fixed"),), "rates": (1.0,), "seeds": (0,), "steps": 1}
    with pytest.raises(ValueError, match="must"):
        Study(**{**fields, **change}, delta=1e-6)


def grid_study(rates=(1.0, 2.0), seeds=(0, 1), widen=True):
    arms = (Arm("clipped", "fixed", 1.0), Arm("planned", "fixed", 1.0, 0.3, "{}"))
    return Study(Flights(), arms, rates, seeds, 10, 1e-6, widen)


@pytest.mark.parametrize(("table", "rates"), [({1.0: [2], 2.0: [1]}, [0.5]), ({1.0: [1], 2.0: [2]}, [4.0])])
def test_an_arm_that_does_best_at_an_end_is_followed_beyond_it(table, rates):
    study = grid_study()
    names = [arm.name for arm in study.arms]
    inner = outcomes(names[1], {0.5: [0, 0], 1.0: [1, 1], 2.0: [0, 0]})
    more = study.beyond([*outcomes(names[0], table), *inner])
    assert [run.arm.name for run in more] == names[:1]  # one seed: nothing of it is random
    assert [run.learning_rate for run in more] == rates
    assert study.beyond([*outcomes(names[0], {0.5: [0], 1.0: [1], 2.0: [0]}), *inner]) == []


def test_an_arm_is_followed_only_so_far_and_only_where_asked():
    study = grid_study()
    names = [arm.name for arm in study.arms]
    inner = outcomes(names[1], {0.5: [0, 0], 1.0: [1, 1], 2.0: [0, 0]})
    rates = [1.0, 2.0]  # the larger the better, for ever
    while more := study.beyond([*outcomes(names[0], {rate: [rate] for rate in rates}), *inner]):
        rates += [run.learning_rate for run in more]
        assert len(rates) < 20
    assert rates == [2.0**k for k in range(8)]
    assert grid_study(widen=False).beyond([*outcomes(names[0], {1.0: [1], 2.0: [2]}), *inner]) == []
    lone = outcomes(names[0], {1.0: [1]}) + outcomes(names[1], {1.0: [1, 1]})
    assert grid_study(rates=(1.0,)).beyond(lone) == []  # one rate is a choice, not a grid
