"""What is refused or warned of names the layer and a remedy that works."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from tests.torch.setting import start

LENGTH, WORDS, ROWS = 5, 7, 9
TEXT = torch.randint(WORDS, (2 * ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


class Language(nn.Module):
    """Positions as nanoGPT has them, or expanded to the batch."""

    def __init__(self, shared=True):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Embedding(LENGTH, 4)
        self.head = nn.Linear(4, WORDS)
        self.shared = shared

    def forward(self, x):
        places = torch.arange(LENGTH)
        places = places if self.shared else places.repeat(len(x), 1)
        return self.head((self.words(x) + self.places(places)).tanh()).transpose(1, 2)


def language(mode, **options):
    mech = Mechanism(Identity(2), FixedOrder(2 * ROWS, ROWS, steps=2), 1.0)
    return start(mode, mech=mech, model=Language(**options), dataset=TensorDataset(TEXT, TEXT), keys=False)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_positions_of_all_rows_and_a_flattened_loss(mode, shared):
    run = language(mode, shared=shared)
    x, y = next(iter(run.loader))
    logits = run.module(x).transpose(1, 2).flatten(0, 1)
    run.criterion(logits, y.flatten()).backward()
    run.optimizer.step()
    assert run.engine.releases == 1


def test_an_optimizer_with_a_past_is_warned_of(caplog):
    def used(parameters):
        parameters = list(parameters)
        optimizer = torch.optim.Adam(parameters, lr=0.0)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    for made, times in ((lambda ps: torch.optim.Adam(ps, lr=0.0), 0), (used, 1)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="anechoic"):
            start(optimizer=made)
        assert caplog.text.count("holds 8 tensors of statistics of earlier gradients") == times
