"""Ghost clipping: the sum of clipped gradients is the brute-force one, and what would escape is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.clipping import Clipping
from tests.marks import each_once, each_pair
from tests.torch.setting import start, weights

B, CLIP = 8, 1.0


def private(model, x, y, criterion, *, mode="ghost", clip=CLIP, **options):
    """A run of one release, over all of x, with hardly any noise and a learning rate of 1."""
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        mechanism="identity",
        noise_multiplier=1e-9,
        max_grad_norm=clip,
        target_delta=1e-5,
        epochs=1,
        poisson_sampling=False,
        grad_sample_mode=mode,
        loss_reduction=getattr(criterion, "reduction", "mean"),
        **options,
    )


def clipped_sum(make, x, y, criterion, *, loss=None, **options):
    """Minus the update, in units of the sum."""
    torch.manual_seed(0)
    model = make()
    before = weights(model)
    module, optimizer, private_criterion, loader = private(model, x, y, criterion, **options)
    forward = module if isinstance(module, nn.Module) else model
    for batch in loader:
        optimizer.zero_grad()
        if loss is None:
            private_criterion(forward(batch[0]), batch[1]).backward()
        else:
            loss(private_criterion, forward, *batch).backward()
        optimizer.step()
    moved = before - weights(model)
    return moved * (len(x) if private_criterion.loss_reduction == "mean" else 1)


def brute_force(make, x, y, criterion, *, clip=CLIP):
    """Example after example, with the plain criterion."""
    torch.manual_seed(0)
    model, total = make(), 0
    for i in range(len(x)):
        model.zero_grad()
        criterion(model(x[i : i + 1]), y[i : i + 1]).backward()
        made = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradient = torch.cat([part.reshape(-1) for part in made])
        total = total + gradient * (clip / (gradient.norm() + 1e-6)).clamp(max=1)
    return total


def inputs(*shape, seed=1):
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(seed))


# Losses of other shapes than (examples,).


@pytest.mark.parametrize(
    ("kind", "scale", "reduction"),
    each_pair(["mse", "mse-wide", "mse-cube", "bce", "bce-wide", "ce"], [0.01, 1.0, 100.0], ["mean", "sum"]),
)
@pytest.mark.few(5)
def test_the_sum_is_that_of_gradients_clipped_one_by_one(kind, scale, reduction):
    outputs = {"mse": 1, "bce": 1}.get(kind, 3)
    x, y = inputs(4) * scale, inputs(outputs, seed=2)
    criterion = {"m": nn.MSELoss, "b": nn.BCEWithLogitsLoss, "c": nn.CrossEntropyLoss}[kind[0]](
        reduction=reduction
    )
    shape = [nn.Unflatten(1, (1, 3))] if kind == "mse-cube" else []
    y = {"m": y, "b": y.sigmoid(), "c": y.argmax(1)}[kind[0]]
    if shape:
        y = y[:, None]

    def make():
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs), *shape)

    assert torch.allclose(
        clipped_sum(make, x, y, criterion), brute_force(make, x, y, criterion), atol=1e-4, rtol=1e-4
    )


def test_positions_that_the_criterion_ignores_do_not_count():
    x, y = inputs(4), torch.randint(0, 3, (B, 5), generator=torch.Generator().manual_seed(3))
    y[:, 3:] = -100
    y[0, 1:] = -100

    def make():
        return nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (3, 5)))

    criterion = nn.CrossEntropyLoss()
    assert torch.allclose(clipped_sum(make, x, y, criterion), brute_force(make, x, y, criterion), atol=1e-4)

    def flat(private_criterion, module, batch, targets):
        logits = module(batch).transpose(1, 2)
        return private_criterion(logits.reshape(-1, 3), targets.reshape(-1), shape=logits.shape)

    assert torch.allclose(
        clipped_sum(make, x, y, criterion, loss=flat), brute_force(make, x, y, criterion), atol=1e-4
    )


class Unattributed(nn.Module):
    def forward(self, out, y):
        return ((out - y) ** 2).mean()


class Heedless(Unattributed):
    reduction = "mean"


@pytest.mark.parametrize("criterion", [Unattributed(), lambda out, y: ((out - y) ** 2).mean(), None])
def test_a_criterion_without_reduction_is_refused_at_once(criterion):
    with pytest.raises(UnsupportedError, match="has no attribute `reduction`"):
        private(nn.Linear(3, 1), inputs(3), inputs(1), criterion)


def refused(error, match, make=lambda: nn.Linear(3, 1), x=None, y=None, criterion=None, loss=None):
    x, y = inputs(3) if x is None else x, inputs(1) if y is None else y
    with pytest.raises(error, match=match):
        clipped_sum(make, x, y, criterion or nn.MSELoss(), loss=loss)


def test_a_criterion_that_ignores_reduction_is_refused():
    refused(GuaranteeError, r"a tensor of shape \(\)", criterion=Heedless())


@pytest.mark.parametrize(
    "change",
    [
        lambda loss, _: loss * torch.ones(B, 1),
        lambda loss, _: torch.ones(B, 1) * loss,
        lambda loss, _: loss / torch.ones(B, B),
        lambda loss, _: loss * torch.ones(B).numpy(),
        lambda loss, _: torch.ones(B).numpy() * loss,
        lambda loss, _: loss * loss,
        lambda loss, module: loss * module.weight.sum(),
        lambda loss, module: loss + 10 * module.weight.square().sum(),
        lambda loss, module: module.weight.square().sum() + loss,
        lambda loss, module: loss - module.weight.square().sum(),
        lambda loss, module: module.weight.square().sum() - loss,
        lambda loss, _: loss + torch.ones(B),
        lambda loss, _: loss + "1",
    ],
)
@pytest.mark.few(7)
def test_what_would_not_be_clipped_is_refused_in_arithmetic(change):
    def loss(criterion, module, x, y):
        return change(criterion(module(x), y), module._module)

    refused(GuaranteeError, "was multiplied or divided by|was added to the loss", loss=loss)


def test_arithmetic_with_numbers_weights_and_losses_of_the_batch():
    x, y, share = inputs(3), inputs(1, seed=2), torch.rand(B)
    weighted = nn.Linear(3, 1)

    def loss(criterion, module, x, y):
        out = module(x)
        one = criterion(out, y)
        negative = -(2 * (one * share + 0 * one) - one / 4 + 1)
        return -negative + torch.tensor(3.0) - (1 - one)

    def by_hand():
        total, model = 0, weighted
        for i in range(B):
            model.zero_grad()
            ((2 * share[i] - 0.25 + 1) * nn.functional.mse_loss(model(x[i]), y[i])).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            total = total + gradient / max(1.0, gradient.norm().item())
        return total

    torch.manual_seed(0)
    weighted = nn.Linear(3, 1)
    assert torch.allclose(
        clipped_sum(lambda: nn.Linear(3, 1), x, y, nn.MSELoss(), loss=loss), by_hand(), atol=1e-4
    )


def test_a_loss_of_another_length_is_refused_and_the_batch_can_be_done_again():
    model = nn.Linear(3, 1)
    module, optimizer, criterion, loader = private(model, inputs(3), inputs(1), nn.MSELoss())
    x, y = next(iter(loader))
    before = weights(model)
    with pytest.raises(GuaranteeError, match="takes rows to pieces"):
        criterion(module(x).reshape(4, 2), y.reshape(4, 2)).backward()
    with pytest.raises(DesynchronizedError, match="no clipped gradient"):
        optimizer.step()
    assert torch.equal(weights(model), before)
    criterion(module(x), y).backward()
    optimizer.step()
    assert not torch.equal(weights(model), before)


def test_a_sum_above_its_bound_is_refused(monkeypatch):
    model = nn.Linear(3, 1)
    module, optimizer, criterion, loader = private(model, inputs(3), inputs(1), nn.MSELoss())
    x, y = next(iter(loader))
    before = weights(model)
    true = Clipping.factors
    monkeypatch.setattr(Clipping, "factors", lambda *given, **bound: 1e4 * true(*given, **bound))
    criterion(module(x), y).backward()
    with pytest.raises(GuaranteeError, match="something was not clipped"):
        optimizer.step()
    assert torch.equal(weights(model), before)


# Parameters used apart from the call of their layer.


class Net(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.a, self.b, self.use = nn.Linear(3, 3), nn.Linear(3, 1), use

    def forward(self, x):
        return self.use(self, x)


USES = {
    "functional": lambda net, x: net.b(1e-3 * net.a(x) + F.linear(1e3 * x, net.a.weight)),
    "tied": lambda net, x: net.b(F.linear(net.a(x), net.a.weight)),
    "bias": lambda net, x: net.b(net.a(x)) + net.a.bias.sum(),
    "view": lambda net, x: net.b(net.a(x) * net.a.weight[:1].expand(len(x), 3)),
    "functional alone": lambda net, x: net.b(F.linear(x, net.a.weight, net.a.bias)),
}


@pytest.mark.parametrize("use", USES)
def test_a_parameter_used_apart_from_its_layer_is_refused(use):
    refused(DesynchronizedError, "the loss depends on .*'a\\.", lambda: Net(USES[use]))


def test_a_penalty_hidden_in_the_outputs_is_refused():
    def loss(criterion, module, x, y):
        return criterion(module(x) + module._module.weight.square().sum(), y)

    refused(DesynchronizedError, r"depends on \['weight'\] other than", loss=loss)


def in_eval_mode(net, x):
    inner = net.a(x)
    net.a.eval()
    out = net.b(net.a(inner))
    net.a.train()
    return out


def left_out(net, x):
    net.a(x)
    return net.b(x)


def hooked(net, x):
    if not net.a._forward_hooks:
        net.a.register_forward_hook(lambda layer, given, out: out * 3)
    return net.b(net.a(x))


def checkpointed(reentrant):
    return lambda net, x: net.b(checkpoint(net.a, x.requires_grad_(), use_reentrant=reentrant))


MEASURED = {
    "twice": lambda net, x: net.b(net.a(net.a(x))),
    "in eval mode": in_eval_mode,
    "left out of the loss": left_out,
    "forward hook": hooked,
    "keyword": lambda net, x: net.b(net.a(input=x)),
    "checkpointing": checkpointed(False),
    "reentrant checkpointing": checkpointed(True),
    "one layer in place": lambda net, x: net.b(net.a(x).mul_(2)),
}


@pytest.mark.parametrize(("use", "clip"), each_once(MEASURED, [0.01, 1.0, 100.0]))
@pytest.mark.few(6)
def test_what_runs_through_layers_is_measured(use, clip):
    x, y = inputs(3), inputs(1, seed=2)

    def plain():
        """Without what would hide the sum from the loop: checkpointing."""
        straight = lambda net, x: net.b(net.a(x))  # noqa: E731
        return Net(straight if "checkpointing" in use else MEASURED[use])

    got = clipped_sum(lambda: Net(MEASURED[use]), x.clone(), y, nn.MSELoss(), clip=clip)
    assert torch.allclose(got, brute_force(plain, x, y, nn.MSELoss(), clip=clip), atol=1e-4, rtol=1e-4)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))

    def forward(self, x, scale=1.0):
        return x @ self.w * self.w[0] * scale


def own_forward():
    layer = nn.Linear(3, 1)
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)
    return layer


def shared():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


class Subclass(nn.Linear):
    pass


def compiled():
    layer = nn.Linear(3, 1)
    layer.compile()
    return layer


REFUSED = {
    "parameters of its own": (Scaled, "Scaled.* with parameters of its own"),
    "a subclass": (lambda: Subclass(3, 1), "Subclass.* with parameters of its own"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)), "ParametrizedLinear"),
    "old weight norm": (lambda: nn.utils.weight_norm(nn.Linear(3, 1)), r"'weight_g', 'weight_v'"),
    "forward of its own": (own_forward, r"with a forward\(\) of its own"),
    "shared": (shared, "0.weight and 1.weight are one parameter"),
    "padding_mode": (
        lambda: nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"),
        "padding_mode='circular'",
    ),
    "embedding by frequency": (
        lambda: nn.Embedding(9, 3, scale_grad_by_freq=True),
        "scale_grad_by_freq=True",
    ),
    "bilinear": (lambda: nn.Bilinear(3, 3, 1), "Bilinear"),
    "transposed": (lambda: nn.ConvTranspose1d(3, 3, 1), "ConvTranspose1d"),
    "prelu": (nn.PReLU, "PReLU"),
    "compiled": (compiled, "compiled"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.few(1)
def test_what_is_not_on_the_list_is_refused_before_anything_changes(kind):
    make, match = REFUSED[kind]
    model = make()
    remedy = "set scale_grad_by_freq to False" if "frequency" in kind else "grad_sample_mode='rows'"
    with pytest.raises(UnsupportedError, match=match + "(.|\n)*" + remedy):
        private(model, inputs(3), inputs(1), nn.MSELoss())
    assert kind == "forward of its own" or not any("forward" in part.__dict__ for part in model.modules())


# Models that must work, each against brute force.


class Encoded(nn.Module):
    """A frozen layer that cannot take an empty batch, and attention."""

    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(5)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(self.norm(x))
        return self.b(F.scaled_dot_product_attention(h, h, h).mean(1))


def test_an_empty_batch_goes_through_any_model():
    run = start("ghost", model=Encoded(), dataset=TensorDataset(torch.randn(40, 5, 4), torch.arange(40) % 3))
    before = weights(run.model)
    next(iter(run.loader))
    loss = run.criterion(run.module(torch.empty(0, 5, 4)), torch.empty(0, dtype=torch.int64))
    with pytest.raises(GuaranteeError, match="none of a single row"):
        loss.backward()
    assert torch.equal(weights(run.model), before)
