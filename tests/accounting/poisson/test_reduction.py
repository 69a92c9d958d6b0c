"""From strategies to what dominates them: spectral norms, blocks, and the accountant that takes the least."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic import workloads
from anechoic.accounting import gaussian_epsilon, poisson_epsilon
from anechoic.accounting.accountant import accountant_of
from anechoic.accounting.poisson import reduction
from anechoic.accounting.poisson.accountant import PoissonAccountant
from anechoic.accounting.poisson.conditional import composed_rows, toeplitz_chain
from anechoic.accounting.poisson.overlapping import OverlappingAccountant
from anechoic.accounting.poisson.reduction import chain_of, group_matrix, spectral_bound
from anechoic.accounting.poisson.rows import bernoulli_row
from anechoic.errors import UnsupportedError
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Dense, Identity, Toeplitz, Tree
from tests.accounting.poisson.test_conditional import random_matrix, true_deltas
from tests.marks import slow

EPSILONS = (0.0, 0.3, 1.0)


def true_group_deltas(dense, groups, first, rate, std, direction):
    return true_deltas(dense[:, first::groups], rate, std, EPSILONS, direction)


# -- the spectral norm ---------------------------------------------------------------------------


@settings(derandomize=True, max_examples=40, deadline=None)
@given(n=st.integers(1, 14), groups=st.integers(1, 6), seed=st.integers(0, 999), signs=st.booleans())
def test_spectral_bound_is_above_and_near_every_group(n, groups, seed, signs):
    dense = random_matrix(n, seed)
    if signs:
        dense *= np.where(np.random.default_rng(seed).random((n, n)) < 0.3, -1, 1)
        dense[np.diag_indices(n)] = np.abs(dense.diagonal())
    found = spectral_bound(Dense(dense), groups)
    columns = [dense[:, r::groups] for r in range(min(groups, n))]
    assert found >= max(np.linalg.norm(c, 2) for c in columns)
    assert found == pytest.approx(max(np.linalg.norm(np.abs(c), 2) for c in columns), rel=1e-2)


@pytest.mark.parametrize(
    ("n", "bands", "groups"), [(1, 1, 1), (9, 4, 1), (31, 7, 3), (40, 40, 6), (25, 3, 5)]
)
def test_spectral_bound_of_toeplitz_and_far_from_the_last_step(n, bands, groups, monkeypatch):
    c = 1 / np.sqrt(np.arange(1, bands + 1))
    strategy = BandedToeplitz(n, c)
    exact = max(np.linalg.norm(strategy.to_dense()[:, r::groups], 2) for r in range(min(groups, n)))
    assert exact <= spectral_bound(strategy, groups) < 1.01 * exact
    monkeypatch.setattr(reduction, "MOST_DENSE", n - 1)
    assert exact <= spectral_bound(strategy, groups) * (1 + 1e-12)


def test_spectral_bound_is_the_column_norm_where_bands_do_not_overlap():
    for groups in (3, 4):
        strategy = BandedToeplitz(20, [1.0, 0.5, 0.25])
        assert spectral_bound(strategy, groups) == pytest.approx(strategy.largest_column_norm(), rel=1e-9)
        scaled = ColumnNormalized(strategy)
        assert spectral_bound(scaled, groups) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("groups", "signs"), [(1, False), (1, True), (3, False), (3, True)])
@pytest.mark.few(3)
def test_noise_over_the_spectral_norm_is_never_below_the_truth(groups, signs, direction):
    """Also for mixed signs, which the accountant does not use."""
    dense = random_matrix(7, 21)
    if signs:
        dense = np.tril(dense * np.random.default_rng(2).choice([-1, 1], (7, 7)), -1) + np.diag(
            dense.diagonal()
        )
    rate, std, count = 0.2, 3.0, -(-7 // groups)
    norm = spectral_bound(Dense(dense), groups)
    rows = bernoulli_row(np.array([1.0]), np.array([rate]), std / norm)
    ratio, _ = composed_rows([(count, rows)], "remove")
    for first in range(groups):
        truth = true_group_deltas(dense, groups, first, rate, std, direction)
        for epsilon, (estimate, error) in zip(EPSILONS, truth, strict=True):
            bound = ratio.remove(epsilon) if direction == "remove" else ratio.add(epsilon)
            assert estimate - 4 * error <= bound


# -- blocks and groups ---------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "groups"), [(1, 1), (7, 2), (11, 3), (12, 4), (5, 9)])
def test_one_matrix_has_no_smaller_product_of_columns_in_any_group(n, groups):
    dense = random_matrix(n, n)
    worst = group_matrix(dense, groups)
    gram = worst.T @ worst
    assert (np.triu(worst, 1) == 0).all() and (worst.diagonal() > 0).all()
    for first in range(min(groups, n)):
        columns = dense[:, first::groups]
        m = columns.shape[1]
        assert (columns.T @ columns <= gram[:m, :m] * (1 + 1e-12)).all()
    if groups == 1:
        assert np.allclose(worst, dense)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.few(2)
def test_chains_of_groups_are_never_below_the_truth(toeplitz, direction):
    n, groups, rate, std = 13, 3, 0.2, 3.0
    dense = random_matrix(n, 8, toeplitz)
    chain = chain_of(Toeplitz(n, dense[:, 0]) if toeplitz else Dense(dense), groups, rate)
    for first in range(groups):
        truth = true_group_deltas(dense, groups, first, rate, std, direction)
        for exceeded in (1e-4, 1e-2):
            composed = chain.composed(std, exceeded, direction)
            for epsilon, (estimate, error) in zip(EPSILONS, truth, strict=True):
                assert estimate - 4 * error <= composed.delta(epsilon)


def test_as_many_groups_as_bands_leave_no_history():
    chain = chain_of(BandedToeplitz(20, [1.0, 0.5, 0.25]), 3, 0.1)
    assert chain.exceptions == 0
    found = chain.epsilon(1e-5, 4.0, 50.0)
    norm = math.sqrt(1 + 0.25 + 0.0625)
    assert found == pytest.approx(poisson_epsilon(1e-5, 4.0 / norm, 0.1, 7), rel=3e-3)


def test_a_large_matrix_is_bounded_by_the_toeplitz_one_above_it(monkeypatch):
    dense = BandedToeplitz(20, [1.0, 0.6, 0.2]).to_dense() * np.linspace(0.7, 1.0, 20)
    exact = chain_of(Dense(dense), 1, 0.1).epsilon(1e-5, 6.0, 50.0)
    monkeypatch.setattr(reduction, "MOST_STEPS", 10)
    bound = chain_of(Dense(dense), 1, 0.1).epsilon(1e-5, 6.0, 50.0)
    above = toeplitz_chain(np.array([1.0, 0.6, 0.2]) * np.array([1.0, 18.7 / 19, 18.4 / 19]), 20, 0.1)
    assert exact < bound < 1.5 * exact
    assert bound == pytest.approx(above.epsilon(1e-5, 6.0, 50.0), rel=0.01)


# -- the accountant ------------------------------------------------------------------------------

OVERLAPPING = BandedToeplitz(60, [1.0, 0.5, 0.375, 0.3])
SAMPLING = Poisson(1000, 50, 60)


def test_which_accountant():
    def chosen(strategy, sampling):
        return type(accountant_of(sampling, strategy, "zero_out", "deterministic"))

    assert chosen(OVERLAPPING, SAMPLING) is OverlappingAccountant
    assert chosen(OVERLAPPING, CyclicPoisson(1000, 50, 3, 60)) is OverlappingAccountant
    assert chosen(OVERLAPPING, CyclicPoisson(1000, 50, 4, 60)) is PoissonAccountant
    assert chosen(Identity(60), SAMPLING) is PoissonAccountant
    with pytest.raises(UnsupportedError, match=r"bands=4 exceeds groups=1.*3\.21"):
        PoissonAccountant(OVERLAPPING, SAMPLING, "zero_out", "deterministic")


@pytest.mark.parametrize(
    ("strategy", "sampling", "epsilon"),
    [
        (OVERLAPPING, SAMPLING, 1.0),
        *slow((OVERLAPPING, CyclicPoisson(1000, 50, 2, 60), 1.0)),
        (OVERLAPPING, SAMPLING, 40.0),
        *slow((Toeplitz.square_root(workloads.prefix_sum(40)), Poisson(1000, 10, 40), 4.0)),
        (ColumnNormalized(BandedToeplitz(20, [1.0, 0.6])), Poisson(1000, 50, 20), 2.0),
        (Dense([[2.0]]), Poisson(1000, 50, 1), 1.0),
    ],
    ids=["banded", "cyclic", "low noise", "full", "normalised", "one step"],
)
@pytest.mark.slow
def test_calibration_keeps_its_promise(strategy, sampling, epsilon):
    mech = calibrate(strategy, sampling=sampling, epsilon=epsilon, delta=1e-5)
    assert epsilon * (1 - 1e-3) < mech.epsilon() <= epsilon
    assert mech.epsilon() <= gaussian_epsilon(1e-5, mech.gdp())
    assert Mechanism.from_json(mech.to_json()).epsilon() == pytest.approx(mech.epsilon(), rel=1e-9)


@pytest.mark.slow
def test_conditional_composition_is_used_where_it_shows_less():
    """Many overlapping bands and little noise: the sum of all entries of a row is far above its norm."""
    accountant = accountant_of(
        Poisson(1000, 10, 120), Toeplitz.square_root(workloads.prefix_sum(120)), "zero_out", "deterministic"
    )
    std = accountant.noise_std(6.0, 1e-5)
    spectral = poisson_epsilon(1e-5, std / accountant._spectral, 0.01, 120)
    assert accountant.bound(1e-5, std) <= 6.0 < spectral
    assert accountant.bound(1e-5, std) > 6.0 * (1 - 1e-3)


@pytest.mark.slow
def test_leading_releases_and_another_delta():
    mech = Mechanism(OVERLAPPING, SAMPLING, 8.0, delta=1e-5)
    values = [mech.epsilon(steps=t) for t in (0, 1, 2, 10, 59, 60)]
    assert (
        values[0] == 0
        and all(a <= b for a, b in pairwise(values))
        and values[-1] == pytest.approx(mech.epsilon(), rel=1e-9)
    )
    assert values[1] == pytest.approx(poisson_epsilon(1e-5, 8.0, 0.05, 1))
    assert mech.epsilon(1e-6) > mech.epsilon(1e-5)


def test_every_example_in_every_batch_is_the_gaussian_mechanism():
    mech = calibrate(OVERLAPPING, sampling=Poisson(50, 50, 60), epsilon=2.0, delta=1e-5)
    assert mech.epsilon() == pytest.approx(gaussian_epsilon(1e-5, mech.gdp()))


def test_statement_names_theorem_grid_and_failure():
    text = " ".join(Mechanism(OVERLAPPING, SAMPLING, 8.0).report().split())
    for words in ("2310.15526", "non-negative", "both directions", "part of it", "grid", "spectral norm"):
        assert words in text


@pytest.mark.parametrize(
    ("strategy", "adjacency", "words"),
    [
        (
            Dense(np.eye(8) - 0.1 * np.eye(8, k=-1)),
            "zero_out",
            r"bands=2, which exceeds groups=1,.*negative.*2310",
        ),
        (Tree(8), "zero_out", "rectangular.*2310"),
        (BandedToeplitz(8, [1.0, 0.5]), "replace_one", "against none"),
    ],
)
def test_refusals(strategy, adjacency, words):
    with pytest.raises(UnsupportedError, match=words):
        Mechanism(strategy, Poisson(100, 10, 8), 1.0, adjacency=adjacency)


def test_a_matrix_too_large_to_be_held_is_refused():
    wide = ColumnNormalized(BandedToeplitz(5000, [1.0, 0.5]))
    with pytest.raises(UnsupportedError, match="n=5000"):
        Mechanism(wide, Poisson(10_000, 10, 5000), 1.0).epsilon()


@pytest.mark.slow
def test_many_steps_take_seconds():
    began = time.perf_counter()
    strategy = BandedToeplitz.square_root(workloads.prefix_sum(2000), 8)
    mech = calibrate(strategy, sampling=Poisson(10_000, 100, 2000), epsilon=1.0, delta=1e-5)
    assert 0.999 < mech.epsilon() <= 1.0
    assert time.perf_counter() - began < 60
