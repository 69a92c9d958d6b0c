"""BLT optimiser: exact gradients, published optima, random starts, schemas, refusals."""

import math
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import optimize, workloads
from anechoic.algebra import toeplitz
from anechoic.losses.dispatch import loss
from anechoic.optimize.series.blt_objective import BLTObjective, parameters
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BLT
from tests.marks import every_other, slow

module = import_module("anechoic.optimize.series.blt")
blt = partial(optimize.blt, loss="max")

# shared/GOLDEN.md, sections 1 and 2 (recomputed there); n, buffers, best loss
SINGLE_MAX = [
    (1024, 2, 3.32979),
    (1024, 3, 3.27760),
    (1024, 4, 3.27294),
    (1024, 5, 3.27259),
    (8192, 4, 3.93880),
    (8192, 6, 3.93461),
    (10**6, 4, 5.54758),
    (10**6, 5, 5.48648),
    (10**6, 6, 5.46978),
    (10**9, 4, 8.33905),
    (10**9, 6, 7.77499),
]
MIN_SEP_MAX = [
    (2000, 400, 5, 2, 9.50151),
    (2000, 400, 5, 3, 9.45121),
    (2000, 400, 5, 4, 9.43056),
    (10**5, 10**4, 10, 2, 20.16170),
    (10**5, 10**4, 10, 4, 19.57472),
    (10**9, 10**8, 10, 4, 29.963),
]
# Monograph, Tables 2.2 and 2.3; the number of buffers is that of GOLDEN, section 1
MONOGRAPH = [(8, 1, "max", 1.723), (64, 2, "max", 2.391), (512, 3, "max", 3.054), (1024, 4, "rms", 3.057)]


@pytest.mark.parametrize(("n", "buffers", "best"), every_other(SINGLE_MAX))
@pytest.mark.few(2)
def test_single_participation(n, buffers, best):
    found = blt(workloads.prefix_sum(n), buffers=buffers)
    assert found.loss == pytest.approx(best, rel=2e-6)
    assert found.lower_bound < found.loss
    assert found.gap == pytest.approx(found.loss / found.lower_bound - 1)
    assert "nuclear norm" in found.bound_name


@pytest.mark.parametrize(
    ("n", "separation", "count", "buffers", "best"), [*MIN_SEP_MAX[::2], *slow(*MIN_SEP_MAX[1::2])]
)
@pytest.mark.slow
def test_min_sep(n, separation, count, buffers, best):
    schema = MinSep(separation, count)
    found = blt(workloads.prefix_sum(n), buffers=buffers, participation=schema)
    assert found.loss == pytest.approx(best, rel=2e-6 if n < 10**9 else 2e-5)
    assert found.lower_bound is None or 0 < found.lower_bound < found.loss
    assert sensitivity(found.strategy, schema).exact
    # both schemas have the same worst pattern (Lemma 3.16 c)
    assert blt(
        workloads.prefix_sum(n), buffers=buffers, participation=Cyclic(separation)
    ).loss == pytest.approx(found.loss, rel=1e-9)


