"""Gradients of single rows of a model, without a run around them."""

import torch

from anechoic.torch.sources.row_model import RowModel
from anechoic.torch.sources.row_passes import RowPasses


def rowwise(model, x, slots=None, *, autocast=False):
    """(the passes, gradients of the rows in one axis, shape (rows, parameters)) of the sum of outputs."""
    rows = RowModel(model, [p for p in model.parameters() if p.requires_grad], batch_first=True)
    given = x if isinstance(x, tuple) else (x,)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        passes = RowPasses(rows, (given, {}), [0] * len(given), len(given[0]), slots=slots or len(given[0]))
        passes.run()
    parts = [
        passes.gradients([torch.ones_like(o) for o in passes.outputs], k) for k in range(len(passes.chunks))
    ]
    return passes, torch.cat([torch.cat(each).flatten(1) for each in zip(*parts, strict=True)], 1)


def each_alone(model, x, *, autocast=False):
    """The same by plain autograd, one row after another."""
    found = []
    for row in zip(*(x if isinstance(x, tuple) else (x,)), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(*(t[None] for t in row))
        grads = torch.autograd.grad(out.sum(), [p for p in model.parameters() if p.requires_grad])
        found.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(found)
