"""Ghost clipping on shapes that nobody thought of: norms and sums are those of single rows by autograd.

Every kind of layer, called one to three times, with rows, positions and features down to one (positions down
to none), words that repeat, in each way that memory is used.
"""

from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anechoic.torch.sources.ghost import factored_gradients
from anechoic.torch.sources.ghost import source as sources
from anechoic.torch.sources.ghost.factored_gradients import MemoryAllowance
from tests.marks import slow
from tests.torch.sources.ghost_setting import clipped, delivered, flat, ghost, plain, row_norms

#: How memory is used: with all that there is, with none to keep anything, and in pieces.
MEMORY = {
    "kept": {},
    "none to keep": {"budget": 0},
    "pieces": {"budget": 0, "piece": 8 * 60},
}
small = st.integers(1, 4)
sizes = st.integers(0, 5)
seeds = st.integers(0, 2**31)


class Case:
    """A layer, and the inputs of its calls, each with the axis of its rows."""

    def __init__(self, draw, make, shapes, words=0, axis=0):
        torch.manual_seed(draw(seeds))
        self.layer = make().double()
        for p in self.layer.parameters():
            nn.init.normal_(p)
        self.rows = draw(small)
        self.calls = []
        for shape in shapes:
            shape = list(shape)
            shape.insert(axis, self.rows)
            self.calls.append(torch.randint(words, shape) if words else torch.randn(shape).double())
        self.axes = [axis] * len(shapes)


def several(draw, shape):
    """Shapes of one to three calls."""
    return [draw(shape) for _ in range(draw(st.integers(1, 3)))]


def middle(*last):
    """Up to two axes of positions, then the features."""
    return st.lists(sizes, max_size=2).map(lambda axes: (*axes, *last))


@st.composite
def linears(draw, of="Linear"):
    inputs, outputs, bias = draw(small), draw(small), draw(st.booleans())

    def make():
        if of == "Linear":
            return nn.Linear(inputs, outputs, bias=bias)
        return import_module("transformers.pytorch_utils").Conv1D(outputs, inputs)

    return Case(draw, make, several(draw, middle(inputs)))


@st.composite
def convolutions(draw):
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * axes))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * axes))
    padding = draw(st.sampled_from(["same", "valid", *range(3)]))
    stride = 1 if padding == "same" else draw(st.tuples(*[st.integers(1, 3)] * axes))
    bias = draw(st.booleans())
    least = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    places = st.tuples(*[st.integers(n, n + 2) for n in least])
    cls = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    options = {"dilation": dilation, "padding": padding, "stride": stride, "groups": groups, "bias": bias}
    made = [(inputs, *draw(places)) for _ in range(draw(st.integers(1, 2)))]
    return Case(draw, lambda: cls(inputs, outputs, kernel, **options), made)


@st.composite
def embeddings(draw):
    words, width = draw(small), draw(small)
    padding = draw(st.none() | st.integers(-words, words - 1))
    make = lambda: nn.Embedding(words, width, padding_idx=padding)  # noqa: E731
    return Case(draw, make, several(draw, st.lists(sizes, max_size=2)), words)


@st.composite
def bags(draw):
    words, width = draw(small), draw(small)
    padding = draw(st.none() | st.integers(-words, words - 1))
    mode, ends = draw(st.sampled_from(["sum", "mean"])), draw(st.booleans())
    make = lambda: nn.EmbeddingBag(  # noqa: E731
        words, width, padding_idx=padding, mode=mode, include_last_offset=ends
    )
    return Case(draw, make, several(draw, st.tuples(st.integers(1, 5))), words)


@st.composite
def normalisations(draw):
    kind, channels = draw(st.sampled_from(["layer", "rms", "group", "instance"])), 2 * draw(small)
    eps = draw(st.sampled_from([1e-5, 0.1]))
    if kind in ("layer", "rms"):
        shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        cls = nn.LayerNorm if kind == "layer" else nn.RMSNorm
        return Case(draw, lambda: cls(shape, eps=eps), several(draw, middle(*shape)))
    if kind == "group":
        groups = draw(st.sampled_from([1, 2, channels]))
        places = st.lists(st.integers(1, 3), max_size=2).map(lambda axes: (channels, *axes))
        # torch refuses one number a channel
        places = places.filter(lambda shape: len(torch.empty(shape).flatten()) > groups)
        return Case(draw, lambda: nn.GroupNorm(groups, channels, eps=eps), several(draw, places))
    axes = draw(st.integers(1, 3))
    cls = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[axes]
    places = st.tuples(*[st.integers(2, 3)] * axes).map(lambda shape: (channels, *shape))
    return Case(draw, lambda: cls(channels, affine=True, eps=eps), several(draw, places))


def losses(layer, calls, axes):
    """One loss a row, over all calls, nowhere symmetric."""
    total = 0.0
    for x, axis in zip(calls, axes, strict=True):
        out = layer(x).movedim(axis, 0).flatten(1) if x.shape[axis] else layer(x)
        weights = torch.linspace(0.3, 1.7, max(out.shape[1], 1), dtype=out.dtype)[: out.shape[1]]
        total = total + (out.tanh() * weights).sum(1)
    return total


