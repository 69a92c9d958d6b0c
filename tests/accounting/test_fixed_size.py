"""Batches without replacement: against all subsets of few records, their ends, and dp-accounting."""

import math
from itertools import combinations

import numpy as np
import pytest

from anechoic.accounting import epsilon_of, gaussian_epsilon, poisson_epsilon
from anechoic.errors import UnsupportedError
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.composition import compose
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedSize, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from tests.marks import slow

ADJACENCIES = ("zero_out", "replace_one")


def claimed(adjacency, n, size, steps, std, delta):
    return Mechanism(Identity(steps), FixedSize(n, size, steps), std, adjacency=adjacency).epsilon(delta)


def laws(records, size, std, grid):
    """Density of the sum of a batch plus noise, by all subsets; records of shape (n, d), grid (points, d)."""
    sums = [records[list(batch)].sum(axis=0) for batch in combinations(range(len(records)), size)]
    distances = np.square(grid[:, None, :] - np.array(sums)).sum(axis=2)
    width = std * math.sqrt(2 * math.pi)
    return np.exp(-distances / (2 * std**2)).mean(axis=1) / width ** grid.shape[1]


def neighbours(adjacency, n, seed):
    """Others and the two states of one record, at the ends of [-1, 1] and inside."""
    rng = np.random.default_rng(seed)
    corners = [np.full(n - 1, value) for value in (-1.0, 1.0, 0.0)]
    corners += [np.resize([1.0, -1.0], n - 1), *rng.uniform(-1, 1, (3, n - 1))]
    states = [(1.0, 0.0), (0.4, 0.0), (0.0, 0.0)] if adjacency == "zero_out" else [(1.0, -1.0), (-1.0, 0.3)]
    for others in corners:
        for one, other in states:
            yield np.append(others, one)[:, None], np.append(others, other)[:, None]


def worst_of_two(adjacency, n, size, std, epsilon):
    """delta of two steps, the larger direction, where the second step is chosen after the first release."""
    grid = np.linspace(-size - 7 * std, size + 7 * std, 300)
    step = grid[1] - grid[0]
    pairs = [
        tuple(laws(records, size, std, grid[:, None]) * step for records in both)
        for both in neighbours(adjacency, n, 1)
    ]
    found = 0.0
    for turned in (False, True):
        seen = [(q, p) if turned else (p, q) for p, q in pairs]
        # after a release of ratio q / p the adversary wants sum of (p2 - K q2)_+ at K = e^epsilon q / p
        for p, q in seen:
            inner = np.max(
                [np.maximum(np.outer(p, p2) - math.exp(epsilon) * np.outer(q, q2), 0.0).sum(axis=1)
                 for p2, q2 in seen], axis=0,
            )  # fmt: skip
            found = max(found, float(inner.sum()))
    return found


