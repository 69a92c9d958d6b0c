"""New nouns from outside the package: those of the page and the example, through everything that asks."""

import inspect
import math
from dataclasses import dataclass

import numpy as np
import pytest

import anechoic as an
from anechoic import _serialize
from anechoic.audit import audit_mechanism
from anechoic.audit.draws import draw_test, two_sided_binomial
from anechoic.audit.participation_law import law_of
from anechoic.audit.patterns import strongest_pattern
from anechoic.audit.ratios import likelihood_ratios
from anechoic.batches.base import batches_of
from anechoic.batches.external import check_promise
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.lower_bounds import lower_bound
from anechoic.participation import FullBatch, MinSep
from anechoic.participation.base import Participation
from anechoic.sampling import External, FixedOrder, Poisson
from anechoic.sampling.base import Sampling
from anechoic.strategies import BandedToeplitz, Identity
from tests.marks import mostly_slow
from tests.test_extending import definitions


@pytest.fixture(scope="module")
def toys():
    """The classes of the page by name, registered while these tests run."""
    before = dict(_serialize._REGISTRY)
    _serialize.serializable(Unknown)
    yield type("Toys", (), definitions())
    _serialize._REGISTRY.clear()
    _serialize._REGISTRY.update(before)


@pytest.fixture(scope="module")
def cohort(toys):
    """A mechanism of a strategy, a scheme and an accountant from outside."""
    scheme = toys.Cohort(60, 0.3, 6)
    how = {"noise_multiplier": 3.0, "delta": 1e-3, "unit": "user", "clip_norm": 2.0}
    return an.calibrate(toys.Seasonal(6, 2), sampling=scheme, **how)


SUITES = ("TestSeasonal", "TestSession", "TestCohort", "TestCohortAccountant", "TestSinceMidnight")


@pytest.mark.parametrize(
    "suite", mostly_slow(SUITES, quick={"TestSession", "TestCohort", "TestSinceMidnight"})
)
def test_the_contracts_of_the_page_hold(toys, suite):
    rules = inspect.getmembers(getattr(toys, suite)(), inspect.ismethod)
    run = [rule for name, rule in rules if name.startswith("test_")]
    assert len(run) >= 5
    for rule in run:
        rule()


# -- a scheme and its accountant ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_scheme_is_calibrated_stated_and_written(toys):
    scheme = toys.Cohort(60, 0.3, 6)
    mechanism = an.calibrate(toys.Seasonal(6, 2), sampling=scheme, epsilon=2.0, delta=1e-3, unit="user")
    assert mechanism.epsilon() <= 2.0 < mechanism.epsilon(5e-4)
    assert mechanism.accountant == toys.CohortAccountant(
        mechanism.strategy, scheme, "zero_out", "deterministic"
    )
    again = an.Mechanism.from_json(mechanism.to_json())
    assert again == mechanism
    text = " ".join(mechanism.report().split())
    for words in (scheme.describe("user"), "draws the batches as said above", "One sampled Gaussian"):
        assert words in text


def test_what_the_scheme_says_decides_the_adjacency(toys):
    strategy, scheme = Identity(6), toys.Cohort(60, 0.3, 6)
    assert an.calibrate(
        strategy, sampling=scheme, noise_multiplier=3.0, delta=1e-3, adjacency="add_or_remove"
    ).amplified
    with pytest.raises(UnsupportedError, match="under Cohort: the reduction"):
        an.calibrate(strategy, sampling=scheme, noise_multiplier=3.0, delta=1e-3, adjacency="replace_one")

    @dataclass(frozen=True)
    class Silent(Poisson):
        @property
        def moves_others(self):
            return Sampling.moves_others.fget(self)  # what a scheme that says nothing is taken for

    with pytest.raises(UnsupportedError, match="under Silent: removing a record would move others"):
        an.Mechanism(strategy, Silent(60, 6, 6), 3.0, adjacency="add_or_remove")


@pytest.mark.slow
def test_it_composes(cohort):
    """By what its accountant bounds at several deltas: more than the larger part, less than the sum."""
    fixed = an.Mechanism(Identity(6), FixedOrder(60, 10, steps=6), 8.0, delta=1e-3, unit="user")
    for other in (cohort, fixed):
        found = an.compose(cohort, other).epsilon(1e-3)
        assert max(cohort.epsilon(1e-3), other.epsilon(1e-3)) < found
        assert found <= cohort.epsilon(5e-4) + other.epsilon(5e-4) + 1e-9


