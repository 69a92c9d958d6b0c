"""Every mechanism that plan() compares, through the real torch path: the best of each kind is audited."""

from functools import cache

import pytest

from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep, OncePerEpoch, Single
from anechoic.planning.compare import plan
from anechoic.planning.families import family
from anechoic.sampling import BallsInBins, MinSepSampling
from anechoic.strategies import BandedToeplitz, ColumnNormalized
from anechoic.torch import audit_training
from tests.audit.faults import run
from tests.marks import mostly_slow, slow

COMMON = {"examples": 160, "batch_size": 40, "epochs": 3, "epsilon": 8.0, "delta": 1e-5}
SETTINGS = {
    "sampled": {},
    "fixed order": {"random_sampling": False},
    "fixed order, incomplete last batch": {"random_sampling": False, "batch_size": 50},
    "output": {"strategy": "output"},
    "BLT": {"strategy": "blt"},
    "min-sep promised": {"participation": MinSep(4, 3)},
    "one participation": {"participation": Single()},
    "once per epoch promised": {"participation": OncePerEpoch(4)},
    "replace-one": {"adjacency": "replace_one"},
    "users": {"unit": "user", "random_sampling": False},
}
#: What the settings above must bring up: families of strategies and classes of sampling.
KINDS = {
    ("identity", "Poisson"),
    ("identity", "FixedOrder"),
    ("banded_toeplitz", "CyclicPoisson"),
    ("banded_toeplitz", "FixedOrder"),
    ("output", "FixedOrder"),
    ("blt", "BallsInBins"),
    ("blt", "FixedOrder"),
    ("blt", "External"),
    ("dense", "FixedOrder"),
    ("banded_toeplitz", "External"),
    ("identity", "External"),
}


@cache
def kinds(name):
    """Mechanisms of a plan, the best calibrated one for each pair of strategy and sampling."""
    best = {}
    for row in plan(**{**COMMON, **SETTINGS[name]}).rows:  # best first
        kind = family(row.mechanism.strategy), type(row.mechanism.sampling).__name__
        best.setdefault(kind, row.mechanism)
    return best


def check(mechanism, label, **options):
    owned = 2 if mechanism.unit != "example" else 1
    options = {"canaries": 128, "confidence": 0.999, "resume_at": mechanism.steps // 2, **options}
    report = run(lambda: mechanism, label=f"plan {label}", examples_per_unit=owned, **options)
    assert not report.violated, str(report)
    assert report.finding("covariance").power > 0.95
    return report


@pytest.mark.parametrize(
    "name",
    mostly_slow(  # what the others bring up is trained and audited in test_training.py and test_report.py
        SETTINGS, quick=("sampled", "fixed order, incomplete last batch", "min-sep promised", "replace-one")
    ),
)
@pytest.mark.slow
def test_what_a_plan_compares_passes_its_audit(name):
    found = kinds(name)
    assert found
    for mechanism in found.values():
        check(mechanism, name)


@pytest.mark.slow
def test_the_settings_bring_up_every_kind():
    assert set().union(*(kinds(name) for name in SETTINGS)) >= KINDS


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [BallsInBins(160, 4, 12), MinSepSampling(160, 40, 2, 12)])
@pytest.mark.timeout(1800)  # minutes of Monte Carlo
def test_what_monte_carlo_calibrates_passes_its_audit(sampling):
    strategy = ColumnNormalized(BandedToeplitz(12, [1.0, 0.5]))
    goal = {"epsilon": 8.0, "delta": 1e-5}
    check(calibrate(strategy, sampling=sampling, **goal, accounting="verified"), "verified", canaries=160)


@pytest.mark.parametrize(("examples", "batch_size"), [(60, 7), *slow((500, 30), (1000, 30))])
@pytest.mark.slow
def test_batches_that_divide_nothing_are_audited_too(examples, batch_size):
    """The average batch of balls in bins need not be a batch size of as many batches a pass."""
    mechanism = plan(examples=examples, batch_size=batch_size, epochs=1, epsilon=8.0, delta=1e-6).mechanism
    bins = Mechanism(
        mechanism.strategy,
        BallsInBins(examples, -(-examples // batch_size), mechanism.steps),
        2.0,
        delta=1e-6,
    )
    for each in (mechanism, bins):
        assert not audit_training(each, canaries=40, confidence=0.999).violated
