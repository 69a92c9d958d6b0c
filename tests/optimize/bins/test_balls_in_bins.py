"""optimize.balls_in_bins: gradients, the noise against the accountant's, and what is gained."""

import numpy as np
import pytest

from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.losses.dispatch import error
from anechoic.optimize import balls_in_bins, banded_toeplitz
from anechoic.optimize.bins.balls_in_bins import _Knots
from anechoic.optimize.bins.objective import BinsNoise
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads import prefix_sum, scheduled, sliding_window
from tests.marks import slow


def aimed(n, bins, column, epsilon=1.0, delta=1e-3, samples=1000):
    noise = BinsNoise(n, bins, len(column), epsilon, delta, samples=samples, seed=3)
    std = noise.longest(column) / 2
    for _ in range(3):
        noise.aim(column, std)
        std = noise.noise_std(column)[0]
    return noise, std


# bins that do not divide n, more bins than steps, coefficients beyond the bins, the FFT's branch
@pytest.mark.parametrize(
    ("n", "bins", "taps"), [(60, 10, 5), (47, 6, 20), (9, 12, 4), (130, 13, 120), (6, 2, 1)]
)
@pytest.mark.few(3)
def test_the_gradient_is_that_of_the_noise(n, bins, taps):
    column = 0.7 / np.sqrt(np.arange(1, taps + 1))
    column[0] = 1.0
    noise, _ = aimed(n, bins, column)
    gradient = noise.noise_std(column)[1]
    assert gradient @ column == pytest.approx(1.0)  # s grows in proportion to C
    for place in {0, min(1, taps - 1), taps - 1}:
        step = np.zeros(taps)
        step[place] = 1e-5
        plus, minus = (np.log(noise.noise_std(column + sign * step)[0]) for sign in (1, -1))
        assert gradient[place] == pytest.approx((plus - minus) / 2e-5, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize(("n", "bins", "taps"), [*slow((60, 10, 5)), (47, 6, 20), (30, 40, 7)])
@pytest.mark.slow
def test_the_noise_is_that_of_the_mixture(n, bins, taps):
    column = square_root_coefficients(prefix_sum(n), taps)
    _, std = aimed(n, bins, column, samples=10_000)
    gram = bins_gram(BandedToeplitz(n, column), bins)
    assert std == pytest.approx(Mixture(gram).noise_std(1.0, 1e-3, samples=20_000), rel=0.02)


def test_the_gram_matrix_is_that_of_the_bins():
    column = square_root_coefficients(prefix_sum(47), 20)
    noise = BinsNoise(47, 6, 20, 1.0, 1e-3, samples=500, seed=0)
    assert np.allclose(noise._means(column).gram, bins_gram(BandedToeplitz(47, column), 6))


@pytest.mark.parametrize("bands", [1, 2, 3, 40])
def test_coefficients_at_knots_pull_back(bands):
    knots, rng = _Knots(bands), np.random.default_rng(0)
    start = square_root_coefficients(prefix_sum(40), bands)
    x = knots.of(start)
    assert knots.column(x)[:3] == pytest.approx(start[:3])  # with a knot at each
    direction = rng.standard_normal(bands)
    found = knots.pullback(x, direction)
    for i, step in enumerate(1e-6 * np.eye(len(x))):
        change = direction @ (knots.column(x + step) - knots.column(x - step)) / 2e-6
        assert found[i] == pytest.approx(change, rel=1e-5)


def noise_times_error(workload, strategy, bins, epsilon, delta):
    std = Mixture(bins_gram(strategy, bins)).noise_std(epsilon, delta, samples=20_000, seed=9)
    return std * error(workload, strategy).rms


@pytest.mark.slow
def test_tuning_for_the_bins_gains():
    """Against the optimum without amplification, judged on samples that the optimiser never saw."""
    workload, setting = prefix_sum(120), {"bins": 12, "epsilon": 1.0, "delta": 1e-4}
    found = balls_in_bins(workload, bands=12, accounting="verified", samples=600, rounds=2, **setting)
    assert found.strategy.structure.nonnegative
    reached = noise_times_error(workload, found.strategy, **setting)
    assert found.loss == pytest.approx(reached, rel=0.02)
    plain = banded_toeplitz(workload, bands=12).strategy
    assert reached < 0.97 * noise_times_error(workload, plain, **setting)


@pytest.mark.parametrize("accounting", ["deterministic", "verified"])
@pytest.mark.slow
def test_what_independent_noise_does_better_is_left_to_it(accounting):
    setting = {"bins": 5, "epsilon": 1.0, "delta": 1e-12, "bands": 4, "samples": 500, "rounds": 1}
    found = balls_in_bins(sliding_window(20, 6), accounting=accounting, **setting)
    own = (
        BinsBound(bins_gram(Identity(20), 5)).noise_std(1.0, 1e-12)
        * error(sliding_window(20, 6), Identity(20)).rms
    )
    assert found.loss <= 1.01 * own
    if accounting == "deterministic":
        std = BinsBound(bins_gram(found.strategy, 5)).noise_std(1.0, 1e-12)
        assert std * error(sliding_window(20, 6), found.strategy).rms <= own * (1 + 1e-4)


@pytest.mark.slow
def test_the_published_multi_epoch_setting():
    """arXiv 2601.22334: n = 3900, b = 390, epsilon = 1; its best there is BSR with 64 bands, 29.34."""
    setting = {"bins": 390, "epsilon": 1.0, "delta": 1e-5, "bands": 200, "samples": 1500, "rounds": 2}
    assert balls_in_bins(prefix_sum(3900), accounting="verified", **setting).loss < 29.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": 1}, "bins=1"),
        ({"bands": 0}, "bands=0"),
        ({"bands": 21}, "bands=21 must be at most n=20"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"accounting": "exact"}, "accounting='exact'"),
        ({"bins": 70, "delta": 0.3}, "delta=0.3 is at least 0.285714"),
        ({"samples": 10}, "samples=10"),
        ({"rounds": 0}, "rounds=0"),
        ({"loss": "median"}, "median"),
        ({"workload": scheduled(prefix_sum(20), np.linspace(1, 2, 20)), "loss": "max"}, "learning rates"),
    ],
)
def test_refusals(change, message):
    good = {"workload": prefix_sum(20), "bins": 5, "epsilon": 1.0, "delta": 1e-3, "bands": 4}
    with pytest.raises(ValueError, match=message):
        balls_in_bins(**{**good, **change})
