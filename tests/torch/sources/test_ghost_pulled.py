"""Code of the script's that runs in ghost clipping's backward pass: hooks, and functions of its own."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import GuaranteeError
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.ghost import gradients
from anechoic.torch.sources.ghost.module import Tracer

B, CLIP = 8, 0.1


class Changed(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def every(change):
    """A change of one gradient, as hooks of nodes and modules take several."""
    return lambda found: tuple(g if g is None else change(g) for g in found)


def on_tensor(net, h, change):
    h.register_hook(change)
    return h


def on_node(net, h, change):
    h.grad_fn.register_hook(lambda found, _: every(change)(found))
    return h


def on_several(net, h, change):
    torch.autograd.graph.register_multi_grad_hook([h], lambda found: found[0].copy_(change(found[0])))
    return h


def on_module(net, h, change):
    if not net.b._backward_hooks:
        net.b.register_full_backward_hook(lambda layer, found, _: every(change)(found))
    return h


def before_module(net, h, change):
    if not net.b._backward_pre_hooks:
        net.b.register_full_backward_pre_hook(lambda layer, found: every(change)(found))
    return h


def on_saved(net, h, change):
    with saved_tensors_hooks(lambda t: t, change):
        return h.exp()


WAYS = {
    "hook on a tensor": on_tensor,
    "hook on a node": on_node,
    "hook on several tensors": on_several,
    "hook on a module": on_module,
    "hook before a module": before_module,
    "hook on saved tensors": on_saved,
    "function": lambda net, h, change: Changed.apply(h, change),
}


def over_batch(most):
    """Clipping to the norm over all rows: nothing is changed below it."""
    return lambda g: g * torch.clamp(most / (g.norm() + 1e-12), max=1.0)


def over_row(most):
    return lambda g: g * torch.clamp(most / (g.flatten(1).norm(dim=1) + 1e-12), max=1.0).unsqueeze(1)


def decided(most):
    return lambda g: g * most / g.norm() if g.norm() > most else g


class Net(nn.Module):
    def __init__(self, way=None, change=None, since=0):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)
        self.way, self.change, self.since, self.calls = way, change, since, 0

    def forward(self, x):
        h = torch.tanh(self.norm(self.a(x)))
        self.calls += 1
        return self.b(self.way(self, h, self.change) if self.way and self.calls > self.since else h)


def released(model, *, batches=2, outlier=0.0, pull=None, batches_of=None, **keys):
    """The releases of some batches without noise, as sums; a target of the second is an outlier."""
    made = torch.Generator().manual_seed(3)
    x, y = torch.randn(batches * B, 6, generator=made), torch.randn(batches * B, 3, generator=made)
    y[B] += outlier
    module, optimizer, criterion, loader = PrivacyEngine(**keys).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        criterion=nn.MSELoss(),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=B),
        mechanism="identity",
        noise_multiplier=1e-9,
        max_grad_norm=CLIP,
        target_delta=1e-5,
        epochs=1,
        poisson_sampling=False,
        grad_sample_mode="ghost",
    )
    for features, targets in loader:
        if batches_of is not None:
            batches_of.append((features, targets))
        optimizer.zero_grad()
        loss = criterion(module(features), targets)
        loss.backward() if pull is None else pull(loss)
        optimizer.step()
        yield B * torch.cat([p.grad.flatten().double() for p in model.parameters()])


def net(*args, **options):
    torch.manual_seed(0)
    return Net(*args, **options)


@pytest.fixture
def unlucky(monkeypatch):
    """No pass is chosen for a second one by chance; gives for each pass whether it was followed."""
    monkeypatch.setattr(gradients, "randbelow", lambda bound: 1)
    passes, run = [], Tracer.run

    def noted(self, loss, *, apart, followed):
        passes.append(followed)
        return run(self, loss, apart=apart, followed=followed)

    monkeypatch.setattr(Tracer, "run", noted)
    return passes


@pytest.mark.parametrize("way", WAYS)
def test_what_would_join_rows_only_in_a_later_batch_is_refused_by_its_type(way, unlucky):
    with pytest.raises(GuaranteeError, match=r"mixes the rows of the batch(.|\n)*grad_sample_mode='rows'"):
        # nothing reaches the threshold before the outlier of the second batch
        list(released(net(WAYS[way], over_batch(1e3)), outlier=1e6))


@pytest.mark.parametrize("way", WAYS)
def test_what_begins_to_join_rows_later_is_refused_then(way, unlucky):
    releases = released(net(WAYS[way], over_batch(1e-3), since=2), batches=3)
    next(releases), next(releases)
    assert not any(unlucky)
    with pytest.raises(GuaranteeError, match="mixes the rows of the batch"):
        next(releases)


@pytest.mark.parametrize("way", WAYS)
def test_decisions_in_the_backward_pass_are_refused(way, unlucky):
    with pytest.raises(GuaranteeError, match="took a number out of a gradient"):
        list(released(net(WAYS[way], decided(1e3)), outlier=1e6))


def one_by_one(model, x, y):
    """The clipped sum of a batch, row after row by plain autograd."""
    total = 0
    for row in range(len(x)):
        model.zero_grad()
        nn.MSELoss()(model(x[row : row + 1]), y[row : row + 1]).backward()
        gradient = torch.cat([p.grad.flatten().double() for p in model.parameters()])
        total = total + gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


@pytest.mark.parametrize("way", [way for way in WAYS if way != "hook on saved tensors"])
def test_what_keeps_rows_apart_is_followed_in_every_step_and_right(way, unlucky):
    model, batches = net(WAYS[way], over_row(0.01)), []
    found = list(released(model, outlier=1e6, batches_of=batches))
    assert unlucky == [True] * 2
    for release, batch in zip(found, batches, strict=True):
        expected = one_by_one(net(WAYS[way], over_row(0.01)), *batch)
        assert torch.allclose(release, expected, rtol=1e-3, atol=1e-4 * CLIP)


def test_an_ordinary_pass_is_not_followed(unlucky):
    list(released(net(), batches=4))
    assert unlucky == [False] * 4


class Dropped(nn.Module):
    def __init__(self, through):
        super().__init__()
        self.a, self.drop, self.b, self.through = nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3), through

    def forward(self, x):
        return self.b(self.through(lambda h: self.drop(self.a(h)).tanh(), x))


@pytest.mark.parametrize("reentrant", [False, True])
def test_segments_that_are_computed_again_draw_the_same_masks(reentrant, unlucky):
    def again(function, x):
        return checkpoint(function, x.requires_grad_(reentrant), use_reentrant=reentrant)

    keys = {"noise_key": b"n" * 32, "sampling_key": b"s" * 32}
    sums = []
    for through in (lambda function, x: function(x), again):
        torch.manual_seed(0)
        sums.append(torch.stack(list(released(Dropped(through), **keys))))
    assert unlucky == [False] * 2 + [True] * 2
    assert torch.allclose(*sums, rtol=1e-4, atol=1e-6)
