"""The comparison with autograd of single rows: when it happens, what it sees, and what it leaves alone."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError
from anechoic.mechanism import Mechanism
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import BatchMemoryManager
from anechoic.torch.sources import single_rows
from anechoic.torch.sources.ghost import gradients
from anechoic.torch.sources.row_calls import RowCall
from anechoic.torch.sources.single_rows import SingleRows
from tests.torch.setting import FEATURES, backward, data, network, start, step, train

MODES = ("hooks", "ghost", "vmap", "vmap_loss")


def compared(run):
    return run.optimizer.source.single.compared


def long_run(mode, steps=12, **options):
    mech = Mechanism(Identity(steps), FixedOrder(40, 8, steps=steps), 0.5, 1.0)
    return start(mode, mech=mech, **options)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_delivery_and_secret_rows_are_compared(mode, monkeypatch):
    for rate, times in ((0.0, 1), (1.0, 12)):
        monkeypatch.setattr(single_rows, "RATE", rate)
        run = long_run(mode)
        train(run)
        assert compared(run) == times


def test_secret_rows_follow_from_the_key_and_are_few(monkeypatch):
    monkeypatch.setattr(single_rows, "_state", lambda layer: [])
    run, rows = long_run("vmap", steps=2), []
    delivery = next(iter(run.loader)) and run.optimizer.ledger.in_hand
    for key in (b"a" * 32, b"b" * 32):
        run.optimizer.ledger.start(key)
        watch = SingleRows(run.model, list(run.model.parameters()), run.optimizer.ledger)
        found = [watch.row(type(delivery)(0, 50))]
        watch.compare([torch.zeros(1)], [torch.zeros(1)], found[0])
        found += [watch.row(type(delivery)(step, 50)) for step in range(1, 4000)]
        rows.append(found[1:])
        share = sum(row is not None for row in found) / len(found)
        assert 0.3 / 128 < share < 2 / 128
        assert all(row is None or 0 <= row < 50 for row in found)
    assert rows[0] != rows[1]


@pytest.mark.parametrize("mode", MODES)
def test_a_change_of_the_model_is_compared(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = long_run(mode, model=network(dropout=0.5))
    batches = iter(run.loader)
    counts = []

    def once():
        step(run, next(batches))
        counts.append(compared(run))

    once()
    once()
    run.model[2].eval()
    once()
    once()
    run.model[2].p = 0.1
    once()
    run.module.eval()
    run.module.train()
    run.model[2].eval()
    batches = iter(run.loader)
    once()
    handle = run.model[1].register_forward_hook(lambda layer, given, output: None)
    once()
    handle.remove()
    assert counts == [1, 1, 2, 2, 3, 3, 4]


def test_an_attribute_that_always_changes_is_left_to_the_secret_rows(monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = long_run("vmap", steps=20)
    while run.engine.releases < 20:
        for batch in run.loader:
            run.model[1].counter = run.engine.releases
            step(run, batch)
    assert compared(run) == 1 + single_rows.CHANGES


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_gradient_is_refused_and_the_parameter_named(mode, monkeypatch):
    run = long_run(mode)
    if mode == "hooks":
        # wrong for two rows, so that the sum is right
        whole = type(run.optimizer.source)._whole

        def wrong(self, found, delivery):
            samples = whole(self, found, delivery)
            samples[2] = samples[2].roll(1, 0)
            return samples

        monkeypatch.setattr(type(run.optimizer.source), "_whole", wrong)
    elif mode == "ghost":
        sums = gradients.GhostGradients._weighted

        def wrong(self, parts, factors):
            found = sums(self, parts, factors)
            return [*found[:2], found[2] * 1.05, *found[3:]]

        monkeypatch.setattr(gradients.GhostGradients, "_weighted", wrong)
    else:
        right = RowCall.gradients

        def wrong(self, cotangents, rows):
            found = right(self, cotangents, rows)
            return [*found[:2], found[2] * 1.05, *found[3:]]

        monkeypatch.setattr(RowCall, "gradients", wrong)
    with pytest.raises(GuaranteeError, match=r"row \d of the batch, taken alone.*gradient for 2\.weight"):
        step(run, next(iter(run.loader)))
    assert run.engine.releases == 0


def test_a_norm_that_falls_short_is_refused_under_ghost_clipping(monkeypatch):
    right = gradients.norms
    monkeypatch.setattr(gradients, "norms", lambda parts: 0.9 * right(parts))
    run = long_run("ghost")
    with pytest.raises(GuaranteeError, match=r"row \d of the batch.*the norm of its gradient is"):
        step(run, next(iter(run.loader)))
    assert run.engine.releases == 0


def test_a_row_that_is_not_finite_is_not_compared(monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 1.0)
    broken = data(40)
    broken.tensors[0][::2] = float("inf")
    counts = []
    for mode in ("hooks", "ghost"):
        run = long_run(mode, dataset=broken)
        train(run)
        counts.append(run.optimizer.source.single.compared)
    assert 0 < counts[1] < 12


@pytest.mark.parametrize("mode", MODES)
def test_the_comparison_waits_for_a_batch_of_several_rows(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = start(mode, mech=Mechanism(Identity(12), Poisson(40, 1, steps=12), 0.5, 1.0))
    counts, several, expected = [], False, []
    for batch in run.loader:
        expected.append(len(batch[1]) > 0 and not several)
        several = several or len(batch[1]) > 1
        before = compared(run)
        run.optimizer.zero_grad()
        if len(batch[1]):
            backward(run, batch)
        run.optimizer.step()
        counts.append(compared(run) > before)
    assert several and counts == expected


class Mixing(nn.Module):
    """Mixes rows, with a gradient or without, and draws random numbers."""

    def __init__(self, dropout, detached=False):
        super().__init__()
        self.body, self.dropout = nn.Linear(FEATURES, 2), nn.Dropout(dropout)
        self.detached = detached

    def forward(self, x):
        h = self.dropout(self.body(x))
        mean = 0.1 * h.mean(0)
        return h + (mean.detach() if self.detached else mean)


class Centring(nn.Module):
    """Takes the mean of the batch off its inputs, which has no gradient."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, 2)

    def forward(self, x):
        return self.body(x - x.detach().mean(0))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("model", [Centring, lambda: Mixing(0.0, True), lambda: Mixing(0.5, True)])
