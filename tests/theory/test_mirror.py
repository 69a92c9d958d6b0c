"""Mirror steps: closed forms, and a certificate of optimality that does not know how they were found."""

import numpy as np
import pytest

from anechoic.theory import Ball, Simplex, l1_step, mirror_step
from anechoic.theory.mirror import AllSpace, Entropy, Euclidean, PNorm, optimality_gap
from tests.marks import in_turn

POTENTIALS = [Euclidean(), PNorm(1.5), PNorm(1.1), PNorm(2.0), Entropy()]
DOMAINS = [Ball(1.0), Ball(0.7, 1.3), Ball(2.0, 3.0), Simplex(), Simplex(3.0)]


def check(potential, domain, rng):
    d = int(rng.integers(1, 9))
    y = rng.standard_normal(d) * 10 ** rng.uniform(-1, 1)
    rate = 10 ** rng.uniform(-1, 1)
    w = mirror_step(y, rate, potential, domain)
    assert domain.contains(w)
    scale = np.abs(y).max() * max(1.0, np.abs(w).max()) + 1 / rate
    assert optimality_gap(w, y, rate, potential, domain) <= 1e-11 * scale


@in_turn("domain", DOMAINS)
@pytest.mark.parametrize("potential", POTENTIALS, ids=str)
def test_steps_carry_a_certificate(potential, domain):
    check(potential, domain, np.random.default_rng(len(str(domain))))


@pytest.mark.slow
def test_steps_of_any_size_carry_a_certificate():
    """Sums and rates over eight orders of magnitude, all of space included."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        potential = POTENTIALS[rng.integers(len(POTENTIALS))]
        radius = 10 ** rng.uniform(-3, 3)
        domain = [AllSpace(), Ball(radius), Ball(radius, rng.choice([1.1, 3.0, 10.0]))][rng.integers(3)]
        y = rng.standard_normal(rng.integers(1, 9)) * 10 ** rng.uniform(-4, 4)
        rate = 10 ** rng.uniform(-4, 4)
        if isinstance(potential, Entropy) and isinstance(domain, AllSpace):
            rate = min(rate, 200 / np.abs(y).max())
        w = mirror_step(y, rate, potential, domain)
        assert domain.contains(w)
        scale = np.abs(y).max() * max(1.0, np.abs(w).max()) + max(1.0, np.abs(w).max()) ** 2 / rate
        assert optimality_gap(w, y, rate, potential, domain) <= 1e-6 * scale


def test_the_entropy_does_not_overflow():
    assert mirror_step([-800.0, 0.0], 1.0, Entropy(), Ball(2.0)) == pytest.approx([2.0, 0.0], abs=1e-2)
    with pytest.raises(ValueError, match="range of float64"):
        mirror_step([-800.0], 1.0, Entropy(), AllSpace())


def test_the_step_of_an_l1_ball_is_that_of_both_signs():
    y, rate, radius = np.array([0.4, -1.0]), 2.0, 1.5
    w = l1_step(y, rate, radius)
    assert np.abs(w).sum() <= radius
    shares = np.exp(-rate * np.array([0.4, -1.0, -0.4, 1.0]))
    assert w == pytest.approx(radius * (shares[:2] - shares[2:]) / shares.sum())
    assert l1_step(1e6 * y, rate, radius) == pytest.approx([0.0, radius])


def test_a_wrong_point_has_a_gap():
    y, w = np.array([1.0, -2.0]), mirror_step([1.0, -2.0], 0.5, Euclidean(), Ball(1.0))
    assert abs(optimality_gap(w, y, 0.5, Euclidean(), Ball(1.0))) < 1e-12
    assert optimality_gap(0.9 * w, y, 0.5, Euclidean(), Ball(1.0)) > 0.01
    assert optimality_gap(w[::-1], y, 0.5, Euclidean(), Ball(1.0)) > 0.1


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0])
def test_without_a_constraint_the_gradient_vanishes(p):
    y, rate = np.array([0.3, -2.0, 0.0, 1.0]), 0.7
    w = mirror_step(y, rate, PNorm(p), AllSpace())
    norm = np.linalg.norm(w, ord=p)
    assert y + norm ** (2 - p) * np.sign(w) * np.abs(w) ** (p - 1) / rate == pytest.approx(0.0, abs=1e-12)
    inside = mirror_step(y, rate, PNorm(p), Ball(10 * norm, p))
    assert inside == pytest.approx(w)
    assert mirror_step(np.zeros(4), rate, PNorm(p), AllSpace()) == pytest.approx(0.0)


@pytest.mark.slow
def test_steps_known_by_heart():
    y = np.array([1.0, 2.0, 4.0])
    assert mirror_step(y, 0.5, Entropy(), Simplex()) == pytest.approx(np.exp(-y / 2) / np.exp(-y / 2).sum())
    assert mirror_step([0.0, 0.2], 1.0, Euclidean(), Simplex()) == pytest.approx([0.6, 0.4])
    assert mirror_step([0.0, 9.0], 1.0, Euclidean(), Simplex()) == pytest.approx([1.0, 0.0])
    assert mirror_step([1.0, 1.0, 1.0], 2.0, PNorm(1.2), Simplex()) == pytest.approx([1 / 3] * 3)
    # of one coordinate, every potential of a ball ends at its edge
    assert mirror_step([5.0], 9.0, PNorm(1.3), Ball(0.2, 3.0)) == pytest.approx([-0.2])
