"""An index means the same example in every pass, or a warning says that it does not."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from tests.torch.setting import FEATURES, start, step

EXAMPLES = 40
WARNED = "another example at an index"


class Reordered(Dataset):
    """Example i is the order's i-th row, with noise of the global generator: augmented."""

    def __init__(self):
        self.rows = torch.randn(EXAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))
        self.order = np.arange(EXAMPLES)

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        row = self.rows[self.order[index]]
        return row + 0.1 * torch.rand(FEATURES), int(self.order[index]) % 2


def passes(dataset, change, count=3):
    """So many passes of a run; `change` is called before each of them."""
    run = start(dataset=dataset)
    for number in range(count):
        change(number)
        for batch in run.loader:
            step(run, batch)


@pytest.mark.slow
def test_a_data_set_that_shuffles_itself_is_warned_of(caplog):
    dataset = Reordered()

    def set_epoch(number):
        dataset.order = np.random.default_rng(number).permutation(EXAMPLES)

    with caplog.at_level(logging.WARNING, logger="anechoic"):
        passes(dataset, set_epoch)
    assert caplog.text.count(WARNED) == 1 and "set_epoch" in caplog.text


@pytest.mark.slow
def test_one_whose_rows_are_shuffled_in_place_is_warned_of(caplog):
    dataset = Reordered()
    dataset.__class__ = type("Plain", (Reordered,), {"__getitem__": lambda self, i: (self.rows[i], i % 2)})

    def shuffle(number):
        dataset.rows.copy_(dataset.rows.roll(1, 0))

    with caplog.at_level(logging.WARNING, logger="anechoic"):
        passes(dataset, shuffle)
    assert caplog.text.count(WARNED) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_one_that_augments_at_random_is_not(caplog, count):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        passes(Reordered(), lambda number: None, count)
    assert WARNED not in caplog.text
    assert torch.equal(torch.get_rng_state(), before)
