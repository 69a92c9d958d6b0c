"""Ways by which other rows could reach a row's gradient past the loss's own operations; each is refused."""

import copy
import gc
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import TensorDataset

from anechoic.errors import AnechoicError, DesynchronizedError, GuaranteeError
from anechoic.torch.row_types.following import ACTIVE
from tests.torch.setting import FEATURES, mechanism, start, step


def weighed(out, weight=1.0):
    return (out * weight).sum(1).mean()


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].sum()


def hooked(out, hook):
    out.register_hook(hook)
    return weighed(out.square())


def times(number):
    return lambda gradient: gradient * number


def gradient_of_a_leaf(out):
    leaf = torch.ones(2, requires_grad=True)
    (out.detach() * leaf).sum().backward()
    return leaf.grad


def put_elsewhere(total):
    weight = torch.zeros(2)
    weight.data = total
    return weight


def statistics(x):
    mean = torch.zeros(FEATURES)
    F.batch_norm(x, mean, torch.ones(FEATURES), training=True)
    return mean[:2]


def one_over_its_count(out, y):
    share = [1 / y.tolist().count(value) for value in y.tolist()]
    return (out.sum(1) * torch.tensor(share)).mean()


def written_by_a_slice(out):
    weight = torch.zeros_like(out)
    weight.copy_(out)
    weight[1:] = out[0]
    return weight


