"""The law of participation: level where the scheme is kept, and what is seen where it is not."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from anechoic.audit.draws import _bets_on_pairs, draw_test, two_sided_binomial
from anechoic.audit.law import law_of
from anechoic.audit.power import sampling_power
from anechoic.batches.base import batches_of
from anechoic.errors import UnsupportedError
from anechoic.noise import derive
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from tests.marks import mostly_slow

N, STEPS = 240, 14
SCHEMES = {
    "Poisson": Poisson(N, 36, STEPS),
    "cyclic": CyclicPoisson(N, 24, 3, STEPS),
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
    """Participation of all examples as the library's own sampler draws it, and where it was possible."""
    batches = batches_of(scheme, derive(bytes(32), "draws", number, size=32))
    part = np.zeros((scheme.steps, N), bool)
    for t in range(scheme.steps):
        part[t, batches.batch(t)] = True
    if not isinstance(scheme, CyclicPoisson):
        return part, None
    group = np.empty(N, dtype=int)
    for label, members in enumerate(batches.members):
        group[members] = label
    return part, np.arange(scheme.steps)[:, None] % scheme.groups == group


@pytest.mark.parametrize(
    "name",
    mostly_slow(SCHEMES, quick=("Poisson", "cyclic", "bins", "one bin", "allocation", "min-sep", "one step")),
)
@pytest.mark.slow
def test_p_values_of_the_samplers_are_as_small_as_they_may_be(name):
    """Both the library's batches and the audit's own draws; a p-value p has probability at most p."""
    found = [draw_test(SCHEMES[name], *drawn(SCHEMES[name], number)).p_value for number in range(40)]
    rng = np.random.default_rng(1)
    found += [draw_test(SCHEMES[name], *law_of(SCHEMES[name]).draw_units(N, rng)).p_value for _ in range(40)]
    assert min(found) > 0
    for level in (0.05, 0.2):
        assert (
            stats.binomtest(int((np.array(found) <= level).sum()), 80, level).proportion_ci(0.999).low
            <= level
        )


WRONG = {
    "Poisson at a higher rate": ("Poisson", Poisson(N, 50, STEPS)),
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


@pytest.mark.slow
def test_a_cold_start_of_min_sep_sampling_is_seen():
    """Everybody eligible at step 0: the rate there is p instead of the stationary share."""
    scheme = MinSepSampling(N, 40, 5, STEPS)
    rng = np.random.default_rng(0)
    part, free = np.zeros((STEPS, N), bool), np.zeros(N, int)
    for t in range(STEPS):
        part[t] = (free <= t) & (rng.random(N) < scheme.rate)
        free[part[t]] = t + scheme.separation
    test = draw_test(scheme, part)
    assert test.p_value < 1e-6
    assert "in batch 0, promised 0.1667" in test.note


@pytest.mark.slow
def test_all_canaries_drawn_together_are_seen():
    """Each at the right rate, but not independently: the counts of single batches show it."""
    part = np.repeat(np.arange(STEPS)[:, None] % 7 == 0, N, axis=1)
    assert draw_test(Poisson(N, N / 7, STEPS), part).p_value < 1e-6


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


FAULTS = {
    "Poisson": Poisson(400, 80, 24),
    "cyclic": CyclicPoisson(400, 25, 4, 48),
    "bins": BallsInBins(400, 4, 24),
    "allocation": RandomAllocation(400, 4, 24),
    "min-sep": MinSepSampling(400, 50, 5, 24),
}
KINDS = [(name, kind) for name, scheme in FAULTS.items() for kind in law_of(scheme).faults()]


@pytest.mark.parametrize(("name", "kind"), mostly_slow(KINDS, quick=[*KINDS[::2], ("min-sep", "periodic")]))
@pytest.mark.slow
def test_samplers_that_forget_how_to_draw_are_seen(name, kind):
    """Dependence over time, between units, or of sizes, at the right rate, at a sixth of the level."""
    scheme, rng = FAULTS[name], np.random.default_rng(5)
    fault = law_of(scheme).faults()[kind]
    found = [draw_test(scheme, *fault(400, rng)).p_value < 0.05 / 6 for _ in range(20)]
    assert sum(found) >= 19


def test_every_kind_of_fault_is_tried():
    assert {kind for _, kind in KINDS} == {
        "one coin per unit",
        "half never drawn",
        "coins shared by pairs",
        "equal epochs",
        "fixed sizes",
        "periodic",
    }
    for certain in (Poisson(N, N, STEPS), RandomAllocation(N, 1, STEPS), BallsInBins(N, 1, STEPS)):
        assert law_of(certain).faults() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCHEMES, *FAULTS])
def test_false_alarms_over_500_runs(name):
    scheme = {**SCHEMES, **FAULTS}[name]
    rng, count = np.random.default_rng(7), 500
    found = np.array([draw_test(scheme, *law_of(scheme).draw_units(200, rng)).p_value for _ in range(count)])
    for level in (0.05, 0.05 / 6):
        alarms = int((found <= level).sum())
        assert stats.binomtest(alarms, count, level).proportion_ci(0.999).low <= level


