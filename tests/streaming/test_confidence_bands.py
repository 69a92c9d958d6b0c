"""Standard errors and intervals: measured over thousands of runs, pointwise and for all steps together."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

import anechoic as an
from anechoic import streaming
from anechoic.participation import MinSep, Single
from anechoic.sampling import External
from anechoic.streaming.confidence_bands import factors, largest_entries
from anechoic.streaming.mechanisms import Deviations
from anechoic.streaming.statistic import quantile
from tests.marks import each_once, every_other

KEY = bytes(range(32))
RUNS = 2000
N = 25


def noise_of(stream, steps):
    """Errors of the sum of empty batches, shape (steps, runs): each number is a run of its own."""
    empty = np.zeros((0, stream.dimension))
    return np.array([r.estimate for r in stream.steps([empty] * steps)])


def identity_mechanism(steps, grid_bits):
    sampling = External(Single(), 1, steps=steps)
    return an.calibrate(
        an.strategies.Identity(steps), sampling=sampling, epsilon=1.0, delta=1e-6, grid_bits=grid_bits
    )


def tree_mechanism(steps):
    sampling = External(Single(), 1, steps=steps)
    return an.calibrate(an.strategies.Tree(steps), sampling=sampling, epsilon=1.0, delta=1e-6, grid_bits=20)


KINDS = {
    "planned": {"epsilon": 1.0, "horizon": N},
    "endless": {"epsilon": 1.0},
    "users": {"epsilon": 1.0, "horizon": N, "participation": MinSep(4, 3)},
    "window": {"epsilon": 1.0, "horizon": N, "over": streaming.SlidingWindow(7)},
    "window, endless": {"epsilon": 1.0, "over": streaming.SlidingWindow(7)},
    "independent, floats": {"mechanism": identity_mechanism(N, None)},
    "tree": {"mechanism": tree_mechanism(N)},
}


@pytest.mark.parametrize("kind", every_other(KINDS))
@pytest.mark.few(2)
def test_standard_errors_and_pointwise_coverage_are_as_stated(kind):
    promise = dict(KINDS[kind])
    units = promise.get("participation")
    stream = streaming.Stream(streaming.Sum(bound=3.0, dimension=RUNS), key=KEY, **promise)
    empty = np.zeros((0, RUNS))
    releases = stream.steps([empty] * N, unit_ids=None if units is None else [[]] * N)
    errors = np.array([r.estimate for r in releases])
    stated = np.array([r.standard_error[0] for r in releases])
    assert np.allclose(stated, [stream.standard_deviations(t)["sum"] for t in range(N)])
    # chi-squared with RUNS degrees of freedom at every step, and few of N beyond their 1 in 1000
    low, high = chi2.ppf([5e-5, 1 - 5e-5], RUNS) / RUNS
    ratios = np.square(errors).mean(axis=1) / stated**2
    assert low < ratios.min() and ratios.max() < high
    assert abs(math.sqrt(ratios.mean()) - 1) < 0.02
    inside = np.array([(r.only.low <= 0) & (r.only.high >= 0) for r in releases])
    assert 0.94 < inside.mean() < 0.96


@pytest.mark.parametrize("kind", ["planned", "window", "independent, floats", "tree"])
def test_simultaneous_bands_hold_at_all_steps_together(kind):
    promise = dict(KINDS[kind])
    stream = streaming.Stream(streaming.Sum(bound=1.0, dimension=RUNS), key=KEY, **promise)
    errors = noise_of(stream, N)
    one = factors(stream.mechanism, stream.over, 0.95, 1)  # each number by itself, over all steps
    stated = np.array([stream.standard_deviations(t)["sum"] for t in range(N)])
    scores = np.abs(errors) / stated[:, None]
    held = (scores <= np.array([one(t) for t in range(N)])[:, None]).all(axis=0).mean()
    assert 0.945 <= held < 0.975
    assert (scores <= quantile(0.95)).all(axis=0).mean() < 0.9  # pointwise ones do not


def test_bands_of_a_stream_widen_its_intervals_and_nothing_else():
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=12)
    stream.steps(range(5))
    band = stream.band()
    for release, wide in zip(stream.releases(), band, strict=True):
        assert wide.only.value == release.only.value and wide.only.low < release.only.low
        ratio = (wide.only.high - wide.only.value) / (release.only.high - release.only.value)
        assert 1.2 < ratio < 1.7


def test_bands_of_means_are_wider_for_the_sums_that_they_combine():
    """The ratio combines two sums by weights that differ from step to step: sqrt(2) as many deviations."""
    stream = streaming.Stream({"m": streaming.Mean(-1, 1)}, epsilon=1.0, horizon=4)
    *_, release = stream.steps([np.full(4000, 0.25)] * 4)
    wider = factors(stream.mechanism, stream.over, 0.95, 2)(3) * math.sqrt(2) / quantile(0.95)
    widths = [one["m"].high - one["m"].low for one in (stream.band()[3], release)]
    assert math.isclose(widths[0], wider * widths[1], rel_tol=1e-3)


def test_bands_of_quantiles_keep_their_standard_errors():
    stream = streaming.Stream(streaming.Quantiles(range(9), [0.3, 0.6]), epsilon=1.0, horizon=3)
    stream.steps([np.linspace(0.0, 8.0, 60)] * 2)
    wider = 0.0
    for release, wide in zip(stream.releases(), stream.band(0.999), strict=True):
        assert np.isnan(wide.only.standard_error).all() and np.isnan(release.only.standard_error).all()
        wider += float((wide.only.high - wide.only.low - release.only.high + release.only.low).sum())
    assert wider > 0


def test_bands_for_ever_hold_at_every_step_together():
    stream = streaming.Stream(streaming.Count(), epsilon=1.0)
    z = factors(stream.mechanism, stream.over, 0.9, 2)
    # union bound over the first 2**40 steps: shares add up to at most 1
    missed = sum(2**k * 2 * math.erfc(z(2**k - 1) / math.sqrt(2)) for k in range(40))
    assert missed <= 2 * -math.expm1(math.log(0.9) / 2) * 1.0001
    assert z(10**6) > z(0) > 1.9


def test_the_simulated_quantile_is_one_of_independent_steps():
    mechanism = identity_mechanism(16, 20)
    one = factors(mechanism, streaming.SlidingWindow(1), 0.95, 1)(0)
    exact = quantile(0.95 ** (1 / 16))  # of 16 independent numbers
    assert exact < one < exact * 1.03
    assert largest_entries(mechanism, streaming.SlidingWindow(1), 7).shape == (7,)


def test_the_union_bound_is_taken_where_the_quantile_is_too_rare():
    mechanism = identity_mechanism(16, 20)
    factor = factors(mechanism, streaming.Running(), 0.95, 10**6)(3)
    assert math.isclose(factor, quantile(1 + math.expm1(math.log(0.95) / 10**6) / 16))


@pytest.mark.parametrize(
    ("horizon", "over"), each_once([1, 3, 70, None], [streaming.Running(), streaming.SlidingWindow(5)])
)
@pytest.mark.few(2)
def test_deviations_are_row_norms_of_the_matrix_written_out(over, horizon):
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=horizon, over=over)
    n = horizon or 70
    inverse = stream.mechanism.strategy.truncate(n).solve(np.eye(n))
    rows = over.workload(n).multiply(inverse)
    expected = stream.mechanism.noise_std * np.linalg.norm(rows, axis=1)
    deviations = Deviations(stream.mechanism, over)
    assert np.allclose([deviations.at(t) for t in range(n)], expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["planned", "endless", "tree"])
def test_deviations_since_a_step_are_those_of_the_matrix_written_out(kind):
    stream = streaming.Stream(streaming.Count(), **KINDS[kind])
    strategy = stream.mechanism.strategy.truncate(N)
    rows = stream.over.workload(N).multiply(strategy.correlate(np.eye(strategy.rows)))
    deviations = Deviations(stream.mechanism, stream.over)
    for begin, step in [(0, 3), (1, 1), (3, 7), (7, 7), (24, 24)]:
        expected = np.linalg.norm(rows[step] - (rows[begin - 1] if begin else 0))
        assert math.isclose(
            deviations.since(begin, step), stream.mechanism.noise_std * expected, rel_tol=1e-9
        )


@pytest.mark.parametrize("true_mean", [-0.9, 0.0, 0.7])
def test_intervals_of_a_mean_cover_it(true_mean):
    """Fieller's intervals: exact for the noise, whatever the number of records."""
    covered, errors = [], []
    statistic = streaming.Mean(-1.0, 1.0)
    rng = np.random.default_rng(1)
    for count in (40.0, 400.0):
        for _ in range(RUNS):
            totals = np.array([true_mean * count, count]) + rng.normal(0, 8.0, 2)
            found = statistic.decode(totals, 8.0, 1.959964)
            covered.append(found.low <= true_mean <= found.high)
            if count == 400:
                errors.append((found.value - true_mean) / found.standard_error)
    assert 0.94 < np.mean(covered) < 0.965
    assert abs(np.std(errors) - 1) < 0.05


