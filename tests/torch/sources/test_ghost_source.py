"""Ghost clipping as a source: bounds that hold under rounding, rows apart, and what must not break it."""

import copy
import pickle
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.ghost import factored_gradients, gradients, module
from anechoic.torch.sources.ghost.factored_gradients import PlainGradients, SparseGradients, excess, norms
from anechoic.torch.sources.ghost.layers import KINDS
from anechoic.torch.sources.ghost.loss import PerExampleCriterion
from tests.marks import in_turn
from tests.torch.sources.ghost_setting import clipped, flat, ghost, normal, outer, single_rows

B = 8


def exact_norms(x, a):
    """By integers and fractions: nothing is rounded."""
    found = []
    for xs, as_ in zip(x.tolist(), a.tolist(), strict=True):
        squared = Fraction(0)
        for i in range(x.shape[2]):
            for o in range(a.shape[2]):
                entry = sum(
                    (Fraction(xt[i]) * Fraction(at[o]) for xt, at in zip(xs, as_, strict=True)), Fraction(0)
                )
                squared += entry * entry
        found.append(squared)
    return found


# Norms.


@in_turn("scale", [1e-30, 1.0, 1e7, 1e30])
@in_turn("positions", [1, 2, 3, 64])
def test_norms_never_fall_short_of_exact_ones(positions, scale):
    x, a = normal(4, positions, 3) * scale, normal(4, positions, 2, seed=2)
    found = outer(x, a).squared_norms()
    for upper, exact in zip(found.tolist(), exact_norms(x, a), strict=True):
        assert upper >= exact
        assert upper <= float(exact) * 1.01


@pytest.mark.parametrize("margin", [0.0, factored_gradients.MARGIN])
def test_norms_of_what_cancels_never_fall_short(monkeypatch, margin):
    monkeypatch.setattr(factored_gradients, "MARGIN", margin)  # rounding's own bound is enough
    for seed in range(40):
        x, a = normal(6, 2, 3, seed=seed) * 1e7, normal(6, 1, 4, seed=seed + 100).expand(6, 2, 4).contiguous()
        x[:, 1] = -x[:, 0]
        x[:, 1, 0] += 600  # what is left
        found = outer(x, a).squared_norms()
        for upper, exact in zip(found.tolist(), exact_norms(x, a), strict=True):
            assert upper >= exact


def test_a_norm_counts_what_rounding_may_hide_in_the_sum():
    x = torch.tensor([[[1e7], [-1e7]]])
    a = torch.ones(1, 2, 1)
    upper = outer(x.expand(1, 2, 40), a.expand(1, 2, 40)).squared_norms().sqrt()
    amplitude = 2 * 1e7 * 40
    assert (
        factored_gradients.MARGIN * amplitude <= float(upper) <= 1.03 * factored_gradients.MARGIN * amplitude
    )


def exact_squares(gradients):
    return [sum((Fraction(v) ** 2 for v in row.flatten().tolist()), Fraction(0)) for row in gradients]


def test_norms_of_biases_and_words_never_fall_short_of_exact_ones():
    values = normal(30, 4, 3)
    repeated = torch.tensor([0, 1, 4, 2]).expand(30, 4)
    by_word = torch.zeros(30, 5, 3).index_copy_(1, repeated[0], values)
    for part, found in ((PlainGradients(values), values), (SparseGradients(repeated, values, 5), by_word)):
        for upper, exact in zip(part.squared_norms().tolist(), exact_squares(found), strict=True):
            assert exact <= upper <= float(exact) * (1 + 1e-12)


# Sums: removing one row moves them by no more than the clip norm.


def gram(seed):
    """Cases in which the weight's gradient comes from Gram matrices, and products cancel in some rows."""
    x, a = normal(60, 6, 30, seed=seed), normal(60, 6, 30, seed=seed + 50)
    x[::3, 1], a[::3, 1] = -x[::3, 0] * 1e7, a[::3, 0]
    x[::3, 0] *= 1e7
    return outer(x, a), outer(x[1:], a[1:])


def single(seed):
    x, a = normal(60, 1, 30, seed=seed) * 1e3, normal(60, 1, 30, seed=seed + 50)
    return outer(x, a), outer(x[1:], a[1:])


def whole(seed):
    x, a = normal(60, 40, 3, seed=seed) * 1e3, normal(60, 40, 4, seed=seed + 50)
    return outer(x, a), outer(x[1:], a[1:])


