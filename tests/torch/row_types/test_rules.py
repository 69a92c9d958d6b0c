"""What each operation makes of rows: never apart where other rows change it, and apart where they do not."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.runs.ledger import Delivery
from anechoic.torch.randomness import modes
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.labels import MEAN, TOTAL, Mixed, One, Picked, RowAxis, Total, delivered
from anechoic.torch.row_types.numbers import among, one_a_row, with_numbers

ROWS = 6


@pytest.fixture(autouse=True, scope="module")
def undisturbed():
    """Runs of other tests that are collected meanwhile would end the watch, which no batch in hand keeps."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def label(function, *shapes, rows=ROWS, integers=()):
    """The label of function(*batch), where each tensor of the batch has one row an example."""
    draw = torch.Generator().manual_seed(0)
    batch = [
        torch.randint(0, 4, (rows, *shape), generator=draw)
        if place in integers
        else torch.randn(rows, *shape, generator=draw)
        for place, shape in enumerate(shapes)
    ]
    types = RowTypes(batch_first=True, means=True)
    modes.start()
    try:
        types.begin(Delivery(0, rows, content=batch))
        return types.of(function(*batch))
    finally:
        types.end()
        modes.stop()


def within(tensor, write):
    write(tensor)
    return tensor


X = (4,)
APART = {
    "elementwise": lambda x: (x.tanh() * 2 + 1).relu(),
    "with a constant": lambda x: x * torch.arange(4.0) + torch.ones(4),
    "two of one shape": lambda x: x * x.exp(),
    "softmax of a row": lambda x: x.softmax(1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "linear": lambda x: F.linear(x, torch.ones(3, 4), torch.ones(3)),
    "sum of a row, kept": lambda x: x.sum(1, keepdim=True),
    "sorted in a row": lambda x: x.sort(1).values,
    "gathered in a row": lambda x: x.gather(1, x.argsort(1)),
    "embedding": lambda x: F.embedding(x.argmax(1), torch.ones(4, 2)),
    "one hot": lambda x: F.one_hot(x.argmax(1), 4),
    "the own row, in the frame of a mask": lambda x: x[
        torch.arange(ROWS)[:, None, None], torch.arange(4)[None, None]
    ],
    "concatenated": lambda x: torch.cat([x, 2 * x], 1),
    "behind a cache that begins empty": lambda x: torch.cat([torch.tensor([]), x[:, None]], dim=-2)[:, 0],
    "unsqueezed twice": lambda x: x[:, None, :, None],
    "reshaped": lambda x: x.reshape(ROWS, 2, 2),
    "padded": lambda x: F.pad(x, (1, 1)),
    "columns": lambda x: x[:, 1:3],
    "dropout": lambda x: F.dropout(x, 0.5),
    "by a mask": lambda x: x.masked_fill(x > 0, 0.0),
    "written in place": lambda x: torch.zeros(ROWS, 4).copy_(x),
    "bilinear, which has no rule": lambda x: F.bilinear(x, x, torch.ones(3, 4, 4)),
    "cosine": lambda x: F.cosine_similarity(x, torch.ones(1, 4)),
    "distances to constants": lambda x: torch.cdist(x, torch.eye(4)),
    "numbers written by a mask": lambda x: x.clone().index_put_((x > 0,), torch.tensor(2.0)),
    "one hot by hand": lambda x: torch.zeros(ROWS, 4).index_put_(
        (torch.arange(ROWS), x.argmax(1)), torch.tensor(1.0)
    ),
    "a column written": lambda x: within(torch.zeros(ROWS, 4), lambda t: t[:, 0].copy_(x[:, 1])),
    "columns written, one seen before": lambda x: within(
        torch.zeros(ROWS, 4), lambda t: t[:, 1:].copy_(x[:, 1:])
    )[:, :2],
    "log softmax pulled back": lambda x: torch.ops.aten._log_softmax_backward_data(x, x, -1, x.dtype),
    "a loss pulled back": lambda x: torch.ops.aten.mse_loss_backward(torch.ones(()), x, x.exp(), 1),
    "ctc": lambda x: F.ctc_loss(
        x[:, None].expand(-1, 5, -1).log_softmax(2).transpose(0, 1),
        x.argmax(1, keepdim=True).clamp(1),
        torch.full((ROWS,), 5),
        torch.ones(ROWS, dtype=torch.int64),
        reduction="none",
    ),
    "drawn": lambda x: x.softmax(1).multinomial(1),
    "batch norm by kept statistics": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.few(11)
def test_rows_stay_apart(name):
    assert label(APART[name], X) == RowAxis(0)


MIXING = {
    "centred": lambda x: x - x.mean(0),
    "normalised over rows": lambda x: x.softmax(0),
    "cumulated": lambda x: x.cumsum(0),
    "sorted": lambda x: x.sort(0).values,
    "flipped": lambda x: x.flip(0),
    "shuffled": lambda x: x[torch.arange(ROWS).roll(1)],
    "rolled": lambda x: x.roll(1, 0),
    "a row of another": lambda x: x + x[:1],
    "each with each": lambda x: x @ x.T,
    "pairs": lambda x: x[:, None] - x[None],
    "distances of rows, which has no rule": lambda x: torch.pdist(x),
    "broadcast": lambda x: x.sum(1, keepdim=True) - x.sum(1),
    "to pieces": lambda x: x.reshape(ROWS // 2, 8),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "another row, in the frame of a mask": lambda x: x[
        torch.arange(ROWS).flip(0)[:, None, None], torch.arange(4)[None, None]
    ],
    "one row, in the frame of a mask": lambda x: x[
        torch.zeros(ROWS, 1, 1).long(), torch.arange(4)[None, None]
    ],
    "all rows, across the frame of a mask": lambda x: x[torch.arange(ROWS)[None, :, None], torch.arange(4)],
    "one behind the other": lambda x: torch.cat([x, x]),
    "one behind the other, after nothing": lambda x: torch.cat([torch.tensor([]), x, x]),
    "a norm of all": lambda x: x / x.norm(),
    "a root of the mean": lambda x: x.square().mean().sqrt(),
    "a root of the mean, in place": lambda x: x.square().mean().sqrt_(),
    "a product of means": lambda x: x.mean() * x.exp().mean(),
    "a quotient of sums": lambda x: x.sum() / (x > 0).sum(),
    "the largest": lambda x: x.max(),
    "log of a sum of all": lambda x: x.logsumexp((0, 1)),
    "mean of those above 0": lambda x: x[x > 0].mean(),
    "written through a view": lambda x: F.pad(torch.zeros(ROWS + 1, 4)[:ROWS].copy_(x)[1:], (0, 0, 0, 1)),
    "a column written as a row": lambda x: (
        within(torch.zeros(4, ROWS, 4), lambda t: t[0].copy_(x))[:, :, 0].T @ x.T
    ),
    "rows written one place on": lambda x: within(torch.zeros(ROWS + 1, 4), lambda t: t[1:].copy_(x))[:ROWS],
    "a column written as that of the next row": lambda x: within(
        torch.zeros(ROWS + 1, 4)[:ROWS], lambda t: t.as_strided((ROWS,), (4,), 5).copy_(x[:, 0])
    ),
    "written to rows in another order": lambda x: x.clone().index_put_(
        (torch.arange(ROWS).roll(1), x.argmax(1)), torch.tensor(1.0)
    ),
    "log softmax over rows, pulled back": lambda x: torch.ops.aten._log_softmax_backward_data(
        x, x, 0, x.dtype
    ),
    "a mean and a sum": lambda x: x.mean() + x.sum(),
    "one row with another": lambda x: x[0] * x[1],
    "a row in all places": lambda x: x + x[2].expand(ROWS, 4),
    "rows in another order": lambda x: torch.stack([x[row] for row in reversed(range(ROWS))]),
    "the row that is largest": lambda x: x.sum(1)[int(x.sum(1).argmax())].expand(1),
    "a table of rows, looked up": lambda x: F.embedding(torch.zeros(ROWS, dtype=torch.int64), x),
    "weights of rows": lambda x: F.layer_norm(x[:, :1].expand(ROWS, ROWS), (ROWS,), weight=x[:, 0]),
    "put where the data say": lambda x: torch.zeros(ROWS).scatter(0, x.argmax(1), x[:, 0]),
    "numbers put where the data say": lambda x: torch.zeros(ROWS).scatter(0, x.argmax(1), 1.0),
    "pixels of channels that are rows": lambda x: F.pixel_unshuffle(x.reshape(ROWS, 2, 2), 2),
    "a queue": lambda x: torch.cat([x[1:], x[:1]]),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.few(10)
def test_rows_that_meet_are_told(name):
    assert isinstance(label(MIXING[name], X), Mixed)


TOTALS = {
    "sum over a number": lambda x: x.sum() / 7,
    "sums of both": lambda x: 0.1 * x.exp().sum() - x.sum() - 3,
    "sum of those above 0": lambda x: x[x > 0].sum(),
    "a product along rows": lambda x: torch.dot(x.sum(1), x.prod(1)),
    "weighted by place": lambda x: (x.sum(1) * torch.arange(6.0)).sum(),
    "a mean times the rows": lambda x: x.mean() * ROWS,
    "row by row": lambda x: sum(x[row].exp().sum() for row in range(ROWS)),
}
MEANS = {
    "mean": lambda x: x.mean(),
    "mean of sums": lambda x: x.square().sum(1).mean(),
    "sum over the rows": lambda x: x.sum() / len(x),
    "sum over all entries": lambda x: x.sum() / x.numel(),
    "sum times the inverse": lambda x: (1 / len(x)) * x.sum(),
    "means of both, halved": lambda x: (x.mean() + x.exp().mean()) / 2,
    "divided by how many rows count, as all do": lambda x: x.sum() / torch.isfinite(x).sum(),
    "of a list": lambda x: torch.stack([row.norm() for row in x]).mean(),
}


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_told(name):
    assert label(TOTALS[name], X) == TOTAL


@pytest.mark.parametrize("name", MEANS)
def test_means_are_told_from_sums(name):
    assert label(MEANS[name], X) == MEAN


def test_a_number_that_was_the_same_for_another_size_is_no_number_of_rows():
    types = RowTypes(batch_first=True, means=True)
    found = []
    try:
        for rows in (5, 10):
            x = torch.randn(rows, 3)
            begun(types, x)
            found.append((types.of(x.sum() / 20), types.of(x.sum() / rows)))
    finally:
        types.end()
        modes.stop()
    assert found == [(MEAN, MEAN), (TOTAL, MEAN)]


def test_values_of_some_rows():
    assert isinstance(label(lambda x: x[x > 0] * 2, X), Picked)


#: Whether the data say how many values are taken.
TAKEN = {
    "one place a row": (lambda x: x[torch.arange(ROWS), x.argmax(1)], False),
    "one place a row, in two axes": (lambda x: x[torch.arange(ROWS)[:, None], x.argsort(1)], False),
    "columns": (lambda x: x[:, torch.tensor([0, 2])], False),
    "by whole numbers, from a table": (lambda x: torch.ones(4, 2)[x.argmax(1)], False),
    "by a mask": (lambda x: x[x > 0], True),
    "by a mask of bytes": (lambda x: x[(x > 0).to(torch.uint8)], True),
    "rows by a mask": (lambda x: x[x[:, 0] > 0], True),
    "by a mask beside whole numbers": (lambda x: x[x[:, 0] > 0, torch.tensor(1)], True),
    "by a mask that is selected": (lambda x: x.masked_select(x > 0), True),
    "places of a mask": (lambda x: (x > 0).nonzero(), True),
    "by whole numbers, as many as a mask has": (lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]], True),
    "different ones": (lambda x: x.unique(), True),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", TAKEN)
def test_lengths_that_the_data_decide_are_told_from_those_that_they_do_not(name):
    take, decided = TAKEN[name]
    types = RowTypes(batch_first=True, means=True)
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
    try:
        begun(types, x)
        made = take(x)
        assert not types.batch.sized
        len(made)
        assert types.batch.sized is decided
    finally:
        types.end()
        modes.stop()


LOSSES = {
    "cross entropy": (lambda o, y: F.cross_entropy(o, y), True),
    "smoothed": (lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), True),
    "class weights": (lambda o, y: F.cross_entropy(o, y, weight=torch.rand(4)), False),
    "class weights, of each": (
        lambda o, y: F.cross_entropy(o, y, weight=torch.rand(4), reduction="none").mean(),
        True,
    ),
    "ignored targets": (lambda o, y: F.cross_entropy(o, y.where(y > 1, -100)), False),
    "mse": (lambda o, y: F.mse_loss(o[:, 0], y.float()), True),
    "mse, rows against columns": (lambda o, y: ((o[:, :1] - y.float()) ** 2).mean(), False),
    "huber, summed": (lambda o, y: F.huber_loss(o[:, 0], y.float(), reduction="sum"), True),
    "logits": (lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], (y > 1).float()), True),
    "several margins": (lambda o, y: F.multi_margin_loss(o, y, weight=torch.rand(4)), True),
    "several margins, of each": (lambda o, y: F.multi_margin_loss(o, y, reduction="none").mean(), True),
    "margins of several labels": (
        lambda o, y: F.multilabel_margin_loss(o, F.pad(y[:, None], (0, 3), value=-1)),
        True,
    ),
    "dice of all": (lambda o, y: 1 - 2 * (o.sigmoid() * o).sum() / (o.sigmoid().sum() + y.sum()), False),
    "dice of each": (lambda o, y: (1 - 2 * (o.sigmoid() * o).sum(1) / (o.sigmoid().sum(1) + y)).mean(), True),
    "focal": (
        lambda o, y: (lambda e: ((1 - (-e).exp()) ** 2 * e).mean())(F.cross_entropy(o, y, reduction="none")),
        True,
    ),
    "contrastive": (lambda o, y: F.cross_entropy(o @ o.T, torch.arange(ROWS)), False),
    "mixup": (lambda o, y: F.cross_entropy(0.5 * o + 0.5 * o.roll(1, 0), y), False),
    "by each row's own class": (lambda o, y: -o.log_softmax(1)[torch.arange(ROWS), y].mean(), True),
    "row by row": (
        lambda o, y: sum(F.cross_entropy(a[None], b[None]) for a, b in zip(o, y, strict=True)) / len(y),
        True,
    ),
    "weights that are rows": (lambda o, y: F.nll_loss(F.pad(o, (0, 2)), y, weight=o[:, 0]), False),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.few(10)
