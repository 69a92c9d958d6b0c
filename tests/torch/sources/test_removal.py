"""Removing one row moves the sum by at most the clip norm, whatever is done to make its norm fall short."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import GuaranteeError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine

HOOKED = ("rows",)
ROWS = 48


def released(make, x, y, mode, after):
    """The sum of the clipped gradients of all rows, at clip norm 1 and next to no noise."""
    torch.manual_seed(0)
    random.seed(1)
    model = make()
    plain = DataLoader(TensorDataset(x, y), batch_size=len(x))
    module, optimizer, loader = PrivacyEngine(sampling_key=bytes(32)).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        grad_sample_mode=mode,
        data_loader=plain,
        poisson_sampling=False,
        mechanism=Mechanism(Identity(1), FixedOrder(len(x), len(x), 1), 1e-9),
    )
    after(model)
    for batch, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(module(batch), target).backward()
        optimizer.step()
    return len(x) * torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double()


def moved(make, x, y, mode, after=lambda model: None):
    whole, rest = (released(make, *pair, mode, after) for pair in ((x, y), (x[1:], y[1:])))
    return float((whole - rest).norm())


def quiet(layer, std=0.001):
    nn.init.normal_(layer.weight, std=std)
    return layer


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TARGET = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(9))


def cancelling():
    """A row whose positions nearly cancel, so that their Gram matrix in float32 says nothing."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 3)

        def forward(self, x):
            return self.f(x).mean(1)

    x = 0.01 * normal(ROWS, 2, 4)
    x[0] = torch.tensor([[1e7, 0, 0, 0], [-1e7, 600, 0, 0]])
    return Positions, x, {}


def bag(mode):
    def make():
        return nn.Sequential(quiet(nn.EmbeddingBag(20, 4, mode=mode)), quiet(nn.Linear(4, 3), 3.0))

    words = torch.stack(
        [torch.randperm(20, generator=torch.Generator().manual_seed(i))[:9] for i in range(ROWS)]
    )
    words[0] = 7
    return make, words, {}


def padded(mode):
    def make():
        layer = quiet(nn.Conv2d(1, 4, 7, padding=3, padding_mode=mode))
        return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), quiet(nn.Linear(4, 3), 3.0))

    image = 0.001 * normal(ROWS, 1, 8, 8)
    image[0] = 0
    image[0, 0, [0, -1]] = image[0, 0, :, [0, -1]] = 5
    return make, image, {}


def mlp():
    return nn.Sequential(quiet(nn.Linear(6, 5)), nn.Tanh(), quiet(nn.Linear(5, 3), 3.0))


def enlarged(model):
    model[0].register_forward_hook(lambda layer, given, output: output * 3)


def replaced(model):
    layer = model[0]
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.tau = nn.Parameter(torch.full((6,), 0.1)), 1.0

    def forward(self, x):
        return x * self.w / self.tau


def annealed(model):
    model[0].tau = 0.05


class Tied(nn.Module):
    """An embedding whose weight is the head's, in a layer of one's own."""

    class Head(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, h):
            return F.linear(h, self.weight)

    def __init__(self):
        super().__init__()
        self.e, self.n = quiet(nn.Embedding(50, 16), 0.02), nn.LayerNorm(16)
        self.head = Tied.Head(self.e.weight)

    def forward(self, t):
        return self.head(4 * self.n(50 * self.e(t).mean(1)))


def rows():
    x = 0.001 * normal(ROWS, 6)
    x[0] = 0.3
    return x


CASES = {
    "positions that cancel": cancelling(),
    **{f"a word repeated, {mode}": bag(mode) for mode in ("sum", "mean")},
    **{f"padding {mode}": padded(mode) for mode in ("zeros", "reflect", "circular", "replicate")},
    "a hook on the output": (mlp, rows(), {"after": enlarged}),
    "a replaced forward": (mlp, rows(), {"after": replaced}),
    "an attribute annealed": (lambda: nn.Sequential(Gate(), nn.Linear(6, 3)), rows(), {"after": annealed}),
    "tied to a head of one's own": (
        Tied,
        torch.randint(0, 50, (ROWS, 5), generator=torch.Generator().manual_seed(3)),
        {},
    ),
}


@pytest.mark.parametrize("mode", ["rows"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(5)
def test_removing_a_row_moves_the_sum_by_the_clip_norm_at_most(name, mode):
    make, x, options = CASES[name]
    assert moved(make, x, TARGET, mode, **options) <= 1 + 2e-5


@pytest.mark.parametrize("mode", HOOKED)
def test_a_layer_dropped_at_random_inside_another_is_refused(mode):
    """The rows are differentiated in another state than that of the forward pass."""

    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, self.b, self.f = nn.Parameter(torch.zeros(6)), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            x = x * self.g.exp()
            return self.f(x + 4 * self.b(x) if random.random() < 0.5 else x)

    def reseed(model):
        random.seed(3)

    try:
        assert moved(Drop, 10 * rows(), TARGET, mode, after=reseed) <= 1 + 2e-5
    except GuaranteeError as error:
        assert "do not add up" in str(error)