def by_rows(model, calls, axes, loss):
    """Gradients of single rows by autograd, shape (rows, parameters)."""
    twin, found = plain(model), []
    for row in range(calls[0].shape[axes[0]]):
        twin.zero_grad()
        alone = [x.narrow(axis, row, 1) for x, axis in zip(calls, axes, strict=True)]
        made = loss(twin, alone, axes).sum()
        if made.requires_grad:
            made.backward()
        trained = [p for p in twin.parameters() if p.requires_grad]
        found.append(flat([torch.zeros_like(p) if p.grad is None else p.grad for p in trained]))
    return torch.stack(found)


def ghostly(model, calls, axes, loss, clip, memory):
    """(upper bounds of norms, the clipped sum)."""
    options = MEMORY[memory]
    with pytest.MonkeyPatch.context() as patched:
        if "budget" in options:
            patched.setattr(sources, "MemoryAllowance", lambda: MemoryAllowance(options["budget"]))
        if "piece" in options:
            patched.setattr(factored_gradients, "PIECE", options["piece"])
        count = calls[0].shape[axes[0]]
        source, delivery = ghost(model, count, clip=clip, batch_first=axes[0] == 0)
        rows = [delivered(source, x) for x in calls]
        loss(model, rows, axes).sum().backward()
        lengths = row_norms(source) if source.batch.calls else torch.zeros(count)
        made = lengths, flat(source.sums(delivery))
        source.detach()
        return made


def check(model, calls, axes, loss, clip, memory):
    true = by_rows(model, calls, axes, loss)
    lengths, found = ghostly(model, calls, axes, loss, clip, memory)
    norms = true.norm(dim=1)
    assert bool((lengths >= norms * (1 - 1e-9) - 1e-12).all()), "a norm fell short"
    assert torch.allclose(lengths, norms.to(lengths.dtype), rtol=1e-3, atol=1e-4)
    goal = clipped(true, clip)
    assert torch.allclose(found, goal, rtol=1e-3, atol=1e-3 * float(goal.norm()) + 1e-4 * clip)
    if len(true) > 1:
        fewer = [x.narrow(axis, 1, len(true) - 1) for x, axis in zip(calls, axes, strict=True)]
        rest = ghostly(model, fewer, axes, loss, clip, memory)[1]
        assert float((found - rest).norm()) <= clip * (1 + 1e-4) + 1e-9 * float(found.norm())


clips = st.sampled_from([0.05, 1.0, 1e6])
memories = st.sampled_from(list(MEMORY))


class TiedWords(nn.Module):
    """An embedding and a head of one weight, each called as often as it is told."""

    def __init__(self, words, width, padding, bias, heads, looks):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=padding)
        self.head = nn.Linear(width, words, bias=bias)
        self.head.weight = self.words.weight
        self.heads, self.looks = heads, looks

    def forward(self, tokens):
        h = self.words(tokens)
        for _ in range(self.looks - 1):
            h = torch.cat([h, self.words(tokens[:, :1])], 1)
        out = self.head(h if self.heads != 1 else h.tanh())
        for _ in range(self.heads - 1):
            out = torch.cat([out, self.head(h[:, -1:].sin())], 1)
        return out


@st.composite
def tied(draw):
    words, width, positions = draw(small), draw(small), draw(st.integers(1, 5))
    padding = draw(st.none() | st.integers(0, words - 1))
    options = draw(st.booleans()), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return Case(draw, lambda: TiedWords(words, width, padding, *options), [(positions,)], words)


class Adapted(nn.Module):
    """What LoRA makes of a layer: a frozen one, and two thin ones beside it, behind dropout and a factor."""

    def __init__(self, inputs, outputs, rank, scale):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.scale = scale

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


@st.composite
def adapted(draw):
    inputs, outputs, rank = draw(small), draw(small), draw(small)
    scale = draw(st.sampled_from([0.5, 30.0]))
    return Case(draw, lambda: Adapted(inputs, outputs, rank, scale), several(draw, middle(inputs)))


class TimeFirst(nn.Module):
    """Positions before rows where layers may have them so, and rows first where they cannot."""

    def __init__(self, words, width):
        super().__init__()
        self.words, self.line, self.norm = nn.Embedding(words, width), nn.Linear(width, 4), nn.LayerNorm(4)
        self.look, self.groups = nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)
        self.bag = nn.EmbeddingBag(words, 4)

    def forward(self, tokens):
        h = self.norm(self.line(self.words(tokens)))  # (positions, rows, 4)
        h = self.groups(self.look(h.movedim(0, 2)))  # (rows, 4, positions)
        return (h + self.bag(tokens.t())[:, :, None]).movedim(2, 0)


@st.composite
def time_first(draw):
    words, width, positions = draw(small), draw(small), draw(st.integers(1, 5))
    return Case(draw, lambda: TimeFirst(words, width), [(positions,)], words, axis=1)


#: How many examples of a kind are tried, and what they are.
KINDS = {
    "linear": (150, linears()),
    "convolution": (150, convolutions()),
    "embedding": (150, embeddings()),
    "bag": (150, bags()),
    "normalisation": (150, normalisations()),
    "Conv1D of transformers": (60, linears(of="Conv1D")),
    "tied weights": (150, tied()),
    "adapters": (100, adapted()),
    "positions before rows": (60, time_first()),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.1, *slow(1.0)])
def test_layers_of_any_shape_against_single_rows(kind, part):
    count, cases = KINDS[kind]
    if "transformers" in kind:
        pytest.importorskip("transformers")

    @settings(max_examples=int(part * count))
    @given(cases, clips, memories)
    def holds(case, clip, memory):
        check(case.layer, case.calls, case.axes, losses, clip, memory)

    holds()