WAYS = {
    "a hook on the outputs": lambda x, y, out: hooked(out, lambda g: x.sum(0)[:2].expand_as(g)),
    "a number in a hook": lambda x, y, out: hooked(out, times(x.sum().item())),
    "a number of a hook's own": lambda x, y, out: hooked(out, lambda g: g / (1 + float(g.abs().max()))),
    "a backward of one's own": lambda x, y, out: weighed(OwnBackward.apply(out)),
    "a slice that is written": lambda x, y, out: weighed(out, written_by_a_slice(out.detach())),
    "the gradient of a leaf": lambda x, y, out: weighed(out, gradient_of_a_leaf(out)),
    "a parameter": lambda x, y, out: weighed(out, nn.Parameter(out.detach().sum(0))),
    "a copy": lambda x, y, out: weighed(out, copy.deepcopy(out.detach().sum(0))),
    "data put elsewhere": lambda x, y, out: weighed(out, put_elsewhere(out.detach().sum(0))),
    "statistics that a function keeps": lambda x, y, out: weighed(out, statistics(x)),
    "a tensor of tensors": lambda x, y, out: weighed(out, torch.tensor([x.mean(), 1.0])),
    "a count of the data": lambda x, y, out: (
        F.cross_entropy(out, y, reduction="none").sum() / (y > 0).sum().item()
    ),
    "a list of the data": lambda x, y, out: weighed(out) * (1 + sum(y.tolist())),
    "a count below a float": lambda x, y, out: weighed(out) * (1.0 / (1 + y.sum().item())),
    "how often a value comes": lambda x, y, out: one_over_its_count(out, y),
    "ones like what was picked": lambda x, y, out: (
        out.square().sum(1)[y >= 0].sum() / torch.ones_like(out.square().sum(1)[y >= 0]).sum()
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(4)
def test_a_loss_that_other_rows_reach_by_another_way_is_refused(way):
    run = start(mech=mechanism(steps=5), keys=False)
    batch = next(iter(run.loader))
    with pytest.raises(GuaranteeError, match=r"(mixes|depends on|all) (the )?rows of the batch"):
        WAYS[way](*batch, run.module(batch[0])).backward()
    assert run.engine.releases == 0
    run.optimizer.zero_grad()
    step(run, batch)
    assert run.engine.releases == 1


def test_every_loss_of_a_backward_pass_is_looked_at():
    def mixed(out):
        return weighed(out, out.detach().sum(0))

    for ways in (
        lambda out: torch.autograd.backward([weighed(out), mixed(out)]),
        lambda out: weighed(out).backward(gradient=out.detach().sum()),
        lambda out: (weighed(out).backward(retain_graph=True), mixed(out).backward()),
    ):
        run = start(mech=mechanism(steps=5), keys=False)
        x, _ = next(iter(run.loader))
        with pytest.raises(GuaranteeError, match=r"(mixes|depends on|all) (the )?rows of the batch"):
            ways(run.module(x))


SHARED = {"scale": 1.0}


class Holding(nn.Module):
    """A layer, and factors where scripts put them."""

    def __init__(self, loops=False):
        super().__init__()
        self.layer, self.loops, self.kept = nn.Linear(FEATURES, 2), loops, None
        self.register_buffer("factor", torch.ones(1))
        self.plain, self._hidden, self.inside = torch.ones(1), 1.0, SimpleNamespace(scale=1.0)

    def forward(self, x):
        if self.loops:
            x.storage()  # which no transform of torch.func has
            self.kept = self.layer(x)
        scale = self._hidden * self.inside.scale * SHARED["scale"]
        return self.layer(x) * self.factor * self.plain * scale


PLACES = {
    "an attribute": lambda model, value: setattr(model, "plain", value),
    "a buffer's data": lambda model, value: model.factor.data.copy_(value),
    "a slice": lambda model, value: model.plain.__setitem__(0, value),
    "a number": lambda model, value: setattr(model, "_hidden", value.item()),
    "a number in a list": lambda model, value: setattr(model, "more", {"scale": [value.item()]}),
    "a number in an object": lambda model, value: setattr(model.inside, "scale", value.item()),
    "a number in a global": lambda model, value: SHARED.update(scale=value.item()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.few(4)
def test_a_model_that_holds_something_of_the_batch_is_refused(place, monkeypatch):
    monkeypatch.setitem(SHARED, "scale", 1.0)
    run = start(model=Holding(), mech=mechanism(steps=5), keys=False)
    x, _ = next(iter(run.loader))
    PLACES[place](run.model, 1 / x.square().mean())
    with pytest.raises(DesynchronizedError, match=r"was made from the batch|uses a number that"):
        run.module(x)
    assert run.engine.releases == 0


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_what_a_model_kept_while_its_rows_ran_is_not_used_in_the_loss():
    run = start(model=Holding(loops=True), mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(GuaranteeError, match=r"Holding.kept kept it"):
        (F.cross_entropy(out, y) * run.model.kept.sum()).backward()


def mixing(run, batch):
    x, y = batch
    F.cross_entropy(run.module(x - x.mean(0)), y).backward()
    run.optimizer.step()


def test_a_batch_is_watched_until_its_own_step():
    """Neither a step that was refused ends that, nor one of another run."""
    run, other = (start(mech=mechanism(steps=5), keys=False) for _ in range(2))
    x, y = next(iter(other.loader))
    F.cross_entropy(other.module(x), y).backward()
    batch = next(iter(run.loader))
    with pytest.raises(AnechoicError, match="no gradient reached"):
        run.optimizer.step()
    other.optimizer.step()
    with pytest.raises(DesynchronizedError, match="not one row an example"):
        mixing(run, batch)
    run.optimizer.zero_grad()
    step(run, batch)
    assert run.engine.releases == 1


def test_an_operation_without_a_rule_is_compared_in_the_size_of_its_numbers():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    with pytest.raises(DesynchronizedError, match="not one row an example"):
        F.cross_entropy(run.module(torch.fft.fft(x * 1e-10, dim=0).real * 1e10), y).backward()


def add_first(x):
    x.add_(3 * x[:1].clone())


def add_first_unseen(x):
    x.data.add_(3 * x.data[:1])


@pytest.mark.parametrize("write", [add_first, add_first_unseen])
@pytest.mark.parametrize("mode", ["rows", "vmap_loss", "ghost"])
@pytest.mark.few(4)
def test_inputs_that_are_written_to_after_the_call_change_no_release(mode, write):
    """Or they are refused under ghost clipping, which keeps the inputs themselves."""
    found = []
    for late in (False, True):
        run = start(mode, mech=mechanism(batch_size=8, steps=5))
        x, y = next(iter(run.loader))
        loss = run.criterion(run.forward(x), y)
        if late:
            write(x)
        if late and mode == "ghost":
            with pytest.raises((AnechoicError, RuntimeError), match=r"several examples|inplace operation"):
                loss.backward()
                run.optimizer.step()
            return
        loss.backward()
        run.optimizer.step()
        found.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]))
    assert torch.equal(*found)


def test_rows_along_another_axis_are_not_taken_for_examples():
    run = start(model=nn.Linear(8, 2), dataset=TensorDataset(torch.randn(40, 8), torch.zeros(40).long()))
    x, _ = next(iter(run.loader))
    assert x.shape == (8, 8)
    with pytest.raises(DesynchronizedError, match="along axis 1, and are taken from axis 0"):
        run.module(x.t())


@pytest.mark.slow
def test_a_criterion_by_rows_is_given_rows_alone():
    class Weighted(nn.Module):
        reduction = "mean"

        def forward(self, out, y, weight=1.0):
            return (out * weight).sum(-1).mean()

    for given in (lambda x: x.sum(), lambda x: x.flip(0)[:, :2]):
        run = start("vmap_loss", keys=False)
        run.criterion._criterion = Weighted()
        x, y = next(iter(run.loader))
        with pytest.raises(DesynchronizedError, match="not one row an example"):
            run.criterion(run.module(x), y, given(x))
    other = start("vmap_loss", keys=False)
    x, y = next(iter(other.loader))
    other.criterion._criterion = lambda out, y: out.sum() * x.sum()  # in a closure
    with pytest.raises(DesynchronizedError, match="was made from the batch"):
        other.criterion(other.module(x), y)


KEPT = {
    "a mean": lambda x, out, loss: out.detach().mean(0),
    "an average of batches": lambda x, out, loss: 0.9 * torch.zeros(2) + 0.1 * out.detach().data.sum(0),
    "the loss": lambda x, out, loss: loss.detach(),
    "the loss as a number": lambda x, out, loss: -loss.item(),
    "a parameter": lambda x, out, loss: nn.Parameter(out.detach().mean(0), requires_grad=False),
    "a copy": lambda x, out, loss: copy.copy(x.sum()),
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("mode", ["rows", "ghost"])
@pytest.mark.few(4)
def test_what_is_made_of_a_batch_after_its_step_is_followed_too(mode, keep):
    run = start(mode, mech=mechanism(batch_size=8, steps=5), keys=False)
    batches = iter(run.loader)
    x, y = next(batches)
    out = run.module(x)
    loss = run.criterion(out, y)
    loss.backward()
    run.optimizer.step()
    kept = keep(x, out, loss)
    x, y = next(batches)
    run.optimizer.zero_grad()
    with pytest.raises((GuaranteeError, DesynchronizedError), match=r"earlier batch|taken out of a tensor"):
        run.criterion(run.module(x) * kept, y).backward()
        run.optimizer.step()


BANKS = {
    "a new one": lambda bank, total: bank + total,
    "in place": lambda bank, total: bank.add_(total),
    "an entry": lambda bank, total: bank.__setitem__(0, total.sum()) or bank,
    "a view of it": lambda bank, total: [bank, bank[1:].copy_(total.sum()[None])][0],
    "by NumPy": lambda bank, total: torch.from_numpy(total.numpy()),
}


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("keep", BANKS.values(), ids=BANKS)
@pytest.mark.few(5)
def test_a_bank_that_is_kept_from_batch_to_batch_is_refused(keep, size):
    run, bank = start(mech=mechanism(batch_size=size, steps=5), keys=False), torch.zeros(2)
    batches = iter(run.loader)
    x, _ = next(batches)
    out = run.module(x)
    bank = keep(bank, out.detach().sum(0))
    weighed(out).backward()
    run.optimizer.step()
    x, _ = next(batches)
    run.optimizer.zero_grad()
    with pytest.raises(GuaranteeError, match="an earlier batch|from NumPy"):
        weighed(run.module(x), bank).backward()


def test_nothing_is_watched_once_the_loop_is_over():
    run = start(mech=mechanism(batch_size=8, steps=5), keys=False)
    for batch in run.loader:
        step(run, batch)
        assert _get_current_dispatch_mode_stack()
        break
    del batch
    gc.collect()
    assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()
    for batch in run.loader:
        step(run, batch)
    assert run.optimizer.source.types not in ACTIVE
    assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()


@pytest.mark.slow
def test_a_run_that_was_dropped_in_its_loop_costs_the_next_one_nothing():
    def dropped():
        run = start(mech=mechanism(batch_size=8, steps=5), keys=False)
        step(run, next(iter(run.loader)))

    gc.disable()
    try:
        dropped()
        assert len(ACTIVE) == 1
        run = start(mech=mechanism(batch_size=8, steps=5), keys=False)
        step(run, next(iter(run.loader)))
        assert [run.optimizer.source.types] == ACTIVE
    finally:
        gc.enable()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_mean_is_not_taken_for_a_sum(reduction):
    run = start(mech=mechanism(batch_size=8, steps=5), keys=False, reduction=reduction)
    other = "sum" if reduction == "mean" else "mean"
    x, y = next(iter(run.loader))
    with pytest.raises(GuaranteeError, match=f"loss_reduction='{other}'"):
        F.cross_entropy(run.module(x), y, reduction=other).backward()
    run.optimizer.zero_grad()
    F.cross_entropy(run.module(x), y, reduction=reduction).backward()
    run.optimizer.step()
    assert run.engine.releases == 1


SIZES = {
    "len": lambda y: len(y[y > 0]),
    "numel": lambda y: y.unique().numel(),
    "of what came of it": lambda y: (2.0 * y[y > 0] + 1).shape[0],
    "as many classes as came": lambda y: F.one_hot(y).size(1),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.few(2)
def test_a_number_of_values_that_the_data_decide_is_not_asked_before_backward(name):
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    count = SIZES[name](y)
    with pytest.raises(GuaranteeError, match="whose length the rows"):
        (F.cross_entropy(run.module(x), y) / count).backward()
    run.optimizer.zero_grad()
    run.optimizer.abandon_batch()
    for x, y in run.loader:
        assert len(x) == x.shape[0]
        F.cross_entropy(run.module(x), y).backward()
        assert SIZES[name](y) >= 0  # for a log
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert run.engine.releases == 5


def test_numbers_of_the_batch_are_integers_where_they_were():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    names = ["no", "yes"]
    assert names[y[0].item()] in names and all(isinstance(value, int) for value in y.tolist())
    again = pickle.loads(pickle.dumps({"loss": x.sum().item(), "n": y.sum().item()}))
    assert type(again["loss"]) is float and type(again["n"]) is int
    assert type(abs(round(-x.sum().item() // 2, 1)) % 3) is not float and f"{x.sum().item():.2f}"


def test_a_call_of_the_model_is_pulled_back_once():
    run = start(keys=False)
    x, y = next(iter(run.loader))
    loss = F.cross_entropy(run.module(x), y)
    loss.backward(retain_graph=True)
    run.module.zero_grad()
    loss.backward()
    with pytest.raises(DesynchronizedError, match="backward\\(\\) was called twice on one call"):
        run.optimizer.step()


class Inside(nn.Module):
    """Its own loss, a number a row, and beside it something that it took out of the row."""

    def __init__(self, *, loops):
        super().__init__()
        self.layer, self.loops = nn.Linear(FEATURES, 2), loops

    def forward(self, x):
        if self.loops:
            x.storage()  # which no transform of torch.func has
        out = self.layer(x)
        return (out.square().mean(), x.sum().item())


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("loops", [False, True])
def test_a_number_that_a_model_returns_is_that_of_a_row(loops):
    run = start(model=Inside(loops=loops), mech=mechanism(steps=5), keys=False)
    x, _ = next(iter(run.loader))
    loss, number = run.module(x)
    with pytest.raises(GuaranteeError, match="taken out"):
        (loss * number).backward()


def test_a_learning_rate_is_no_number_of_a_batch():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    step_of = run.optimizer.param_groups[0]["lr"]
    F.cross_entropy(run.module(x), y).backward()
    for rate in (0.1 / x.square().mean().item(), 0.1 / x.square().mean()):
        run.optimizer.param_groups[0]["lr"] = rate
        with pytest.raises(GuaranteeError, match="param_groups: lr="):
            run.optimizer.step()
    run.optimizer.param_groups[0]["lr"] = step_of
    run.optimizer.step()
    assert run.engine.releases == 1


EACH_BY_ITSELF = {
    "gathered": lambda out, y: -out.log_softmax(1).gather(1, y[:, None]).mean(),
    "one place a row": lambda out, y: -out.log_softmax(1)[torch.arange(len(y)), y].mean(),
    "places of a range": lambda out, y: out.square()[range(len(y)), y].mean(),
    "picked by a mask": lambda out, y: out.square().sum(1)[y > 0].sum() / len(y),
    "picked, and no longer linear": lambda out, y: -(out.square().sum(1)[y > 0] + 1).log().sum() / len(y),
    "margins": lambda out, y: F.multi_margin_loss(out, y),
    "huber": lambda out, y: F.huber_loss(out[:, 0], y.float()),
    "smooth": lambda out, y: F.smooth_l1_loss(out[:, 0], y.float()),
    "logits": lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y.float()),
    "probabilities": lambda out, y: F.binary_cross_entropy(out[:, 0].sigmoid(), y.float()),
    "soft margins": lambda out, y: F.soft_margin_loss(out[:, 0], 2.0 * y - 1),
    "divergence": lambda out, y: F.kl_div(out.log_softmax(1), F.one_hot(y, 2).float(), reduction="batchmean"),
    "norms": lambda out, y: out.norm(dim=1).mean(),
    "the largest": lambda out, y: out.max(dim=1).values.mean(),
    "sorted": lambda out, y: (out.sort(1).values * torch.arange(2.0)).sum(1).mean(),
    "cosine": lambda out, y: F.cosine_similarity(out, torch.tensor([[1.0, 2.0]])).mean(),
    "distances": lambda out, y: torch.cdist(out, torch.eye(3)[:, :2]).square().mean(),
    "cumulated in a row": lambda out, y: out.cumsum(1).square().mean(),
    "padded": lambda out, y: F.pad(out, (1, 2)).square().sum(1).mean(),
    "joined": lambda out, y: torch.cat([out, out.square()], 1).sum(1).mean(),
    "table": lambda out, y: (out * torch.eye(2)[y]).sum(1).square().mean(),
    "where": lambda out, y: torch.where(y[:, None] > 0, out, out.square()).mean(),
    "product of a row": lambda out, y: out.prod(1).square().mean(),
    "log of a sum": lambda out, y: out.logsumexp(1).mean(),
    "row by row": lambda out, y: (
        sum(F.cross_entropy(a[None], b[None]) for a, b in zip(out, y, strict=True)) / len(y)
    ),
    "einsum": lambda out, y: torch.einsum("nd,nd->n", out, out).mean(),
    "products of matrices": lambda out, y: (out[:, :, None] @ out[:, None, :]).square().sum((1, 2)).mean(),
}


@pytest.mark.parametrize("name", EACH_BY_ITSELF)
@pytest.mark.few(2)
def test_a_loss_of_each_row_by_itself_goes_through(name):
    run, loss = start(mech=mechanism(batch_size=8, steps=2)), EACH_BY_ITSELF[name]
    x, y = next(iter(run.loader))
    loss(run.module(x), y).backward()
    found, total = run.optimizer.source.sums(run.optimizer.ledger.in_hand), 0.0
    for row in range(len(x)):
        own = torch.autograd.grad(loss(run.model(x[row : row + 1]), y[row : row + 1]), run.optimizer.params)
        own = torch.cat([g.flatten() for g in own])
        total = total + own * (run.optimizer.max_grad_norm / own.norm()).clamp(max=1.0)
    assert torch.allclose(torch.cat([t.flatten() for t in found]).float(), total, atol=1e-3)
