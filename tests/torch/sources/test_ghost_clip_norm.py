"""What exceeded the clip norm under other ghost clipping: here it is measured, or refused in words.

Each case was built so that the row at the front has a gradient that a wrong norm misses: by how much does the
released sum move when that row goes?
"""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine

ROWS = 48


def release(make, x, y, *, meddle=lambda model: None, mode="ghost", draws=0):
    """The sum of one batch of all rows, clip norm 1, with noise that nobody sees.

    What the model draws follows from the sampling key, which `draws` sets.
    """
    torch.manual_seed(11)
    random.seed(11)
    model = make()
    engine = PrivacyEngine(sampling_key=bytes([draws]) * 32)
    out = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        mechanism=Mechanism(Identity(1), FixedOrder(len(x), len(x), steps=1), 1e-9),
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, optimizer, loader = out[0], out[1], out[-1]
    criterion = out[2] if mode == "ghost" else nn.CrossEntropyLoss()
    meddle(model)
    for features, labels in loader:
        optimizer.zero_grad()
        criterion(private(features), labels).backward()
        optimizer.step()
    excess = optimizer.source.excess
    return len(x) * torch.cat([p.grad.flatten().double() for p in model.parameters()]), excess


def moved(make, x, y, **options):
    """How far the sum moves without row 0, in clip norms, less what rounding may add."""
    (whole, excess), (rest, _) = release(make, x, y, **options), release(make, x[1:], y[1:], **options)
    rounded = 2.0**-22 * float(whole.norm())  # the released gradient is float32
    assert excess < 1e-4
    return float((whole - rest).norm()) - excess - rounded


def quiet(layer, std=0.001):
    nn.init.normal_(layer.weight, std=std)
    return layer


def labels(classes=3, seed=5, rows=ROWS):
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))


def small(*shape, first=0.4):
    x = 0.001 * torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(6))
    x[0] = first
    return x


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 3)

    def forward(self, x):
        return self.line(x).mean(1)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9])
@pytest.mark.slow
def test_positions_whose_products_cancel(size):
    x = 0.01 * torch.randn(400, 2, 4, generator=torch.Generator().manual_seed(1))
    x[0] = torch.tensor([[size, 0, 0, 0], [-size, 600.0, 0, 0]])
    for label in range(3):
        y = labels(rows=400)
        y[0] = label
        assert moved(Averaged, x, y) <= 1


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words, self.head = quiet(nn.Embedding(20, 4, **options)), quiet(nn.Linear(4, 3), 3.0)

    def forward(self, tokens):
        return self.head(self.words(tokens).sum(1))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}])
def test_a_word_that_a_row_repeats(options):
    order = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(20, generator=order)[:10] for _ in range(ROWS)])
    tokens[0] = 7
    assert 0.99 <= moved(lambda: Words(**options), tokens, labels()) <= 1


class Bag(nn.Module):
    def __init__(self, mode, **options):
        super().__init__()
        bag = nn.EmbeddingBag(20, 4, mode=mode, **options)
        self.bag, self.head = quiet(bag), quiet(nn.Linear(4, 3), 3.0)

    def forward(self, tokens, *rest):
        return self.head(self.bag(tokens, *rest))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_word_that_a_bag_repeats(mode, options):
    order = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(20, generator=order)[:10] for _ in range(ROWS)])
    tokens[0] = 7
    assert 0.99 <= moved(lambda: Bag(mode, **options), tokens, labels()) <= 1


@pytest.mark.parametrize("more", ["places", "weights"])
def test_bags_with_places_or_weights_are_refused(more):
    """Bags of several lengths in one axis (offsets), and words that count by weights."""

    class Several(Bag):
        def forward(self, tokens):
            if more == "weights":
                return self.head(self.bag(tokens, per_sample_weights=torch.ones(tokens.shape)))
            return self.head(self.bag(tokens.flatten(), torch.arange(len(tokens)) * tokens.shape[1]))

    with pytest.raises(GuaranteeError, match="embedding_bag has no rule"):
        release(lambda: Several("sum"), torch.zeros(ROWS, 4, dtype=torch.long), labels())


def test_bags_of_maxima_are_refused():
    with pytest.raises(UnsupportedError, match=r"EmbeddingBag\(mode=max\)"):
        release(lambda: Bag("max"), torch.zeros(ROWS, 4, dtype=torch.long), labels())


