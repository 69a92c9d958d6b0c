"""Gradients by hooks: those of single rows for whatever the layers are, and refusals where that cannot be."""

import pytest
import torch
import torch.nn.functional as F
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch import PrivacyEngine
from tests.marks import each_once
from tests.torch.setting import weights

ROWS, CLIP = 6, 0.7
HOOKED = ("hooks", "functorch")


def inputs(*shape, seed=1):
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, high=9, seed=2):
    return torch.randint(0, high, (ROWS, *shape), generator=torch.Generator().manual_seed(seed))


def private(model, x, *, mode="hooks", clip=CLIP, reduction="mean", **options):
    """A run of one release over all of x, with hardly any noise, float sums and a learning rate of 1."""
    y = torch.arange(len(x)) % 3
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        mechanism="identity",
        noise_multiplier=1e-9,
        max_grad_norm=clip,
        target_delta=1e-5,
        epochs=1,
        poisson_sampling=False,
        grad_sample_mode=mode,
        loss_reduction=reduction,
        exact_sums=False,  # on a grid 2**-13 of the clip norm is left unused
        **options,
    )


def released_sum(make, x, *, reduction="mean", before_step=lambda model: None, **options):
    """Minus the update of one step, in units of the sum."""
    torch.manual_seed(0)
    model = make()
    start = weights(model)
    module, optimizer, loader = private(model, x, reduction=reduction, **options)
    for batch, y in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss(reduction=reduction)(module(batch), y).backward()
        before_step(model)
        optimizer.step()
    return (start - weights(model)) * (len(x) if reduction == "mean" else 1)


def single_rows(make, x, clip=CLIP):
    """The sum by autograd, row after row."""
    torch.manual_seed(0)
    model, total = make(), 0
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), torch.arange(len(x))[i : i + 1] % 3).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        total = total + gradient * min(1.0, clip / float(gradient.norm()))
    return total.float()


def check(make, x, **options):
    expected = single_rows(make, x)
    assert expected.norm() > 1e-3
    found = released_sum(make, x, **options)
    assert torch.allclose(found, expected, atol=1e-5 * max(1.0, float(expected.norm()))), (
        found - expected
    ).norm()


class Of(nn.Module):
    """Parts and a forward pass."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def convolution(**options):
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3, **options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def convolved(kind, *shape, **options):
    def make():
        layer = kind(2, 4, 3, **options)
        size = layer(torch.zeros(1, *shape)).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(size, 3))

    return make, inputs(*shape)


def bag(**options):
    def make():
        return nn.Sequential(nn.EmbeddingBag(9, 4, **options), nn.Linear(4, 3))

    return make, tokens(5)


def bag_with_offsets(last, **options):
    def forward(self, t):
        ends = torch.arange(0, t.numel() + last, t.shape[1])
        return self.f(self.e(t.reshape(-1), ends))

    def make():
        layer = nn.EmbeddingBag(9, 4, include_last_offset=bool(last), **options)
        return Of(forward, e=layer, f=nn.Linear(4, 3))

    return make, tokens(5)


def weighted_bag():
    def forward(self, t):
        share = torch.linspace(0.1, 1, t.shape[1]).expand(len(t), -1)
        return self.f(self.e(t, per_sample_weights=share))

    return lambda: Of(forward, e=nn.EmbeddingBag(9, 4, mode="sum"), f=nn.Linear(4, 3)), tokens(5)


def normalised(layer):
    return lambda: nn.Sequential(nn.Linear(4, 6), layer(), nn.Linear(6, 3)), inputs(4)


def attention(**options):
    def make():
        layer = DPMultiheadAttention(4, 2, batch_first=True, **options)
        return Of(
            lambda self, t: self.f(self.a(self.e(t), self.e(t), self.e(t), need_weights=False)[0].mean(1)),
            e=nn.Embedding(9, 4),
            a=layer,
            f=nn.Linear(4, 3),
        )

    return make, tokens(5)


def recurrent(kind, **options):
    def make():
        width = 5 * (2 if options.get("bidirectional") else 1)
        return Of(
            lambda self, t: self.f(self.r(self.e(t))[0][:, -1]),
            e=nn.Embedding(9, 4),
            r=kind(4, 5, batch_first=True, **options),
            f=nn.Linear(width, 3),
        )

    return make, tokens(5)


class Gate(nn.Module):
    """A layer with parameters of its own, two inputs and two outputs, one of them by keyword."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x, other=None, *, scale=1.0):
        gate = torch.sigmoid(x * self.w + self.b)
        return {"kept": gate * other * scale, "rest": (1 - gate) * x}


