"""Ways by which other rows reached a row's gradient past the loss's own operations; each is refused."""

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.torch.row_types.following import ACTIVE
from tests.torch.setting import FEATURES, backward, mechanism, start, step


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


def a_hook_on_outputs(run, x, y):
    out = run.module(x)
    out.register_hook(lambda gradient: x.sum(0)[:2].expand_as(gradient))
    weighed(out).backward()


def a_number_in_a_hook(run, x, y):
    out, number = run.module(x), x.sum().item()
    out.register_hook(lambda gradient: gradient * number)
    weighed(out).backward()


def a_number_taken_in_a_hook(run, x, y):
    out = run.module(x)
    out.register_hook(lambda gradient: gradient / (1 + float(gradient.abs().max())))
    (out.square().sum(1)).mean().backward()


def a_backward_of_ones_own(run, x, y):
    weighed(OwnBackward.apply(run.module(x))).backward()


def a_good_loss_before(run, x, y):
    backward(run, (x, y))
    run.optimizer.zero_grad()
    out = run.module(x)
    weighed(out, out.detach().sum(0)).backward()


def a_good_loss_beside(run, x, y):
    out = run.module(x)
    torch.autograd.backward([weighed(out), weighed(out, out.detach().sum(0))])


def a_gradient_given(run, x, y):
    out = run.module(x)
    weighed(out).backward(gradient=out.detach().sum())


def a_slice_written(run, x, y):
    out = run.module(x)
    weight = torch.zeros_like(out.detach())
    weight.copy_(out.detach())
    weight[1:] = out.detach()[0]
    weighed(out, weight).backward()


def the_gradient_of_a_leaf(run, x, y):
    out, leaf = run.module(x), torch.ones(2, requires_grad=True)
    (out.detach() * leaf).sum().backward()
    weighed(out, leaf.grad).backward()


def a_parameter_of_a_total(run, x, y):
    out = run.module(x)
    weighed(out, nn.Parameter(out.detach().sum(0))).backward()


def a_copy_of_a_total(run, x, y):
    out = run.module(x)
    weighed(out, copy.deepcopy(out.detach().sum(0))).backward()


def data_put_elsewhere(run, x, y):
    out, weight = run.module(x), torch.zeros(2)
    weight.data = out.detach().sum(0)
    weighed(out, weight).backward()


def a_number_taken_out(run, x, y):
    loss = F.cross_entropy(run.module(x), y, reduction="none")
    (loss.sum() / (y > 0).sum().item()).backward()


def a_list_taken_out(run, x, y):
    loss = weighed(run.module(x))
    (loss * (1 + sum(y.tolist()))).backward()


def a_tensor_for_a_number(run, x, y):
    weighed(torch.add(torch.zeros(8, 2), run.module(x), alpha=x.mean())).backward()


def a_list_of_tensors(run, x, y):
    weighed(run.module(x), torch.tensor([x.mean(), 1.0])).backward()


def a_new_tensor_of_tensors(run, x, y):
    weighed(run.module(x), x.new_tensor([x.mean(), 1.0])).backward()


def a_count_below_a_float(run, x, y):
    (weighed(run.module(x)) * (1.0 / (1 + y.sum().item()))).backward()


def rows_of_a_list(run, x, y):
    share = [1 / y.tolist().count(value) for value in y.tolist()]
    (run.module(x).sum(1) * torch.tensor(share)).mean().backward()


def statistics_that_a_function_keeps(run, x, y):
    mean, variance = torch.zeros(FEATURES), torch.ones(FEATURES)
    F.batch_norm(x, mean, variance, training=True)
    weighed(run.module(x), mean[:2]).backward()


def ones_like_what_was_picked(run, x, y):
    picked = run.module(x).square().sum(1)[y >= 0]
    (picked.sum() / torch.ones_like(picked).sum()).backward()


def a_number_as_large_as_what_was_picked(run, x, y):
    picked = run.module(x).square().sum(1)[y >= 0]
    (picked.sum() / torch.ones(()).expand_as(picked).sum()).backward()


