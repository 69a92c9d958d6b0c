"""The release is the same, bit for bit, on every number of ranks."""

import pytest

from tests.floats import same_bits
from tests.torch.ranks.processes import results
from tests.torch.ranks.setting import begun, digests, exact, train
from tests.torch.setting import network


def everywhere(tmp_path, make, *, ranks=(1, 2, 3), **how):
    """Weights and journal of one process; the others' are compared with them."""
    first = None
    for count in ranks:
        folder = tmp_path / str(count)
        folder.mkdir()
        found = results(count, lambda rank, folder=folder: train(make(journal=folder), **how))
        assert all(same_bits(found[0], other) for other in found)
        now = found[0], digests(folder)
        first = first or now
        assert same_bits(first[0], now[0]), f"{count} ranks"
        assert first[1] == now[1]
    return first


def test_of_a_plain_run(tmp_path):
    everywhere(tmp_path, lambda **o: begun(exact("poisson"), model=network(dropout=0.3), **o))