def gated():
    def forward(self, x):
        h = self.a(x)
        made = self.g(h, other=x, scale=2.0)
        return self.f(made["kept"] + made["rest"].tanh())

    return lambda: Of(forward, a=nn.Linear(4, 4), g=Gate(), f=nn.Linear(4, 3)), inputs(4)


def checkpointed(reentrant):
    def forward(self, x):
        h = checkpoint(self.a, x.requires_grad_(), use_reentrant=reentrant)
        again = self.b if reentrant else self.a  # the other kind may repeat a layer too
        return checkpoint(
            self.f, torch.tanh(h) + checkpoint(again, h, use_reentrant=reentrant), use_reentrant=reentrant
        )

    return lambda: Of(
        forward, a=nn.Linear(4, 4), f=nn.Linear(4, 3), **({"b": nn.Linear(4, 4)} if reentrant else {})
    ), inputs(4)


def in_place():
    return lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), inputs(4)


def tied():
    def make():
        net = Of(
            lambda self, t: self.f(self.head(self.e(t).mean(1))), e=nn.Embedding(9, 4), head=nn.Linear(4, 9),
            f=nn.Linear(9, 3),
        )  # fmt: skip
        net.head.weight = net.e.weight
        return net

    return make, tokens(5)


def by_keyword():
    return lambda: Of(
        lambda self, x: self.f(input=self.a(input=x).tanh()), a=nn.Linear(4, 4), f=nn.Linear(4, 3)
    ), inputs(4)


def half_in_eval():
    def make():
        net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 3))
        net[0].eval()
        net[1].eval()
        return net

    return make, inputs(4)


def changed_forward():
    def make():
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        layer = net[0]
        layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)
        return net

    return make, inputs(4)


MODELS = {
    **{
        f"conv2d {mode}": convolved(nn.Conv2d, 2, 6, 6, padding=1, padding_mode=mode)
        for mode in ("zeros", "reflect", "circular", "replicate")
    },
    "conv2d same": convolved(nn.Conv2d, 2, 6, 6, padding="same", dilation=2),
    "conv2d groups, stride": convolved(nn.Conv2d, 2, 7, 6, stride=2, groups=2, bias=False),
    "conv1d same": convolved(nn.Conv1d, 2, 7, padding="same"),
    "conv1d circular": convolved(nn.Conv1d, 2, 7, padding=1, padding_mode="circular"),
    "conv3d": convolved(nn.Conv3d, 2, 4, 5, 4, padding=1),
    "transposed": convolved(nn.ConvTranspose2d, 2, 4, 4, stride=2),
    "bag sum": bag(mode="sum"),
    "bag mean, padding": bag(mode="mean", padding_idx=3),
    "bag offsets": bag_with_offsets(0, mode="mean"),
    "bag last offset": bag_with_offsets(1, mode="sum", padding_idx=2),
    "bag weights": weighted_bag(),
    "embedding, padding": (
        lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=3), nn.Flatten(), nn.Linear(20, 3)),
        tokens(5),
    ),
    "layer norm": normalised(lambda: nn.LayerNorm(6)),
    "layer norm, no bias": normalised(lambda: nn.LayerNorm(6, bias=False)),
    "rms norm": normalised(lambda: nn.RMSNorm(6)),
    "group norm": normalised(lambda: nn.GroupNorm(2, 6)),
    "prelu": normalised(lambda: nn.PReLU()),
    "bilinear": (
        lambda: Of(lambda self, x: self.b(x, self.a(x)), a=nn.Linear(4, 5), b=nn.Bilinear(4, 5, 3)),
        inputs(4),
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), inputs(4)),
    "attention": attention(),
    "attention, bias": attention(add_bias_kv=True, add_zero_attn=True),
    "lstm": recurrent(DPLSTM),
    "gru, both ways": recurrent(DPGRU, bidirectional=True),
    "own layer, keywords, two outputs": gated(),
    "checkpoint": checkpointed(False),
    "checkpoint, reentrant": checkpointed(True),
    "in place": in_place(),
    "tied": tied(),
    "keywords": by_keyword(),
    "partly in eval mode": half_in_eval(),
    "replaced forward": changed_forward(),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mode", HOOKED)
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_single_rows(name, mode):
    make, x = MODELS[name]
    check(make, x, mode=mode)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_reduction_does_not_change_the_sum(reduction):
    make, x = MODELS["conv2d circular"]
    check(make, x, reduction=reduction)


