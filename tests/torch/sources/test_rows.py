"""Gradients of single rows by vmap over the whole model, and of losses computed row by row."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs import ledger
from anechoic.runs.ledger import Delivery
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import BatchMemoryManager
from anechoic.torch.sources.row_calls import RowCall, RowModel
from anechoic.torch.sources.rows import RowsSource
from tests.marks import each_once, every_other
from tests.torch.setting import FEATURES, data, mechanism, network, start, step, train, weights

BOTH = ("rows", "vmap_loss")


def silent(steps=1, size=8, clip_norm=0.3):
    return Mechanism(Identity(steps), FixedOrder(size * steps, size, steps=steps), 1e-9, clip_norm)


def released(run, batch):
    step(run, batch)
    return torch.cat([p.grad.flatten() for p in run.model.parameters()]) * run.mechanism.expected_batch_size


@pytest.mark.parametrize(("reduction", "mode"), each_once(["mean", "sum"], BOTH))
@pytest.mark.slow
def test_a_run_is_that_of_ghost_clipping(mode, reduction):
    expected = train(start("ghost", reduction=reduction))
    assert torch.allclose(train(start(mode, reduction=reduction)), expected, atol=1e-5)


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


def test_memory_is_a_setting_of_the_run():
    run = start("rows")
    batch = next(iter(run.loader))
    run.optimizer.source.memory = 1
    with pytest.raises(GuaranteeError, match=r"source\.memory=1 was"):
        step(run, batch)


@pytest.mark.parametrize("mode", every_other(BOTH))
@pytest.mark.slow
def test_micro_batches(mode):
    run, whole = start(mode), start(mode)
    while run.engine.releases < run.mechanism.steps:
        with BatchMemoryManager(
            data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer
        ) as parts:
            for batch in parts:
                step(run, batch)
    assert torch.allclose(weights(run.model), train(whole), atol=1e-6)


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


def rowwise(model, x, seed=7, slots=None):
    parameters = [p for p in model.parameters() if p.requires_grad]
    call = RowCall(RowModel(model, parameters, batch_first=True), (x,), {}, seed, slots=slots or len(x))
    parts = [call.gradients([torch.ones_like(call.outputs[0])], k) for k in range(len(call.chunks))]
    found = [torch.cat(each) for each in zip(*parts, strict=True)]
    return call, torch.cat([g.flatten(1) for g in found], 1)


def rows(x):
    return torch.arange(len(x))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)])
def test_a_row_draws_the_same_whoever_else_is_there(layer):
    model = nn.Sequential(nn.Linear(6, 8), layer, nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(9, 6)
    whole, gradients = rowwise(model, x)
    others = [8, 2, 5]
    part, found = rowwise(model, x[others])
    assert torch.allclose(part.outputs[0], whole.outputs[0][others], atol=1e-6)
    assert torch.allclose(found, gradients[others], atol=1e-6)
    assert not torch.allclose(rowwise(model, x, seed=8)[1], gradients, atol=1e-3)


def test_masks_differ_between_rows_and_have_the_right_rate():
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(400, 1, bias=False))
    kept = rowwise(model, torch.ones(60, 400) + torch.arange(60)[:, None])[1] != 0
    assert 0.72 < float(kept.double().mean()) < 0.78
    assert len({tuple(row.tolist()) for row in kept}) == 60


class Shared(nn.Module):
    """Draws for all rows, from the global generators of Python and torch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) * (1 + random.random())


def test_what_all_rows_share_is_drawn_once_for_all_chunks():
    model, x = Shared(), torch.randn(5, 6)
    random.seed(3)
    call, _ = rowwise(model, x, slots=2)
    random.seed(3)
    assert torch.allclose(call.outputs[0], model(x), atol=1e-6)


@pytest.mark.parametrize("mode", BOTH)
def test_the_global_generator_has_no_part_in_dropout(mode):
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        runs.append(train(start(mode, model=network(dropout=0.5)), 3))
    assert torch.equal(*runs)


