"""Moments of two orders: pairs for any mechanism, and two streams of their own strategies."""

import numpy as np
import pytest

from anechoic.accounting import gaussian_epsilon
from anechoic.errors import MismatchError
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.moments import MomentPairs, PairedMoments, calibrate_moments
from anechoic.participation import MinSep, Single
from anechoic.sampling import External, FixedOrder
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.workloads import exponential_decay, prefix_sum

BANDED = BandedToeplitz(7, [1.0, 0.5, 0.25])


@pytest.mark.parametrize("weight", [1e-9, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("clip_norm", [1.0, 0.3])
def test_pairs_are_as_long_as_they_may_be(weight, clip_norm):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 6)) * 10.0 ** rng.uniform(-3, 3, size=(40, 1))
    pairs = MomentPairs(weight, clip_norm)
    made = pairs.contributions(x)
    first, second = pairs.split(made)
    assert second == pytest.approx(np.square(first), rel=1e-9)
    factor = first[:, 0] / x[:, 0]
    assert first == pytest.approx(factor[:, None] * x, rel=1e-9) and (factor <= 1 + 1e-12).all()
    norm = np.linalg.norm(made, axis=1)
    assert (norm <= clip_norm * (1 + 1e-15)).all()
    whole = np.linalg.norm(np.concatenate([x, weight**0.5 * x**2 / clip_norm], axis=1), axis=1) <= clip_norm
    assert factor[whole] == pytest.approx(np.ones(whole.sum()), rel=1e-12)
    assert norm[~whole] == pytest.approx(np.full((~whole).sum(), clip_norm), rel=1e-12)
    assert whole.any() and not whole.all()


def test_pairs_of_huge_and_of_no_vectors():
    pairs = MomentPairs(weight=2.0)
    assert np.linalg.norm(pairs.contributions([3e200, -1e200])) == pytest.approx(1.0, rel=1e-12)
    assert (pairs.contributions(np.zeros((2, 3))) == 0).all() and pairs.contributions(np.zeros(0)).size == 0
    with pytest.raises(ValueError, match="not finite"):
        pairs.contributions([1.0, np.inf])
    with pytest.raises(ValueError, match="weight=-1"):
        MomentPairs(-1.0)


def test_errors_of_pairs_are_those_of_the_noise():
    mech = calibrate(BANDED, sampling=FixedOrder(14, 2, 1), epsilon=1.0, delta=1e-5, clip_norm=0.5)
    sums, means = prefix_sum(mech.steps), exponential_decay(mech.steps, 0.9)
    first, second = MomentPairs(4.0, 0.5).errors(mech, sums, means)
    inverse = 0.5 * mech.noise_std * np.linalg.inv(mech.strategy.to_dense())
    assert first.per_step == pytest.approx(np.linalg.norm(sums.to_dense() @ inverse, axis=1), rel=1e-9)
    weighted = np.linalg.norm(means.to_dense() @ inverse, axis=1) * 0.5 / 2
    assert second.per_step == pytest.approx(weighted, rel=1e-9)
    assert second.rms == pytest.approx(np.sqrt(np.square(weighted).mean()), rel=1e-9)
    with pytest.raises(ValueError, match=r"mechanism\.clip_norm=0\.5"):
        MomentPairs(4.0).errors(mech, sums)


@pytest.mark.parametrize("second", [None, Identity(7)], ids=["same", "other"])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_calibration_gives_the_epsilon_asked_for(second, adjacency):
    schema = MinSep(separation=3)
    found = calibrate_moments(
        BANDED, second, participation=schema, epsilon=2.0, delta=1e-5, weight=0.5, adjacency=adjacency
    )
    assert 2.0 * (1 - 1e-9) <= found.epsilon() <= 2.0
    assert found.epsilon(1e-3) == pytest.approx(gaussian_epsilon(1e-3, found.gdp()), rel=1e-9)
    assert found.epsilon(1e-3) < 2.0
    if second is None and adjacency == "replace_one":  # as of gradients alone
        sampling = External(participation=schema, batch_size=1, steps=7)
        alone = calibrate(BANDED, sampling=sampling, epsilon=2.0, delta=1e-5, adjacency=adjacency)
        assert found.noise_std == pytest.approx(alone.noise_std, rel=1e-9)
    if second is None and adjacency == "zero_out":
        assert found.sensitivity.value == pytest.approx(1.5**0.5 * sensitivity(BANDED, schema).value)


def test_both_streams_have_their_noise_and_their_errors():
    found = PairedMoments(BANDED, Identity(7), Single(), noise_std=2.0, weight=0.25, clip_norm=3.0)
    one, two = found.streams(5, key=bytes(32))
    inverse = np.linalg.inv(BANDED.to_dense())
    first, second = found.errors(prefix_sum(7))
    assert first.per_step == pytest.approx(6 * np.linalg.norm(np.tri(7) @ inverse, axis=1), rel=1e-9)
    assert second.per_step == pytest.approx(2 * 9 / 0.5 * np.sqrt(np.arange(1.0, 8.0)), rel=1e-9)
    assert one.std == 6.0 and two.std == 36.0 and one.strategy is BANDED
    rows = [stream.next(stream.init())[0] / stream.std for stream in (one, two)]
    assert not np.allclose(*rows)  # C is 1 in the first row of both: the keys differ
    again = found.streams(5, key=bytes(32))[0]
    assert np.array_equal(again.next(again.init())[0] / again.std, rows[0])


def test_refusals():
    with pytest.raises(ValueError, match="noise_std=0"):
        PairedMoments(BANDED, None, Single(), noise_std=0.0)
    with pytest.raises(MismatchError, match=r"second\.n=8"):
        PairedMoments(BANDED, Identity(8), Single(), noise_std=1.0)


@pytest.mark.parametrize(("size", "clip_norm"), [(1e308, 1e-5), (3e38, 1e-300), (1e-308, 1e300)])
def test_pairs_of_any_finite_vector_can_be_had(size, clip_norm):
    found = MomentPairs(weight=1.0, clip_norm=clip_norm).contributions([size, -size])
    assert np.isfinite(found).all()
    assert np.linalg.norm(found / clip_norm) <= 1 + 1e-12


def test_two_streams_refuse_add_or_remove():
    with pytest.raises(ValueError, match="may move others"):
        PairedMoments(Identity(3), None, Single(), 1.0, adjacency="add_or_remove")