def test_rows_that_mix_without_a_gradient_are_refused(mode, model):
    run = long_run(mode, model=model())
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        step(run, next(iter(run.loader)))
    assert run.engine.releases == 0


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_model_that_mixes_rows_is_refused(dropout):
    run = long_run("hooks", model=Mixing(dropout))
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        step(run, next(iter(run.loader)))


class Untidy(nn.Module):
    """Draws from all generators, counts its calls, and has a buffer that others look at."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(FEATURES, 2), nn.Dropout(0.4)
        self.register_buffer("scale", torch.ones(2))
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        self.last = "seen"
        return self.drop(self.layer(x)) * self.scale * (1 + random.random() + float(np.random.rand()))  # noqa: NPY002


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_disturbed(mode, monkeypatch):
    found = []
    for rate in (0.0, 1.0):
        monkeypatch.setattr(single_rows, "RATE", rate)
        torch.manual_seed(0)
        run = long_run(mode, model=Untidy())
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        weights = train(run, 6)
        # where rows are run by rows, vmap calls the model again for the gradients
        assert mode != "hooks" or run.model.calls == 6
        state = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
        found.append((weights, state))
        assert torch.equal(run.model.scale, torch.ones(2))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1][0], found[1][1][0])
    assert found[0][1][1:] == found[1][1][1:]


@pytest.mark.parametrize("mode", MODES)
def test_under_micro_batches(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 1.0)
    run = long_run(mode, steps=5)
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer
    ) as parts:
        for batch in parts:
            step(run, batch)
    assert compared(run) == 15


def test_under_units(monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 1.0)
    owners = [i % 10 for i in range(40)]
    mech = Mechanism(Identity(5), FixedOrder(10, 2, steps=5), 0.5, 1.0, unit="user")
    for mode in ("hooks", "vmap"):
        run = start(mode, mech=mech, dataset=data(40), unit_ids=owners)
        train(run)
        assert compared(run) == 5


def test_a_norm_must_not_fall_short():
    run = long_run("vmap")
    watch = run.optimizer.source.single
    alone = [torch.ones_like(p) for p in run.model.parameters()]
    norm = sum(float(a.norm()) ** 2 for a in alone) ** 0.5
    for upper in (norm * 0.999, norm * 2):
        watch.compare(alone, alone, 3, norm=upper)
    with pytest.raises(GuaranteeError, match="row 3 of the batch"):
        watch.compare(alone, alone, 3, norm=norm * 0.9)
    with pytest.raises(GuaranteeError, match="the norm of its gradient"):
        watch.compare(alone, alone, 3, norm=float("nan"))


def test_bounds_follow_the_precision():
    run = long_run("vmap")
    watch = run.optimizer.source.single
    assert watch.bound(single_rows._GRADIENT) == 1e-2
    watch.coarse = True
    assert watch.bound(single_rows._GRADIENT) == 0.1
    wide = SingleRows(run.model.double(), list(run.model.parameters()), run.optimizer.ledger)
    assert wide.bound(single_rows._GRADIENT) == 1e-5