def unkept(seed):
    x, a = normal(60, 40, 3, seed=seed) * 1e3, normal(60, 40, 4, seed=seed + 50)
    parts = outer(x, a), outer(x[1:], a[1:])
    for part in parts:
        part._keeps = part._reuses = False
    return parts


def words(seed):
    lines = torch.randint(0, 5, (60, 7), generator=torch.Generator().manual_seed(seed))
    values = normal(60, 7, 3, seed=seed)
    return SparseGradients(lines, values, 5), SparseGradients(lines[1:], values[1:], 5)


def direct(seed):
    values = normal(60, 7, 3, seed=seed)
    return PlainGradients(values), PlainGradients(values[1:])


@pytest.mark.parametrize("clip", [1e-6, 1.0])
@pytest.mark.parametrize("make", [gram, single, whole, unkept, words, direct])
def test_removing_a_row_moves_the_sum_by_the_clip_norm_at_most(make, clip):
    for seed in range(10):
        sums, terms = [], 0
        for part in make(seed):
            lengths = norms([part])
            sums.append(part.weighted_sum((clip / lengths).clamp(max=1.0)))
            terms = max(terms, getattr(part, "terms", 0))
        moved = float((sums[0] - sums[1]).norm())
        assert moved <= clip * (1 + excess(60, terms))
        assert excess(60, terms) < 1e-4
        if make in (single, whole, words, direct):
            assert moved >= clip * (1 - 1e-3)  # nothing is lost where a row is above the clip norm


def spread(out, which):
    """One loss a row."""
    return (out.flatten(start_dim=1) ** 2).sum(dim=1) * (1.0 + which)


# Whole models.


TOKENS = torch.randint(0, 9, (B, 6), generator=torch.Generator().manual_seed(4))
TOKENS[0] = 3


def tied_parts(seed, positions, words=7):
    """Rows whose gradients by words and by the head cancel up to the rounding of float32."""
    lines = torch.randint(0, words, (30, positions), generator=torch.Generator().manual_seed(seed))
    values = normal(30, positions, 5, seed=seed) * 1e3
    return lines, values, values / 0.7, -0.7 * F.one_hot(lines, words).float()


@pytest.mark.parametrize("positions", [1, 6, 40])
def test_norms_of_what_cancels_between_an_embedding_and_its_head_never_fall_short(monkeypatch, positions):
    monkeypatch.setattr(factored_gradients, "MARGIN", 0.0)
    for seed in range(5):
        lines, values, x, a = tied_parts(seed, positions)
        lengths = norms([factored_gradients.shared(SparseGradients(lines, values, 7), outer(x, a))])
        assert bool((lengths >= tied_gradients(lines, values, x, a).flatten(1).norm(dim=1)).all())


def tied_gradients(lines, values, x, a):
    """In float64, word by word before the two are added: what cancels, cancels exactly."""
    onehot = F.one_hot(lines, 7).double()
    return torch.einsum("btv,btd->bvd", onehot, values.double()) + torch.einsum(
        "bto,bti->boi", a.double(), x.double()
    )


@pytest.mark.parametrize("positions", [1, 6, 40])
def test_what_cancels_between_an_embedding_and_its_head(positions):
    for seed in range(5):
        lines, values, x, a = tied_parts(seed, positions)
        sums = []
        for first in (0, 1):
            rows_of = slice(first, None)
            tied = factored_gradients.shared(
                outer(x[rows_of], a[rows_of]), SparseGradients(lines[rows_of], values[rows_of], 7)
            )
            lengths = norms([tied])
            sums.append(tied.weighted_sum((1 / lengths).clamp(max=1.0)))
        assert float((sums[0] - sums[1]).norm()) <= 1 + excess(30, tied.terms)
        assert excess(30, tied.terms) < 1e-4


class Across(nn.Module):
    """A layer that is given the whole batch as one vector, as long as there are rows."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(B, B), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(x) + self.a(x[:, 0])[:, None]


def test_an_input_without_an_axis_of_rows_is_refused():
    model = Across()
    source, _ = ghost(model, B)
    with pytest.raises(GuaranteeError, match=r"shape \(8,\), which has no axis of rows"):
        source.backward(model(normal(B, 3)).sum(1))


class OneWay(nn.Module):
    """The first row sees the second one, which sees none."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        h = self.a(x)
        return torch.cat([h[:1] + h[1:2], h[1:]])


