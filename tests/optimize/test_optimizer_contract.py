"""What every optimiser keeps: its loss, what it reports on the way, the same result again, and refusals."""

from functools import partial

import numpy as np
import pytest

from anechoic import optimize, workloads
from anechoic.losses.dispatch import loss
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Single

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
    if name in TOEPLITZ:
        with pytest.raises(ValueError, match="not Toeplitz"):
            optimise(workloads.from_dense(np.tril(np.arange(1.0, 10.0).reshape(3, 3))))


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("banded", {"bands": 0}, "bands=0 must be at least 1"),
        ("banded", {"bands": 2.5}, "bands=2.5 must be an integer"),
        ("banded", {"bands": 31}, "bands=31 must be at most n=30"),
        ("banded", {"bands": 11, "participation": MinSep(10)}, "bands=11 exceeds the 10 steps between"),
        ("banded", {"participation": FullBatch()}, "Use bands <= 1"),
        ("banded_inverse", {"bands": 31}, "bands=31 must be at most n=30"),
        ("banded_inverse", {"family": "root"}, "family='root' is unknown"),
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