@pytest.mark.parametrize(("n", "buffers", "kind", "printed"), MONOGRAPH)
def test_tables_of_the_monograph(n, buffers, kind, printed):
    assert blt(workloads.prefix_sum(n), buffers=buffers, loss=kind).loss == pytest.approx(printed, abs=6e-4)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-9, 0.5), min_size=2, max_size=8).filter(lambda logs: len(logs) % 2 == 0), st.data()
)
@pytest.mark.slow
def test_objective_is_the_loss_of_the_strategy(logs, data):
    # scales and weights by products (Lemma 4.13), against zeros found from the scales and decays
    gaps = 10.0 ** np.array(logs)
    n = data.draw(st.integers(1, 500))
    separation = data.draw(st.integers(1, n))
    count = -(-n // separation)
    kind = data.draw(st.sampled_from(["max", "rms"]))
    strategy = BLT(n, *parameters(gaps))
    assert strategy.structure.nonincreasing and (np.asarray(strategy.scale) > 0).all()
    expected = loss(workloads.prefix_sum(n), strategy, MinSep(separation), kind)
    assert math.exp(BLTObjective(n, separation, count, float(kind == "max"))(gaps)[0]) == pytest.approx(
        expected, rel=1e-7
    )


def test_the_theorem_holds_of_the_rounded_scales():
    # the exact sum is below 1, the rounded one is not: Lemma 3.16 (c) needs it of what is kept
    scale, decay = parameters(np.array([4e-16, 3.35021579e-13, 4e-16, 40.0]))
    assert scale.sum() <= 1.0 and BLT(100, scale, decay).structure.nonincreasing


def test_pairs_that_cancel_are_removed():
    objective = BLTObjective(1000, 1000, 1, 1.0)
    best = module._minimise(objective, module._spread(1e-3, 2), module.FINE)
    points = np.cumsum(best.gaps)
    for pair in ([0.05, 0.05 + 1e-12], [35.0, 39.0]):
        gaps = np.diff(np.sort([*points, *pair]), prepend=0.0)
        pruned = module._prune(objective, module._Point(objective(gaps)[0], gaps))
        np.testing.assert_allclose(np.cumsum(pruned.gaps), points, rtol=1e-9)
    assert module._prune(objective, best) is best


def test_lemma_4_13_gives_a_pair_of_inverses():
    y = np.cumsum([0.01, 0.05, 0.1, 0.3, 0.2, 0.9])
    lam, inverse_lam = np.exp(-y[0::2]), np.exp(-y[1::2])
    scale, decay = parameters(np.diff(y, prepend=0.0))
    np.testing.assert_allclose(decay, lam, rtol=1e-14)
    others = [np.prod(inverse_lam[i] - np.delete(inverse_lam, i)) for i in range(3)]
    inverse_scale = [np.prod(inverse_lam[i] - lam) / others[i] for i in range(3)]
    product = toeplitz.product(
        BLT(60, scale, decay).coefficients, BLT(60, inverse_scale, inverse_lam).coefficients, 60
    )
    np.testing.assert_allclose(product, np.eye(60)[0], atol=1e-13)


# settings with local minima in which points coincide: random starts of plain descent reach no lower
LANDSCAPES = [
    (2000, 100, 20, 2, "rms"),
    (2052, 342, 6, 3, "rms"),
    (18270, 214, 74, 4, "max"),
    (49239, 9827, 5, 5, "rms"),
    (1551, 1551, 1, 5, "rms"),
    (395, 21, 11, 2, "rms"),
    (9, 2, 5, 2, "max"),
]


@pytest.mark.parametrize(
    ("n", "separation", "count", "buffers", "kind"), [*LANDSCAPES[::2], *slow(*LANDSCAPES[1::2])]
)
@pytest.mark.slow
def test_random_starts_find_nothing_better(n, separation, count, buffers, kind):
    from scipy.optimize import minimize

    objective = BLTObjective(n, separation, count, float(kind == "max"))

    def by_logarithm(logs):
        value, gradient = objective(np.exp(logs))
        return value, gradient * np.exp(logs)

    rng = np.random.default_rng(7)
    schema = MinSep(separation, count) if count > 1 else Single()
    found = blt(workloads.prefix_sum(n), buffers=buffers, participation=schema, loss=kind).loss
    bounds = [(-35.0, 3.6)] * (2 * buffers)
    for _ in range(12):
        points = np.sort(np.exp(rng.uniform(np.log(0.1 / n), np.log(4.0), 2 * buffers)))
        start = np.log(np.maximum(np.diff(points, prepend=0.0), 1e-12))
        other = minimize(
            by_logarithm, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 2000}
        )
        assert found <= math.exp(other.fun) * (1 + 3e-6)


@pytest.mark.parametrize("long", [[], *slow([10**6, 10**9])], ids=["short", "long"])
@pytest.mark.slow
def test_as_many_buffers_as_pay(long):
    sizes = []
    settings = [(n, Single()) for n in (8, 1024, *long)]
    for n, schema in [*settings, (2000, MinSep(400, 5))]:
        workload = workloads.prefix_sum(n)
        found = blt(workload, participation=schema)
        d = len(found.strategy.scale)
        fewer = blt(workload, buffers=d - 1, participation=schema).loss if d > 1 else np.inf
        more = blt(workload, buffers=d + 1, participation=schema).loss
        assert found.loss <= fewer * (1 - 1e-4) and more > found.loss * (1 - 1e-4)
        sizes.append(d)
    assert sizes[:-1] == sorted(sizes[:-1])
    coarse = blt(workloads.prefix_sum(1024), gain=0.01)
    assert len(coarse.strategy.scale) == 3  # 3.3298 -> 3.2776 -> 3.2729: the fourth gains 0.14 %
    for gain in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="gain"):
            blt(workloads.prefix_sum(30), gain=gain)
