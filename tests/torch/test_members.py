"""The parameters of a model are those of make_private, by identity and in every place."""

import contextlib

import pytest
import torch
from torch import nn

from anechoic.errors import MismatchError
from tests.torch.setting import FEATURES, start, step


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 5), nn.Linear(5, 2)
        self.extra = nn.ModuleList()

    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.head(hidden) + sum(layer(hidden) for layer in self.extra)


def grow(model):
    model.extra.append(nn.Linear(5, 2))


def replace(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def tie(model):
    model.head.bias = model.extra_bias = nn.Parameter(torch.zeros(2))


def remove(model):
    model.head.bias = None


def cast(model):
    model.double()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (grow, r"extra\.0\.bias appeared"),
        (replace, r"head\.weight was replaced"),
        (tie, r"extra_bias appeared"),
        (remove, r"head\.bias is gone"),
        (cast, r"body\.bias is \(torch\.float64,.*was \(torch\.float32,.*move and cast the model before"),
    ],
)
@pytest.mark.parametrize(("mode", "when"), [("rows", 0), ("rows", 1), ("ghost", 1)])
@pytest.mark.few(5)
def test_what_was_not_there_at_make_private_is_refused_before_a_release(change, named, mode, when):
    run = start(mode, model=Growing(), shuffle=False)
    batches = iter(run.loader)
    for _ in range(when):
        step(run, next(batches))
    batch = next(batches)
    change(run.model)
    with pytest.raises(MismatchError, match=rf"{named}.*Nothing was released"):
        with contextlib.suppress(AttributeError, RuntimeError):  # a forward pass that is broken now
            step(run, batch)
        run.optimizer.step()
    assert run.engine.releases == when


def test_a_frozen_parameter_that_is_unfrozen_is_named():
    model = Growing()
    model.body.bias.requires_grad_(False)
    trained = lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad])  # noqa: E731
    run = start(model=model, optimizer=trained)
    batch = next(iter(run.loader))
    run.optimizer.zero_grad()
    run.criterion(run.module(batch[0]), batch[1]).backward()
    model.body.bias.requires_grad_(True)
    with pytest.raises(MismatchError, match=r"body\.bias was unfrozen"):
        run.optimizer.step()


def test_no_checkpoint_of_a_model_that_grew(tmp_path):
    run = start(model=Growing())
    step(run, next(iter(run.loader)))
    grow(run.model)
    with pytest.raises(MismatchError, match=r"extra\.0\.bias appeared"):
        run.engine.save_checkpoint(path=tmp_path / "run")