class ByNumPy(OwnBackward):
    @staticmethod
    def backward(ctx, gradient):
        values = gradient.detach().numpy()
        return torch.from_numpy(values - values.mean(0))


def a_backward_in_numpy(run, x, y):
    weighed(ByNumPy.apply(run.module(x)).square()).backward()


WAYS = (
    *(a_tensor_for_a_number, a_list_of_tensors, a_new_tensor_of_tensors, a_count_below_a_float),
    *(rows_of_a_list, statistics_that_a_function_keeps, ones_like_what_was_picked),
    *(a_number_as_large_as_what_was_picked, a_backward_in_numpy),
    *(a_hook_on_outputs, a_backward_of_ones_own, a_good_loss_before, a_good_loss_beside, a_gradient_given),
    *(a_slice_written, the_gradient_of_a_leaf, a_parameter_of_a_total, a_copy_of_a_total, data_put_elsewhere),
    *(a_number_taken_out, a_list_taken_out, a_number_in_a_hook, a_number_taken_in_a_hook),
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(9)
def test_a_loss_that_other_rows_reach_by_another_way_is_refused(way):
    run = start(mech=mechanism(steps=5), keys=False)
    batch = next(iter(run.loader))
    with pytest.raises(GuaranteeError, match=r"(mixes|depends on|all) (the )?rows of the batch"):
        way(run, *batch)
    assert run.engine.releases == 0
    run.optimizer.zero_grad()
    step(run, batch)
    assert run.engine.releases == 1


class Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.held = nn.Linear(FEATURES, 2), 1.0

    def forward(self, x):
        return self.layer(x) * self.held


def test_a_model_that_holds_something_of_the_batch_is_refused():
    run = start(model=Holding(), keys=False)
    x, _ = next(iter(run.loader))
    run.model.held = x.mean()
    with pytest.raises(DesynchronizedError, match="was made from the batch"):
        run.module(x)
    for held in (x.mean().item(), {"scale": [x.sum().item()]}):
        run.model.held = held
        with pytest.raises(DesynchronizedError, match="Holding.held of the model was made from the batch"):
            run.module(x)
    run.model.held = 2.0
    run.module(x)


def test_rows_along_another_axis_are_not_taken_for_examples():
    run = start(model=nn.Linear(8, 2), dataset=TensorDataset(torch.randn(40, 8), torch.zeros(40).long()))
    x, _ = next(iter(run.loader))
    assert x.shape == (8, 8)
    with pytest.raises(DesynchronizedError, match="along axis 1, and are taken from axis 0"):
        run.module(x.t())


def test_values_that_went_through_numpy_are_not_taken_for_rows_of_a_later_batch():
    run = start(mech=mechanism(batch_size=8, steps=5), keys=False)
    batches = iter(run.loader)
    x, _ = next(batches)
    out = run.module(x)
    weighed(out).backward()
    run.optimizer.step()
    kept = out.detach().numpy()
    x, _ = next(batches)
    run.optimizer.zero_grad()
    with pytest.raises(GuaranteeError, match="from NumPy"):
        weighed(run.module(x), torch.from_numpy(kept)).backward()


@pytest.mark.parametrize("given", [lambda x: x.sum(), lambda x: x.flip(0)[:, :2]])
def test_a_criterion_by_rows_is_given_rows_alone(given):
    class Weighted(nn.Module):
        reduction = "mean"

        def forward(self, out, y, weight=1.0):
            return (out * weight).sum(-1).mean()

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


@pytest.mark.parametrize(
    "keep",
    [
        lambda x, out, loss: out.detach().mean(0),
        lambda x, out, loss: 0.9 * torch.zeros(2) + 0.1 * out.detach().data.sum(0),
        lambda x, out, loss: loss.detach(),
        lambda x, out, loss: -loss.item(),
        lambda x, out, loss: x.sum(),
        lambda x, out, loss: nn.Parameter(out.detach().mean(0), requires_grad=False),
        lambda x, out, loss: copy.copy(x.sum()),
    ],
)
@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_what_is_made_of_a_batch_after_its_step_is_followed_too(mode, keep):
    run = start(mode, mech=mechanism(batch_size=8, steps=5), keys=False)
    batches = iter(run.loader)
    x, y = next(batches)
    out = run.module(x)
    criterion = run.criterion if mode == "ghost" else F.cross_entropy
    loss = criterion(out, y)
    loss.backward()
    run.optimizer.step()
    kept = keep(x, out, loss)
    x, y = next(batches)
    run.optimizer.zero_grad()
    with pytest.raises((GuaranteeError, DesynchronizedError), match=r"earlier batch|taken out of a tensor"):
        criterion(run.module(x) * kept, y).backward()
        run.optimizer.step()


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
    "shape": lambda y: y.nonzero().shape[0],
    "size": lambda y: y[y > 0].size(0),
    "numel": lambda y: y.unique().numel(),
    "of what came of it": lambda y: (2.0 * y[y > 0] + 1).numel(),
}