def test_losses(name):
    loss, apart = LOSSES[name]
    assert isinstance(label(loss, X, (), integers=(1,)), Total) is apart


def test_attention_and_images_keep_examples_apart():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    assert label(attend, (2, 5, 4)) == RowAxis(0)
    assert label(lambda x: attend(x.transpose(0, 1)), (6, 4)) != RowAxis(0)
    picture = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    assert label(picture, (1, 8, 8)) == RowAxis(0)
    assert isinstance(label(nn.Conv2d(6, 2, 3), (8, 8)), Mixed)  # rows in the place of channels
    assert label(nn.InstanceNorm2d(2), (2, 5, 5)) == RowAxis(0)


def test_sizes_that_agree_by_chance_change_nothing():
    # as many positions as rows, as many classes as rows
    assert label(lambda x: x + nn.Embedding(6, 3)(torch.arange(6)), (6, 3)) == RowAxis(0)
    assert isinstance(label(lambda x: x + x.mean(1), (6,)), Mixed)
    assert label(lambda x: x.mean(1), (6, 6)) == RowAxis(0)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.few(10)
def test_what_is_called_apart_does_not_move_with_other_rows(seed):
    """Chains of random operations: whoever claims rows is held to it by changing the others."""
    draw = torch.Generator().manual_seed(seed)
    steps = [*APART.values(), *MIXING.values()]
    chosen = [steps[int(torch.randint(len(steps), (), generator=draw))] for _ in range(3)]

    def chain(x):
        for each in chosen:
            x = each(x.float())
            if x.shape != (ROWS, 4):
                x = x.float().reshape(-1)[: ROWS * 4] if x.numel() >= ROWS * 4 else x.float()
                if x.numel() != ROWS * 4:
                    return x
                x = x.reshape(ROWS, 4)
        return x

    found = label(chain, X)
    if not isinstance(found, RowAxis):
        return
    x = torch.randn(ROWS, 4, generator=draw)
    other = torch.cat([x[:1], torch.randn(ROWS - 1, 4, generator=draw)])
    torch.manual_seed(0)
    one = chain(x)
    torch.manual_seed(0)
    two = chain(other)
    apart = [t.unflatten(found.axis, (ROWS, found.inner)).select(found.axis, 0) for t in (one, two)]
    assert torch.allclose(*apart, equal_nan=True)