@pytest.mark.parametrize(
    "name", ["conv2d zeros", "lstm", "attention", "layer norm", "own layer, keywords, two outputs"]
)
@pytest.mark.parametrize("mode", HOOKED)
def test_autocast_rounds_and_nothing_else(mode, name):
    make, x = MODELS[name]
    expected = single_rows(make, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = released_sum(make, x, mode=mode)
    assert 0 < (found - expected).norm() < 0.05 * ROWS * CLIP


# What hooks on layers cannot see is refused before anything is released.


class Shared(nn.Module):
    """A layer, and its weight again."""

    def __init__(self, use):
        super().__init__()
        self.a, self.f, self.use = nn.Linear(4, 4), nn.Linear(4, 3), use

    def forward(self, x):
        return self.f(self.use(self, x))


ASIDE = {
    "functional": lambda net, x: net.a(x).tanh() + F.linear(x, net.a.weight),
    "functional alone": lambda net, x: F.linear(x, net.a.weight, net.a.bias),
    "as a value": lambda net, x: net.a(x) * net.a.weight[0],
    "random layer drop": lambda net, x: F.dropout(net.a(x), 0.5) * 1.0 + net.a.bias.sum(),
}


@pytest.mark.parametrize("mode", HOOKED)
@pytest.mark.parametrize("use", ASIDE)
def test_a_parameter_used_apart_from_its_layer_is_refused(use, mode):
    # by the sum of all rows, or, where what is missing adds up to nothing there, by rows alone
    with pytest.raises(GuaranteeError, match=r"('a\.(weight|bias)' |for a\.).*grad_sample_mode='vmap'"):
        released_sum(lambda: Shared(ASIDE[use]), inputs(4), mode=mode)


def test_a_wrong_rule_is_refused(monkeypatch):
    rules = type(private(nn.Linear(4, 3), inputs(4))[0]).GRAD_SAMPLERS
    wrong = rules[nn.Linear]
    monkeypatch.setitem(
        rules, nn.Linear, lambda *args: {p: 1.1 * sample for p, sample in wrong(*args).items()}
    )
    with pytest.raises(GuaranteeError, match="do not add up"):
        released_sum(lambda: nn.Linear(4, 3), inputs(4))


def test_random_numbers_inside_a_layer_are_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.drop, self.f = nn.Parameter(torch.ones(4)), nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x):
            return self.f(self.drop(x + self.token))

    with pytest.raises(UnsupportedError, match="grad_sample_mode='vmap'"):
        released_sum(Own, inputs(4))


@pytest.mark.parametrize("mode", ["max", "scale_grad_by_freq"])
def test_bags_without_gradients_of_single_rows_are_refused(mode):
    options = {"mode": "max"} if mode == "max" else {"scale_grad_by_freq": True}
    with pytest.raises(UnsupportedError, match=f"{mode}"):
        private(nn.Sequential(nn.EmbeddingBag(9, 4, **options), nn.Linear(4, 3)), tokens(5))


