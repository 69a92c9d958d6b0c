"""Gradients of single rows by vmap over the whole model, and of losses computed row by row."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.ledger import Delivery
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch.sources.rows import RowsSource
from tests.floats import same_bits
from tests.marks import each_once, every_other
from tests.torch.setting import FEATURES, data, network, start, step, train, weights
from tests.torch.sources.row_passes_setting import rowwise

BOTH = ("rows", "vmap_loss")


def silent(steps=1, size=8, clip_norm=0.3):
    return Mechanism(Identity(steps), FixedOrder(size * steps, size, steps=steps), 1e-9, clip_norm)


def released(run, batch):
    step(run, batch)
    return torch.cat([p.grad.flatten() for p in run.model.parameters()]) * run.mechanism.expected_batch_size


class Checkpointed(nn.Sequential):
    """Its first layer is computed once more in the backward pass, which autograd.grad does not reach."""

    def forward(self, x):
        h = checkpoint(self[0], x.requires_grad_(), use_reentrant=True)
        return self[2](self[1](h))


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_reentrant_checkpointing_at_the_inputs_loses_no_gradient(mode):
    def summed(model):
        run = start(mode, mech=silent(), model=model, keys=False, shuffle=False)
        return released(run, next(iter(run.loader)))

    expected, found = summed(network()), summed(Checkpointed(*network()))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(("rows", "mode"), each_once([1, 3, 100], BOTH))
@pytest.mark.slow
def test_chunks_change_nothing(mode, rows, monkeypatch):
    expected = train(start(mode))
    parameters = sum(p.numel() for p in network().parameters())
    monkeypatch.setattr(RowsSource, "memory", 4 * parameters * rows)
    run = start(mode)
    assert run.optimizer.source.slots(Delivery(0, 8)) == min(8, rows)
    assert torch.allclose(train(run), expected, atol=1e-6)


@pytest.mark.parametrize("rows", every_other([1, 2, 3, 5, 100]))
@pytest.mark.slow
def test_units_are_clipped_together_whatever_the_chunks(rows, monkeypatch):
    owners = [*range(9), *torch.randint(0, 9, (31,), generator=torch.Generator().manual_seed(0)).tolist()]
    mech = Mechanism(Identity(3), FixedOrder(9, 5, steps=3), 1e-9, 0.2, unit="user")
    expected = train(start("rows", mech=mech, dataset=data(40), unit_ids=owners))
    parameters = sum(p.numel() for p in network().parameters())
    monkeypatch.setattr(RowsSource, "memory", 4 * parameters * rows)
    found = train(start("rows", mech=mech, dataset=data(40), unit_ids=owners))
    assert torch.allclose(found, expected, atol=1e-6)


# -- random numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)])
def test_a_row_draws_the_same_whoever_else_is_there(layer):
    model = nn.Sequential(nn.Linear(6, 8), layer, nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(9, 6)

    def drawn(x, seed=0):
        torch.manual_seed(seed)
        return rowwise(model, x, slots=9)

    whole, gradients = drawn(x)
    for others in (torch.cat([x[:4], torch.randn(5, 6)]), x[:4]):
        part, found = drawn(others)
        assert same_bits(part.outputs[0][:4], whole.outputs[0][:4])
        assert same_bits(found[:4], gradients[:4])
    assert not torch.allclose(drawn(x, 8)[1], gradients, atol=1e-3)


def test_masks_differ_between_rows_and_have_the_right_rate():
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(400, 1, bias=False))
    kept = rowwise(model, torch.ones(60, 400) + torch.arange(60)[:, None])[1] != 0
    assert 0.72 < float(kept.double().mean()) < 0.78
    assert len({tuple(row.tolist()) for row in kept}) == 60


# -- common loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.slow
def test_forwards_without_backward_and_clearing_in_between(mode):
    run = start(mode)
    expected = train(start(mode))
    while run.engine.releases < run.mechanism.steps:
        for x, y in run.loader:
            run.module(x)
            output = run.module(x)
            run.optimizer.zero_grad()
            run.criterion(output, y).backward()
            run.optimizer.step()
    assert torch.allclose(weights(run.model), expected, atol=1e-6)


def test_evaluation_is_the_plain_model():
    run = start("rows", model=network(dropout=0.5))
    x = torch.randn(5, FEATURES)
    run.module.eval()
    assert torch.equal(run.module(x), run.model(x))
    run.module.train()
    with torch.no_grad():
        assert run.module(x).shape == (5, 2)
    assert run.module.append == run.model.append  # attributes of the model are there
    assert run.module.state_dict().keys() == {f"_module.{name}" for name in run.model.state_dict()}


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda x: (x, torch.ones(1, 3)), "one row an example"),
        (lambda x: (x, torch.ones(3, 3)), "one row an example"),
        (lambda x: (x.clone().requires_grad_(),), "requires a gradient"),
        (lambda x: (nn.utils.rnn.pack_sequence([torch.ones(2, 6)]),), "PackedSequence"),
    ],
)
def test_inputs_that_are_no_rows(given, words):
    run = start("rows")
    x, _ = next(iter(run.loader))
    with pytest.raises(UnsupportedError, match=words):
        run.module(*given(x))


class Stateful(nn.Module):
    """Adds what it made of the batch before, as a recurrent model does that keeps its state."""

    def __init__(self, alone):
        super().__init__()
        self.layer, self.last, self.alone = nn.Linear(FEATURES, 2), None, alone

    def forward(self, x):
        made = self.layer(x) if self.last is None else self.layer(x) + self.last
        self.last = 10 * made.detach()
        return made * (1 + float(x.sum()) ** 0) if self.alone else made


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_model_keeps_of_rows_is_put_back_and_said_once(alone, caplog):
    x, y = data(16)[:]
    sums = []
    for factor in (1.0, -30.0):
        first = torch.cat([factor * x[:1], x[1:]])
        torch.manual_seed(0)
        dataset = torch.utils.data.TensorDataset(first, y)
        run = start("rows", keys=False, mech=silent(2), model=Stateful(alone), dataset=dataset, shuffle=False)
        sums.append([released(run, batch) for batch in run.loader])
        assert run.model.last is None
    assert caplog.text.count("last held tensors of rows") == 2
    assert not torch.allclose(sums[0][0], sums[1][0], atol=1e-3)
    assert torch.allclose(sums[0][1], sums[1][1], atol=1e-5)


class Bounded(nn.Module):
    """Keeps the largest value that it has seen, where one record is beyond all others."""

    def __init__(self):
        super().__init__()
        self.layer, self.limit = nn.Linear(FEATURES, 2), 50.0

    def forward(self, x):
        if x.abs().max() > self.limit:
            self.limit = float(x.abs().max())
        return self.layer(x / self.limit)


def test_a_record_that_changes_a_model_moves_its_own_row_alone():
    x, y = data(16)[:]
    sums = []
    for value in (1.0, 1e4):
        first = torch.cat([value * torch.ones(1, FEATURES), x[1:]])
        torch.manual_seed(0)
        dataset = torch.utils.data.TensorDataset(first, y)
        run = start("rows", keys=False, mech=silent(2), model=Bounded(), dataset=dataset, shuffle=False)
        sums.append([released(run, batch) for batch in run.loader])
        assert run.model.limit == 50.0
    assert (sums[0][0] - sums[1][0]).norm() <= 2 * 0.3 * 1.001
    assert torch.allclose(sums[0][1], sums[1][1], atol=1e-6)