def test_another_runs_batch_is_not_public():
    one, other = (RowTypes(batch_first=True, means=True) for _ in range(2))
    x = torch.randn(5, 3)
    try:
        begun(one, x)
        mean = x.mean(0)
        begun(other, torch.randn(4, 3))
        assert isinstance(other.of(mean), Mixed) and isinstance(other.of(mean * 2), Mixed)
    finally:
        one.end()
        other.end()
        modes.stop()


def test_complex_numbers_stay_with_their_rows():
    def parts(x):
        return torch.view_as_real(torch.complex(x, x.exp()))

    assert label(parts, (ROWS,)) == RowAxis(0)
    assert label(lambda x: torch.view_as_complex(parts(x)), (ROWS,)) == RowAxis(0)


# -- what is delivered ---------------------------------------------------------------------------------


def labels_of_batch(*batch, rows=5):
    return [found for _, found in delivered(list(batch), rows, 0)]


def test_whatever_is_delivered_depends_on_the_data():
    times, total, lengths = torch.randn(7, 5), torch.tensor(3.0), torch.ones(3)
    assert labels_of_batch(times) == [RowAxis(1)]
    assert all(isinstance(found, Mixed) for found in labels_of_batch(total, lengths))


def test_a_list_of_as_many_tensors_as_rows_has_one_for_each():
    ragged = [torch.ones(length) for length in (3, 5, 2, 4, 1)]
    assert labels_of_batch(torch.ones(5), ragged) == [RowAxis(0), *map(One, range(5))]
    square = [torch.ones(5) for _ in range(5)]
    assert all(isinstance(found, Mixed) for found in labels_of_batch(square)[1:])
    assert labels_of_batch(*square) == [RowAxis(0)] * 5