# -- common loops -----------------------------------------------------------------------------------


def test_a_loss_of_ones_own_and_two_calls_in_it():
    run, other = start("rows", mech=silent()), start("rows", mech=silent())
    for each in (run, other):
        for x, y in each.loader:
            each.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(each.module(x), y) if each is other else None
            if each is run:
                half = each.module(x) + each.module(x)
                loss = nn.functional.cross_entropy(half / 2, y)
            loss.backward()
            each.optimizer.step()
    found, expected = ([p.grad for p in each.model.parameters()] for each in (run, other))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


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


@pytest.mark.parametrize("mode", BOTH)
def test_nothing_is_left_in_the_gradients_of_parameters(mode):
    run = start(mode)
    for x, y in run.loader:
        run.criterion(run.module(x), y).backward()
        assert all(p.grad is None for p in run.model.parameters())
        run.optimizer.step()
        run.optimizer.zero_grad()
        for p in run.model.parameters():
            p.grad = None


@pytest.mark.parametrize("mode", BOTH)
def test_empty_batches(mode):
    mech = Mechanism(Identity(8), Poisson(12, 1, 8), 1e-9, 1.0)
    run = start(mode, mech=mech, dataset=data(12))
    sizes = []
    while run.engine.releases < 8:
        for x, y in run.loader:
            sizes.append(len(x))
            total = released(run, (x, y))
            assert len(x) or total.abs().max() < 1e-7
    assert 0 in sizes


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


def test_a_copy_is_another_model():
    run = start("rows")
    twin = copy.deepcopy(run.module)
    x, y = next(iter(run.loader))
    nn.functional.cross_entropy(twin(x), y).backward()
    assert all(p.grad is not None for p in twin.parameters())
    with pytest.raises(DesynchronizedError, match="no gradient reached"):
        run.optimizer.step()


def test_outputs_without_a_dimension_are_reduced():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x, y):
            return {"loss": nn.functional.cross_entropy(self.body(x), y)}

    run = start("rows", mech=silent(), model=WithLoss())
    plain = start("rows", mech=silent())
    for x, y in run.loader:
        loss = run.module(x, y)["loss"]
        assert torch.allclose(loss, nn.functional.cross_entropy(run.model.body(x), y))
        loss.backward()
        run.optimizer.step()
    for batch in plain.loader:
        step(plain, batch)
    for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


# -- refusals ---------------------------------------------------------------------------------------


def test_a_row_that_sees_others_is_impossible():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0, keepdim=True) + x[:1])

    x = torch.randn(6, FEATURES)
    whole, part = rowwise(Centred(), x)[0], x[:1]
    torch.manual_seed(0)
    model = Centred()
    whole, _ = rowwise(model, x)
    alone, _ = rowwise(model, part)
    assert torch.allclose(whole.outputs[0][0], alone.outputs[0][0], atol=1e-6)


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


