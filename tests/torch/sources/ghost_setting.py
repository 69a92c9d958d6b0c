"""Clipped sums of a model by ghost clipping, beside a loop of single rows in float64."""

import copy
from types import SimpleNamespace

import torch

from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.clipping import Clipping
from anechoic.torch.sources.ghost.factored_gradients import (
    MemoryAllowance,
    OuterProducts,
    Sizes,
    norms,
)
from anechoic.torch.sources.ghost.source import GhostSource


def ghost(model, rows, *, clip=1.0, batch_first=True, **clipping):
    """A source over the trainable parameters of `model`, for sums over rows; a batch is in hand."""
    setup = SimpleNamespace(
        module=model,
        parameters=[p for p in model.parameters() if p.requires_grad],
        batch_first=batch_first,
        loss_reduction="sum",
        wrap_model=True,
        criterion=None,
    )
    source = GhostSource(setup, Clipping(clip, **clipping), SimpleNamespace())
    delivery = Delivery(0, rows)
    source.on_delivery(delivery)
    return source, delivery


def delivered(source, x):
    """What the loader hands out of x."""
    return source.labelled(x, 0 if source.setup.batch_first else 1)


def row_norms(source):
    """The upper bounds of the norms that the source clips by."""
    calls = [call.by_rows(source.batch.rows) for call in source.batch.calls]
    return norms(list(source._gradients(calls).values()))


def plain(model):
    """A float64 copy without ghost clipping."""
    return copy.deepcopy(model).double()


def single_rows(model, x, loss, *, rows=None, axis=0):
    """Gradients of single rows, shape (rows, parameters), float64, by autograd of one row after the other.

    Args:
        loss: maps (output, indices of its rows) to one loss a row.
    """
    twin = plain(model)
    x = x.double() if x.is_floating_point() else x
    found = []
    for i in range(x.shape[axis]) if rows is None else rows:
        twin.zero_grad()
        loss(twin(x.narrow(axis, i, 1)), torch.tensor([i])).sum().backward()
        wanted = [p for p in twin.parameters() if p.requires_grad]
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in wanted]
        found.append(torch.cat(flat))
    return torch.stack(found) if found else torch.zeros(0, sum(p.numel() for p in twin.parameters()))


def clipped(gradients, clip=1.0):
    """Their sum, each clipped to `clip`."""
    factors = (clip / gradients.norm(dim=1).clamp(min=1e-99)).clamp(max=1.0)
    return factors @ gradients


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def normal(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def outer(x, a, budget=None, among=None):
    """Rows of sum_t a_t x_t', from (rows, positions, features) each."""
    return OuterProducts(
        lambda part: (x[part].double().unsqueeze(0), a[part].double().unsqueeze(0)),
        Sizes(*x.shape, a.shape[2]), lambda made: made.squeeze(0), budget or MemoryAllowance(), among,
    )  # fmt: skip