class Picture(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.look = quiet(nn.Conv2d(1, 4, 7, padding=3, padding_mode=mode))
        self.head = quiet(nn.Linear(4, 3), 3.0)

    def forward(self, x):
        return self.head(self.look(x).mean((2, 3)))


def frames():
    x = small(1, 8, 8, first=0.0)
    x[0, 0, [0, -1]] = 5.0
    x[0, 0, :, [0, -1]] = 5.0
    return x


def test_pictures_with_a_bright_frame():
    assert 0.9 <= moved(lambda: Picture("zeros"), frames(), labels()) <= 1


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_other_padding_is_refused(mode):
    with pytest.raises(UnsupportedError, match=f"padding_mode='{mode}'"):
        release(lambda: Picture(mode), frames(), labels())


def layers():
    return nn.Sequential(quiet(nn.Linear(6, 5)), nn.Tanh(), quiet(nn.Linear(5, 3), 3.0))


@pytest.mark.parametrize(
    "meddle",
    [
        lambda model: model[0].register_forward_hook(lambda layer, given, out: out * 30),
        lambda model: model[0].register_forward_pre_hook(lambda layer, given: (given[0] * 30,)),
        lambda model: model[0].register_full_backward_hook(lambda layer, given, out: (given[0],)),
        lambda model: model[0].register_full_backward_pre_hook(lambda layer, out: (out[0] * 30,)),
        lambda model: model[1].register_forward_hook(lambda layer, given, out: out * 30),
    ],
    ids=["forward", "forward pre", "backward", "backward pre", "other layer"],
)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.few(2)
def test_hooks_on_layers_are_measured(meddle):
    assert moved(layers, small(6), labels(), meddle=meddle) <= 1


def replace(model):
    layer = model[0]
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)


def replaced():
    model = layers()
    replace(model)
    return model


def test_a_replaced_forward_is_refused():
    with pytest.raises(UnsupportedError, match=r"0 \(torch.nn.*Linear\) with a forward\(\) of its own"):
        release(replaced, small(6), labels())
    with pytest.raises(DesynchronizedError, match=r"'0.weight'.*forward\(\) was replaced"):
        release(layers, small(6), labels(), meddle=replace)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.warmth = nn.Parameter(torch.full((6,), 0.1)), 1.0

    def forward(self, x):
        return x * self.w / self.warmth


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(6))
        self.branch, self.head = quiet(nn.Linear(6, 6)), nn.Linear(6, 3)

    def forward(self, x):
        x = x * self.scale.exp()
        return self.head(x + 4 * self.branch(x) if random.random() < 0.5 else x)


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, h):
        return F.linear(h, self.weight)


class Tied(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.words, self.norm = quiet(nn.Embedding(50, 16), 0.02), nn.LayerNorm(16)
        self.head = head(self.words.weight)

    def forward(self, tokens):
        return self.head(4 * self.norm(50 * self.words(tokens).mean(1)))


def linear_with(weight):
    layer = nn.Linear(16, 50, bias=False)
    layer.weight = weight
    return layer


def linears():
    first = nn.Linear(6, 6)
    second = nn.Linear(6, 6)
    second.weight = first.weight
    return first, second


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.slow
def test_an_embedding_tied_to_a_linear_layer(scale):
    order = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 50, (ROWS, 5), generator=order)
    tokens[0] = 7

    def make():
        model = Tied(linear_with)
        model.norm.weight.data.mul_(scale)
        return model

    for label in (0, 7):
        y = labels(classes=50)
        y[0] = label
        assert moved(make, tokens, y) <= 1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: nn.Sequential(Gate(), nn.Linear(6, 3)), "0 .*Gate.* with parameters of its own"),
        (Skipping, "the module .*Skipping.* with parameters of its own"),
        (lambda: Tied(Head), "head .*Head.* with parameters of its own"),
        (lambda: nn.Sequential(*linears()), "0.weight and 1.weight are one parameter"),
    ],
    ids=["attribute", "layer drop", "tied head", "tied layers"],
)
def test_parameters_that_are_not_a_layers_own_are_refused(make, match):
    with pytest.raises(UnsupportedError, match=match):
        release(make, small(6), labels())


class Dropped(nn.Module):
    """Layers are drawn anew in each pass, and anything else may change too: only what ran is measured."""

    def __init__(self):
        super().__init__()
        self.branch, self.head, self.warmth = quiet(nn.Linear(6, 6)), quiet(nn.Linear(6, 3), 3.0), 1.0

    def forward(self, x):
        return self.head((x + 4 * self.branch(x) if random.random() < 0.5 else x) / self.warmth)


@pytest.mark.parametrize("draws", range(4))
@pytest.mark.few(2)
def test_layers_that_are_drawn_and_attributes_that_change(draws):
    def meddle(model):
        model.warmth = 0.05

    assert moved(Dropped, small(6), labels(), meddle=meddle, draws=draws) <= 1


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(F.batch_norm(self.a(x), None, None, training=True))


class Unfolded(nn.Module):
    """Examples and positions in one axis, as many rows as there are examples."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x):
        return self.a(x.reshape(-1, 3)).reshape(len(x), -1)


class Reordered(nn.Module):
    """A layer that is called with the rows in another order, which is undone behind it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(self.a(x.flip(0)).flip(0))


@pytest.mark.parametrize("make", [Statistics, Unfolded, Reordered])
def test_rows_that_meet_are_refused(make):
    with pytest.raises(
        GuaranteeError, match="over the rows of|goes along the rows|rows are not the examples"
    ):
        release(make, small(6), labels())
