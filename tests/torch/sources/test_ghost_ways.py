"""Three ways to the norms of rows: the same numbers, each at the cost that is stated, the least taken."""

from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from anechoic.torch.sources.ghost import gradients as ghost_gradients
from anechoic.torch.sources.ghost import kept, ways
from anechoic.torch.sources.ghost.kept import Kept
from anechoic.torch.sources.ghost.rows import Budget, LayerFactors, Outer, Scattered, excess, norms, shared
from anechoic.torch.sources.ghost.ways import Way, cheapest, cost
from tests.floats import same_bits
from tests.torch.sources.ghost_setting import clipped, flat, ghost, row_norms, single_rows

#: Rows, positions, inputs, outputs.
SHAPES = [(3, 7, 9, 11), (9, 2, 7, 5), (2, 40, 3, 5), (17, 6, 64, 1), (1, 13, 1, 64), (5, 3, 4, 4)]


def normal(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by(way, x, a, budget=None):
    """The rows' gradients by one way."""
    budget = budget or Budget(0)
    sizes = (*x.shape, a.shape[2])

    def apart(among=None):
        factors = LayerFactors(
            lambda part: (x[part].double().unsqueeze(0), a[part].double().unsqueeze(0)),
            as_left=lambda row: (x[row], a[row]),
            rows=sizes[0],
            groups=1,
            positions=sizes[1],
            inputs=sizes[2],
            outputs=sizes[3],
        )
        return Outer(factors, lambda made: made[0], budget, among)

    if way is Way.KEPT:
        return Kept(lambda part: (x[part], a[part]), sizes, lambda made: made[0], budget, apart)
    return apart(way)


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
    for way in Way:
        part = by(way, x, a)
        assert torch.allclose(part.squared_norms().sqrt(), true, rtol=1e-3), way
        assert torch.allclose(part.weighted_sum(weights), expected, rtol=1e-5, atol=1e-5), way


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e15])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_is_never_below_that_of_what_is_kept_and_summed(shape, scale):
    """Exactly: by fractions of the numbers that the sum adds up."""
    x, a = factors_of(shape)
    part = by(Way.KEPT, x * scale, a * scale)
    found = part.squared_norms().tolist()
    for row, upper in enumerate(found):
        one = torch.zeros(shape[0], dtype=torch.float64)
        one[row] = 1.0
        summed = part.weighted_sum(one).flatten().tolist()
        exact = sum((Fraction(v) ** 2 for v in summed), Fraction(0))
        assert exact <= upper <= float(exact) * (1 + 1e-9)


@pytest.mark.parametrize("clip", [1e-6, 1.0])
def test_removing_a_row_moves_the_sum_of_what_is_kept_by_the_clip_norm_at_most(clip):
    """Also where products cancel but for a rest that float32 rounds."""
    for seed in range(10):
        x, a = factors_of((60, 6, 30, 30), seed=seed)
        x[::3, 1], a[::3, 1] = -x[::3, 0] * 1e7, a[::3, 0]
        x[::3, 0] *= 1e7
        sums = []
        for first in (0, 1):
            part = by(Way.KEPT, x[first:], a[first:])
            sums.append(part.weighted_sum((clip / norms([part])).clamp(max=1.0)))
            assert part.terms == 0
        moved = float((sums[0] - sums[1]).norm())
        assert clip * (1 - 1e-3) <= moved <= clip * (1 + excess(60, 0))


@pytest.mark.parametrize("shape", [*SHAPES, (20, 30, 16, 24)])
def test_the_numbers_of_a_row_do_not_depend_on_how_many_others_there_are(shape):
    x, a = factors_of(shape)
    whole = by(Way.KEPT, x, a)._made()
    for row in range(shape[0]):
        assert same_bits(by(Way.KEPT, x[row:], a[row:])._made(), whole[row:])
        assert same_bits(by(Way.KEPT, x[: row + 1], a[: row + 1])._made(), whole[: row + 1])


class Products(TorchDispatchMode):
    """Counts what products of factors cost, one of two numbers in float32 being 1."""

    def __init__(self, across):
        super().__init__()
        self.cost, self._across = 0.0, across

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func == torch.ops.aten.bmm.default:
            products = made.numel() * args[0].shape[-1]
            double = self._across if len(made) > 1 else ways.DOUBLE  # a sum over rows is one product
            self.cost += products * (double if made.dtype == torch.float64 else 1.0)
        return made


