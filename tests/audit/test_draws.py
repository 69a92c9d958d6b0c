"""The law of participation: level where the scheme is kept, and what is seen where it is not."""

import numpy as np
import pytest
from scipy import stats

from anechoic.audit.draws import draw_test
from anechoic.audit.participation_law import law_of
from anechoic.batches.base import batches_of
from anechoic.noise import derive
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from tests.marks import in_turn, mostly_slow

N, STEPS = 240, 14
SCHEMES = {
    "Poisson": Poisson(N, 36, STEPS),
    "cyclic": CyclicPoisson(N, 24, 3, STEPS),
    "fixed size": FixedSize(N, 36, STEPS),
    "some of more": FixedSize(3 * N, 108, STEPS),
    "bins": BallsInBins(N, 4, STEPS),
    "more bins than steps": BallsInBins(N, 20, STEPS),
    "one bin": BallsInBins(N, 1, STEPS),
    "allocation": RandomAllocation(N, 4, STEPS),
    "less than an epoch": RandomAllocation(N, 16, STEPS),
    "min-sep": MinSepSampling(N, 30, 5, STEPS),
    "min-sep, no slack": MinSepSampling(N, 48, 5, STEPS),
    "one step": MinSepSampling(N, 48, 5, 1),
}


def drawn(scheme, number):
    """Participation of the first 240 examples as the library's own sampler draws it, and where it may be."""
    batches = batches_of(scheme, derive(bytes(32), "draws", number, size=32))
    part = np.zeros((scheme.steps, scheme.examples), bool)
    for t in range(scheme.steps):
        part[t, batches.batch(t)] = True
    if not isinstance(scheme, CyclicPoisson):
        return part[:, :N], None
    group = np.empty(N, dtype=int)
    for label, members in enumerate(batches.members):
        group[members] = label
    return part, np.arange(scheme.steps)[:, None] % scheme.groups == group


