"""Losses of sequences: those of a loop over rows, taken in every mode; a mean over all tokens is refused."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import anechoic as an
from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine, causal_lm_loss, seq2seq_loss
from anechoic.torch.labels import LabelledBatch, LabelledTensor, OnAxis, plain
from tests.torch.setting import private, start

ROWS, TOKENS, WORDS = 6, 5, 7
MODES = ("rows", "vmap_loss", "ghost")
CLIP = 0.05


def text(seed=0):
    """Tokens, and labels of unequal numbers: of the last row none counts."""
    words = torch.randint(WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([5, 4, 3, 2, 2, 0])
    return words, words.masked_fill(torch.arange(TOKENS) >= lengths[:, None], -100)


def of_row(logits, labels, ignored=-100, shift=True):
    """A loop over the tokens of a row, in float64."""
    if shift:
        logits, labels = logits[:-1], labels[1:]
    scores = logits.double().log_softmax(-1)
    found = [-scores[t, y] for t, y in enumerate(labels.tolist()) if y != ignored]
    return sum(found) / len(found) if found else torch.zeros((), dtype=torch.float64)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)

    def forward(self, x):
        return self.head(self.words(x).tanh())


def language():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Language()


@pytest.mark.parametrize("ignored", [-100, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_each_row_is_that_of_a_loop(dtype, ignored):
    logits = (3 * torch.randn(ROWS, TOKENS, WORDS, generator=torch.Generator().manual_seed(1))).to(dtype)
    _, labels = text()
    labels = labels.masked_fill(labels == -100, ignored)
    for shift, loss in (
        (True, causal_lm_loss),
        (False, partial(causal_lm_loss, shift=False)),
        (False, seq2seq_loss),
    ):
        want = torch.stack([of_row(logits[i], labels[i], ignored, shift) for i in range(ROWS)])
        rows = loss(logits, labels, ignore_index=ignored, reduction="none")
        assert rows.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(rows.double(), want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            loss(logits, labels, ignore_index=ignored).double(), want.mean(), rtol=1e-5, atol=1e-6
        )
        total = loss(logits, labels, ignore_index=ignored, reduction="sum")
        torch.testing.assert_close(total.double(), want.sum(), rtol=1e-5, atol=1e-6)


def test_a_row_without_tokens_adds_nothing():
    logits = torch.randn(2, TOKENS, WORDS, requires_grad=True)
    labels = torch.full((2, TOKENS), -100)
    loss = causal_lm_loss(logits, labels)
    loss.backward()
    assert loss.item() == 0.0 and not logits.grad.count_nonzero()
    one_token = causal_lm_loss(torch.randn(2, 1, WORDS), torch.ones(2, 1, dtype=torch.long))
    assert one_token.item() == 0.0  # which has no next one


@pytest.mark.parametrize(
    ("logits", "labels", "options", "found"),
    [
        ((6, 7), (6,), {}, r"logits of shape \(6, 7\) and labels of shape \(6,\)"),
        ((2, 3, 7), (2, 4), {}, r"labels of shape \(2, 4\)"),
        ((2, 3, 7), (2, 3), {"reduction": "tokens"}, "reduction='tokens'"),
    ],
)
def test_other_shapes_are_refused(logits, labels, options, found):
    for loss in (causal_lm_loss, seq2seq_loss):
        with pytest.raises(ValueError, match=found):
            loss(torch.zeros(logits), torch.zeros(labels, dtype=torch.long), **options)


def released(mode, criterion, *, loss_reduction="mean", kept=slice(None), units=None):
    """The sum of clipped gradients of a batch, over the clip norm."""
    data = TensorDataset(*(part[kept] for part in text()))
    count = len(data) if units is None else units.count
    unit, owned = ("example", {}) if units is None else ("user", {"unit_ids": units})
    model = language()
    made = private(
        PrivacyEngine(noise_key=bytes(32), sampling_key=bytes(range(32))), model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0), criterion=criterion, grad_sample_mode=mode,
        loader=torch.utils.data.DataLoader(data, batch_size=count), loss_reduction=loss_reduction,
        mechanism=Mechanism(Identity(1), FixedOrder(count, count, 1), 1e-6 * CLIP, clip_norm=CLIP, unit=unit),
        poisson_sampling=False, **owned,
    )  # fmt: skip
    loss = made[2] if len(made) == 4 else criterion
    for x, y in made[-1]:
        loss(made[0](x), y).backward()
        made[1].step()
    divisor = count if loss_reduction == "mean" else 1
    return divisor * torch.cat([p.grad.flatten().double() for p in model.parameters()]) / CLIP


def gradients_of_rows(shift=True):
    words, labels = text()
    model = language()
    found = []
    for x, y in zip(words, labels, strict=True):
        model.zero_grad()
        logits = model(x[None])[0]
        (of_row(logits, y, shift=shift) + 0.0 * logits.sum()).backward()
        found.append(torch.cat([p.grad.flatten().double() for p in model.parameters()]))
    return found


def clipped(vectors):
    return sum(v * min(1.0, CLIP / max(float(v.norm()), 1e-30)) for v in vectors) / CLIP


@pytest.mark.parametrize("mode", MODES)
def test_a_release_is_that_of_single_rows_and_of_units(mode):
    for loss, shift in ((causal_lm_loss, True), (seq2seq_loss, False)):
        want = clipped(gradients_of_rows(shift))
        whole = released(mode, loss)
        summed = released(mode, partial(loss, reduction="sum"), loss_reduction="sum")
        for found in (whole, summed):
            assert float((found - want).norm()) <= 1e-3 * float(want.norm())
        assert float((whole - released(mode, loss, kept=slice(1, None))).norm()) <= 1.001
    if mode == "ghost":
        return  # has no gradients of units
    owners = [0, 0, 1, 1, 1, 2]
    rows = list(zip(gradients_of_rows(), owners, strict=True))
    want = clipped([sum(v for v, o in rows if o == unit) / owners.count(unit) for unit in range(3)])
    found = released(mode, causal_lm_loss, units=an.Units(np.array(owners), combine="mean"))
    assert float((found - want).norm()) <= 1e-3 * float(want.norm())


def by_number_of_tokens(logits, labels):
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum()


def test_a_mean_over_all_counted_tokens_is_refused_and_the_helper_named():
    with pytest.raises(GuaranteeError, match=r"anechoic\.torch\.causal_lm_loss\(logits, labels\)"):
        released("rows", by_number_of_tokens)


class Sentences(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        words = torch.randint(WORDS, (2 + index % 3,), generator=torch.Generator().manual_seed(index))
        return words, words


def flattened(batch):
    """What DataCollatorWithFlattening does: all sequences in one row, positions begin anew."""
    words = torch.cat([x for x, _ in batch])[None]
    places = torch.cat([torch.arange(len(x)) for x, _ in batch])[None]
    return words, places


def with_lengths(batch):
    """One row, and where each sequence begins in it."""
    words = torch.cat([x for x, _ in batch])[None]
    return words, torch.tensor([0, *[len(x) for x, _ in batch]]).cumsum(0)


def two_in_a_row(batch):
    """Rows of two sequences, padded."""
    pairs = [torch.cat([batch[i][0], batch[i + 1][0]]) for i in range(0, len(batch) - 1, 2)]
    words = nn.utils.rnn.pad_sequence(pairs, batch_first=True)
    return words, words


class Positions(Language):
    def forward(self, x, extra):
        return super().forward(x)


@pytest.mark.parametrize("mode", ["rows", "ghost"])
@pytest.mark.parametrize("collate", [flattened, with_lengths, two_in_a_row])
def test_packed_batches_are_refused_and_packing_named(collate, mode):
    run = start(
        mode, mech=Mechanism(Identity(2), FixedOrder(8, 4, steps=2), 1.0), model=Positions(),
        dataset=Sentences(), loader={"collate_fn": collate}, keys=False,
    )  # fmt: skip
    words, extra = next(iter(run.loader))
    with pytest.raises(
        (DesynchronizedError, GuaranteeError, UnsupportedError), match=r"Packing .*pad instead"
    ):
        logits = run.forward(words, extra)
        loss = run.criterion(logits.transpose(1, 2), words)
        loss.backward()
        run.optimizer.step()
    assert run.engine.releases == 0


def test_the_padding_of_others_moves_no_row_of_a_plain_mean():
    """A mean of cross entropies is that of each row's own labels that count, however long others are."""

    def pulled(length):
        words = torch.full((ROWS, length), 1)
        labels = words.masked_fill(torch.arange(length) >= 3, -100)
        labels[0] = 1  # the longest row
        batch = LabelledBatch(ROWS, means=True, parameters=[])
        rows = torch.arange(ROWS * length * WORDS).sin().reshape(ROWS, length, WORDS)
        logits = LabelledTensor(rows[:, :, :], OnAxis(0), batch, requires_grad=True)
        batch.outputs.append(logits)
        labels = LabelledTensor(labels, OnAxis(0), batch)
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        return plain(logits.grad)[1:, :3].abs().sum((1, 2)) > 0, plain(logits.grad)

    for length in (4, 40):
        moved, grad = pulled(length)
        assert bool(moved.all())
        # a row with three labels weighs each by 1/3, whatever the length of the batch
        softmax = torch.arange(ROWS * length * WORDS).sin().reshape(ROWS, length, WORDS).softmax(-1)
        expected = (softmax - F.one_hot(torch.tensor(1), WORDS)) / 3
        torch.testing.assert_close(grad[1:, :3], expected[1:, :3])
