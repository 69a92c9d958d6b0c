"""The arithmetic of a study: the runs it makes, the best rate of an arm, differences, and the table."""

import pytest

import anechoic as an
from studies.comparison.study import Arm, Outcome, Study, best, gain

torch = pytest.importorskip("torch")
from studies.comparison import runner  # noqa: E402 - needs torch
from studies.comparison.record import comparisons, make_record, markdown, results  # noqa: E402
from studies.comparison.task import Flights  # noqa: E402
from studies.tasks import SampledFlights  # noqa: E402

ARMS = (Arm("clipped", "fixed", 1.0), Arm("planned", "fixed", 1.0, 0.3, "{}"))


def outcomes(arm, table):
    """Outcomes from {learning rate: metrics by seed}."""
    return [Outcome(arm, rate, seed, m, 1.0) for rate, ms in table.items() for seed, m in enumerate(ms)]


def test_best_is_per_arm_by_the_mean_over_seeds():
    # the best single run is at 1.0, the best mean at 0.5
    found = best(outcomes("a", {0.1: [0.5, 0.5], 0.5: [0.7, 0.7], 1.0: [0.9, 0.2]}))
    assert (found.learning_rate, found.mean, found.error) == (0.5, 0.7, 0.0)
    assert found.metrics == (0.7, 0.7) and found.edge == ""
    assert best(outcomes("a", {0.1: [2], 1: [1]})).edge == "lowest"
    assert best(outcomes("a", {0.1: [1], 1: [2]})).edge == "highest"
    for wrong in (outcomes("a", {1.0: [0.5]}) + outcomes("b", {1.0: [0.5]}), []):
        with pytest.raises(ValueError, match=r"[02] arms"):
            best(wrong)


def test_gain_is_paired_by_seed():
    planned = best(outcomes("p", {1.0: [0.7, 0.8, 0.9]}))
    mean, error = gain(planned, best(outcomes("i", {1.0: [0.6, 0.7, 0.8]})))
    assert mean == pytest.approx(0.1)
    assert error == pytest.approx(0.0, abs=1e-12)  # every seed gains the same, though seeds differ
    once = best(outcomes("i", {1.0: [0.6]}))
    assert gain(planned, once) == (pytest.approx(0.2), pytest.approx(planned.error))


def test_a_comparison_says_what_its_choice_costs(monkeypatch):
    given = an.calibrate(
        an.strategies.Identity(4),
        sampling=an.sampling.FixedOrder(examples=40, batch_size=10, epochs=1),
        epsilon=50.0,
        delta=1e-6,
    )
    arms = [Arm(kind, "fixed", 1.0, 50.0, given.to_json()) for kind in ("independent", "planned")]
    study = Study(Flights(), (ARMS[0], *arms), (0.5, 1.0, 2.0), (0, 1), 4, 1e-6)
    found = outcomes(ARMS[0].name, {1.0: [0.9]})
    found += outcomes(arms[0].name, {0.5: [0.6, 0.6], 1.0: [0.5, 0.5], 2.0: [0.5, 0.5]})
    found += outcomes(arms[1].name, {0.5: [0.7, 0.7], 1.0: [0.8, 0.7], 2.0: [0.7, 0.7]})
    (row,) = comparisons(study, found)
    three = an.select(given, mean=3, score_on="public").epsilon()
    assert row["chosen_epsilon"] == pytest.approx(three) and three > 50.0
    assert row["mean"] == pytest.approx(0.15)
    monkeypatch.setattr("studies.comparison.record.load", lambda task: Data)
    head, (cells,) = results(make_record(study, found))
    assert dict(zip(head, cells, strict=True)) == {
        "batches": "fixed",
        "unit": "example",
        "ε": "50",
        "independent noise": "0.6000 ± 0.0000",
        "planned mechanism": "0.7500 ± 0.0500",
        "planned mechanism − independent noise": "+0.1500 ± 0.0500",
        "not private": "0.9000",
        "ε, rate chosen": f"{three + 0.0005:.3f}",
    }
    assert markdown(["a", "b"], [["1", "−2"]]) == ["| a | b |", "| --- | --- |", "| 1 | −2 |"]


class Data:
    labels = range(4)


def test_runs_are_arms_by_rates_by_seeds():
    runs = Study(Flights(), ARMS, (0.1, 1.0), (0, 1, 2), 10, 1e-6).runs()
    # nothing random is left of the flights without noise: one seed tells it all
    assert [run.arm.kind for run in runs] == ["clipped"] * 2 + ["planned"] * 6
    assert len({run.name for run in runs}) == len(runs)
    assert len(Study(SampledFlights(), ARMS, (0.1, 1.0), (0, 1, 2), 10, 1e-6).runs()) == 12


@pytest.mark.parametrize("change", [{"rates": ()}, {"seeds": (1, 1)}, {"rates": (0.0,)}, {"steps": 0}])
def test_empty_repeated_or_bad_grids_are_refused(change):
    fields = {"task": Flights(), "arms": (Arm("plain", "fixed"),), "rates": (1.0,), "seeds": (0,), "steps": 1}
    with pytest.raises(ValueError, match="must"):
        Study(**{**fields, **change}, delta=1e-6)


def test_an_arm_that_does_best_at_an_end_is_followed_beyond_it_but_only_so_far():
    study = Study(Flights(), ARMS, (1.0, 2.0), (1, 2), 10, 1e-6, tuned_on=0)
    names = [arm.name for arm in ARMS]
    inner = outcomes(names[1], {0.5: [0], 1.0: [1], 2.0: [0]})
    (down,) = study.beyond([*outcomes(names[0], {1.0: [2], 2.0: [1]}), *inner])
    assert (down.arm, down.learning_rate, down.seed) == (ARMS[0], 0.5, 0)
    rates = [1.0, 2.0]  # the larger the better, for ever
    while more := study.beyond([*outcomes(names[0], {rate: [rate] for rate in rates}), *inner]):
        rates += [run.learning_rate for run in more]
        assert len(rates) < 20
    assert rates == [2.0**k for k in range(8)]
    lone = outcomes(names[0], {1.0: [1]}) + outcomes(names[1], {1.0: [1]})
    assert Study(Flights(), ARMS, (1.0,), (1,), 10, 1e-6, tuned_on=0).beyond(lone) == []  # a choice, no grid
    assert Study(Flights(), ARMS, (1.0, 2.0), (0,), 10, 1e-6).beyond(lone) == []


def test_a_killed_worker_is_named(monkeypatch):
    run = Study(Flights(), ARMS[:1], (1.0,), (0,), 10, 1e-6).runs()
    with pytest.raises(an.AnechoicError, match="--jobs 1"):
        runner.execute_all(run, jobs=1, execute=die)


def die(run):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
