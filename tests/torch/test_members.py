"""The parameters of a model are those of make_private, by identity and in every place."""

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
    return model.extra.parameters()


def replace(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return [model.head.weight]


def tie(model):
    model.head.bias = model.extra_bias = nn.Parameter(torch.zeros(2))
    return [model.head.bias]


def remove(model):
    model.head.bias = None
    return [nn.Parameter(torch.zeros(1))]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (grow, r"extra\.0\.bias appeared"),
        (replace, r"head\.weight was replaced"),
        (tie, r"extra_bias appeared"),
        (remove, r"head\.bias is gone"),
    ],
)
@pytest.mark.parametrize(("mode", "when"), [("rows", 0), ("rows", 1), ("ghost", 1)])
@pytest.mark.few(5)
def test_what_was_not_there_at_make_private_is_refused_before_a_release(change, named, mode, when):
    run = start(mode, model=Growing(), shuffle=False)
    with pytest.raises(MismatchError, match=rf"{named}.*Nothing was released"):
        for t, batch in enumerate(run.loader):
            if t == when:
                raw = torch.optim.SGD(list(change(run.model)), lr=1.0)
            try:
                step(run, batch)
            except MismatchError:
                raise
            except Exception:
                run.optimizer.step()
            raw.step() if t >= when else None
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