WRONG = {
    "Poisson at a higher rate": ("Poisson", Poisson(N, 50, STEPS)),
    "sizes that vary": ("fixed size", Poisson(N, 36, STEPS)),
    "one more": ("fixed size", FixedSize(N, 37, STEPS)),
    "allocation for bins": ("bins", RandomAllocation(N, 4, STEPS)),
    "bins for allocation": ("allocation", BallsInBins(N, 4, STEPS)),
    "Poisson for bins": ("bins", Poisson(N, 60, STEPS)),
    "fewer bins": ("bins", BallsInBins(N, 3, STEPS)),
    "less separation": ("min-sep", MinSepSampling(N, 30, 3, STEPS)),
    "a higher rate": ("min-sep", MinSepSampling(N, 42, 5, STEPS)),
    "bins for min-sep": ("min-sep, no slack", BallsInBins(N, 3, STEPS)),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_law_is_seen(name):
    claimed, made = WRONG[name]
    assert draw_test(SCHEMES[claimed], drawn(made, 0)[0]).p_value < 0.008


@in_turn("name", SCHEMES)
def test_what_the_samplers_draw_passes(name):
    assert draw_test(SCHEMES[name], *drawn(SCHEMES[name], 1)).p_value > 0.008


def test_a_pattern_that_cannot_be_drawn_is_named():
    part, _ = drawn(SCHEMES["bins"], 0)
    part[:, 17] = False
    assert draw_test(SCHEMES["bins"], part)[:2] == (0.0, "the scheme cannot draw the pattern of canary 17")
    part, possible = drawn(SCHEMES["cyclic"], 0)
    part[np.flatnonzero(~possible[:, 3])[0], 3] = True
    assert draw_test(SCHEMES["cyclic"], part, possible).p_value == 0
    part, _ = drawn(SCHEMES["allocation"], 0)
    part[12:, 5] = True  # twice in the last epoch, which is cut short
    assert draw_test(SCHEMES["allocation"], part).note.endswith("canary 5")


def units_of(scheme, count, rng):
    return law_of(scheme).draw_units(count, rng)


def one_coin(scheme, count, rng):
    _, possible = units_of(scheme, count, rng)
    return possible & (rng.random(count) < scheme.rate), possible


def half_never(scheme, count, rng):
    _, possible = units_of(scheme, count, rng)
    drawn = rng.random(possible.shape) < 2 * scheme.rate
    return possible & (rng.permutation(count) < count // 2) & drawn, possible


def equal_epochs(scheme, count, rng):
    part, possible = units_of(scheme, count, rng)
    return part[np.arange(len(part)) % EPOCH[type(scheme)]] & possible, possible


def fixed_sizes(scheme, count, rng):
    part, possible = units_of(scheme, count, rng)
    if isinstance(scheme, BallsInBins):
        return np.arange(len(part))[:, None] % scheme.bins == rng.permutation(count) % scheme.bins, possible
    for row, inside in zip(part, possible, strict=True):
        row[:] = False
        row[rng.permutation(np.flatnonzero(inside))[: round(scheme.rate * inside.sum())]] = True
    return part, possible


def periodic(scheme, count, rng):
    part, possible = units_of(scheme, count, rng)
    period = round(scheme.separation - 1 + 1 / scheme.rate)
    return np.arange(len(part))[:, None] % period == rng.integers(period, size=count), possible


def with_replacement(scheme, count, rng):
    part, possible = units_of(scheme, count, rng)
    for row in part:
        row[:] = np.bincount(rng.integers(count, size=scheme.batch_size), minlength=count) > 0
    return part, possible


def first_in(scheme, count, rng):
    """Record 0 is in every batch, in the place of another."""
    part, possible = units_of(scheme, count, rng)
    for row in part:
        if not row[0]:
            row[rng.choice(np.flatnonzero(row))], row[0] = False, True
    return part, possible


EPOCH = {Poisson: 5, FixedSize: 5, CyclicPoisson: 16, RandomAllocation: 4}
FAULTS = {
    "Poisson": (Poisson(400, 80, 24), (one_coin, half_never, equal_epochs, fixed_sizes)),
    "cyclic": (CyclicPoisson(400, 25, 4, 48), (one_coin, half_never, equal_epochs, fixed_sizes)),
    "fixed size": (FixedSize(400, 80, 24), (with_replacement, first_in, one_coin, half_never, equal_epochs)),
    "some of more": (FixedSize(2000, 400, 24), (fixed_sizes, half_never, equal_epochs)),
    "bins": (BallsInBins(400, 4, 24), (fixed_sizes,)),
    "allocation": (RandomAllocation(400, 4, 24), (equal_epochs,)),
    "min-sep": (MinSepSampling(400, 50, 5, 24), (periodic,)),
}
KINDS = [(name, fault) for name, (_, faults) in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("name", "fault"), mostly_slow(KINDS, quick=[*KINDS[::2], ("min-sep", periodic)]))
@pytest.mark.slow
def test_samplers_that_forget_how_to_draw_are_seen(name, fault):
    """Dependence over time, or of sizes, at the right rate, at a sixth of the level."""
    scheme, rng = FAULTS[name][0], np.random.default_rng(5)
    found = [draw_test(scheme, *fault(scheme, 400, rng)).p_value < 0.05 / 6 for _ in range(20)]
    assert sum(found) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_false_alarms_over_500_runs(name):
    scheme = SCHEMES[name]
    rng, count = np.random.default_rng(7), 500
    found = np.array([draw_test(scheme, *law_of(scheme).draw_units(200, rng)).p_value for _ in range(count)])
    for level in (0.05, 0.05 / 6):
        alarms = int((found <= level).sum())
        assert stats.binomtest(alarms, count, level).proportion_ci(0.999).low <= level


@pytest.mark.parametrize("canaries", [10, 20, 40])
def test_right_batches_of_a_fixed_size_pass_whoever_is_looked_at(canaries):
    scheme, rng = FixedSize(40, 8, 300), np.random.default_rng(2)
    drawn = [law_of(scheme).draw(np.ones((300, canaries), bool), rng) for _ in range(20)]
    assert sum(draw_test(scheme, part).p_value < 0.01 for part in drawn) <= 2


def test_one_canary_that_is_always_drawn_is_seen():
    scheme = Poisson(400, 80, 24)
    part, _ = law_of(scheme).draw_units(400, np.random.default_rng(1))
    part[:, 33] = True
    test = draw_test(scheme, part)
    assert test.p_value < 1e-6
    assert "canary 33 is drawn 24 of 24 times, promised 0.2" in test.note
