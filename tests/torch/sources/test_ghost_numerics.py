"""Ghost clipping under rounding: norms never fall short, and one row moves a sum by the clip norm at most.

In each way that norms are taken: by entries, by products, kept; words, and words with their head.
"""

from fractions import Fraction
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from anechoic.torch.sources.ghost import factored_gradients
from anechoic.torch.sources.ghost.factored_gradients import (
    CachedGradients,
    MemoryAllowance,
    NormStrategy,
    PlainGradients,
    Sizes,
    SparseGradients,
    norms,
)
from tests.floats import same_bits
from tests.marks import in_turn
from tests.torch.sources.ghost_setting import normal, outer


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


@pytest.mark.parametrize("way", [NormStrategy.PRODUCTS, NormStrategy.ENTRIES])
@pytest.mark.parametrize("margin", [0.0, factored_gradients.MARGIN])
def test_norms_of_what_cancels_never_fall_short(monkeypatch, margin, way):
    monkeypatch.setattr(factored_gradients, "MARGIN", margin)  # rounding's own bound is enough
    for seed in range(40):
        x, a = normal(6, 2, 3, seed=seed, dtype=torch.float64), normal(6, 1, 4, seed=seed + 100).double()
        x, a = x * 1e7 / 3, a.expand(6, 2, 4) / 3
        x[:, 1] = -x[:, 0]
        x[:, 1, 0] += 600  # what is left
        found = outer(x, a, MemoryAllowance(0), way).squared_norms()
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


def kept(seed):
    """As in `gram`, by gradients that are kept."""
    x, a = normal(60, 6, 30, seed=seed), normal(60, 6, 30, seed=seed + 50)
    x[::3, 1], a[::3, 1] = -x[::3, 0] * 1e7, a[::3, 0]
    x[::3, 0] *= 1e7
    return by(NormStrategy.KEPT, x, a), by(NormStrategy.KEPT, x[1:], a[1:])


def words(seed):
    lines = torch.randint(0, 5, (60, 7), generator=torch.Generator().manual_seed(seed))
    values = normal(60, 7, 3, seed=seed)
    return SparseGradients(lines, values, 5), SparseGradients(lines[1:], values[1:], 5)


def direct(seed):
    values = normal(60, 7, 3, seed=seed)
    return PlainGradients(values), PlainGradients(values[1:])


@pytest.mark.parametrize("clip", [1e-6, 1.0])
@pytest.mark.parametrize("make", [gram, single, whole, unkept, kept, words, direct])
def test_removing_a_row_moves_the_sum_by_the_clip_norm_at_most(make, clip):
    for seed in range(10):
        sums, apart = [], make in (single, whole, kept, words, direct)
        for part in make(seed):
            lengths = norms([part])
            sums.append(part.weighted_sum((clip / lengths).clamp(max=1.0)))
        moved = float((sums[0] - sums[1]).norm())
        assert moved <= clip * (1 + (1e-11 if apart else 1e-4))
        if apart:
            assert moved >= clip * (1 - 1e-3)  # nothing is lost where a row is above the clip norm


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
        assert float((sums[0] - sums[1]).norm()) <= 1 + 1e-4


# Ways to the norms of a linear layer's rows.

#: Rows, positions, inputs, outputs.
SHAPES = [(3, 7, 9, 11), (9, 2, 7, 5), (2, 40, 3, 5), (17, 6, 64, 1), (1, 13, 1, 64), (5, 3, 4, 4)]


def by(way, x, a):
    """The rows' gradients by one way."""
    if way is not NormStrategy.KEPT:
        return outer(x, a, MemoryAllowance(0), way)
    apart = partial(outer, x, a, MemoryAllowance(0))
    return CachedGradients(
        lambda part: (x[part], a[part]), Sizes(*x.shape, a.shape[2]), lambda m: m[0], apart
    )


def factors_of(shape, dtype=torch.float32, seed=1):
    many, positions, inputs, outputs = shape
    return (
        normal(many, positions, inputs, seed=seed, dtype=dtype),
        normal(many, positions, outputs, seed=seed + 50, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_ways_give_the_norms_and_sums_of_single_rows(shape, dtype):
    x, a = factors_of(shape, dtype)
    single = torch.stack([one.double().t() @ other.double() for one, other in zip(a, x, strict=True)])
    true = single.flatten(1).norm(dim=1)
    weights = torch.linspace(0, 1, shape[0], dtype=torch.float64)
    expected = (weights.reshape(-1, 1, 1) * single).sum(0)
    for way in NormStrategy:
        part = by(way, x, a)
        assert torch.allclose(part.squared_norms().sqrt(), true, rtol=1e-3), way
        assert torch.allclose(part.weighted_sum(weights), expected, rtol=1e-5, atol=1e-5), way


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e15])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_is_never_below_that_of_what_is_kept_and_summed(shape, scale):
    """Exactly: by fractions of the numbers that the sum adds up."""
    x, a = factors_of(shape)
    part = by(NormStrategy.KEPT, x * scale, a * scale)
    found = part.squared_norms().tolist()
    for row, upper in enumerate(found):
        one = torch.zeros(shape[0], dtype=torch.float64)
        one[row] = 1.0
        summed = part.weighted_sum(one).flatten().tolist()
        exact = sum((Fraction(v) ** 2 for v in summed), Fraction(0))
        assert exact <= upper <= float(exact) * (1 + 1e-9)


@pytest.mark.parametrize("shape", [*SHAPES, (20, 30, 16, 24)])
def test_the_numbers_of_a_row_do_not_depend_on_how_many_others_there_are(shape):
    x, a = factors_of(shape)
    whole = by(NormStrategy.KEPT, x, a)._made()
    for row in range(shape[0]):
        assert same_bits(by(NormStrategy.KEPT, x[row:], a[row:])._made(), whole[row:])
        assert same_bits(by(NormStrategy.KEPT, x[: row + 1], a[: row + 1])._made(), whole[: row + 1])
