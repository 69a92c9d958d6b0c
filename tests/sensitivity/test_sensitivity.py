"""sens(C, Pi) against brute force over every pattern and dimension, and the published numbers."""

import numpy as np
import pytest
from hypothesis import example, given, settings

from anechoic import workloads
from anechoic.errors import UnsupportedError
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.participation.base import Participation
from anechoic.sensitivity import bounds, chain, cyclic, full_batch, gram, wrapped
from anechoic.sensitivity import epochs as epochs_file
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Dense, Identity, Restarted, Toeplitz
from anechoic.strategies.column_scaled import ColumnScaled
from tests.sensitivity.brute import supremum
from tests.sensitivity.strategies_and_schemas import cases
from tests.zoo import dense

# Section 2 of the numbers to reproduce: best signs give 2.0008, the supremum over dimensions is 2.1220.
MIXED = Dense([[0.0547, 0, 0], [-0.865, 0.8667, 0], [-0.4998, -0.4998, 1.0005]])
ROOT = Toeplitz.square_root(workloads.prefix_sum(64))

SOUND = 1 - 1e-12  # rounding of sums in another order
TIGHT = 1e-9


def check(strategy, participation):
    found = sensitivity(strategy, participation)
    truth = supremum(strategy, participation)
    assert found.value >= truth * SOUND, f"{found} is below {truth}"
    if found.exact:
        assert found.value <= truth * (1 + TIGHT), f"{found} is called exact but the truth is {truth}"


@settings(max_examples=1000)
@given(cases())
@example((MIXED, FullBatch()))
@example((MIXED, MinSep(1)))
@example((MIXED, Cyclic(1)))
@example((Identity(1), MinSep(1, 1)))
@example((BandedToeplitz(7, [1.0, -0.9, 0.8]), Cyclic(3)))
@example((BandedToeplitz(7, [1.0, -0.9, 0.8]), MinSep(2)))  # bands = separation + 1
@example((BandedToeplitz(8, [1.0, -0.9, 0.8, -0.7]), MinSep(2)))  # bands = 2 separation
@example((BandedToeplitz(8, [1.0, -0.9, 0.8, -0.7, 0.6]), MinSep(2)))  # one more
@example((BandedToeplitz(7, [1.0, 0.9, 0.8]), OncePerEpoch(2)))  # bands = period + 1
@example((BandedToeplitz(7, [1.0, 0.9, 0.8, 0.7]), OncePerEpoch(2)))  # one more
@example((Restarted(BandedToeplitz(3, [1.0, 0.5, 0.2]), 3, 8), OncePerEpoch(3)))
@example((Restarted(BandedToeplitz(3, [1.0, -0.5, 0.2]), 3, 8), OncePerEpoch(3)))
@example((Restarted(BandedToeplitz(3, [1.0, 0.5, 0.2]), 3, 8), OncePerEpoch(4)))
@pytest.mark.slow
def test_never_below_the_supremum_and_equal_to_it_where_exact(case):
    check(*case)


LIMITED = {
    "nothing dense, nothing banded": {"entries": 0, "work": 0, "tried": 0},
    "small arrays only": {"entries": 24, "work": 60, "tried": 1},
    "one chunk a row": {"entries": 10**6, "work": 10**6, "tried": 64, "chunk": 1},
    "no semidefinite programme": {"entries": 10**6, "work": 10**6, "tried": 64, "largest": 1},
}


@pytest.mark.parametrize("name", LIMITED)
@settings(max_examples=300)
@given(case=cases(largest=7))
@pytest.mark.slow
def test_never_below_the_supremum_where_size_forbids_more(name, case):
    """The branches for large n, reached at small n by lowering what may be allocated."""
    limits = LIMITED[name]
    with pytest.MonkeyPatch.context() as patch:
        for module in (gram, bounds, epochs_file, full_batch):
            patch.setattr(module, "ENTRIES", limits["entries"])
        for module in (bounds, wrapped, epochs_file, chain):
            patch.setattr(module, "WORK", limits["work"])
        patch.setattr(cyclic, "TRIED", limits["tried"])
        for module in (cyclic, bounds):
            patch.setattr(module, "CHUNK", limits.get("chunk", 10))
        for module in (cyclic, full_batch):
            patch.setattr(module, "LARGEST", limits.get("largest", 512))
        check(*case)


@settings(max_examples=400)
@given(cases())
@pytest.mark.slow
def test_every_bound_on_offer_holds(case):
    """The smallest of several bounds hides a wrong larger one: look at each."""
    strategy, participation = case
    n = strategy.n
    count = participation.max_participations_in(n)
    if count < 2:
        return
    found = gram.gram_of(strategy)
    if isinstance(participation, MinSep):
        offered = list(bounds.min_sep_bounds(strategy, found, participation.separation, count))
    elif isinstance(participation, OncePerEpoch) and participation.period > 1:
        offered = list(epochs_file._bounds(strategy, found, participation.period))
    else:
        return
    truth = supremum(strategy, participation)
    assert len(offered) >= 2
    for bound in offered:
        assert bound.value >= truth * SOUND, f"{bound} is below {truth}"
        assert not bound.exact