# -- what a batch leaves behind ------------------------------------------------------------------------


def begun(types, *batch):
    modes.start()
    types.begin(Delivery(0, len(batch[0]), content=list(batch)))


def test_what_was_there_before_the_first_batch_is_public_but_for_the_data_set():
    table, data = torch.ones(5, 3), torch.ones(5)
    types = RowTypes(batch_first=True, means=True)
    types.keep([data])
    try:
        begun(types, torch.randn(5, 3))
        assert types.of(table) is None and types.of(table.T * 2) is None
        assert types.of(data) == RowAxis(0)
    finally:
        types.end()
        modes.stop()


def test_numbers_that_are_delivered_remember_it():
    batch = with_numbers([torch.ones(3), {"tokens": 17}, [1, 2, 3], "id"], 3)
    assert among(batch[1]) and among(batch[2]) and batch[1] == {"tokens": 17}
    assert [number.row for number in batch[2]] == [0, 1, 2] and one_a_row(batch[2], 3)
    assert one_a_row([2 * number for number in batch[2]], 3) and not one_a_row(batch[2][::-1], 3)
    plain = [torch.ones(3), ("a", None)]
    assert with_numbers(plain, 3) is plain


def test_rows_are_found_where_a_transpose_in_place_puts_them():
    assert label(lambda x: (x * 1).transpose_(0, 1), (3,)) == RowAxis(1)


def test_a_mask_of_each_row_is_none_of_each_position():
    def attended(x, mask):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    assert isinstance(label(attended, (2, ROWS, 4), (ROWS,)), Mixed)  # as many positions as rows
    assert label(lambda x, mask: attended(x, mask[:, None, None]), (2, ROWS, 4), (ROWS,)) == RowAxis(0)
