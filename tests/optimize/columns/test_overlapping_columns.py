"""Columns that overlap from one participation to the next: the largest error under minimum separation."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from anechoic import loss, optimize, sensitivity
from anechoic.errors import UnsupportedError
from anechoic.lower_bounds import lower_bound
from anechoic.optimize.columns.overlapping_columns import NEVER, Chains, _Norms, _Search, serves
from anechoic.participation import MinSep
from anechoic.workloads import momentum, nesterov, prefix_sum


@pytest.mark.parametrize(("n", "separation", "count"), [(14, 3, 4), (9, 4, 2), (11, 5, 3), (7, 6, 2)])
def test_the_maximum_is_that_over_all_patterns(n, separation, count):
    rng = np.random.default_rng(n)
    squares, gram = rng.random(n), rng.standard_normal((n, n))
    gram += gram.T
    best = 0.0
    for k in range(1, count + 1):
        for steps in combinations(range(n), k):
            gaps = np.diff(steps)
            if (gaps >= separation).all():
                near = [2 * abs(gram[s, t]) for s, t in pairwise(steps) if t - s < 2 * separation]
                best = max(best, squares[list(steps)].sum() + sum(near))
    chains = Chains(n, separation, count, 1)
    value, _, _ = chains(squares, chains.pairs(lambda lag: gram.diagonal(lag)), 1e4)
    assert best <= value * (1 + 1e-12)
    assert value == pytest.approx(best, rel=1e-2)


def test_gradients():
    n, rng = 12, np.random.default_rng(0)
    chains = Chains(n, 3, 3, 1)
    squares, gram = rng.random(n), rng.random((n, n))
    pairs = chains.pairs(lambda lag: gram.diagonal(lag))
    there = pairs > NEVER

    def of(entries):
        changed = pairs.copy()
        changed[there] = entries
        return chains(squares, changed, 5.0)[0]

    _, by_squares, by_pairs = chains(squares, pairs, 5.0)
    assert by_squares == pytest.approx(approx_fprime(squares, lambda x: chains(x, pairs, 5.0)[0]), abs=1e-6)
    assert by_pairs[there] == pytest.approx(approx_fprime(pairs[there], of), abs=1e-6)
    search = _Search(prefix_sum(n), 6, chains, 0.7)
    x = (np.eye(n) + 0.3 * rng.random((n, n)))[search._inside]
    assert search(x, 20.0)[1] == pytest.approx(approx_fprime(x, lambda x: search(x, 20.0)[0]), abs=1e-5)
    inside = np.arange(n)[:, None] + np.arange(6) < n
    norms, x = _Norms(np.where(inside, 1 + rng.random((n, 6)), 0.0), chains), rng.random(n)
    assert norms(x, 20.0)[1] == pytest.approx(approx_fprime(x, lambda x: norms(x, 20.0)[0]), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("workload", [prefix_sum(40), momentum(40, 0.9), nesterov(40, 0.5)])
def test_columns_that_interact_gain(workload):
    schema = MinSep(8, 4)
    orthogonal = optimize.banded(workload, bands=8, participation=schema, loss="max")
    found = optimize.banded(workload, bands=16, participation=schema, loss="max")
    assert sensitivity(found.strategy, schema).exact
    assert found.loss == pytest.approx(loss(workload, found.strategy, schema, "max"), rel=1e-9)
    assert lower_bound(workload, schema, "max").value < found.loss < 0.99 * orthogonal.loss


@pytest.mark.slow
def test_a_long_run_is_within_two_per_cent_of_every_factorisation():
    """The setting of a keyboard's language model: 2,000 rounds, a client every 400 at most, four times."""
    found = optimize.banded(prefix_sum(2000), bands=800, participation=MinSep(400, 4), loss="max")
    assert found.bound_covers == "every factorisation"
    assert found.loss < 7.15
    assert found.gap <= 0.02


def test_what_the_search_does_not_know_is_refused():
    assert not serves(prefix_sum(2000), 32, MinSep(16, 4))
    assert not serves(nesterov(300, 0.5), 80, MinSep(40, 4))
    assert not serves(prefix_sum(40), 17, MinSep(8, 4))
    with pytest.raises(UnsupportedError, match="bands=17 exceeds the 8 steps"):
        optimize.banded(prefix_sum(40), bands=17, participation=MinSep(8, 4), loss="max")
