"""The comparison with autograd of single rows: when it happens, what it sees, and what it leaves alone."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import BatchMemoryManager
from anechoic.torch.sources import single_rows
from anechoic.torch.sources.ghost import gradients
from anechoic.torch.sources.row_calls import RowCall
from anechoic.torch.sources.single_rows import SingleRows
from tests.marks import mostly_slow
from tests.torch.setting import FEATURES, backward, data, network, start, step, train

MODES = mostly_slow(("hooks", "ghost", "vmap", "vmap_loss"), quick=("ghost", "vmap"))
WHOLE = ("hooks", "functorch", "ghost")  # these show the model a whole batch


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
    monkeypatch.setattr(single_rows.AttributeSnapshot, "layer", lambda self, layer, skipped=(): {})
    run, rows = long_run("vmap", steps=2), []
    delivery = next(iter(run.loader)) and run.optimizer.ledger.in_hand
    for key in (b"a" * 32, b"b" * 32):
        run.optimizer.ledger.start(key)
        watch = SingleRows(run.model, list(run.model.parameters()), run.optimizer.ledger)
        first = watch.rows(type(delivery)(0, 50))
        assert 3 <= len(first) <= 4 and {0, 49} <= set(first)
        watch.settle(type(delivery)(0, 50), True)
        found = [watch.rows(type(delivery)(step, 50)) for step in range(1, 4000)]
        rows.append(found)
        assert 0.3 / 128 < sum(map(len, found)) / len(found) < 2 / 128
        assert all(len(chosen) <= 1 and set(chosen) <= set(range(50)) for chosen in found)
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


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_not_finite_agree_and_leave_the_comparison_due(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    for which, times in ((slice(0, 40), 12), (slice(0, 40, 10), 1)):
        broken = data(40)
        broken.tensors[0][which] = float("inf")
        run = long_run(mode, dataset=broken)
        train(run)
        assert compared(run) == times


class Lonely(nn.Module):
    """Knows when a row is alone, and spoils it: a row that counts as zero alone says nothing of the batch."""

    def __init__(self, factor):
        super().__init__()
        self.body, self.factor = nn.Linear(FEATURES, 2), factor

    def forward(self, x):
        if self.factor is None:  # unbiased: NaN for one row
            return self.body(x / x.std(0))
        h = self.body(x + x.mean(0))
        return h * (self.factor if len(x) == 1 else 1.0)


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("factor", [None, float("nan"), -float("inf")])
def test_a_row_that_is_finite_in_the_batch_alone_is_refused(mode, factor):
    run = long_run(mode, model=Lonely(factor))
    with pytest.raises(GuaranteeError, match="not finite"):
        step(run, next(iter(run.loader)))
    assert run.engine.releases == 0


def test_a_gradient_that_is_finite_in_the_batch_alone_is_refused():
    watch = long_run("vmap").optimizer.source.single
    good, bad = [torch.ones(2)], [torch.tensor([1.0, float("nan")])]
    for found, alone in ((good, bad), (bad, good)):
        with pytest.raises(GuaranteeError, match="not finite"):
            watch.compare(found, alone, 0)
    assert not watch.compare(bad, bad, 0) and watch.compare(good, good, 0)


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("how", ["abandon", "again", "step"])
def test_a_refusal_holds_until_rows_agree(mode, how, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = long_run(mode, model=Mixing(0.0, True))
    batch = next(iter(run.loader))
    for _ in range(3):
        with pytest.raises(GuaranteeError, match="mixes the rows"):
            step(run, batch)
        if how == "abandon":
            run.optimizer.abandon_batch()
            batch = next(iter(run.loader))
        elif how == "step":
            with pytest.raises(GuaranteeError, match="mixes the rows"):
                run.optimizer.step()
    assert run.engine.releases == 0
    run.model.share = 0.0
    step(run, batch)
    assert run.engine.releases == 1


def test_a_refused_secret_row_makes_the_comparison_due(monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    monkeypatch.setattr(single_rows.AttributeSnapshot, "layer", lambda self, layer, skipped=(): {})
    run = long_run("hooks", model=Mixing(0.0, True))
    run.model.share = 0.0
    batches = iter(run.loader)
    step(run, next(batches))
    run.model.share = 0.1
    monkeypatch.setattr(single_rows, "RATE", 1.0)
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        step(run, next(batches))
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run.optimizer.abandon_batch()
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        step(run, next(iter(run.loader)))


def _peek(run):
    run.module(next(iter(run.loader))[0])


def _peek_without_gradients(run):
    with torch.no_grad():
        _peek(run)


def _first_only(run):
    for _ in run.loader:
        break


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize(
    "before", [_peek, _peek_without_gradients, _first_only, lambda run: run.module.eval()]
)
def test_nothing_before_the_first_step_uses_the_comparison_up(mode, before, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = long_run(mode, model=Mixing(0.0, True))
    before(run)
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        step(run, next(iter(run.loader)))
    assert run.engine.releases == 0


@pytest.mark.parametrize("mode", WHOLE)
def test_eval_mode_for_the_forward_alone_is_compared(mode):
    run = long_run(mode, model=Mixing(0.0, True))
    x, y = next(iter(run.loader))
    run.module.eval()
    output = run.module(x)
    run.module.train()
    (run.criterion or F.cross_entropy)(output, y).backward()
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        run.optimizer.step()


class Parcel:
    """An object that is no container of tensors."""

    def __init__(self, tensor):
        self.tensor = tensor


class Parcelled(nn.Module):
    """Takes or gives its tensors in a place that is not looked at."""

    def __init__(self, where):
        super().__init__()
        self.body, self.where, self.kept = nn.Linear(FEATURES, 2), where, None

    def forward(self, x):
        h = self.body(x.tensor if self.where == "input" else x)
        if self.where == "attribute":
            self.kept = h
            return None
        return Parcel(h) if self.where == "output" else h


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("where", ["input", "output", "attribute"])
def test_a_comparison_that_cannot_be_made_is_refused(mode, where):
    run = long_run(mode, model=Parcelled(where))
    x, y = next(iter(run.loader))
    output = run.module(Parcel(x) if where == "input" else x)
    output = {"input": lambda: output, "output": lambda: output.tensor, "attribute": lambda: run.model.kept}[
        where
    ]()
    (run.criterion or F.cross_entropy)(output, y).backward()
    for _ in range(2):
        with pytest.raises(GuaranteeError, match=r"could not be compared.*return what the loss is made from"):
            run.optimizer.step()
    assert run.engine.releases == 0


class Overflowing(nn.Module):
    """Drops the rows that come after others."""

    def __init__(self, places):
        super().__init__()
        self.body, self.places = nn.Linear(FEATURES, 2), places

    def forward(self, x):
        kept = (torch.arange(len(x)) < self.places).to(x.dtype)
        return self.body(x) * kept[:, None]


@pytest.mark.parametrize("mode", WHOLE)
def test_a_row_that_shows_the_mixing_is_among_those_compared(mode):
    for _ in range(5):  # one secret row of 8 would show it now and then
        run = long_run(mode, model=Overflowing(7))
        with pytest.raises(GuaranteeError, match="row 7 of the batch.*mixes the rows"):
            step(run, next(iter(run.loader)))


class Choosy(nn.Module):
    """Takes the whole batch only."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, 2)

    def forward(self, x):
        if len(x) < 8:
            raise ValueError("expected 8 rows")
        return self.body(x)


