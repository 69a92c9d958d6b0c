import numpy as np
import pytest

from studies.federated.split import DailyWindows, dirichlet_split

LABELS = np.repeat(np.arange(5), 200)


@pytest.mark.parametrize(("clients", "alpha"), [(1, 1.0), (7, 0.05), (100, 0.3), (1000, 0.3)])
def test_a_split_is_a_partition_without_empty_clients(clients, alpha):
    parts = dirichlet_split(LABELS, clients, alpha, np.random.default_rng(0))
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))


def largest_share(alpha):
    """Mean share of a client's most frequent class."""
    parts = dirichlet_split(LABELS, 20, alpha, np.random.default_rng(1))
    return np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts])


def test_a_small_concentration_gives_clients_of_few_classes():
    assert largest_share(0.05) > 0.8
    assert largest_share(0.05) > largest_share(0.5) + 0.15
    assert largest_share(1000.0) < 0.3  # five classes, nearly evenly spread


def test_more_clients_than_examples_are_refused():
    with pytest.raises(ValueError, match="clients=1001 exceeds the 1000 examples"):
        dirichlet_split(LABELS, 1001, 0.3, np.random.default_rng(0))


def test_a_window_opens_once_a_day_also_over_midnight():
    windows = DailyWindows(np.array([22.0, 3.0]), np.array([4.0, 2.0]))
    hours = np.array([windows.there(hour) for hour in range(48)])
    assert np.flatnonzero(hours[:24, 0]).tolist() == [0, 1, 22, 23]
    assert np.flatnonzero(hours[:24, 1]).tolist() == [3, 4]
    assert np.array_equal(hours[:24], hours[24:])
