"""Every layer and option on the list of ghost clipping, against a loop of single rows in float64."""

import pytest
import torch
from torch import nn

from tests.marks import in_turn
from tests.torch.sources.ghost_setting import clipped, flat, ghost, row_norms, single_rows

B = 6


def normal(*shape, seed=1, dtype=torch.float32):
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tokens(*shape, words=9, seed=2):
    return torch.randint(0, words, (B, *shape), generator=torch.Generator().manual_seed(seed))


def weighted(out, rows):
    """One loss a row, which is nowhere symmetric."""
    flat_out = out.reshape(len(out), -1)
    weights = torch.linspace(0.5, 2.0, max(flat_out.shape[1], 1))[: flat_out.shape[1]]
    return ((flat_out.tanh() * weights.to(out.dtype)).sum(dim=1)) * (1.0 + rows.to(out.dtype))


REPEATED = torch.tensor(
    [[3] * 7, [1, 1, 2, 2, 3, 3, 3], [0] * 7, [8, 0, 8, 0, 8, 0, 8], [1] * 7, [5, 6, 7, 5, 6, 7, 5]]
)
CASES = {
    "linear": (lambda: nn.Linear(5, 3), normal(5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), normal(5)),
    "linear over 4 positions": (lambda: nn.Linear(5, 3), normal(4, 5)),
    "linear over 40 positions": (lambda: nn.Linear(2, 3), normal(40, 2)),
    "linear, two middle axes": (lambda: nn.Linear(5, 3), normal(2, 3, 5)),
    "linear, no positions": (lambda: nn.Linear(5, 3), normal(0, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), normal(3, 9)),
    "conv1d, one place": (lambda: nn.Conv1d(3, 4, 3), normal(3, 3)),
    "conv1d, stride dilation padding": (
        lambda: nn.Conv1d(2, 4, 3, stride=2, dilation=2, padding=3),
        normal(2, 11),
    ),
    "conv1d same": (lambda: nn.Conv1d(2, 3, 4, padding="same", dilation=2), normal(2, 7)),
    "conv1d valid": (lambda: nn.Conv1d(2, 3, 4, padding="valid"), normal(2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3), normal(2, 6, 5)),
    "conv2d, odd": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), dilation=(2, 1), padding=(0, 1), groups=2),
        normal(4, 7, 6),
    ),
    "conv2d, stride leaves a rest": (lambda: nn.Conv2d(2, 3, 2, stride=3, bias=False), normal(2, 7, 6)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), normal(4, 5, 5)),
    "conv2d, 1x1": (lambda: nn.Conv2d(4, 3, 1), normal(4, 5, 5)),
    "conv2d, few places": (lambda: nn.Conv2d(8, 9, 3), normal(8, 4, 4)),
    "conv2d, few places and groups": (lambda: nn.Conv2d(16, 16, 3, groups=2), normal(16, 4, 4)),
    "conv3d": (
        lambda: nn.Conv3d(2, 4, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 2), groups=2),
        normal(2, 3, 5, 2),
    ),
    "embedding": (lambda: nn.Embedding(9, 3), tokens(7)),
    "embedding, repeated words": (lambda: nn.Embedding(9, 3), REPEATED),
    "embedding, padding_idx": (lambda: nn.Embedding(9, 3, padding_idx=1), REPEATED),
    "embedding, one word a row": (lambda: nn.Embedding(9, 3), tokens()),
    "embedding, two axes": (lambda: nn.Embedding(9, 3), tokens(2, 4)),
    "bag, sum": (lambda: nn.EmbeddingBag(9, 3, mode="sum"), REPEATED),
    "bag, mean": (lambda: nn.EmbeddingBag(9, 3, mode="mean"), REPEATED),
    "bag, sum, padding_idx": (lambda: nn.EmbeddingBag(9, 3, mode="sum", padding_idx=1), REPEATED),
    "bag, mean, padding_idx": (lambda: nn.EmbeddingBag(9, 3, mode="mean", padding_idx=1), REPEATED),
    "bag, one word": (lambda: nn.EmbeddingBag(9, 1, mode="mean"), tokens(1)),
    "layer norm": (lambda: nn.LayerNorm(5), normal(5)),
    "layer norm, positions": (lambda: nn.LayerNorm(5), normal(4, 5)),
    "layer norm, two axes": (lambda: nn.LayerNorm((3, 5), eps=1e-2), normal(4, 3, 5)),
    "layer norm without bias": (lambda: nn.LayerNorm(5, bias=False), normal(4, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), normal(4, 5)),
    "rms norm, two axes": (lambda: nn.RMSNorm((3, 5), eps=1e-2), normal(3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), normal(4, 5, 3)),
    "group norm, no places": (lambda: nn.GroupNorm(2, 4), normal(4)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4, affine=True), normal(4, 5)),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(4, affine=True, eps=1e-2), normal(4, 5, 3)),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(4, affine=True), normal(4, 5, 3, 2)),
}


def build(name):
    make, x = CASES[name]
    torch.manual_seed(0)
    model = nn.Sequential(make())
    for p in model.parameters():
        nn.init.normal_(p)
    return model, x


def compare(model, x, *, clip=1.0, rtol=2e-5, atol=1e-5):
    expected = single_rows(model, x, weighted)
    source, delivery = ghost(model, len(x), clip=clip)
    weighted(model(source.labelled(x)), torch.arange(len(x))).sum().backward()
    found, true = row_norms(source), expected.norm(dim=1)
    assert torch.allclose(found, true, rtol=rtol, atol=atol)
    sums = flat(source.sums(delivery))
    goal = clipped(expected, clip)
    assert torch.allclose(sums, goal, rtol=rtol, atol=max(atol, rtol * float(goal.norm())))


@in_turn("clip", [0.1, 1e6])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(4)
def test_norms_and_sums_are_those_of_single_rows(name, clip):
    compare(*build(name), clip=clip)