@pytest.mark.parametrize("mode", WHOLE)
def test_a_model_that_cannot_run_on_a_row_is_refused_in_words(mode):
    run = long_run(mode, model=Choosy())
    with pytest.raises(GuaranteeError, match=r"cannot run on it \(expected 8 rows\)"):
        step(run, next(iter(run.loader)))


class Normalised(nn.Module):
    """Batch statistics by a function."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, 2)

    def forward(self, x):
        return self.body(F.batch_norm(x, None, None, training=True))


@pytest.mark.parametrize("mode", WHOLE)
def test_batch_norm_by_its_function_is_refused_in_words(mode):
    run = long_run(mode, model=Normalised())
    with pytest.raises(GuaranteeError, match="taken alone"):
        step(run, next(iter(run.loader)))


@pytest.mark.parametrize("mode", ["vmap", "vmap_loss"])
def test_batch_norm_by_its_function_names_the_layer(mode):
    run = long_run(mode, model=nn.Sequential(nn.Tanh(), Normalised()))
    with pytest.raises(UnsupportedError, match=r"1 \(Normalised\) normalises .* Use GroupNorm"):
        step(run, next(iter(run.loader)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_one_coin_for_all_rows_is_no_row_s(mode, draw):
    """What Python and NumPy draw follows from the key: a row that is not there changes nothing of others."""

    class Coin(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = network(seed=1), network(seed=2)

        def forward(self, x):
            coin = float(draw())
            return coin * self.a(x) + (1 - coin) * self.b(x)

    sums = []
    for gone in (None, 3):
        run = start(mode, model=Coin(), shuffle=False)
        x, y = next(iter(run.loader))
        if gone is not None:
            x[gone] = float("nan")  # counts as zero
        run.optimizer.zero_grad()
        backward(run, (x, y))
        sums.append(run.optimizer.source.sums(run.optimizer.ledger.due()))
        run.optimizer.abandon_batch()
    moved = sum(float((a - b).square().sum()) for a, b in zip(*sums, strict=True)) ** 0.5
    assert 0 < moved <= 1.0001


@pytest.mark.parametrize("mode", MODES)
def test_the_comparison_waits_for_a_batch_of_several_rows(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = start(mode, mech=Mechanism(Identity(12), Poisson(40, 1, steps=12), 0.5, 1.0))
    counts, several, expected, sizes = [], False, [], []
    for batch in run.loader:
        size = len(batch[1])  # one row that is alone anyway is compared once
        expected.append(not several and size > (1 in sizes))
        several = several or size > 1
        sizes.append(size)
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
        self.detached, self.share = detached, 0.1

    def forward(self, x):
        h = self.dropout(self.body(x))
        mean = self.share * h.mean(0)
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


class Squeezed(nn.Module):
    """Has another shape for a batch of one; with `narrow`, it cannot take one."""

    def __init__(self, narrow=False, mixing=0.0):
        super().__init__()
        self.body, self.narrow, self.mixing = nn.Linear(FEATURES, 1), narrow, mixing

    def forward(self, x):
        h = self.body(x).squeeze()
        if self.narrow:
            h = h.unflatten(0, (len(x),)) if len(x) > 1 else F.batch_norm(x, None, None, training=True)
        return h / len(x) if self.mixing else h


class Losing(nn.Module):
    """Gives the loss of its rows, as models do that are handed the labels."""

    def __init__(self, dropout, reduction):
        super().__init__()
        self.body, self.dropout, self.reduction = network(), nn.Dropout(dropout), reduction

    def forward(self, x, y):
        return F.cross_entropy(self.dropout(self.body(x)), y, reduction=self.reduction)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("narrow", [False, True])
def test_a_model_that_takes_no_batch_of_one_is_compared(narrow, size, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 1.0)

    def once(model):
        mech = Mechanism(Identity(1), FixedOrder(40, size, steps=1), 0.5, 1.0)
        run = start("hooks", model=model, mech=mech)
        x, y = next(iter(run.loader))
        F.binary_cross_entropy_with_logits(run.module(x), y.double().to(x.dtype)).backward()
        run.optimizer.step()
        return compared(run)

    assert once(Squeezed(narrow)) == 1
    with pytest.raises(GuaranteeError, match="mixes the rows"):
        once(Squeezed(narrow, mixing=1.0))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("dropout", "times"), [(0.0, 3), (0.5, 1)])  # of a single row it cannot be
def test_a_loss_made_by_the_model_is_compared_where_it_can_be(dropout, times, reduction, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 1.0)
    run = long_run("hooks", model=Losing(dropout, reduction), steps=3, reduction=reduction)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.module(x, y).backward()
        run.optimizer.step()
        if run.engine.releases == 3:
            break
    assert compared(run) == times


class LosingMixed(Losing):
    def forward(self, x, y):
        return super().forward(x - 0.2 * x.mean(0), y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_of_mixed_rows_that_draws_is_refused(reduction, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = long_run("hooks", model=LosingMixed(0.5, reduction), reduction=reduction)
    x, y = next(iter(run.loader))
    run.module(x, y).backward()
    with pytest.raises(GuaranteeError, match=r"beside row \d changes|mixes the rows"):
        run.optimizer.step()
    assert run.engine.releases == 0


LABELS = (torch.arange(8) < 3).float()[:, None].expand(-1, FEATURES)  # that these move says nothing
TWICE = {
    "flipped": lambda module, x: module(x) + module(x.flip(0)),
    "shuffled": lambda module, x: module(x[[1, 0, 2, 3, 4, 5, 6, 7]]) * module(x),
}
ONCE = {
    "in one order": lambda module, x: module(x) + module(x),
    "other values": lambda module, x: module(x) + module(-x),
    "one other row": lambda module, x: module(x) + module(torch.cat([x[:1] + 1, x[1:]])),
    "labels": lambda module, x: module(x) + module(LABELS[: len(x)]) + module(LABELS[: len(x)].flip(0)),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost", "vmap"])
@pytest.mark.parametrize("how", [*TWICE, *ONCE])
def test_rows_in_two_orders_are_refused(how, mode):
    run = long_run(mode)
    x, y = next(iter(run.loader))
    if how in TWICE:
        with pytest.raises(GuaranteeError, match="in two orders"):
            TWICE[how](run.module, x)
        return
    run.criterion(ONCE[how](run.module, x), y).backward()
    run.optimizer.step()
    assert run.engine.releases == 1


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


def test_a_row_that_is_alone_anyway_shows_no_mixing_under_ghost_clipping():
    run = start("ghost", mech=Mechanism(Identity(2), FixedOrder(40, 1, steps=2), 0.5, 1.0))
    step(run, next(iter(run.loader)))
    assert run.optimizer.source._gradients._checked_state == ()
    run = long_run("ghost")
    step(run, next(iter(run.loader)))
    assert run.optimizer.source._gradients._checked_state == (True,) * 4


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