SETTINGS = [(6, 2, 1.0, 0.03), *slow((8, 3, 2.0, 0.01), (5, 4, 0.7, 0.1), (7, 1, 0.5, 0.05))]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("n", "size", "std", "delta"), SETTINGS)
def test_two_adaptive_steps_never_show_more_and_nearly_as_much(adjacency, n, size, std, delta):
    epsilon = claimed(adjacency, n, size, 2, std, delta)
    shown = worst_of_two(adjacency, n, size, std, epsilon)
    assert 0.9 * delta <= shown <= delta * (1 + 1e-3)
    # with the epsilon of Poisson sampling of this rate, neighbours of fixed size are told apart
    poisson = Mechanism(Identity(2), Poisson(n, size, 2), std, adjacency=adjacency).epsilon(delta)
    assert worst_of_two(adjacency, n, size, std, poisson) > 1.03 * delta


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_one_step_is_exact(adjacency):
    """All others opposite to the record, or alike, where a strike is below 1: the bound is attained."""
    n, size, std = 6, 2, 1.0
    grid = np.linspace(-10, 10, 4001)
    pairs = [
        [laws(records, size, std, grid[:, None]) * (grid[1] - grid[0]) for records in both]
        for both in neighbours(adjacency, n, 1)
    ]
    for delta in (0.1, 0.02, 1e-4):
        epsilon = claimed(adjacency, n, size, 1, std, delta)
        turned = [*pairs, *((q, p) for p, q in pairs)]
        shown = [np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in turned]
        assert max(shown) == pytest.approx(delta, rel=2e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_records_of_two_dimensions_show_no_more(adjacency):
    rng, axis = np.random.default_rng(3), np.linspace(-7, 7, 90)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    n, size, delta = 5, 2, 0.02
    epsilon = claimed(adjacency, n, size, 1, 1.0, delta)
    for _ in range(8):
        records = rng.standard_normal((n, 2))
        records /= np.maximum(1.0, np.linalg.norm(records, axis=1))[:, None]
        moved = records.copy()
        moved[-1] = 0.0 if adjacency == "zero_out" else -records[-1]
        p, q = (laws(each, size, 1.0, grid) * (axis[1] - axis[0]) ** 2 for each in (records, moved))
        for one, other in ((p, q), (q, p)):
            assert np.maximum(one - math.exp(epsilon) * other, 0).sum() <= delta


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_epsilon_grows_with_the_rate_to_that_of_everybody(adjacency):
    values = [claimed(adjacency, 1000, size, 12, 4.0, 1e-6) for size in (1, 10, 100, 500, 900, 999, 1000)]
    whole = gaussian_epsilon(1e-6, (2 if adjacency == "replace_one" else 1) * math.sqrt(12) / 4.0)
    assert values == sorted(values) and values[-1] == pytest.approx(whole, rel=1e-9)
    assert values[-2] == pytest.approx(whole, rel=2e-3)
    for size, value in zip((10, 100, 500), values[1:], strict=False):
        assert value > poisson_epsilon(1e-6, 4.0, size / 1000, 12, adjacency=adjacency)


RUNS = [(1000, 500, 10, 5.0)]
RUNS += slow((1200, 60, 40, 1.1), (50_000, 500, 1000, 1.0), (60_000, 256, 20_000, 4.0))


@pytest.mark.parametrize(("n", "size", "steps", "std"), RUNS)
def test_events_there_and_back(n, size, steps, std):
    """dp-accounting has Rényi divergences of this event, under replacement alone."""
    dp_accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    for adjacency in ADJACENCIES:
        mechanism = Mechanism(Identity(steps), FixedSize(n, size, steps), std, adjacency=adjacency)
        event, epsilon = mechanism.dp_event(), mechanism.epsilon(1e-5)
        assert epsilon_of(event, 1e-5, adjacency=adjacency) == pytest.approx(epsilon, rel=2e-3)
        theirs = rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
        assert epsilon <= theirs
    one = event.event
    assert (one.source_dataset_size, one.sample_size, one.event.noise_multiplier) == (n, size, std / 2)


def test_events_are_read_by_an_adjacency_that_has_them():
    dp_accounting = pytest.importorskip("dp_accounting")
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    event = dp_accounting.SampledWithoutReplacementDpEvent(90, 30, gaussian)
    with pytest.raises(UnsupportedError, match=r"without replacement have one under adjacency='zero_out'"):
        epsilon_of(event, 1e-5)
    everybody = dp_accounting.SampledWithoutReplacementDpEvent(90, 90, gaussian)
    both = dp_accounting.ComposedDpEvent([event, dp_accounting.GaussianDpEvent(4.0)])
    for adjacency, distance in (("zero_out", 1.0), ("replace_one", 2.0)):
        found = epsilon_of(everybody, 1e-5, adjacency=adjacency)
        assert found == pytest.approx(gaussian_epsilon(1e-5, distance / 3.0), rel=1e-3)
        alone = epsilon_of(event, 1e-5, adjacency=adjacency)
        assert alone < epsilon_of(both, 1e-5, adjacency=adjacency) < found + alone + 8.0
    odd = dp_accounting.SampledWithoutReplacementDpEvent(90, 30, dp_accounting.LaplaceDpEvent(2.0))
    with pytest.raises(UnsupportedError, match="no privacy loss distribution"):
        epsilon_of(odd, 1e-5, adjacency="zero_out")
    for size in (0, 91):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            epsilon_of(
                dp_accounting.SampledWithoutReplacementDpEvent(90, size, gaussian), 1e-5, adjacency="zero_out"
            )


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_noise_is_found_and_composed(adjacency):
    sampling = FixedSize(1200, 60, 40)
    made = calibrate(Identity(40), sampling=sampling, epsilon=2.0, delta=1e-6, adjacency=adjacency)
    assert 2.0 * (1 - 1e-4) <= made.epsilon() <= 2.0
    twice = Mechanism(Identity(80), FixedSize(1200, 60, 80), made.noise_std, adjacency=adjacency, delta=1e-6)
    assert compose(made, times=2).epsilon(1e-6) == pytest.approx(twice.epsilon(), rel=1e-3)


def test_what_is_not_proved_is_refused_with_what_is():
    bands = BandedToeplitz(40, [1.0, 0.5])
    with pytest.raises(UnsupportedError, match=r"bands=2 under FixedSize.*BallsInBins or CyclicPoisson"):
        Mechanism(bands, FixedSize(1200, 60, 40), 1.0)
    with pytest.raises(UnsupportedError, match=r"add_or_remove' under FixedSize.*'zero_out' or"):
        Mechanism(Identity(40), FixedSize(1200, 60, 40), 1.0, adjacency="add_or_remove")
