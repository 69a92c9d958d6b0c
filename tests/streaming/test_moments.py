"""Moments and regression: exact without noise, and standard errors as measured."""

import math

import numpy as np
import pytest

from anechoic import streaming
from anechoic.streaming.moments import HalfMatrix
from anechoic.streaming.statistic import in_ball
from tests.streaming.test_stream import NoNoise

SLOW = pytest.mark.slow


def quiet(statistic):
    return NoNoise({"s": statistic}, epsilon=1.0, horizon=8)


def test_halves_have_the_norm_of_the_matrix():
    half, u = HalfMatrix(3), np.array([[1.0, 2.0, -3.0]])
    assert np.allclose(half.full(half.of(u)[0]), np.outer(u, u))
    assert np.isclose(np.linalg.norm(half.of(u)), 14.0)


def test_rows_are_clipped_at_every_size():
    rows = np.array([[0.3, 0.4], [3.0, 4.0], [1e300, 1e300], [0.0, 0.0]])
    assert np.allclose(in_ball(rows)[0], [[0.3, 0.4], [0.6, 0.8], [0.5**0.5, 0.5**0.5], [0, 0]])


def test_moments_without_noise():
    rng = np.random.default_rng(0)
    x = rng.normal([5.0, -1.0], [1.0, 0.3], (4000, 2))
    stream = quiet(streaming.Moments(20.0, 2, centre=[4.0, 0.0]))
    stream.update(x)
    value = stream.release().only.value
    assert np.allclose(value[0], x.mean(axis=0), atol=0.01)
    assert np.allclose(value[1:], np.cov(x.T, bias=True), atol=0.02)


def test_moments_of_vectors_beyond_the_bound_are_those_of_clipped_ones():
    statistic = streaming.Moments(5.0, 2, centre=[1.0, 0.0])
    read = statistic.read([[1.0 + 30.0, 40.0], [1.0 - 3.0, 4.0], [1.0, 0.0], [np.nan, 0.0]])
    assert dict(read.remarks) == {"not finite": 1, "clipped to the bound": 1}
    value = statistic.decode(statistic.total(read, None, 2**28) / 2**28, 1e-6, 1.96).value
    x = np.array([[4.0, 4.0], [-2.0, 4.0], [1.0, 0.0]])
    assert np.allclose(value[0], x.mean(axis=0), atol=1e-5)
    assert np.allclose(value[1:], np.cov(x.T, bias=True), atol=1e-5)


def test_regression_raises_the_directions_that_the_noise_hides_and_no_others():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3000, 2))
    y = x @ [2.0, -0.5]
    stream = quiet(streaming.LinearRegression(2, 1.5, 3.0))
    stream.update(np.column_stack([x, y]))
    found = stream.release().only
    assert np.allclose(found.value, [2.0, -0.5], rtol=1e-5)
    noise = 2.0 * stream.standard_deviations(0)["s"]
    half = streaming.LinearRegression(2, 1.0, 1.0)
    for weak in (0.0, noise / 2, 4 * noise):
        theta = half.decode(np.array([9 * noise, 0.0, weak, 9 * noise, weak]), noise / 2.0, 1.0).value
        assert np.allclose(theta, [1.0, min(1.0, weak / noise)])


@pytest.mark.parametrize(
    ("statistic", "records"),
    [
        (streaming.Moments(3.0, 2), [[1.0, 1.5], [-0.5, 0.2], [2.0, -1.0], [1.0, 1.0]]),
        (
            streaming.LinearRegression(2, 2.0, 3.0),
            [[1.0, 0.0, 2.0], [0.0, 1.0, -1.0], [1.0, 1.0, 1.2], [1.5, -1.0, 2.9]],
        ),
    ],
)
@pytest.mark.slow
def test_standard_errors_are_those_measured(statistic, records):
    unit = 2**28
    encoded = statistic.total(statistic.read(np.array(records)), None, unit) / unit * 500
    rng = np.random.default_rng(3)
    found = [statistic.decode(encoded + rng.normal(0, 6.0, len(encoded)), 6.0, 1.96) for _ in range(3000)]
    measured = np.std([estimate.value for estimate in found], axis=0)
    ratio = measured / statistic.decode(encoded, 6.0, 1.96).standard_error
    assert np.abs(ratio - 1).max() < 0.06 and abs(ratio.mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("features", "records"), [(2, 20_000), *(pytest.param(5, n, marks=SLOW) for n in (20_000, 200_000))]
)
@pytest.mark.slow
def test_intervals_of_a_regression_cover_its_coefficients_however_many_records_there_are(features, records):
    statistic = streaming.LinearRegression(features, 1.0, 1.0)
    rng = np.random.default_rng(7)
    x = rng.normal(0, 0.4 / math.sqrt(features), (records, features))
    y = x @ rng.uniform(-0.6, 0.6, features) + rng.normal(0, 0.1, records)
    batch, unit = np.column_stack([x, y]), 2**28
    sums = statistic.total(statistic.read(batch), None, unit) / unit
    truth = statistic.decode(sums, 1e-9, 1.0).value
    covered = [
        (found.low <= truth) & (truth <= found.high)
        for found in (statistic.decode(sums + rng.normal(0, 20, len(sums)), 20.0, 1.96) for _ in range(2000))
    ]
    assert 0.94 < np.mean(covered) < 0.96


@pytest.mark.slow
def test_nothing_gives_something_finite():
    for statistic in (streaming.Moments(1.0, 2), streaming.LinearRegression(2, 1.0, 1.0)):
        estimate = quiet(statistic).release().only
        assert np.isfinite(estimate.value).all() and np.isfinite(estimate.standard_error).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: streaming.Moments(-1.0), "bound=-1.0"),
        (lambda: streaming.Moments(1.0, 2, [0.0]), "centre has 1 entries"),
        (lambda: streaming.LinearRegression(0, 1.0, 1.0), "features=0"),
        (lambda: streaming.LinearRegression(1, 1.0, 0.0), "target_bound=0.0"),
        (lambda: quiet(streaming.LinearRegression(1, 1.0, 1.0)).update(np.ones((1, 1))), "is needed"),
        (lambda: quiet(streaming.Moments(1.0, 2)).update(np.ones(1)), "is needed"),
    ],
)
def test_bad_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