def test_its_batches_and_its_noise(cohort):
    batches = batches_of(cohort.sampling, bytes(32))
    check_promise(cohort.participation, batches, 6, 60)
    assert 5 < len(batches.batch(0)) < 35
    assert all(np.array_equal(batches.batch(t), batches.batch(0)) for t in range(6))
    stream = cohort.stream(3, key=bytes(32), dtype=np.float64)
    row, state = stream.next(stream.init())
    fresh = stream.fresh(0)
    assert np.allclose(row, cohort.noise_std * 2.0 * fresh)  # the clip norm
    assert stream.next(state)[0].shape == (3,)


@pytest.mark.slow
def test_it_is_audited_by_its_own_law(cohort):
    rng = np.random.default_rng(0)
    part, possible = law_of(cohort.sampling).draw_units(300, rng)
    test = draw_test(cohort.sampling, part, possible)
    assert test.p_value > 1e-3
    # one count is random, and nothing is paid for the steps that follow from it
    assert test.p_values["batches"] == pytest.approx(two_sided_binomial(part[0].sum(), 300, 0.3))
    part[:, :80] = False
    assert draw_test(cohort.sampling, part, possible).p_value < 1e-3
    part[3, 90] = ~part[3, 90]
    assert draw_test(cohort.sampling, part).note == "the scheme cannot draw the pattern of canary 90"
    report = audit_mechanism(cohort, canaries=100, seed=1, key=bytes(32))
    assert not report.violated
    assert {finding.name for finding in report.findings} >= {"canary", "epsilon", "sampling", "covariance"}


@pytest.mark.slow
def test_it_trains(cohort):
    torch = pytest.importorskip("torch")
    from anechoic.torch import PrivacyEngine

    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
    engine = PrivacyEngine(sampling_key=bytes(32), noise_key=bytes(31) + b"n")
    mechanism = an.Mechanism(cohort.strategy, cohort.sampling, cohort.noise_std, delta=1e-3)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=18, shuffle=True),
        mechanism=mechanism,
    )
    sizes = []
    while engine.releases < 6:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            sizes.append(len(x))
    assert sizes == [len(batches_of(cohort.sampling, bytes(32)).batch(0))] * 6
    other = torch.nn.Linear(4, 1)
    with pytest.raises(MismatchError, match=r"data_loader.batch_size=20, the mechanism's is 18"):
        PrivacyEngine().make_private(
            module=other,
            optimizer=torch.optim.SGD(other.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=20, shuffle=True),
            mechanism=mechanism,
        )


@dataclass(frozen=True)
class Unknown(Sampling):
    """A scheme that answers nothing beyond its own file."""

    examples: int = 60
    batch_size: int = 10
    steps: int = 6
    amplified: bool = False

    @property
    def participation(self):
        return FullBatch()

    def truncate(self, steps):
        return Unknown(steps=steps)

    def describe(self, unit="example"):
        return f"{unit}s somehow"


def test_a_scheme_that_answers_nothing_is_refused_by_name():
    secret = Unknown(amplified=True)
    with pytest.raises(UnsupportedError, match="Unknown sampling has no accountant"):
        an.calibrate(Identity(6), sampling=secret, epsilon=1.0, delta=1e-3)
    with pytest.raises(UnsupportedError, match="Unknown sampling has no batches of its own"):
        batches_of(Unknown(), bytes(32))
    with pytest.raises(UnsupportedError, match="Unknown sampling has no law"):
        draw_test(secret, np.zeros((6, 20), bool))
    with pytest.raises(UnsupportedError, match="no likelihood ratio is known"):
        likelihood_ratios(Identity(6), secret, np.zeros((6, 20)), 1.0)


def test_a_scheme_that_is_not_amplified_is_a_promise(toys):
    """No accountant is needed; the statement puts the access to the data on whoever forms the batches."""
    mechanism = an.calibrate(Identity(6), sampling=Unknown(), epsilon=1.0, delta=1e-3)
    assert mechanism.accountant is None
    assert mechanism.gdp() == pytest.approx(math.sqrt(6) / mechanism.noise_std)
    text = " ".join(mechanism.report().split())
    assert "whoever forms the batches: participation is as promised: each unit may take part in every" in text


# -- a participation ----------------------------------------------------------------------------------


def test_a_participation_is_promised_stated_and_watched(toys):
    session, strategy = toys.Session(2), toys.Seasonal(8, 1)
    mechanism = an.calibrate(strategy, sampling=External(session, 5, 8), epsilon=1.0, delta=1e-6, unit="user")
    dense = strategy.to_dense()
    worst = max(np.linalg.norm(dense[:, t] + dense[:, t + 1]) for t in range(7))
    assert mechanism.sensitivity.value == pytest.approx(worst) and mechanism.sensitivity.exact
    assert an.Mechanism.from_json(mechanism.to_json()) == mechanism
    text = " ".join(mechanism.report().split())
    assert "one window of 2 steps" in text and "absolute sums" in text

    class Every(type(batches_of(FixedOrder(8, 1, steps=8), None))):
        """Unit t at steps t and t + 2."""

        def batch(self, t):
            return np.array([t, t - 2] if t > 1 else [t])

    broken = Every(FixedOrder(8, 1, steps=8), None)
    check_promise(toys.Session(3), broken, 8, 8)
    with pytest.raises(MismatchError, match="batch 2 breaks the promise that each unit takes part in steps"):
        check_promise(session, broken, 8, 8)


