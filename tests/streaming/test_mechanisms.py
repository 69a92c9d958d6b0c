"""The planned mechanisms: how good, for how long, and what they are held against."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic import streaming
from anechoic.mechanism.rows import NoiseRows
from anechoic.participation import FullBatch, MinSep, Single
from anechoic.streaming.mechanisms import FOR_EVER, planned_mechanism
from tests.marks import each_once, slow

RUNNING = streaming.Running()


def planned(**changes):
    setting = {"over": RUNNING, "horizon": 50, "participation": Single(), "epsilon": 1.0, "delta": 1e-6}
    return planned_mechanism(**{**setting, "dimension": 1, **changes})


def max_error(mechanism, over, steps):
    return mechanism.noise_std * an.error(over.workload(steps), mechanism.strategy.truncate(steps)).max


@pytest.mark.parametrize(
    ("horizon", "participation", "over"),
    each_once([1, 2, 3, 4, 65], [Single(), MinSep(5, 3), FullBatch()], [RUNNING, streaming.SlidingWindow(6)]),
)
def test_it_gives_the_epsilon_asked_for_and_is_no_worse_than_independent_noise(horizon, participation, over):
    mechanism = planned(horizon=horizon, participation=participation, over=over)
    assert 1 - 1e-6 < mechanism.epsilon() <= 1
    independent = an.calibrate(
        an.strategies.Identity(horizon), sampling=mechanism.sampling, epsilon=1.0, delta=1e-6
    )
    ours, other = (max_error(m, over, horizon) for m in (mechanism, independent))
    assert ours <= other * (1 + 1e-9)
    assert mechanism.grid_bits is not None and mechanism.unit == "event"


@pytest.mark.parametrize(
    ("over", "participation"), each_once([RUNNING, streaming.SlidingWindow(4)], [Single(), MinSep(3, 2)])
)
@pytest.mark.slow
def test_endless_its_sensitivity_bounds_every_leading_block(over, participation):
    mechanism = planned(horizon=None, over=over, participation=participation)
    assert mechanism.steps == FOR_EVER and 1 - 1e-6 < mechanism.epsilon() <= 1
    for n in (1, 7, 12):
        block = mechanism.strategy.truncate(n).to_dense()
        norms = [np.linalg.norm(block[:, list(p)].sum(axis=1)) for p in participation.patterns(n)]
        assert max(norms) <= mechanism.sensitivity.value * (1 + 1e-12)


@pytest.mark.slow
def test_endless_the_error_is_near_that_of_a_planned_one():
    endless = planned(horizon=None)
    for steps, ratio in [(1000, 1.4), (10**6, 1.05)]:
        best = an.optimize.blt(RUNNING.workload(steps), buffers=6, loss="max").loss
        at = an.error(RUNNING.workload(steps), endless.strategy.truncate(steps)).last
        assert best < endless.sensitivity.value * at < best * ratio


@pytest.mark.parametrize(
    ("over", "participation", "ratio"),
    [
        (RUNNING, Single(), 0.96),
        (RUNNING, MinSep(24, 30), 0.85),
        *slow(
            (streaming.SlidingWindow(7), Single(), 0.96), (streaming.SlidingWindow(7), MinSep(24, 30), 0.82)
        ),
    ],
)
def test_a_short_horizon_takes_what_plan_compares(over, participation, ratio):
    """Beside the best of independent noise, a BLT, and the normalised square root or a band of the window."""
    n, workload = 30, over.workload(30)
    others = [an.strategies.Identity(n)]
    if over is RUNNING:
        root = an.optimize.toeplitz(workload).strategy.coefficients
        others.append(an.strategies.ColumnNormalized(an.strategies.BandedToeplitz(n, root)))
        others.append(an.optimize.blt(workload, buffers=3, participation=participation, loss="max").strategy)
    else:
        others.append(an.optimize.banded_toeplitz(workload, bands=7, loss="max").strategy)
    least = min(an.loss(workload, strategy, participation, "max") for strategy in others)
    found = planned(over=over, horizon=n, participation=participation).strategy
    assert an.loss(workload, found, participation, "max") < ratio * least


@pytest.mark.parametrize("steps", [8760, 10**6])
@pytest.mark.slow
def test_a_third_of_the_error_of_a_binary_tree(steps):
    """Prefix sums that add up the nodes of a tree, each with noise of its own, at equal rho."""
    levels = steps.bit_length()
    binary = math.sqrt(levels * max(t.bit_count() for t in range(steps // 2, steps + 1)))
    mechanism = planned(horizon=steps)
    ours = mechanism.sensitivity.value * an.error(RUNNING.workload(steps), mechanism.strategy).max
    assert binary > 3 * ours


def test_a_unit_that_takes_part_for_ever_is_refused():
    with pytest.raises(an.errors.UnsupportedError, match="infinitely much noise"):
        planned(horizon=None, participation=FullBatch())


@pytest.mark.slow
def test_a_grid_that_float64_could_not_hold_in_the_middle_of_a_run_is_made_coarser():
    """Whether it holds depends on the noise that is drawn: with much noise and a long memory it may not."""
    fine, coarse = (planned(horizon=150, epsilon=epsilon) for epsilon in (1.0, 0.01))
    assert fine.grid_bits == 28
    assert 20 <= coarse.grid_bits < 28
    rows = NoiseRows(coarse, 3, bytes(32))
    for _ in range(150):
        rows.next()
