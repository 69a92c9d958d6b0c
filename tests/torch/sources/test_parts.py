"""Clipping part by part, and automatic clipping: no row moves a sum by more than the flat bound."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from anechoic.noise.grid import largest_square
from anechoic.torch.setup.clip_norms import fitted
from anechoic.torch.sources.clipping import ClipParts, Clipping, GridClipping, finite_rows
from tests.marks import in_turn, slow
from tests.torch.sources.ghost_setting import delivered, flat, ghost, single_rows

SHAPES = ((3, 300), (7,), (), (4500,))
SHORT = ((3, 30), (7,), (), (50,))
BITS = 26
#: (bounds, places) of four parameters at clip norm 1; None for all of them together.
SPLITS = {
    "flat": None,
    "per layer": ((0.5, 0.5, 0.5, 0.5), (0, 1, 2, 3)),
    "groups": ((0.6, 0.8), (1, 0, 1, 0)),
    "unequal": ((1e-6, 0.9), (0, 1, 1, 1)),
}
GAMMAS = (None, 0.01, 1e-30, 1e30)
AWKWARD = [0.0, -0.0, 1e-45, -1e-38, 1e-30, 1e-12, 1.0, -3.5, 1e12, 1e38, -3.4e38, float("inf"), float("nan")]


def draw(rows, scale=1.0, seed=0, shapes=SHAPES):
    source = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(rows, *shape, generator=source) for shape in shapes]


def split(name, scale=1.0):
    if SPLITS[name] is None:
        return None
    bounds, places = SPLITS[name]
    return ClipParts(fitted(bounds, scale), places)


def by_hand(samples, clip, parts, gamma, limits=None):
    """One row after the other, in float64."""
    bounds, places = ((clip,), (0,) * len(samples)) if parts is None else (parts.bounds, parts.places)
    sums = [np.zeros(s.shape[1:]) for s in samples]
    for row in range(len(samples[0])):
        vectors = [s[row].double().numpy() for s in samples]
        if not all(np.isfinite(v).all() for v in vectors):
            continue
        for part, bound in enumerate(bounds):
            mine = [i for i, place in enumerate(places) if place == part]
            norm = np.sqrt(sum(np.square(vectors[i]).sum() for i in mine))
            bound *= 1.0 if limits is None else limits[row]
            if gamma is None:
                factor = 1.0 if norm <= bound else bound / norm
            else:
                factor = bound / (norm + gamma)
            for i in mine:
                sums[i] = sums[i] + factor * vectors[i]
    return np.concatenate([s.reshape(-1) for s in sums])


def numbers(sums, clip=None):
    """In units of gradients."""
    scale = 1.0 if clip is None else clip * 2.0**-BITS
    return np.concatenate([t.double().numpy().reshape(-1) * scale for t in sums])


@in_turn("name, gamma", [(name, gamma) for name in SPLITS for gamma in GAMMAS[:2]])
@pytest.mark.parametrize("limits", [*slow(None), np.array([1.0, 0.5, 0.25, 0.0, 1.0, 0.3])])
def test_sums_are_those_of_the_rows_one_by_one(name, gamma, limits):
    clip, parts = 2.0, split(name, 2.0)
    samples = draw(6)
    for sample, factors in zip(samples, (1.0, 5.0, 1e-4, 0.01), strict=True):
        sample *= factors
    samples[1][2] = float("nan")
    samples[3][4, 17] = float("inf")
    samples[0][5] = 0.0
    expected = by_hand(samples, clip, parts, gamma, limits)
    found = numbers(Clipping(clip, parts=parts, gamma=gamma).sums(samples, limits))
    assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)
    found = numbers(GridClipping(clip, BITS, parts=parts, gamma=gamma).sums(samples, limits), clip)
    off = 2e-4 * np.linalg.norm(expected) + 6 * clip * 2.0**-BITS * np.sqrt(len(expected))
    assert np.linalg.norm(found - expected) <= off


@settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from(AWKWARD), st.floats(width=32)), min_size=6, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1e-30, 1e-6, 1.0, 7.0, 1e30]),
    st.sampled_from(list(SPLITS)),
    st.sampled_from(GAMMAS),
    st.integers(2, 30),
    st.sampled_from([torch.float32, torch.float64]),
)
@pytest.mark.slow
def test_no_row_moves_the_integers_by_more_than_its_bounds(values, clip, name, gamma, bits, dtype):
    whole = torch.tensor(values, dtype=dtype)
    parts = split(name, clip)
    samples = [whole[:, :2].reshape(-1, 2, 1), whole[:, 2:3], whole[:, 3], whole[:, 4:]]
    clipping = GridClipping(clip, bits, parts=parts, gamma=gamma)
    total = clipping.sums(samples)
    for row in range(len(values)):
        rest = clipping.sums([torch.cat([s[:row], s[row + 1 :]]) for s in samples])
        moved = [(a - b).flatten().tolist() for a, b in zip(total, rest, strict=True)]
        squares = [sum(int(q) ** 2 for q in one) for one in moved]
        assert sum(squares) <= largest_square(bits)
        for part, bound in enumerate(() if parts is None else parts.bounds):
            mine = sum(s for s, place in zip(squares, parts.places, strict=True) if place == part)
            assert mine <= (Fraction(bound) / Fraction(clip)) ** 2 * 4**bits


@in_turn("name, gamma", [(name, gamma) for name in SPLITS for gamma in GAMMAS])
@pytest.mark.parametrize("clip", [1e-300, 1e-12, 1.0, 1e20])
@pytest.mark.slow
def test_one_contribution_never_exceeds_the_clip_norm(clip, name, gamma):
    parts = split(name, clip)
    for scale in (1e-30, 1e-6, 1.0, 1e19, 1e30):
        for dtype in (torch.float32, torch.float64):
            samples = [s.to(dtype) for s in draw(1, scale, shapes=SHORT)]
            found = numbers(Clipping(clip, parts=parts, gamma=gamma).sums(samples)) / clip
            assert np.linalg.norm(found) <= 1 + 1e-7


def test_a_row_that_is_not_finite_in_one_part_counts_in_none():
    samples = draw(3, 10.0)
    samples[1][1, 3] = float("inf")
    for clipping in (Clipping(1.0, parts=split("groups")), GridClipping(1.0, BITS, parts=split("groups"))):
        whole = clipping.sums(samples)
        rest = clipping.sums([s[[0, 2]] for s in samples])
        assert all(torch.allclose(a, b) for a, b in zip(whole, rest, strict=True))
    assert finite_rows(samples).tolist() == [True, False, True]
    edges = torch.full((5, 4), 3e38)  # sums of which overflow
    edges[1, 0], edges[2, 0], edges[2, 1], edges[3, 0] = float("nan"), float("inf"), -float("inf"), -3e38
    assert finite_rows([edges]).tolist() == [True, False, False, True, True]
    assert finite_rows([edges.double(), edges[:, :0]]).tolist() == [True, False, False, True, True]


def test_bounds_above_the_clip_norm_are_refused():
    Clipping(1.0, parts=ClipParts((0.5, 0.75), (0, 1)))
    for clipping in (Clipping, lambda clip, **given: GridClipping(clip, 20, **given)):
        with pytest.raises(ValueError, match="above clip_norm=1.0"):
            clipping(1.0, parts=ClipParts((0.6, 0.8), (0, 1)))  # as floats, by 4e-17
        with pytest.raises(ValueError, match=r"gamma=0\.0 must be positive"):
            clipping(1.0, gamma=0.0)
    for bounds, places in [((1.0,), ()), ((1.0, 1.0), (0, 0)), ((0.0,), (0,)), ((float("inf"),), (0,))]:
        with pytest.raises(ValueError, match="every part has a positive"):
            ClipParts(bounds, places)


class Words(nn.Module):
    """An embedding, a layer that is used twice, and a norm."""

    def __init__(self):
        super().__init__()
        self.words, self.f, self.norm = nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.f(self.norm(self.f(self.words(x)))).mean(1)


@pytest.mark.parametrize("gamma", GAMMAS[:2])
@pytest.mark.parametrize("places", [(0, 1, 2, 3, 4), (0, 1, 1, 0, 0)])
def test_ghost_clipping_has_the_sums_of_the_rows_one_by_one(places, gamma):
    torch.manual_seed(0)
    model, rows = Words(), 6
    x = torch.randint(0, 9, (rows, 5))

    def loss(output, indices):
        return (output.square().sum(1) + output[:, 0]) * (1.0 + 3.0 * indices)

    count = max(places) + 1
    parts = ClipParts((0.99 / count**0.5,) * count, places)
    source, delivery = ghost(model, rows, parts=parts, gamma=gamma)
    loss(model(delivered(source, x)), torch.arange(rows)).sum().backward()
    found = flat(source.sums(delivery)).numpy()
    alone = single_rows(model, x, loss)
    sizes = [p.numel() for p in source.parameters]
    samples = [part.reshape(rows, -1) for part in alone.split(sizes, 1)]
    expected = by_hand(samples, 1.0, parts, gamma)
    assert np.linalg.norm(found - expected) <= 2e-4 * np.linalg.norm(expected)