def test_a_participation_is_audited(toys):
    pattern = strongest_pattern(BandedToeplitz(8, [1.0, 0.5]), toys.Session(3))
    assert pattern.sum() == 3 and toys.Session(3).allows(np.flatnonzero(pattern).tolist(), 8)
    mechanism = an.Mechanism(Identity(8), External(toys.Session(3), 5, 8), 4.0, delta=1e-3)
    assert not audit_mechanism(mechanism, canaries=32, seed=0, key=bytes(32)).violated


def test_optimisers_refuse_a_participation_by_name(toys):
    session, workload = toys.Session(3), an.workloads.prefix_sum(8)
    for optimise in (an.optimize.toeplitz, an.optimize.dense, an.optimize.banded):
        options = {"bands": 2} if optimise is an.optimize.banded else {}
        with pytest.raises(UnsupportedError, match=r"Session\(length=3\)"):
            optimise(workload, participation=session, **options)
    assert lower_bound(workload, session, "rms") is None
    # a schema that allows more will do
    found = an.optimize.toeplitz(workload, participation=MinSep(1, max_participations=3))
    assert an.sensitivity(found.strategy, session).value <= an.sensitivity(
        found.strategy, MinSep(1, max_participations=3)
    ).value * (1 + 1e-9)


def test_a_plan_keeps_a_participation(toys):
    session = toys.Session(3)
    found = an.plan(
        examples=80,
        batch_size=10,
        steps=8,
        epsilon=1.0,
        delta=1e-5,
        participation=session,
        strategy="identity",
    ).mechanism
    assert found.participation == session and found.epsilon() <= 1.0
    assert found.sensitivity.value == pytest.approx(math.sqrt(3))


def test_a_participation_without_a_theorem_is_refused_by_name():
    @dataclass(frozen=True)
    class Lent(Participation):
        def max_participations_in(self, n):
            return 1

        def patterns(self, n):
            yield from ((t,) for t in range(n))

        def describe(self):
            return "lent"

    with pytest.raises(UnsupportedError, match="no theorem here covers Lent"):
        an.sensitivity(Identity(4), Lent())


# -- a strategy and a workload ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_strategy_runs_under_every_kind_of_scheme(toys):
    strategy = toys.Seasonal(6, 2)
    for scheme in (
        FixedOrder(60, 10, steps=6),
        an.sampling.BallsInBins(60, 3, 6),
        toys.Cohort(60, 0.3, 6),
        External(toys.Session(2), 10, 6),
    ):
        mechanism = an.Mechanism(strategy, scheme, 6.0, delta=1e-3)
        assert 0 < mechanism.epsilon() < 10
        assert mechanism.stream(2, key=bytes(32)).n == 6
    for scheme, words in (
        (Poisson(60, 10, 6), "bands=3, which exceeds groups=1 of Poisson"),
        (an.sampling.RandomAllocation(60, 3, 6), "bands=3 under RandomAllocation"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            an.Mechanism(strategy, scheme, 6.0)


def test_a_workload_is_measured_bounded_and_optimised_for(toys):
    workload, strategy = toys.SinceMidnight(8, 3), toys.Seasonal(8, 3)
    rows = np.linalg.norm(workload.to_dense() @ np.linalg.inv(strategy.to_dense()), axis=1)
    assert np.allclose(an.error(workload, strategy).per_step, rows)
    best = an.optimize.dense(workload, gap=1e-4)
    bound = lower_bound(workload, an.participation.Single(), "rms")
    assert bound.value <= best.loss * (1 + 1e-9) and best.gap <= 1e-4
    assert _serialize.decode(_serialize.encode(workload)).to_dense().tolist() == workload.to_dense().tolist()


def test_what_needs_a_toeplitz_workload_refuses_one_by_name(toys):
    workload = toys.SinceMidnight(8, 3)
    with pytest.raises(UnsupportedError, match="SinceMidnight"):
        an.optimize.toeplitz(workload)
    with pytest.raises(ValueError, match="SinceMidnight.* must be a Toeplitz workload"):
        an.plan(examples=80, batch_size=10, steps=8, epsilon=1.0, delta=1e-5, workload=workload)


@pytest.mark.slow
def test_the_example_runs(toys, capsys):
    toys.main()
    printed = capsys.readouterr().out
    assert "no violation found" in printed and "one window of 6 steps" in printed
