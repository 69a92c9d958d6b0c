"""One release of all rows at next to no noise, and the same by a loop over single rows."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine


class Named(Dataset):
    """Rows that are dicts."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, row):
        return {name: tensor[row] for name, tensor in self.tensors.items()}


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def release(make, rows, loss, *, mode="rows", clip=1.0, noise=1e-4, bits=None, after=None, key=bytes(32)):
    """The sum of the clipped gradients in clip norms, the loss, and the optimizer.

    `rows` are tensors, of which the loss is given a batch each, or a dict, of which it is given one.
    """
    torch.manual_seed(0)
    model, named = make(), isinstance(rows, dict)
    data = Named(rows) if named else TensorDataset(*rows)
    count = len(data)
    made = PrivacyEngine(sampling_key=key, noise_key=bytes([91]) * 32).make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=0.0),
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode=mode,
        data_loader=DataLoader(data, batch_size=count),
        poisson_sampling=False,
        mechanism=Mechanism(
            Identity(1), FixedOrder(count, count, 1), noise * clip, clip_norm=clip, grid_bits=bits
        ),
    )
    if after is not None:
        after(model)
    for batch in made[-1]:
        value = loss(made[0], batch) if named else loss(made[0], *batch)
        value.backward()
        made[1].step()
    total = count * torch.cat([p.grad.flatten().double() for p in trained(model)]) / clip
    return SimpleNamespace(sum=total, loss=value.item(), optimizer=made[1])


def one_by_one(make, rows, loss, clip=1.0):
    """The same sum by plain autograd, row after row."""
    torch.manual_seed(0)
    model, named, total = make(), isinstance(rows, dict), 0.0
    for row in range(len(Named(rows)) if named else len(rows[0])):
        model.zero_grad()
        if named:
            loss(model, {name: tensor[row : row + 1] for name, tensor in rows.items()}).backward()
        else:
            loss(model, *(tensor[row : row + 1] for tensor in rows)).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]
        vector = torch.cat([part.flatten().double() for part in parts])
        total = total + vector * min(1.0, clip / max(float(vector.norm()), 1e-300)) / clip
    return total


def without(rows):
    """All rows but the first."""
    return {n: t[1:] for n, t in rows.items()} if isinstance(rows, dict) else [t[1:] for t in rows]


def moved(make, rows, loss, **options):
    """By how many clip norms leaving out row 0 moves the sum."""
    one, other = (release(make, part, loss, **options).sum for part in (rows, without(rows)))
    return float((one - other).norm())


def check_release(make, rows, loss, *, bound=2e-3, clip=1.0, **options):
    """A release is that of single rows, and one row moves it by the clip norm at most."""
    whole, reference = release(make, rows, loss, clip=clip, **options).sum, one_by_one(make, rows, loss, clip)
    assert float((whole - reference).norm()) <= bound * float(reference.norm())
    rest = release(make, without(rows), loss, clip=clip, **options).sum
    assert float((whole - rest).norm()) <= 1.001
