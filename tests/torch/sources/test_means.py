"""Losses under "mean": what is pulled back to a row's outputs knows nothing of the number of rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.torch.sources.rows import RowsSource
from tests.floats import same_bits
from tests.torch.label_programs import APART, WIDTH
from tests.torch.sums import release

FEATURES, GRID = 8, 18
#: No powers of two; of vectors of the processor, beyond which kernels may round otherwise, whole ones.
COUNTS = (96, 160, 224)
#: Of outputs, targets and numbers: those of the table that are a mean over what rows have.
NAMES = (
    "cross_entropy", "cross_entropy smooth", "CrossEntropyLoss", "cross_entropy probabilities", "nll_loss",
    "mse_loss", "MSELoss column", "l1_loss", "smooth_l1", "huber", "bce", "bce logits",
    "bce logits pos_weight", "kl_div batchmean", "soft_margin", "hinge_embedding", "poisson_nll",
    "gaussian_nll", "multi_margin", "multilabel_margin", "multilabel_soft_margin", "cosine_embedding",
    "margin_ranking", "triplet", "mean of all", "two means",
)  # fmt: skip
LOSSES = {name: APART[name] for name in NAMES} | {
    "mse, by the old names": lambda o, y, x: F.mse_loss(o, x, size_average=True),
    "mse, of the target": lambda o, y, x: F.mse_loss(x, o),
    "kl, mean": lambda o, y, x: F.kl_div(o.log_softmax(1), x.softmax(1), reduction="mean"),
    "mse, of torch's core": lambda o, y, x: torch._C._nn.mse_loss(o, x, 1),
    "smooth_l1, of torch's core": lambda o, y, x: torch._C._nn.smooth_l1_loss(o, x, 1, 0.5),
    "huber, of torch's core": lambda o, y, x: torch._C._nn.huber_loss(o, x, 1, 0.5),
    "soft_margin, of torch's core": lambda o, y, x: torch._C._nn.soft_margin_loss(o, x.sign(), 1),
    "a mean of means": lambda o, y, x: ((o - x) ** 2).mean(1).mean(),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def released(x, name):
    """The sum of one whole batch, in units of the grid, as next to no noise leaves it; and the loss."""
    count, make = len(x), lambda: nn.Linear(x.shape[1], WIDTH, bias=False)
    rows = [x, torch.arange(count) % WIDTH, normal(COUNTS[-1], WIDTH, seed=3)[:count]]
    found = release(make, rows, lambda m, x, y, z: LOSSES[name](m(x), y, z), bits=GRID)
    torch.manual_seed(0)
    plain = LOSSES[name](make()(x), *rows[1:]).item()
    assert found.loss == pytest.approx(plain, rel=1e-5)
    return (found.sum * 2.0**GRID).round().long()


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
        released(x[:count], name)
    for count, (cotangent,) in zip(COUNTS, pulled, strict=True):
        assert cotangent.any()
        assert same_bits(cotangent, pulled[-1][0][:count])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mse_loss", (40, 41, 49, 61)),
        ("cross_entropy smooth", (40, 41, 49, 61)),
        ("bce logits", (64, 96, 160)),
    ],
)
def test_a_row_without_a_gradient_leaves_no_trace_in_the_release(name, counts):
    x = torch.cat([normal(40, 64), torch.zeros(120, 64)])
    sums = [released(x[:count], name) for count in counts]
    assert all(torch.equal(found, sums[0]) for found in sums)
