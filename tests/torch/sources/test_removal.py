"""Removing one row moves the sum by at most the clip norm, whatever is done to make its norm fall short.

Each case was built so that row 0 has a gradient that a wrong norm misses.
"""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.errors import AnechoicError, GuaranteeError
from tests.torch.sums import release

ROWS = 48


def released(make, x, y, mode, after, draws):
    """The sum of the clipped gradients of all rows, at clip norm 1 and next to no noise."""

    def seeded_model():
        random.seed(1)
        return make()

    return release(
        seeded_model, [x, y], lambda m, x, y: F.cross_entropy(m(x), y), mode=mode, noise=1e-9, after=after,
        key=bytes([draws]) * 32,
    ).sum  # fmt: skip


def moved(make, x, y, mode, after=None, draws=0):
    """By how much the sum moves without row 0, less what rounding may add."""
    whole, rest = (released(make, *pair, mode, after, draws) for pair in ((x, y), (x[1:], y[1:])))
    return float((whole - rest).norm()) - 1e-4 - 2.0**-22 * float(whole.norm())


def quiet(layer, std=0.001):
    nn.init.normal_(layer.weight, std=std)
    return layer


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def small(*shape, first=0.3):
    x = 0.001 * torch.randn(ROWS, *shape, generator=seeded(0))
    x[0] = first
    return x


class Positions(nn.Module):
    """A row whose positions nearly cancel, so that their Gram matrix in float32 says nothing."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 3)

    def forward(self, x):
        return self.f(x).mean(1)


def cancelling(size):
    x = 0.01 * torch.randn(ROWS, 2, 4, generator=seeded(1))
    x[0] = torch.tensor([[size, 0, 0, 0], [-size, 600, 0, 0]])
    return x


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = quiet(nn.Embedding(20, 4)), quiet(nn.Linear(4, 3), 3.0)

    def forward(self, tokens):
        return self.head(self.words(tokens).sum(1))


def bag(mode):
    return lambda: nn.Sequential(quiet(nn.EmbeddingBag(20, 4, mode=mode)), quiet(nn.Linear(4, 3), 3.0))


REPEATED = torch.stack([torch.randperm(20, generator=seeded(i))[:9] for i in range(ROWS)])
REPEATED[0] = 7
FRAMES = small(1, 8, 8, first=0.0)
FRAMES[0, 0, [0, -1]] = FRAMES[0, 0, :, [0, -1]] = 5


def padded(mode):
    def make():
        layer = quiet(nn.Conv2d(1, 4, 7, padding=3, padding_mode=mode))
        return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), quiet(nn.Linear(4, 3), 3.0))

    return make


def mlp():
    return nn.Sequential(quiet(nn.Linear(6, 5)), nn.Tanh(), quiet(nn.Linear(5, 3), 3.0))


def leaky():
    return nn.Sequential(quiet(nn.Linear(6, 5)), nn.LeakyReLU(0.2), quiet(nn.Linear(5, 3), 3.0))


def annealed(model):
    model[1].negative_slope = 30.0


def enlarged(model):
    model[0].register_forward_hook(lambda layer, given, output: output * 3)


def replaced(model):
    layer = model[0]
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)


class TiedGradients(nn.Module):
    """An embedding whose weight is the head's."""

    def __init__(self):
        super().__init__()
        self.e, self.n = quiet(nn.Embedding(50, 16), 0.02), nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.e.weight

    def forward(self, t):
        return self.head(4 * self.n(50 * self.e(t).mean(1)))


TOKENS = torch.randint(0, 50, (ROWS, 5), generator=seeded(3))
#: A model, its rows, what is done to it later, and the words by which ghost clipping refuses it, if it does.
CASES = {
    **{f"positions that cancel, {size:g}": (Positions, cancelling(size), {}, "") for size in (1e5, 1e7, 1e9)},
    "a word repeated": (Words, REPEATED, {}, ""),
    **{f"a word repeated in a bag, {m}": (bag(m), REPEATED, {}, "") for m in ("sum", "mean")},
    "a bright frame": (padded("zeros"), FRAMES, {}, ""),
    **{
        f"a bright frame, {m}": (padded(m), FRAMES, {}, f"padding_mode='{m}'")
        for m in ("reflect", "circular", "replicate")
    },
    "a hook on the output": (mlp, small(6), {"after": enlarged}, ""),
    "a replaced forward": (mlp, small(6), {"after": replaced}, ""),
    "an attribute annealed": (leaky, small(6), {"after": annealed}, ""),
    "tied to a linear layer": (TiedGradients, TOKENS, {}, ""),
}
TARGET = torch.randint(0, 3, (ROWS,), generator=seeded(9))


@pytest.mark.parametrize("mode", ["rows", "ghost"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(6)
def test_removing_a_row_moves_the_sum_by_the_clip_norm_at_most(name, mode):
    make, x, options, refusal = CASES[name]
    if mode == "ghost" and refusal:
        with pytest.raises(AnechoicError, match=refusal):
            moved(make, x, TARGET, mode, **options)
        return
    found = moved(make, x, TARGET, mode, **options)
    assert found <= 1
    if mode == "ghost" and "word" in name:
        assert found >= 0.99  # the norm is no larger than it has to be


class Drop(nn.Module):
    """A layer is drawn at random, in another state of the generator than that of the forward pass."""

    def __init__(self, scale):
        super().__init__()
        self.g = nn.Parameter(torch.zeros(6)) if scale else None
        self.b, self.f = quiet(nn.Linear(6, 6)), quiet(nn.Linear(6, 3), 3.0)

    def forward(self, x):
        x = x if self.g is None else x * self.g.exp()
        return self.f(x + 4 * self.b(x) if random.random() < 0.5 else x)


def reseed(model):
    random.seed(3)


def test_a_layer_dropped_at_random_inside_another_is_refused():
    try:
        assert moved(lambda: Drop(True), 10 * small(6), TARGET, "rows", after=reseed) <= 1
    except GuaranteeError as error:
        assert "do not add up" in str(error)


@pytest.mark.parametrize("draws", range(3))
@pytest.mark.few(2)
def test_of_layers_that_are_drawn_ghost_clipping_measures_what_ran(draws):
    assert moved(lambda: Drop(False), small(6), TARGET, "ghost", draws=draws) <= 1
