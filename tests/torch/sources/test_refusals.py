"""What is refused or warned of names the layer and a remedy that works."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from tests.torch.setting import start, step

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


@pytest.mark.slow
def test_shared_positions_are_named_and_the_remedies_work():
    run = language("ghost")
    found = (
        r"places \(Embedding\) was called with what does not come from the examples.*grad_sample_mode='rows'"
    )
    with pytest.raises(GuaranteeError, match=found):
        step(run, next(iter(run.loader)))
    for remedy in (language("rows"), language("auto"), language("ghost", shared=False)):
        step(remedy, next(iter(remedy.loader)))
        assert remedy.engine.releases == 1


def test_a_flattened_loss_is_blamed_and_not_the_layer():
    run = language("ghost", shared=False)
    x, y = next(iter(run.loader))
    logits = run.module(x).transpose(1, 2).flatten(0, 1)
    with pytest.raises(DesynchronizedError, match=r"gave 45 losses for a batch of 9 .* shape=targets\.shape"):
        run.criterion(logits, y.flatten()).backward()
    run.optimizer.zero_grad()
    logits = run.module(x).transpose(1, 2).flatten(0, 1)
    run.criterion(logits, y.flatten(), shape=y.shape).backward()
    run.optimizer.step()


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
