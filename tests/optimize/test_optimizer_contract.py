"""What every optimiser keeps: its loss, what it reports on the way, the same result again, and refusals."""

from functools import partial

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss
from anechoic.optimize.series import toeplitz_objective
from anechoic.optimize.series.banded_inverse_objective import BandedInverseObjective
from anechoic.optimize.series.blt import _error_of
from anechoic.optimize.series.blt_objective import BLTObjective, parameters
from anechoic.optimize.series.toeplitz_objective import ToeplitzObjective
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz
from tests.marks import each_pair, in_turn

OPTIMISERS = {
    "banded": partial(optimize.banded, bands=2),
    "banded_inverse": partial(optimize.banded_inverse, bands=2),
    "banded_toeplitz": partial(optimize.banded_toeplitz, bands=2),
    "blt": partial(optimize.blt, buffers=2),
    "dense": optimize.dense,
    "toeplitz": optimize.toeplitz,
}
#: Those for Toeplitz workloads alone.
TOEPLITZ = ("banded_toeplitz", "blt", "toeplitz")


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_result_is_repeated_and_reported_on_the_way(name):
    calls, workload, schema = [], workloads.momentum(23, 0.5), Cyclic(6)
    runs = [
        OPTIMISERS[name](
            workload, participation=schema, loss="rms", progress=lambda *call: calls.append(call)
        )
        for _ in range(2)
    ]
    assert np.array_equal(*(run.strategy.to_dense() for run in runs))
    found, first = runs[0], calls[: len(calls) // 2]
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema), rel=1e-9)
    assert found.lower_bound is None or 0 < found.lower_bound <= found.loss
    counts = [count for count, _ in first]
    assert counts == sorted(counts) and 0 < counts[-1] <= found.evaluations
    assert min(value for _, value in first) == pytest.approx(found.loss, rel=1e-2)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_refuses(name):
    optimise, sums = OPTIMISERS[name], workloads.prefix_sum(30)
    for how, words in (
        ({"loss": "mean"}, "='mean' is unknown"),
        ({"loss": [1.0, 2.0]}, "2 entries; 30 are needed"),
        ({"loss": -np.ones(30)}, "must be >= 0"),
        ({"participation": "single"}, "must be a Participation"),
        ({"participation": OncePerEpoch(10)}, "OncePerEpoch"),
    ):
        if name == "dense" and "OncePerEpoch" in words:
            continue  # which knows it
        with pytest.raises(ValueError, match=words):
            optimise(sums, **how)
    with pytest.raises(ValueError, match="must be a Workload"):
        optimise(np.eye(3))


RATES = workloads.momentum(30, 0.9, learning_rates=np.linspace(1.0, 0.1, 30))
RESTARTS = workloads.restart_differences(workloads.prefix_sum(30), period=4)
PLAIN = workloads.from_dense(np.tril(np.arange(1.0, 10.0).reshape(3, 3)))
LONG_RESTARTS = workloads.restart_differences(workloads.momentum(3 * 10**6, 0.9), period=9)


@pytest.mark.parametrize(
    ("names", "workload", "kind", "words"),
    [
        (TOEPLITZ, PLAIN, "rms", "not Toeplitz, nor one with learning rates"),
        (TOEPLITZ, RATES, "max", "loss=.max. of a workload with learning rates"),
        (TOEPLITZ, RESTARTS, "max", "loss='max' of restart differences: Toeplitz optimisers know 'rms'"),
        (TOEPLITZ, workloads.restart_differences(RATES, period=4), "rms", "not Toeplitz"),
        (("banded_inverse",), RATES, "max", "no quadratic form"),
        (("banded",), workloads.sliding_window(5000, 100), "rms", "is no recursion of few bands"),
        (("blt",), LONG_RESTARTS, "rms", "restarts have no closed form.*n=3000000"),
        (("blt",), workloads.sliding_window(3 * 10**6, 100), "max", "no short.*n=3000000"),
    ],
)
def test_workloads_that_are_refused(names, workload, kind, words):
    for name in names:
        with pytest.raises(UnsupportedError, match=words):
            OPTIMISERS[name](workload, loss=kind)


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("banded", {"bands": 0}, "bands=0 must be at least 1"),
        ("banded", {"bands": 2.5}, "bands=2.5 must be an integer"),
        ("banded", {"bands": 31}, "bands=31 must be at most n=30"),
        ("banded", {"bands": 11, "participation": MinSep(10)}, "bands=11 exceeds the 10 steps between"),
        ("banded", {"participation": FullBatch()}, "Use bands <= 1"),
        ("banded_inverse", {"bands": 31}, "bands=31 must be at most n=30"),
        ("banded_toeplitz", {"bands": 0}, "bands=0"),
        ("banded_toeplitz", {"bands": 31}, "bands=31"),
        ("blt", {"buffers": 0}, "buffers=0 must be at least 1"),
        ("blt", {"buffers": 2.0}, "buffers=2.0 must be an integer"),
        ("blt", {"gain": 0.0}, "gain"),
        ("dense", {"gap": 0.0}, "gap=0.0"),
        ("dense", {"gap": 0.5}, "gap=0.5"),
        ("dense", {"gap": 1e-12}, "rounding"),
        ("dense", {"participation": MinSep(5)}, "optimize.banded"),
    ],
)
def test_what_one_optimiser_refuses(name, how, words):
    with pytest.raises(ValueError, match=words):
        OPTIMISERS[name](workloads.prefix_sum(30), **how)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_step(name):
    one = OPTIMISERS[name].func if isinstance(OPTIMISERS[name], partial) else OPTIMISERS[name]
    size = {"bands": 1} if "band" in name else {"buffers": 1} if name == "blt" else {}
    for schema in (Single(), MinSep(2)):
        assert one(workloads.prefix_sum(1), participation=schema, **size).loss == pytest.approx(1.0)


