"""Losses under "mean": what is pulled back to a row's outputs knows nothing of the number of rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.rows import RowsSource
from tests.floats import same_bits

CLASSES, FEATURES, GRID = 5, 8, 18
#: No powers of two; of vectors of the processor, beyond which kernels may round otherwise, whole ones.
COUNTS = (96, 160, 224)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(out):
    return torch.arange(len(out)) % out.shape[1]


def numbers(out):
    return normal(COUNTS[-1], CLASSES, seed=3)[: len(out)]


def signs(out):
    return numbers(out).sign()


def shares(out):
    return numbers(out).softmax(1)


def column(out, targets):
    return targets(out)[:, 0]


def several(out):
    found = torch.full(out.shape, -1)
    found[:, 0] = classes(out)
    return found


LOSSES = {
    "mse": lambda out: F.mse_loss(out, numbers(out)),
    "mse, a module": lambda out: nn.MSELoss()(out, numbers(out)),
    "mse, by the old names": lambda out: F.mse_loss(out, numbers(out), size_average=True),
    "mse, of a column": lambda out: F.mse_loss(out[:, 0], column(out, numbers)),
    "mse, of the target": lambda out: F.mse_loss(numbers(out), out),
    "l1": lambda out: F.l1_loss(out, numbers(out)),
    "smooth l1": lambda out: F.smooth_l1_loss(out, numbers(out), beta=0.7),
    "huber": lambda out: F.huber_loss(out, numbers(out), delta=0.7),
    "bce": lambda out: F.binary_cross_entropy(out.softmax(1), shares(out)),
    "bce with logits": lambda out: F.binary_cross_entropy_with_logits(out, shares(out)),
    "bce with weights": lambda out: F.binary_cross_entropy_with_logits(
        out, shares(out), pos_weight=torch.tensor([1.0, 0.3, 2.0, 0.7, 1.1])
    ),
    "soft margin": lambda out: F.soft_margin_loss(out, signs(out)),
    "hinge": lambda out: F.hinge_embedding_loss(out, signs(out)),
    "multi margin": lambda out: F.multi_margin_loss(out, classes(out)),
    "multilabel margin": lambda out: F.multilabel_margin_loss(out, several(out)),
    "multilabel soft margin": lambda out: F.multilabel_soft_margin_loss(out, shares(out)),
    "poisson": lambda out: F.poisson_nll_loss(out, shares(out)),
    "gaussian": lambda out: F.gaussian_nll_loss(out, numbers(out), shares(out)),
    "kl, mean": lambda out: F.kl_div(out.log_softmax(1), shares(out), reduction="mean"),
    "kl, batchmean": lambda out: F.kl_div(out.log_softmax(1), shares(out), reduction="batchmean"),
    "cosine": lambda out: F.cosine_embedding_loss(out, numbers(out), column(out, signs)),
    "ranking": lambda out: F.margin_ranking_loss(out[:, 0], out[:, 1], column(out, signs)),
    "triplet": lambda out: F.triplet_margin_loss(out, numbers(out), signs(out)),
    "nll": lambda out: F.nll_loss(out.log_softmax(1), classes(out)),
    "cross-entropy": lambda out: F.cross_entropy(out, classes(out)),
    "cross-entropy, smoothed": lambda out: F.cross_entropy(out, classes(out), label_smoothing=0.1),
    "cross-entropy, a module": lambda out: nn.CrossEntropyLoss(label_smoothing=0.3)(out, classes(out)),
    "cross-entropy of shares": lambda out: F.cross_entropy(out, shares(out), label_smoothing=0.1),
    "a mean of means": lambda out: ((out - numbers(out)) ** 2).mean(1).mean(),
}


def released(x, loss, width=CLASSES):
    """The sum of one whole batch, in units of the grid, as next to no noise leaves it; and the loss."""
    torch.manual_seed(0)
    model, count, found = nn.Linear(x.shape[1], width, bias=False), len(x), []
    engine = PrivacyEngine(sampling_key=bytes(32), noise_key=bytes([1]) * 32)
    module, optimizer, *_, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(x), batch_size=count),
        poisson_sampling=False,
        mechanism=Mechanism(Identity(1), FixedOrder(count, count, 1), 1e-4, grid_bits=GRID),
    )
    for (rows,) in loader:
        found.append(loss(module(rows)))
        found[0].backward()
        optimizer.step()
    units = count * torch.cat([p.grad.flatten().double() for p in model.parameters()]) * 2.0**GRID
    return units.round().long(), found[0].item()


@pytest.fixture
def pulled(monkeypatch):
    """What is pulled back to the outputs of the rows, call by call."""
    found, before = [], RowsSource._cotangents

    def kept(*given):
        made = before(*given)
        found.append([c.clone() for c in made])
        return made

    monkeypatch.setattr(RowsSource, "_cotangents", kept)
    return found


@pytest.mark.filterwarnings("ignore:.*batchmean", "ignore:.*size_average")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.few(8)
def test_rows_get_the_same_bits_whatever_their_number(name, pulled):
    x = normal(COUNTS[-1], FEATURES)
    for count in COUNTS:
        _, value = released(x[:count], LOSSES[name])
        torch.manual_seed(0)
        outputs = nn.Linear(FEATURES, CLASSES, bias=False)(x[:count])
        assert value == pytest.approx(LOSSES[name](outputs).item(), rel=1e-5)
    for count, (cotangent,) in zip(COUNTS, pulled, strict=True):
        assert cotangent.any()
        assert same_bits(cotangent, pulled[-1][0][:count])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mse", (40, 41, 49, 61)),
        ("cross-entropy, smoothed", (40, 41, 49, 61)),
        ("bce with logits", (64, 96, 160)),
    ],
)
def test_a_row_without_a_gradient_leaves_no_trace_in_the_release(name, counts):
    x = torch.cat([normal(40, 64), torch.zeros(120, 64)])
    sums = [released(x[:count], LOSSES[name])[0] for count in counts]
    assert all(torch.equal(found, sums[0]) for found in sums)
