"""What docs/frameworks.md says of any framework, by stand-ins that do what these do.

Each stand-in is a few lines: a wrapped optimizer, a loader that is rebuilt or reads ahead, accumulation.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError
from tests.torch.setting import backward, start, step, train


class Delegating(torch.optim.Optimizer):
    """An optimizer around another one: its state is loaded back once, and step() is handed on."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        optimizer.load_state_dict(optimizer.state_dict())

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def state_dict(self):
        return self.optimizer.state_dict()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure=None):
        return self.optimizer.step(closure)


class Delivering:
    """A loader around another one that moves batches to a device."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for batch in self.loader:
            yield [tensor.to("cpu") for tensor in batch]


class Ahead(Delivering):
    """One that has the next batch in hand when it gives one away."""

    def __iter__(self):
        batches = iter(self.loader)
        current = next(batches)
        for following in batches:
            yield current
            current = following
        yield current


def wrapped(run, **parts):
    return SimpleNamespace(**vars(run) | parts)


def test_a_wrapped_optimizer_and_a_handed_on_loader_make_the_same_run():
    plain = train(start(), 4)
    run = start()
    inside = wrapped(run, optimizer=Delegating(run.optimizer), loader=Delivering(run.loader))
    assert torch.equal(train(inside, 4), plain)
    assert run.engine.releases == 4


def test_a_loader_that_reads_ahead_is_refused():
    run = start()
    with pytest.raises(DesynchronizedError, match="a loop that reads ahead"):
        for batch in Ahead(run.loader):
            step(run, batch)
    assert run.engine.releases == 0


def test_a_loader_that_is_rebuilt_delivers_nothing():
    run = start()
    rebuilt = DataLoader(run.loader.dataset, batch_sampler=run.loader.batch_sampler)
    batch = next(iter(rebuilt))
    run.optimizer.zero_grad()
    with pytest.raises(DesynchronizedError, match="no batch was delivered|was not delivered"):
        backward(run, batch)
        run.optimizer.step()
    assert run.engine.releases == 0