# Objectives: a value that is the loss of a strategy, or a bound of it, and its gradient


def objectives(n, separation, count, kind, bands):
    """(objective, point, the strategy there, workload) of every class that is searched by gradients."""
    comb, rng = (separation, count), np.random.default_rng(n + bands)
    workload = workloads.momentum(n, 0.5, weight_decay=0.1)
    c = np.append(1.0, np.sort(rng.uniform(0.1, 0.5, bands - 1))[::-1])
    inverse = np.append(1.0, 0.2 * rng.standard_normal(bands - 1))
    yield ToeplitzObjective(workload, comb, kind), c, BandedToeplitz(n, c), workload
    for falling in (False, True):
        made = BandedInverseObjective(workload, bands, comb, kind)
        made.falling = falling
        yield made, inverse, BandedInverse(n, inverse), workload
    gaps = np.exp(rng.uniform(-5.0, 0.0, 6))
    restarts = workloads.restart_differences(workloads.momentum(n, 0.3), period=8)
    others = (workloads.nesterov(n, 0.8), workloads.sliding_window(n, 3), workloads.exponential_decay(n, 0.9))
    for each in (workloads.prefix_sum(n), workload, *others, *([restarts] if kind == "rms" else [])):
        yield BLTObjective(n, *comb, *_error_of(each, kind)), gaps, BLT(n, *parameters(gaps)), each
    if kind == "rms":
        yield ToeplitzObjective(restarts, comb, kind), c, BandedToeplitz(n, c), restarts


COMBS = [
    (40, 40, 1, 5),
    (40, 10, 4, 7),
    (43, 10, 5, 15),
    (43, 10, 3, 7),
    (43, 1, 43, 3),
    (7, 3, 2, 7),
    (43, 42, 2, 2),
]


@in_turn("kind", ["rms", "max", "last"])
@in_turn("fft_from", [1, 10**9])
@pytest.mark.parametrize(("n", "separation", "count", "bands"), COMBS)
def test_values_and_gradients(n, separation, count, bands, kind, fft_from, monkeypatch):
    monkeypatch.setattr(toeplitz_objective, "FFT_FROM", fft_from)
    schema = MinSep(separation, count)
    for objective, x, strategy, workload in objectives(n, separation, count, kind, bands):
        value, gradient = objective(x)
        steps = 1e-6 * np.diag(x if (x > 0).all() else np.ones(len(x)))
        found = [(objective(x + step)[0] - objective(x - step)[0]) / 2e-6 for step in steps]
        np.testing.assert_allclose(steps.sum(axis=0) * 1e6 * gradient, found, atol=1e-8)
        assert objective.evaluations == 1 + 2 * len(x)
        true = np.log(loss(workload, strategy, schema, kind))
        if isinstance(strategy, BandedInverse) and count > 1:  # of signs that are mixed: a bound
            assert value >= true - 1e-12 or not objective.falling
        else:  # coefficients fall
            assert value == pytest.approx(true, abs=1e-9)


@pytest.mark.parametrize(
    ("objective", "point"),
    [  # 1/c = 1 - 3 x + 9 x^2 …
        (ToeplitzObjective(workloads.prefix_sum(5000), (5000, 1), "rms"), [1.0, 3.0]),
        (BandedInverseObjective(workloads.prefix_sum(5000), 2, (5000, 1), "rms"), [1.0, -3.0]),
    ],
)
def test_a_step_out_of_the_stable_region_is_sent_back(objective, point):
    value, gradient = objective(np.array(point))
    assert value == 1e10 and not gradient.any()


#: Optimisers, what names their size, and the numbers of their strategies that are moved.
MOVED = {
    "banded_toeplitz": (BandedToeplitz, lambda strategy: strategy.band),
    "banded_inverse": (BandedInverse, lambda strategy: strategy.inverse_coefficients),
}


@pytest.mark.parametrize(
    ("name", "base", "schema", "kind", "bands"),
    each_pair(
        MOVED,
        ["sums", "momentum", "restarts"],
        [Single(), Cyclic(10), MinSep(10), MinSep(10, 2), MinSep(16), FullBatch()],
        ["rms", "max"],
        [4, 17],
    ),
)
@pytest.mark.few(12)
def test_losses_are_those_of_the_strategies_and_hard_to_improve(name, base, schema, kind, bands):
    n = 47  # 10 does not divide it
    workload = workloads.momentum(n, 0.8 if base == "momentum" else 0.0)
    if base == "restarts":
        workload, kind = workloads.restart_differences(workload, period=8), "rms"
    found = getattr(optimize, name)(workload, bands=bands, participation=schema, loss=kind)
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, kind), rel=1e-9)
    make, numbers = MOVED[name]
    falling = bands > 10 or schema == FullBatch()  # the class, of several participations
    if name == "banded_toeplitz":
        assert sensitivity(found.strategy, schema).exact and len(found.strategy.band) <= bands
    c, rng = np.asarray(numbers(found.strategy)), np.random.default_rng(0)
    for _ in range(20):
        near = c * (1 + 1e-3 * rng.standard_normal(len(c)))
        if name == "banded_toeplitz" and falling and schema != Single():
            near = np.minimum.accumulate(near)
        # where |C| reaches 0 the sensitivity may be less than that of the comb
        slack = 1e-8 if name == "banded_toeplitz" or schema == Single() else 1e-3
        assert loss(workload, make(n, near / near[0]), schema, kind) >= found.loss * (1 - slack)