@pytest.mark.parametrize("counted", [0, 1])
def test_a_row_that_another_one_sees_is_refused_whichever_counts(counted, monkeypatch):
    monkeypatch.setattr(module, "_some", lambda rows: torch.arange(rows) == counted)
    model = OneWay()
    source, _ = ghost(model, B)
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward(model(normal(B, 3)).sum(1))


def test_rounding_adds_up_over_the_micro_batches_of_a_release():
    source, _ = ghost(nn.Linear(3, 2), B)
    for step, chunk, part in ((0, 0, 0.25), (0, 1, 0.5), (0, 1, 0.125), (1, 0, 0.6875)):
        source._count_rounding(Delivery(step, B, chunk, 2), part)
    assert source.excess == 0.25 + 0.5, "a micro-batch that comes again counts once, another release anew"


def test_normalisation_with_running_statistics_is_not_on_the_list():
    layer = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    assert KINDS[type(layer)].fault(layer) == "track_running_stats=True"
    with pytest.raises(UnsupportedError, match="track_running_stats=True"):
        ghost(layer, B)


def test_a_row_that_is_not_finite_counts_as_zero_and_spoils_no_other():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    x = normal(B, 2, 5)
    expected = clipped(single_rows(model, x, spread, rows=[0, 1, 2, 4, 5, 6, 7]))
    x[3, 0, 1] = float("inf")
    source, delivery = ghost(model, B)
    source.backward(spread(model(x), torch.arange(B)))
    sums = flat(source.sums(delivery))
    assert torch.allclose(sums, expected, atol=1e-4)


# Rows stay apart.


