"""Losses that mix rows: refused where their graph, or a repetition for one row, shows it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from anechoic.errors import GuaranteeError
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.loss_graph import check_divisor
from tests.torch.setting import data, mechanism, network, start, step

WEIGHT = torch.tensor([1.0, 25.0])
WEIGHTED = {
    "two classes": lambda out, y: F.cross_entropy(out, y, weight=WEIGHT),
    "a module": lambda out, y: nn.CrossEntropyLoss(weight=WEIGHT)(out, y),
    "after other work": lambda out, y: 2 * nn.NLLLoss(WEIGHT)(out.log_softmax(1), y).sqrt() + 1,
    "smoothed": lambda out, y: F.cross_entropy(out, y, weight=WEIGHT, label_smoothing=0.1),
    "of pixels": lambda out, y: F.cross_entropy(out[..., None], y[:, None], weight=WEIGHT),
}
FINE = {
    "no weights": F.cross_entropy,
    "over a constant": lambda out, y: F.cross_entropy(out, y, weight=WEIGHT, reduction="none").mean(),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
}


def sums(mode, loss, *, gone=None, seen=True, monkeypatch=None):
    run = start(mode, mech=mechanism(clip_norm=1e-2, steps=5), shuffle=False, keys=False)
    if not seen:
        monkeypatch.setattr(run.optimizer.source.single, "check_loss", lambda: None)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        if gone is not None:
            x[gone] = float("nan")
        loss(run.forward(x), y).backward()
        found = run.optimizer.source.sums(run.optimizer.ledger.due())
        run.optimizer.abandon_batch()
        return torch.cat([part.flatten() for part in found])
    raise AssertionError


@pytest.mark.parametrize("mode", ["hooks", "vmap"])
@pytest.mark.parametrize("name", WEIGHTED)
def test_class_weights_under_mean_are_refused(name, mode):
    with pytest.raises(GuaranteeError, match="sum of the weights of all rows' classes"):
        sums(mode, WEIGHTED[name])


@pytest.mark.parametrize("mode", ["hooks", "vmap"])
@pytest.mark.parametrize("name", FINE)
def test_losses_of_single_rows_are_not(name, mode):
    assert bool(sums(mode, FINE[name]).any())


def test_a_run_that_stops_for_its_loss_goes_on_with_another():
    run = start("hooks", keys=False)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        WEIGHTED["a module"](run.forward(x), y).backward()
        with pytest.raises(GuaranteeError, match="Nothing was released"):
            run.optimizer.step()
        run.optimizer.abandon_batch()
        break
    for batch in run.loader:
        step(run, batch)
        assert run.engine.releases == 1
        break


def test_with_class_weights_a_row_moves_the_sum_by_more_than_the_clip_norm(monkeypatch):
    """What is refused: a row of the rare class shrinks the gradients of all others below their clip norm."""

    def loss(out, y):
        rare = torch.zeros_like(y)
        rare[3] = 1
        own = torch.where(out.isnan(), torch.zeros_like(out), out)  # what a row of zeros would give
        if bool(out.isnan().any()):
            own, rare = own[[0, 1, 2, 4, 5, 6, 7]], rare[[0, 1, 2, 4, 5, 6, 7]]
        return F.cross_entropy(own, rare, weight=torch.tensor([1.0, 1e4]))

    found = [sums("vmap", loss, gone=gone, seen=False, monkeypatch=monkeypatch) for gone in (None, 3)]
    assert float((found[0] - found[1]).norm()) > 2 * 1e-2


def test_it_is_seen_in_the_backward_pass_and_before_the_model_alone():
    out, y = torch.randn(4, 2, requires_grad=True), torch.tensor([0, 1, 1, 0])
    inside = WEIGHTED["two classes"](out, y)
    found = []

    def look(*_):
        found.extend([check_divisor([]), check_divisor([inside.grad_fn])])

    inside.register_hook(look)
    (2 * inside).backward()
    assert "sum of the weights" in found[0] and found[1] == ""
    assert check_divisor([inside.grad_fn]) == "", "no backward pass runs"


class Running(nn.Module):
    """Divides a loss by the mean of what it has seen, as a number."""

    reduction = "mean"

    def __init__(self):
        super().__init__()
        self.mean = 1.0

    def forward(self, out, y):
        loss = F.cross_entropy(out, y)
        self.mean = 0.5 * self.mean + 0.5 * loss.item()
        return loss / self.mean


class Noting(nn.Module):
    """Keeps the last loss, and draws label noise."""

    reduction = "mean"

    def forward(self, out, y):
        loss = F.cross_entropy(out, y)
        self.last = loss.item()
        return loss * (1 + float(torch.rand(())))


@pytest.mark.parametrize(("criterion", "fault"), [(Running(), "running mean"), (Noting(), "")])
def test_a_criterion_that_keeps_something_from_row_to_row_is_refused(criterion, fault):
    model = network()
    engine = PrivacyEngine()
    mech = mechanism(steps=5)
    module, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=criterion,
        data_loader=DataLoader(data(40), batch_size=8),
        mechanism=mech,
        grad_sample_mode="vmap_loss",
    )
    for x, y in loader:
        optimizer.zero_grad()
        if fault:
            with pytest.raises(GuaranteeError, match=fault):
                criterion(module(x), y)
            break
        criterion(module(x), y).backward()
        optimizer.step()
    assert engine.releases == (0 if fault else 5)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "vmap"])
def test_class_weights_that_come_later_are_refused_at_once(mode):
    run = start(mode, mech=mechanism(steps=5), keys=False)
    for number, (x, y) in enumerate(run.loader):
        run.optimizer.zero_grad()
        weight = WEIGHT if number == 3 else None
        F.cross_entropy(run.forward(x), y, weight=weight).backward()
        if number == 3:
            with pytest.raises(GuaranteeError, match="class weights"):
                run.optimizer.step()
            return
        run.optimizer.step()
    pytest.fail("four batches were to come")


@pytest.mark.parametrize("mode", ["hooks", "functorch", "vmap"])
def test_outputs_may_be_changed_in_place(mode):
    def weights_after(scaled):
        run = start(mode, mech=mechanism(steps=5))
        for x, y in run.loader:
            run.optimizer.zero_grad()
            F.cross_entropy(scaled(run.forward(x)), y).backward()
            run.optimizer.step()
        return torch.cat([p.detach().flatten() for p in run.model.parameters()])

    assert torch.equal(weights_after(lambda out: out.mul_(0.5)), weights_after(lambda out: out * 0.5))