# Passes: only one that reached the parameters counts.


def test_a_layer_that_a_batch_skips_adds_nothing():
    net = Shared(lambda self, x: x)
    check(lambda: Shared(lambda self, x: x), inputs(4))
    assert net.a.weight.grad is None


def steps(*between, mode="hooks"):
    """The sum where something else is computed between the batch and its own pass."""
    x = inputs(4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    start = weights(model)
    module, optimizer, loader = private(model, x, mode=mode)
    for batch, y in loader:
        for other in between:
            other(module, batch, y)
        optimizer.zero_grad()
        F.cross_entropy(module(batch), y).backward()
        optimizer.step()
    return (start - weights(model)) * ROWS


def forward_alone(module, x, y):
    module(x)
    module(x[:2])


def gradient_of_the_input(module, x, y):
    x = x.clone().requires_grad_()
    torch.autograd.grad(F.cross_entropy(module(x), y), x)


def gradient_for_the_log(module, x, y):
    torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))


def interrupted_forward(module, x, y):
    def interrupt(*_):
        raise KeyboardInterrupt

    handle = module._module[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        module(x)
    handle.remove()


def interrupted_backward(module, x, y):
    def interrupt(*_):
        raise KeyboardInterrupt

    out = module._module[0](x)
    out.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        F.cross_entropy(module._module[2](out.tanh()), y).backward()


def evaluation_with_gradients(module, x, y):
    module.eval()
    module(torch.cat([x, x]))
    module.train()


@pytest.mark.parametrize(
    ("between", "mode"),
    each_once(
        [
            forward_alone,
            gradient_of_the_input,
            gradient_for_the_log,
            interrupted_forward,
            interrupted_backward,
            evaluation_with_gradients,
        ],
        HOOKED,
    ),
)
def test_what_was_computed_aside_does_not_count(between, mode):
    assert torch.equal(steps(between, mode=mode), steps(mode=mode))


def test_two_passes_through_one_graph_are_two():
    module, optimizer, loader = private(nn.Linear(4, 3), inputs(4))
    x, y = next(iter(loader))
    loss = F.cross_entropy(module(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(GuaranteeError, match="2 backward passes"):
        optimizer.step()


def test_nothing_is_kept_on_parameters():
    model = nn.Linear(4, 3)
    module, _optimizer, loader = private(model, inputs(4))
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    assert not vars(model.weight)


# Empty batches, and models that were private before.


@pytest.mark.parametrize(
    "name", ["attention", "conv2d reflect", "embedding, padding", "lstm", "bag sum", "group norm"]
)
def test_a_batch_of_no_row_goes_through(name):
    make, x = MODELS[name]
    module, _, _ = private(make(), x)
    out = module(x[:0])
    assert out.shape == (0, 3)
    F.cross_entropy(out, torch.zeros(0, dtype=torch.long)).backward()
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("mode", HOOKED)
def test_layers_of_an_earlier_run_are_taken_over(mode):
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    first, optimizer, loader = private(nn.Sequential(encoder, nn.Linear(4, 3)), inputs(4), mode=mode)
    x, y = next(iter(loader))
    F.cross_entropy(first(x), y).backward()

    def make():
        model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3))
        encoder.load_state_dict(model[0].state_dict())
        model[0] = encoder
        return model

    torch.manual_seed(0)
    found = released_sum(make, inputs(4), mode=mode)
    expected = single_rows(
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3)), inputs(4)
    )
    assert torch.allclose(found, expected, atol=1e-5)
    with pytest.raises(GuaranteeError, match="another private model"):
        optimizer.step()


def test_a_make_private_that_fails_half_way_can_be_repeated(monkeypatch):
    model, x = nn.Linear(4, 3), inputs(4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("anechoic.torch.run.PrivateRun.start", interrupt)
        private(model, x)
    assert not model._forward_hooks
    assert not model.weight._backward_hooks
    check(lambda: nn.Linear(4, 3), x)
    private(model, x)


def interrupt(*_):
    raise KeyboardInterrupt