class Mixing(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.a, self.b, self.mix = nn.Linear(5, 4), nn.Linear(4, 3), mix

    def forward(self, x):
        return self.b(self.mix(self.a(x)))


MIXES = {
    "centred": lambda h: h - h.mean(0),
    "turned": lambda h: h.roll(1, 0),
    "sorted": lambda h: h[h[:, 0].argsort()],
    "scaled by all": lambda h: h / h.norm(),
    "attention over rows": lambda h: (h @ h.T).softmax(1) @ h,
}


@pytest.mark.parametrize("kind", MIXES)
def test_a_model_that_mixes_rows_is_refused_at_its_first_pass(monkeypatch, kind):
    # a chance choice of rows that a permutation maps onto itself would not show it
    monkeypatch.setattr(module, "_some", lambda rows: torch.arange(rows) < rows // 2)
    torch.manual_seed(0)
    model = Mixing(MIXES[kind])
    source, delivery = ghost(model, B)
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward(spread(model(normal(B, 5)), torch.arange(B)))
    with pytest.raises(DesynchronizedError, match="no clipped gradient"):
        source.sums(delivery)


def test_a_loss_that_mixes_rows_is_refused():
    model = nn.Linear(5, 4)
    source, _ = ghost(model, B)
    out = model(normal(B, 5))
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward((out - out.mean(0)).square().sum(1))


class Positions(nn.Module):
    """Feeds an embedding with positions: as many as there are rows."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(B, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.words(tokens) + self.places(torch.arange(tokens.shape[1]))).mean(1)


@pytest.mark.parametrize("length", [B, B - 1])
def test_positions_as_rows_are_refused(length):
    torch.manual_seed(0)
    model, x = Positions(), torch.randint(0, 9, (B, length))
    source, _ = ghost(model, B)
    with pytest.raises(DesynchronizedError, match="depends on another row|was fed with 7 rows"):
        source.backward(spread(model(x), torch.arange(B)))


def test_mixing_that_begins_later_is_found_at_a_change_of_mode_or_by_chance(monkeypatch):
    torch.manual_seed(0)
    model = Mixing(lambda h: h)
    source, _ = ghost(model, B)
    x, which = normal(B, 5), torch.arange(B)
    source.backward(spread(model(x), which))
    model.mix = MIXES["centred"]
    monkeypatch.setattr(gradients, "randbelow", lambda bound: 1)
    source.backward(spread(model(x), which))  # the price of a share of the steps alone
    monkeypatch.setattr(gradients, "randbelow", lambda bound: 0)
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward(spread(model(x), which))
    monkeypatch.setattr(gradients, "randbelow", lambda bound: 1)
    model.eval()
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward(spread(model(x), which))


def test_saturated_and_masked_rows_are_no_mixing():
    torch.manual_seed(0)
    model = Mixing(lambda h: F.relu(h) * torch.arange(B).remainder(2).unsqueeze(1))
    source, delivery = ghost(model, B)
    source.backward(spread(model(normal(B, 5) * 1e4), torch.arange(B)))
    assert source.sums(delivery)[0].any()


# What must leave nothing behind.


def test_an_interrupted_pass_leaves_nothing():
    class Stopped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()

        @staticmethod
        def backward(ctx, _):
            raise KeyboardInterrupt

    model = Mixing(Stopped.apply)
    source, delivery = ghost(model, B)
    with pytest.raises(KeyboardInterrupt):
        source.backward(spread(model(normal(B, 5)), torch.arange(B)))
    assert source._trace is None
    assert source.tracer._trace is None
    with pytest.raises(DesynchronizedError, match="no clipped gradient"):
        source.sums(delivery)
    model.mix = lambda h: h
    source.backward(spread(model(normal(B, 5)), torch.arange(B)))
    assert source.sums(delivery)[0].any()


@pytest.mark.parametrize(
    "change",
    [lambda model, x: x.zero_(), lambda model, x: setattr(model[0], "stride", (1,))],
    ids=["input", "stride"],
)
def test_what_changes_between_backward_and_step_is_refused(change):
    model = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2))
    x = normal(B, 2, 12)
    source, delivery = ghost(model, B)
    source.backward(spread(model(x), torch.arange(B)))
    change(model, x)
    with pytest.raises(GuaranteeError, match="between the backward pass and step"):
        source.sums(delivery)


class Segments(nn.Module):
    """Mixes rows in a segment that is computed anew in the backward pass."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(5, 4), nn.Linear(4, 3), reentrant

    def inner(self, x):
        return self.b(self.a(x).roll(1, 0).tanh())

    def forward(self, x):
        return checkpoint(self.inner, x.requires_grad_(), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_mixing_in_a_checkpointed_segment_is_refused(reentrant):
    torch.manual_seed(0)
    model = Segments(reentrant=reentrant)
    source, _ = ghost(model, B)
    with pytest.raises(DesynchronizedError, match="depends on another row"):
        source.backward(spread(model(normal(B, 5)), torch.arange(B)))


def test_a_forward_that_is_replaced_is_refused_even_where_nothing_uses_it():
    model = Mixing(lambda h: h)
    source, delivery = ghost(model, B)
    model.a.forward = lambda x: x[:, :4]
    source.backward(spread(model(normal(B, 5)), torch.arange(B)))
    with pytest.raises(GuaranteeError, match=r"forward\(\) of a \(Linear\) was replaced"):
        source.sums(delivery)


def test_copies_are_plain_models():
    torch.manual_seed(0)
    model = Mixing(torch.tanh)
    source, _ = ghost(model, B)
    x = normal(B, 5)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        spread(twin(x), torch.arange(B)).sum().backward()
        assert all(p.grad is not None for p in twin.parameters())
        again, _ = ghost(twin, B)
        again.backward(spread(twin(x), torch.arange(B)))
    assert source.passes == 0
    assert torch.equal(twin(x), model(x))


def test_the_model_is_plain_again_when_its_run_is_gone():
    model = Mixing(torch.tanh)
    source, delivery = ghost(model, B)
    del source
    spread(model(normal(B, 5)), torch.arange(B)).sum().backward()
    assert model.a.weight.grad is not None
    assert delivery.size == B


def test_losses_of_the_criterion_can_be_logged():
    model = nn.Linear(5, 3)
    source, delivery = ghost(model, B)
    for reduction in ("mean", "sum"):
        criterion = PerExampleCriterion(source, nn.CrossEntropyLoss(reduction=reduction), reduction)
        x, y = normal(B, 5), torch.arange(B) % 3
        loss = criterion(model(x), y)
        true = float(nn.CrossEntropyLoss(reduction=reduction)(model(x), y).detach())
        assert loss.item() == float(loss) == pytest.approx(true)
        assert f"{true:.4g}"[:4] in repr(loss)
    loss.backward()
    assert source.sums(delivery)[0].any()


def test_parameters_of_no_layer_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(UnsupportedError, match="1 parameters of the optimizer belong to no layer"):
        module.trainable_layers(model, [*model.parameters(), nn.Parameter(torch.zeros(1))])


def test_two_batches_do_not_meet():
    model = nn.Linear(5, 3)
    source, delivery = ghost(model, B)
    loss = spread(model(normal(B, 5)), torch.arange(B))
    source.tracer.ledger = SimpleNamespace(in_hand=Delivery(1, B))
    source.backward(loss)
    with pytest.raises(DesynchronizedError, match="before its batch was delivered"):
        source.sums(source.tracer.ledger.in_hand)
    assert delivery.step == 0