class TestPublishedNumbers:
    def test_every_dimension_counts(self):
        found = sensitivity(MIXED, FullBatch())
        assert found.exact
        assert found.value == pytest.approx(2.1220, abs=5e-5)
        m = MIXED.to_dense().T @ MIXED.to_dense()
        signs = max(s @ m @ s for s in np.array([[1, a, b] for a in (1, -1) for b in (1, -1)]))
        assert np.sqrt(signs) == pytest.approx(2.0008, abs=5e-5)

    def test_the_dynamic_programme_is_not_used_where_participations_interact(self):
        found = sensitivity(ROOT, MinSep(separation=16, max_participations=4))
        assert found.exact
        assert found.value == pytest.approx(3.961, abs=5e-4)

    def test_what_the_dynamic_programme_would_have_said(self):
        from anechoic.sensitivity.scheduling import best_schedule

        assert np.sqrt(best_schedule(ROOT.column_norms_squared(), 16, 4)) == pytest.approx(2.966, abs=5e-4)

    @pytest.mark.parametrize(
        "wrapped", [Dense(ROOT.to_dense()), Restarted(ROOT, 1), ColumnScaled(ROOT, np.ones(64))]
    )
    def test_a_wrapper_does_not_inherit_a_theorem_but_its_numbers_agree(self, wrapped):
        assert not wrapped.structure.nonincreasing
        for participation in (MinSep(16, 4), Cyclic(16), FullBatch()):
            truth = sensitivity(ROOT, participation)
            found = sensitivity(wrapped, participation)
            assert found.value == pytest.approx(truth.value, rel=1e-9)
            assert "3.16(c)" not in found.method

    def test_column_normalised_banded_toeplitz_composes(self):
        # Remark 3.17: every pattern has the same sensitivity
        strategy = ColumnNormalized(BandedToeplitz(60, [1.0, 0.5, 0.3]))
        for participation in (MinSep(3, 7), Cyclic(10), MinSep(20)):
            found = sensitivity(strategy, participation)
            assert found.exact
            assert found.value == pytest.approx(np.sqrt(participation.max_participations_in(60)))

    def test_restarts_compose(self):
        # Section 3.3.6: sqrt(k) times the largest column norm, for reshuffled passes too
        block = Toeplitz.square_root(workloads.prefix_sum(50))
        for participation in (OncePerEpoch(50), Cyclic(50)):
            found = sensitivity(Restarted(block, 4), participation)
            assert found.exact
            assert found.value == pytest.approx(2 * block.largest_column_norm(), rel=1e-12)

    def test_reshuffled_passes_are_worse_than_cyclic_ones(self):
        shuffled, cycle = sensitivity(ROOT, OncePerEpoch(16)), sensitivity(ROOT, Cyclic(16))
        assert not shuffled.exact
        assert cycle.value < shuffled.value < 1.15 * cycle.value


class TestLargeHorizons:
    @pytest.mark.slow
    def test_scheduling(self):
        strategy = ColumnNormalized(BandedToeplitz(10**6, [1.0, 0.5, 0.25, 0.1]))
        found = sensitivity(ColumnScaled(strategy, 1 + 0.1 * np.sin(np.arange(10**6))), MinSep(1000, 100))
        assert found.exact
        assert 10.0 < found.value <= 11.0

    def test_buffered_strategies_materialise_nothing(self):
        found = sensitivity(BLT(10**9, [0.2, 0.1], [1 - 1e-8, 0.9]), MinSep(10**8, 10))
        assert found.exact
        small = sensitivity(BLT(10**9, [0.2, 0.1], [0.99, 0.9]), MinSep(10**8, 10))
        assert small.value == pytest.approx(
            np.sqrt(10) * BLT(10**5, [0.2, 0.1], [0.99, 0.9]).largest_column_norm()
        )

    def test_normalised_buffered_strategies_have_a_useful_bound(self):
        strategy = ColumnNormalized(BLT(40_000, [0.1, 0.1], [0.999, 0.9]))
        bound = sensitivity(strategy, MinSep(4000, 10))
        floor = sensitivity(strategy, Cyclic(4000))
        assert floor.exact
        assert floor.value * SOUND <= bound.value < 1.1 * floor.value


def test_epochs_that_interact_at_a_distance_only():
    matrix = np.eye(6)
    matrix[4, 1] = 1.0  # epochs 0 and 2 of two steps; 0 and 1, 1 and 2 do not interact
    check(Dense(matrix), OncePerEpoch(2))
    assert "they do not interact" not in sensitivity(Dense(matrix), OncePerEpoch(2)).method


@pytest.mark.parametrize("chunk", [1, 20, 30, 10**6])
def test_every_offset_is_looked_at(monkeypatch, chunk):
    monkeypatch.setattr(gram, "ENTRIES", 0)
    monkeypatch.setattr(cyclic, "CHUNK", chunk)
    matrix = dense(10, signs="positive").to_dense()
    for heavy in range(4):
        heavier = matrix.copy()
        heavier[:, heavy::4] *= 3.0
        found = sensitivity(Dense(heavier), Cyclic(4))
        assert found.exact
        assert found.value == pytest.approx(np.linalg.norm(heavier[:, heavy::4].sum(axis=1)), rel=1e-12)


class TestRefusals:
    def test_an_unknown_schema(self):
        class Weekends(Participation):
            def max_participations_in(self, n):
                return 2

        with pytest.raises(UnsupportedError, match=r"Weekends.*Bound it by one of"):
            sensitivity(Identity(3), Weekends())

    @pytest.mark.parametrize("scale", [1e-170, 1e160])
    def test_a_strategy_whose_squares_leave_the_range(self, scale):
        with np.errstate(over="ignore"), pytest.raises(ValueError, match=r"scale the strategy"):
            sensitivity(Toeplitz(2, [scale, 0.0]), Single())


def test_the_result_says_what_it_is():
    found = sensitivity(Identity(4), MinSep(2))
    assert float(found) == found.value == pytest.approx(np.sqrt(2))
    assert str(found).startswith("= 1.41421 (")
    assert str(Sensitivity(2.0, False, "a bound")) == "<= 2 (a bound)"
    with pytest.raises(AttributeError):
        found.value = 1.0
