"""Joint sensitivity of vectors and their squares, against patterns and contributions written out."""

import math

import numpy as np
import pytest

from anechoic.errors import MismatchError
from anechoic.participation import FullBatch, MinSep, OncePerEpoch, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.moments import joint_sensitivity, replaced_pair
from anechoic.strategies import BandedToeplitz, Dense, Identity

FALLING = BandedToeplitz(7, [1.0, 0.5, 0.25])
RISING = Dense(np.diag([1, 1, 2, 1, 3, 1, 1.0]) + np.diag([0.5, 0.5, 1, 0.5, 1, 0.5], -1))
SIGNED = BandedToeplitz(7, [1.0, -0.5])
SCHEMAS = [
    Single(),
    MinSep(separation=3),
    MinSep(separation=2, max_participations=2),
    OncePerEpoch(period=4),
    FullBatch(),
]


def moved(first, second, weight, x, other):
    """||C1 (x - other)||^2 + weight ||C2 (x x^T - other other^T)||^2, with squares by entries and whole."""
    of_first = np.square(first.to_dense() @ (x - other)).sum()

    def squared(square):
        gap = square(x) - square(other)
        return of_first + weight * np.square(np.tensordot(second.to_dense(), gap, axes=1)).sum()

    return squared(np.square), squared(lambda y: y[:, :, None] * y[:, None, :])


def contributions(rng, pattern, n, dimension):
    x = np.zeros((n, dimension))
    x[list(pattern)] = rng.standard_normal((len(pattern), dimension))
    x[list(pattern)] /= np.linalg.norm(x[list(pattern)], axis=1, keepdims=True)
    x[list(pattern)] *= rng.choice([1.0, 1.0, 0.7], size=(len(pattern), 1))
    return x


@pytest.mark.parametrize("participation", SCHEMAS, ids=repr)
@pytest.mark.parametrize("second", [None, RISING, Identity(7)], ids=["same", "rising", "identity"])
def test_under_zero_out_it_is_that_of_equal_contributions(second, participation):
    weight, other = 0.8, FALLING if second is None else second
    gram = FALLING.to_dense().T @ FALLING.to_dense() + weight * other.to_dense().T @ other.to_dense()
    best = max(gram[np.ix_(p, p)].sum() for p in participation.patterns(7))
    found = joint_sensitivity(FALLING, second, participation, weight=weight)
    assert found.value**2 == pytest.approx(best, rel=1e-12) if found.exact else found.value**2 >= best
    assert found.exact or second is RISING


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("second", [None, RISING, SIGNED], ids=["same", "rising", "signed"])
@pytest.mark.parametrize("first", [FALLING, SIGNED], ids=["falling", "signed"])
@pytest.mark.few(3)
def test_nothing_moves_the_streams_by_more(first, second, adjacency):
    rng = np.random.default_rng(3)
    for participation in SCHEMAS:
        for weight in (0.2, 0.5, 2.0, 30.0):
            bound = joint_sensitivity(first, second, participation, weight=weight, adjacency=adjacency)
            for pattern in list(participation.patterns(7))[:4]:
                for dimension in (1, 2, 5):
                    x = contributions(rng, pattern, 7, dimension)
                    y = (
                        np.zeros_like(x)
                        if adjacency == "zero_out"
                        else contributions(rng, pattern, 7, dimension)
                    )
                    if adjacency == "replace_one" and rng.random() < 0.5:
                        y = -x
                    assert max(moved(first, second or first, weight, x, y)) <= bound.value**2 * (1 + 1e-12)


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.50001, 1.0, 7.0])
def test_the_largest_move_of_one_pair(weight):
    """Attained in two dimensions, by squares by entries and whole, and by no pair of a fine grid exceeded."""
    cosine = max(-1.0, -1 / (2 * weight))
    half, quarter = math.acos(cosine) / 2, math.pi / 4
    x = np.array([[math.cos(quarter + half), math.sin(quarter + half)]])
    y = np.array([[math.cos(quarter - half), math.sin(quarter - half)]])
    by_entries, whole = moved(Identity(1), Identity(1), weight, x, y)
    assert by_entries == pytest.approx(replaced_pair(weight), rel=1e-12)
    assert whole == pytest.approx(replaced_pair(weight), rel=1e-12)
    radius, angle = np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, np.pi, 401))
    q, c = np.square(radius), radius * np.cos(angle)  # against a unit vector
    assert (1 + q - 2 * c + weight * (1 + q**2 - 2 * c**2)).max() <= replaced_pair(weight) * (1 + 1e-12)


@pytest.mark.parametrize("participation", SCHEMAS, ids=repr)
def test_squares_of_small_weight_are_free_under_replace_one(participation):
    alone = sensitivity(FALLING, participation).value
    found = joint_sensitivity(FALLING, None, participation, weight=0.5, adjacency="replace_one")
    assert found.value == pytest.approx(2 * alone, rel=1e-15) and found.exact
    costs = joint_sensitivity(FALLING, None, participation, weight=0.6, adjacency="replace_one")
    assert costs.value > 2 * alone * 1.001
    smaller = Dense(FALLING.to_dense() * 0.5)  # products a quarter as large: four times the weight
    free = joint_sensitivity(FALLING, smaller, participation, weight=2.0, adjacency="replace_one")
    assert free.value == pytest.approx(2 * alone, rel=1e-12)


def test_signs_leave_a_bound():
    found = joint_sensitivity(SIGNED, None, Single(), weight=0.5)
    assert found.value == pytest.approx(math.sqrt(1.5 * 1.25), rel=1e-12) and not found.exact


def test_too_many_steps_for_arrays_are_bounded():
    one, two = Identity(600), BandedToeplitz(600, [1.0, 1.0])
    found = joint_sensitivity(one, two, Single(), weight=0.5)
    assert found.value == pytest.approx(math.sqrt(1 + 0.5 * 2), rel=1e-12) and not found.exact
    replaced = joint_sensitivity(one, two, Single(), weight=0.5, adjacency="replace_one")
    assert replaced.value == pytest.approx(math.sqrt(4 + 2 * 0.5 * 2), rel=1e-12)


def test_refusals():
    with pytest.raises(MismatchError, match=r"second\.n=8 must be the 7 steps"):
        joint_sensitivity(FALLING, Identity(8), Single(), weight=1.0)
    with pytest.raises(ValueError, match="weight=0"):
        joint_sensitivity(FALLING, None, Single(), weight=0.0)
    with pytest.raises(ValueError, match="adjacency='other'"):
        joint_sensitivity(FALLING, None, Single(), weight=1.0, adjacency="other")


def test_add_or_remove_is_refused_for_a_promised_participation():
    with pytest.raises(ValueError, match="may move others to other steps"):
        joint_sensitivity(Identity(3), None, Single(), weight=0.5, adjacency="add_or_remove")
