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


class Plain(Reordered):
    def __getitem__(self, index):
        return self.rows[index], index % 2


def set_epoch(dataset, number):
    dataset.order = np.random.default_rng(number).permutation(EXAMPLES)


def in_place(dataset, number):
    dataset.rows.copy_(dataset.rows.roll(1, 0))


@pytest.mark.parametrize(
    ("kind", "change", "count", "warned"),
    [
        (Reordered, set_epoch, 3, True),
        (Plain, in_place, 3, True),
        (Reordered, lambda *_: None, 3, False),  # augments at random
        (Reordered, lambda *_: None, 1, False),
    ],
)
def test_a_data_set_that_shuffles_itself_is_warned_of_once(kind, change, count, warned, caplog):
    torch.manual_seed(7)
    dataset, before = kind(), torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        passes(dataset, lambda number: change(dataset, number), count)
    assert caplog.text.count(WARNED) == warned and ("set_epoch" in caplog.text) == warned
    assert torch.equal(torch.get_rng_state(), before)