@pytest.mark.parametrize("name", SIZES)
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


def test_a_loss_row_by_row_is_no_other_than_that_of_the_batch():
    losses = {
        "at once": lambda out, y: F.cross_entropy(out, y),
        "a loop": lambda out, y: (
            sum(F.cross_entropy(out[i : i + 1], y[i : i + 1]) for i in range(len(y))) / len(y)
        ),
        "pairs": lambda out, y: torch.stack(
            [F.cross_entropy(a[None], b[None]) for a, b in zip(out, y, strict=True)]
        ).mean(),
    }
    found = []
    for loss in losses.values():
        run = start(mech=mechanism(batch_size=8, steps=2))
        x, y = next(iter(run.loader))
        loss(run.module(x), y).backward()
        run.optimizer.step()
        found.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]))
    assert torch.allclose(found[0], found[1], atol=1e-5) and torch.allclose(found[0], found[2], atol=1e-5)


def test_numbers_of_the_batch_are_integers_where_they_were():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    names = ["no", "yes"]
    assert names[y[0].item()] in names and all(isinstance(value, int) for value in y.tolist())
    again = pickle.loads(pickle.dumps({"loss": x.sum().item(), "n": y.sum().item()}))
    assert type(again["loss"]) is float and type(again["n"]) is int
    assert type(abs(round(-x.sum().item() // 2, 1)) % 3) is not float


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize(
    "keep",
    [
        lambda bank, out: bank + out.sum(0),
        lambda bank, out: bank.add_(out.sum(0)),
        lambda bank, out: bank.__setitem__(0, out.sum(0)) or bank,
        lambda bank, out: [bank, bank[1:].copy_(out.sum(0)[None])][0],
    ],
)
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
    with pytest.raises(GuaranteeError, match="an earlier batch"):
        weighed(run.module(x), bank).backward()


def test_numbers_for_the_log_are_floats():
    run = start(mech=mechanism(steps=5), keys=False)
    total = 0.0
    for x, y in run.loader:
        loss = F.cross_entropy(run.module(x), y)
        total += loss.item()
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
    assert isinstance(total, float) and f"{total:.2f}" and run.engine.releases == 5


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


def test_a_hook_on_the_loss_that_a_model_makes_itself_is_seen():
    run = start(model=Inside(loops=False), mech=mechanism(steps=5), keys=False)
    x, _ = next(iter(run.loader))
    loss, _ = run.module(x)
    loss.register_hook(lambda gradient: gradient * x.sum())
    with pytest.raises(GuaranteeError, match="mixes"):
        loss.backward()


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
    "einsum": lambda out, y: torch.einsum("nd,nd->n", out, out).mean(),
    "products of matrices": lambda out, y: (out[:, :, None] @ out[:, None, :]).square().sum((1, 2)).mean(),
}


@pytest.mark.parametrize("name", EACH_BY_ITSELF)
@pytest.mark.few(7)
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
