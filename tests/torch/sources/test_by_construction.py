"""Other people's models and losses, whole runs: right by construction, or refused before the release."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.setting import mechanism, start, step
from tests.torch.sources.row_passes_setting import rowwise
from tests.torch.sums import check_release, moved

GRID = 23


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_rounding_that_cancels_knows_nothing_of_the_others():
    def make():
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, -1.0]]))
        return model

    for seed in range(3):  # a pressure in Pascal, at two times
        x, y = 1e6 + 30 * normal(512, 2, seed=seed), normal(512, 1, seed=seed + 9)
        assert moved(make, [x, y], lambda m, x, y: F.mse_loss(m(x), y), bits=GRID) <= 1.001


def on_kinks(rows, width, weight):
    """Rows that a unit of the first layer sends to 0, up to rounding."""
    x = normal(rows, width, seed=3).double()
    w = weight.double()[torch.arange(rows) % len(weight)]
    return (x - (x * w).sum(1, keepdim=True) / w.square().sum(1, keepdim=True) * w).float()


@pytest.mark.parametrize("rows", [33, 40])
def test_rows_on_kinks_are_not_decided_by_others(rows):
    weight = normal(128, 64, seed=5)

    def make():
        model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 3))
        with torch.no_grad():
            model[0].weight.copy_(weight)
        return model

    x, y = on_kinks(rows, 64, weight), torch.arange(rows) % 3
    assert moved(make, [x, y], lambda m, x, y: F.cross_entropy(m(x), y), bits=GRID) <= 1.001


@pytest.mark.parametrize("slots", [8, 12])
def test_what_a_row_gives_has_the_same_bits_whatever_the_others_are(slots):
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    x = normal(11, 6)

    whole = rowwise(model, x, slots)[1]
    for others in (torch.cat([x[:4], normal(7, 6, seed=4)]), x[:9], torch.cat([x[:4], 1e6 * x[4:]])):
        assert torch.equal(whole[:4], rowwise(model, others, slots)[1][:4])


# -- losses --------------------------------------------------------------------------------------------


# -- decisions, and the cross-check --------------------------------------------------------------------


class Deciding(nn.Module):
    """Takes a way through the model by the data."""

    def __init__(self, ways=2, read=lambda t: bool(t > 0)):
        super().__init__()
        self.layer, self.ways, self.read = nn.Linear(6, 2), ways, read

    def forward(self, x):
        if self.ways > 2:
            return self.layer(x) * (1 + int((100 * x.sum()).floor().item()) % self.ways)
        return self.layer(x) if self.read(x.sum()) else -2 * self.layer(x)


def check_rows(make, caplog):
    """The release is that of single rows, which vmap runs side by side."""

    def loss(model, x, y):
        return F.cross_entropy(model(x), y)

    check_release(make, [normal(16, 6), torch.arange(16) % 2], loss, bits=GRID)
    assert "one after another" not in caplog.text


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t > 0,
        lambda t: (t > 0).all().item(),
        lambda t: 1.0 in t.sign().reshape(1),
        lambda t: t.sign() in torch.tensor([0.0, 1.0]),
        lambda t: float(t) > 0,
    ],
)
def test_each_row_decides_for_itself(read, caplog):
    check_rows(lambda: Deciding(read=read), caplog)


def test_many_ways_are_each_a_pass_of_the_same_shape(caplog):
    run = start(model=Deciding(ways=97), mech=mechanism(batch_size=20, steps=2), keys=False)
    step(run, next(iter(run.loader)))
    assert "one after another" not in caplog.text
    assert run.engine.releases == 1


@pytest.mark.parametrize("mode", ["auto", "rows", "hooks", "functorch", "vmap_loss", "ghost"])
@pytest.mark.few(3)
def test_the_module_clears_gradients_as_trainers_do(mode):
    run = start(mode, mech=mechanism(steps=5), keys=False)
    for x, y in run.loader:
        run.module.zero_grad()
        run.criterion(run.forward(x), y).backward()
        run.optimizer.step()
    assert run.engine.releases == 5


class Picking(nn.Module):
    """Takes values by a mask of the data, at places that the other way through it does not have."""

    def __init__(self, take):
        super().__init__()
        self.layer, self.take = nn.Linear(6, 6), take

    def forward(self, x):
        return self.take(self.layer(x), x)[:, :2]


def written(h, x):
    h = h.clone()
    h[x.sum(1) > 0] = 1.0
    return h + x


def clusters(h, x):
    """As an adaptive softmax has them: places count within the cluster of the row."""
    out = torch.zeros_like(h)
    for low in (0, 1):
        at = ((x[:, 0] > 0).long() == low).nonzero().squeeze(1)
        if at.numel():
            place = (x[at, 0] > 0).long() - low
            out[at] = h[at, :3].gather(1, place[:, None]) * h[at]
    return out


@pytest.mark.parametrize(
    "take",
    [
        lambda h, x: h * (1 + h[x > 5].sum()),
        lambda h, x: h * (2 if torch.where(x[:, 0] > 0)[0].numel() else 1),
        lambda h, x: h * h.masked_select(x.sum(1, keepdim=True) > 0).sum(),
        lambda h, x: h * F.one_hot(x.argmax(1), 6),
        written,
        clusters,
    ],
    ids=["by a mask", "by places", "by masked_select", "by one_hot", "written by a mask", "clusters"],
)
@pytest.mark.few(3)
def test_masks_of_a_row_are_its_own(take, caplog):
    check_rows(lambda: Picking(take), caplog)