def covered_together(statistic, truth, totals, steps=12, runs=400):
    """How often the intervals of all steps hold the truth, with the factor for all of them."""
    mechanism = identity_mechanism(steps, 20)
    one = factors(mechanism, streaming.Running(), 0.95, statistic.contrasts)(0) * statistic.spread
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(runs):
        noise = np.cumsum(rng.normal(0, 5.0, (steps, statistic.dimension)), axis=0)
        found = [statistic.decode(totals[t] + noise[t], 5.0 * math.sqrt(t + 1), one) for t in range(steps)]
        held += all((e.low <= truth[t]).all() and (truth[t] <= e.high).all() for t, e in enumerate(found))
    return held / runs


def test_intervals_of_means_hold_together():
    truth = np.linspace(-0.9, 0.9, 12)  # another combination of sum and count in every step
    counts = 300.0 * np.arange(1, 13)
    totals = np.stack([truth * counts, counts], axis=1)
    assert covered_together(streaming.Mean(-1.0, 1.0), truth, totals) > 0.945


@pytest.mark.slow
def test_intervals_of_quantiles_hold_together():
    statistic = streaming.Quantiles(range(9), [0.3, 0.6])
    assert statistic.contrasts == 16
    counts = np.full(8, 100.0)
    totals = np.outer(np.arange(1, 13), statistic._fine @ counts / 2**14)
    truth = np.tile([2.5, 4.7], (12, 1))  # inside the buckets of 30% and 60% of 8 equal ones
    assert covered_together(statistic, truth, totals) > 0.945