@pytest.mark.parametrize("sizes", [(2, 1, 1), (5, 8, 1), (5, 1, 30), (16, 30, 8)])
def test_costs_are_those_of_the_products_that_are_made(sizes):
    """Counted as they are made; what touching memory costs is added by the rule alone."""
    positions, inputs, outputs = sizes
    entries = inputs * outputs
    extra = {
        Way.KEPT: ways.ENTRY * entries,
        Way.ENTRIES: ways.ENTRY * entries,
        Way.PRODUCTS: ways.PAIR * positions**2,
    }
    x, a = factors_of((2 * kept.MOST, positions, inputs, outputs))
    for way in Way:
        part = by(way, x, a)
        with Products(ways.ACROSS if way is Way.ENTRIES else ways.DOUBLE) as counted:
            part.squared_norms()
            part.weighted_sum(torch.ones(len(x), dtype=torch.float64))
        assert counted.cost == pytest.approx(len(x) * (cost(way, positions, inputs, outputs) - extra[way]))


def test_the_cheapest_way_is_taken():
    """By hand at the ends, and by all three costs in between."""
    assert cheapest(4, 768, 768) is Way.PRODUCTS, "few positions: a small Gram matrix"
    assert cheapest(128, 768, 8) is Way.KEPT, "a thin matrix is far smaller than its Gram matrices"
    assert cheapest(512, 768, 768) is Way.KEPT
    without = (Way.ENTRIES, Way.PRODUCTS)
    assert cheapest(128, 768, 768, without) is Way.PRODUCTS
    assert cheapest(2048, 768, 768, without) is Way.ENTRIES
    assert cheapest(64, 768, 8, without) is Way.ENTRIES
    for sizes in product((2, 16, 64, 256, 1024), (1, 8, 256, 2304), (1, 8, 256, 2304)):
        assert all(cost(cheapest(*sizes), *sizes) <= cost(way, *sizes) for way in Way)


class Adapted(nn.Module):
    """A wide layer, and a thin pair beside it."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(96, 96)
        self.down, self.up = nn.Linear(96, 2, bias=False), nn.Linear(2, 96, bias=False)

    def forward(self, x):
        return self.wide(x) + self.up(self.down(x))


def spread(out, which):
    return (out.flatten(start_dim=1) ** 2).sum(dim=1) * (1.0 + which)


@pytest.mark.parametrize(("budget", "clip"), [(0, 0.1), (5 * 2 * 96 * 4, 1e6), (2**27, 0.1)])
def test_what_memory_has_room_for_is_kept_and_the_sums_are_the_same(budget, clip, monkeypatch):
    torch.manual_seed(0)
    model, x = Adapted(), normal(5, 20, 96)
    expected = single_rows(model, x, spread)
    left = Budget(budget)
    monkeypatch.setattr(ghost_gradients, "Budget", lambda: left)
    source, delivery = ghost(model, len(x), clip=clip)
    source.backward(spread(model(x), torch.arange(len(x))))
    found = source._gradients(source._trace.calls)
    taken = [name for name, p in model.named_parameters() if isinstance(found[id(p)], Kept)]
    assert len(taken) == {0: 0, 5 * 2 * 96 * 4: 1, 2**27: 2}[budget]
    assert "wide.weight" not in taken, "so few positions are cheaper than the entries of a wide layer"
    assert 0 <= left.left <= budget
    left.left = budget
    assert torch.allclose(row_norms(source), expected.norm(dim=1), rtol=1e-3)
    left.left = budget
    goal = clipped(expected, clip)
    assert torch.allclose(flat(source.sums(delivery)), goal, rtol=2e-4, atol=1e-4 * float(goal.norm()))


def test_what_is_kept_gives_its_memory_back_where_the_weight_is_shared():
    x, a = factors_of((4, 30, 5, 7))
    budget = Budget(4 * 4 * 5 * 7)
    assert Kept.take(lambda part: (x[part], a[part]), (4, 30, 5, 7), budget) and budget.left == 0
    words = Scattered(torch.zeros(4, 30, dtype=torch.long), normal(4, 30, 5), 7)
    tied = shared(by(Way.KEPT, x, a, budget), words)
    assert isinstance(tied._outer, Outer)
    assert budget.left == 4 * 4 * 5 * 7