def test_wrong_loops_are_refused():
    run = start("rows")
    x, y = next(iter(run.loader))
    with pytest.raises(DesynchronizedError, match="slice takes a part of the rows"):
        run.module(x[:3])
    with pytest.raises(GuaranteeError, match="called with 3 rows of its own"):
        run.criterion(run.module(torch.zeros(3, FEATURES)), torch.zeros(3, dtype=torch.int64)).backward()
    run.optimizer.zero_grad()
    loss = run.criterion(run.module(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(DesynchronizedError, match="2 backward passes"):
        run.optimizer.step()
    run.optimizer.zero_grad()
    penalty = sum((p * p).sum() for p in run.model.parameters())
    (run.criterion(run.module(x), y) + penalty).backward()
    with pytest.raises(GuaranteeError, match="weight_decay"):
        run.optimizer.step()
    run.optimizer.zero_grad()
    step(run, (x, y))
    batch = next(iter(run.loader))
    run.criterion(run.module(batch[0]), batch[1]).backward()


def test_gradients_that_were_not_cleared():
    run = start("rows")
    batches = iter(run.loader)
    step(run, next(batches))
    x, y = next(batches)
    run.criterion(run.module(x), y).backward()
    with pytest.raises(DesynchronizedError, match="zero_grad"):
        run.optimizer.step()


def test_wrap_model_false_and_batch_norm_are_refused():
    with pytest.raises(UnsupportedError, match="wrap_model"):
        start("rows", wrap_model=False)
    with pytest.raises(GuaranteeError, match="mixes the examples"):
        start("rows", model=nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


@pytest.mark.parametrize("spoil", ["scaled", "other", "mixed", "vector"])
def test_only_the_criterion_gives_gradients_in_vmap_loss(spoil):
    run = start("vmap_loss")
    x, y = next(iter(run.loader))
    output = run.module(x)
    if spoil == "scaled":
        with pytest.raises(GuaranteeError, match=r"multiplied by 0\.5"):
            (run.criterion(output, y) / 2).backward()
    elif spoil == "other":
        with pytest.raises(DesynchronizedError, match="past the criterion"):
            nn.functional.cross_entropy(output, y).backward()
    elif spoil == "mixed":
        with pytest.raises(DesynchronizedError, match="flip goes along the rows"):
            run.criterion(0.5 * output + 0.5 * output.flip(0), y)
    else:
        with pytest.raises(DesynchronizedError, match="takes a part of the rows"):
            run.criterion(output, y[:3])


@pytest.mark.slow
def test_class_weights_do_not_mix_in_vmap_loss():
    x, y = data(8)[:]
    sums = []
    for keep in (range(8), range(1, 8)):
        keep = list(keep)
        mech = Mechanism(Identity(1), FixedOrder(len(keep), len(keep), steps=1), 1e-9, 1e3)
        dataset = torch.utils.data.TensorDataset(x[keep], y[keep])
        run = start("vmap_loss", mech=mech, dataset=dataset, shuffle=False)
        run.criterion._criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 30.0]))
        sums.append(released(run, next(iter(run.loader))))
    model = network()
    loss = nn.functional.cross_entropy(model(x[:1]), y[:1])
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert torch.allclose(sums[0] - sums[1], expected, atol=1e-5)


def test_a_gradient_that_is_not_finite_counts_as_zero():
    x, y = data(8)[:]
    x = x.clone()
    x[2] = float("inf")
    run = start("rows", mech=silent(), dataset=torch.utils.data.TensorDataset(x, y), shuffle=False)
    assert torch.isfinite(released(run, next(iter(run.loader)))).all()


DECISIONS = {
    "positive": lambda x: x.sum() > 0,
    "holds a sign": lambda x: 1.0 in x.sum(1).sign(),
    "is among": lambda x: x.sum(1).sign()[0] in torch.tensor([0.0, 1.0]),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_row_decides_for_itself(caplog, decision):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, 2)

        def forward(self, x):
            return self.layer(x) if DECISIONS[decision](x) else -self.layer(x)

    run, mech = start("rows", mech=silent(), model=Branching()), silent()
    x, y = next(iter(run.loader))
    assert len({bool(DECISIONS[decision](row[None])) for row in x}) == 2
    found = released(run, (x, y))
    assert "one after another" not in caplog.text
    total = torch.zeros_like(found)
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(run.model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(run.model.parameters()))])
        total += gradient * min(1.0, mech.clip_norm / float(gradient.norm()))
    # the learning rate is not zero: the weights moved a little since
    assert torch.allclose(found, total, atol=2e-2)


@pytest.mark.slow
def test_resumed_runs_are_bit_identical(tmp_path):
    runs = [start("rows", model=network(dropout=0.3)) for _ in range(2)]
    train(runs[0], 4)
    assert mechanism().steps == 15
    runs[0].engine.save_checkpoint(path=str(tmp_path / "run"))
    expected = train(runs[0])
    ledger._MADE.clear()  # the second run stands for a process of its own
    runs[1].engine.load_checkpoint(path=str(tmp_path / "run"))
    assert torch.equal(train(runs[1]), expected)
