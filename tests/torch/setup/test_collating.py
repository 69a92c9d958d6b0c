"""A collate function that mixes the examples of a batch is refused, one that pads them is warned of."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, default_collate

from anechoic.errors import UnsupportedError
from anechoic.torch.loading.selftest import with_others
from tests.torch.setting import data, mechanism, start

EXAMPLES = [data(40)[i] for i in range(9)]
LONG = [(torch.arange(float(i % 4 + 1)), i) for i in range(9)]


def centred(batch):
    x, y = default_collate(batch)
    return x - x.mean(0), y


def mixup(batch):
    x, y = default_collate(batch)
    return {"x": 0.9 * x + 0.1 * x.roll(1, 0), "y": y}


def mixup_at_random(batch):
    x, y = default_collate(batch)
    return x + torch.rand(()) * x.roll(1, 0), y


def arrays(batch):
    x = np.stack([x.numpy() for x, _ in batch])
    return x / np.abs(x).max()


def padded(batch):
    xs, ys = zip(*batch, strict=True)
    return pad_sequence(list(xs), batch_first=True), torch.tensor(ys)


def padded_left(batch):
    longest = max(len(x) for x, _ in batch)
    return [torch.stack([torch.cat([torch.zeros(longest - len(x)), x]) for x, _ in batch])]


def sorted_and_padded_to(batch, longest=4):
    ordered = sorted(batch, key=lambda pair: -len(pair[0]))
    return torch.stack([torch.cat([x, torch.zeros(longest - len(x))]) for x, _ in ordered])


def in_columns(batch):
    x, y = default_collate(batch)
    return (x - x.mean(0)).T, y


@pytest.mark.parametrize(
    ("collate", "examples", "batch_first", "found"),
    [
        (default_collate, EXAMPLES, True, ("", "")),
        (centred, EXAMPLES, True, ("batch[0]", "")),
        (mixup, EXAMPLES, True, ("batch['x']", "")),
        (mixup_at_random, EXAMPLES, True, ("", "")),  # what is random cannot be compared
        (arrays, EXAMPLES, True, ("batch", "")),
        (padded, LONG, True, ("", "batch[0]")),
        (padded_left, LONG, True, ("", "batch[0]")),
        (sorted_and_padded_to, LONG, True, ("", "")),
        (lambda batch: torch.cat([x for x, _ in batch]), LONG, True, ("", "")),  # no row an example
        (in_columns, EXAMPLES, False, ("batch[0]", "")),
        (centred, EXAMPLES[:1], True, ("", "")),
    ],
)
def test_what_is_seen(collate, examples, batch_first, found):
    assert with_others(examples, collate, batch_first) == found


def test_a_collate_function_that_mixes_is_refused():
    with pytest.raises(UnsupportedError, match=r"batch\[0\] differs.*mixes the examples"):
        start(keys=False, loader={"collate_fn": centred})


class Sentences(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return LONG[index % 9]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_pads_is_warned_of(caplog, workers):
    model = nn.Sequential(nn.Linear(4, 2))
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        start(
            keys=False,
            model=model,
            dataset=Sentences(),
            loader={"collate_fn": padded, "num_workers": workers},
            mech=mechanism(),
        )
    assert "batch[0] longer where others of the batch are" in caplog.text