FEW = {
    "Poisson": Poisson(4000, 800, 8),
    "Poisson, mostly idle": Poisson(4000, 80, 24),
    "allocation": RandomAllocation(4000, 4, 12),
    "one epoch": RandomAllocation(4000, 20, 20),
    "min-sep": MinSepSampling(4000, 500, 5, 10),
    "cyclic": CyclicPoisson(4000, 250, 4, 48),
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.slow
def test_pairs_are_seen_where_patterns_are_few_and_canaries_too(name):
    """Others share a pattern by chance: of 64 canaries, or 16 of them, with up to some hundred patterns."""
    scheme, rng = FEW[name], np.random.default_rng(6)
    found = [draw_test(scheme, *law_of(scheme).draw_pairs(64, rng)).p_value < 0.05 / 6 for _ in range(30)]
    assert sum(found) >= 29
    found = [draw_test(scheme, *law_of(scheme).draw_pairs(16, rng)).p_value < 0.05 / 6 for _ in range(30)]
    assert sum(found) >= 10


def test_some_pairs_among_many_are_seen():
    """Twelve pairs among 400 canaries of which each batch draws a fifth."""
    scheme, rng = Poisson(400, 80, 24), np.random.default_rng(7)
    part, possible = law_of(scheme).draw_units(400, rng)
    part[:, 388:] = part[:, :12]
    assert draw_test(scheme, part, possible).p_values["pairs"] < 1e-3


@pytest.mark.parametrize(
    "scheme",
    [
        Poisson(9, 2, 2),
        CyclicPoisson(9, 1, 2, 3),
        RandomAllocation(9, 2, 4),
        BallsInBins(9, 3, 4),
        MinSepSampling(9, 2, 2, 3),
    ],
    ids=repr,
)
@pytest.mark.few(2)
def test_bets_on_pairs_win_nothing_on_average(scheme):
    """Over all draws of four canaries, two of them of another group where there are groups."""
    steps = np.arange(scheme.steps)[:, None]
    allowed = np.repeat(steps % scheme.public_groups == [[0, scheme.public_groups - 1]], 2, axis=1)
    patterns = np.array(list(itertools.product([False, True], repeat=scheme.steps))).T
    ways = []
    for canary in range(4):
        where = np.repeat(allowed[:, [canary]], patterns.shape[1], axis=1)
        ways.append(np.flatnonzero(~law_of(scheme).hazards(patterns, where).impossible))
    total, mass = 0.0, 0.0
    for chosen in itertools.product(*ways):
        part = patterns[:, list(chosen)]
        law = law_of(scheme).hazards(part, allowed)
        chance = math.exp(law.log_probability.sum())
        total, mass = total + chance * np.exp(_bets_on_pairs(law)[1]), mass + chance
    assert mass == pytest.approx(1.0)
    assert total == pytest.approx(np.ones(len(total)))


def test_one_canary_that_is_always_drawn_is_seen():
    scheme = Poisson(400, 80, 24)
    part, _ = law_of(scheme).draw_units(400, np.random.default_rng(1))
    part[:, 33] = True
    test = draw_test(scheme, part)
    assert test.p_value < 1e-6
    assert "canary 33 is drawn 24 of 24 times, promised 0.2" in test.note


@pytest.mark.slow
def test_sampling_power_counts_what_is_seen():
    scheme = Poisson(100, 20, 12)
    powers = sampling_power(scheme, 100, failure=0.05 / 6, repeats=10)
    assert set(powers) == set(law_of(scheme).faults())
    assert powers["one coin per unit"] == 1.0
    assert max(sampling_power(scheme, 2, failure=1e-6, repeats=5).values()) < 1.0


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.few(4)
def test_hazards_are_the_law_of_the_scheme(name):
    """Joined as often as the hazards say, given the past; the probabilities of patterns are those drawn."""
    scheme, rng = SCHEMES[name], np.random.default_rng(2)
    part, possible = law_of(scheme).draw_units(20_000, rng)
    law = law_of(scheme).hazards(part, possible)
    assert not law.impossible.any()
    trials = law.trials.sum(axis=1)
    expected, found = trials * law.rates, part.sum(axis=1)
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - law.rates)) + 1e-9).all()
    # of the ten most frequent patterns
    _, first, counts = np.unique(part, axis=1, return_index=True, return_counts=True)
    often = np.argsort(-counts)[:10]
    chance = np.exp(law.log_probability[first[often]])
    assert (np.abs(counts[often] - 20_000 * chance) <= 6 * np.sqrt(20_000 * chance) + 1e-9).all()


def test_binomial_p_values():
    assert two_sided_binomial([0, 3], [3, 3], 1.0) == pytest.approx([0, 1])
    assert two_sided_binomial(0, 0, 0.5) == 1
    assert two_sided_binomial(9, 10, 0.5) == pytest.approx(2 * 11 / 1024)


def test_schemes_that_draw_nothing_are_refused():
    with pytest.raises(UnsupportedError, match="FixedOrder sampling has no law"):
        draw_test(FixedOrder(N, 24, steps=STEPS), np.zeros((STEPS, N), bool))
