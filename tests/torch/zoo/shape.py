"""One shape of the zoo: a small seeded model, a batch for it, and how the training loop calls it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

ROWS = 12


@dataclass(frozen=True)
class Shape:
    """A model shape.

    Attributes:
        make: the model; drawn under a seed.
        inputs: rows -> tensors of the examples, drawn under a seed.
        classes: of the targets; targets are made by `targets` where given.
        call: (model, inputs) -> what the criterion takes.
        criterion: a torch criterion.
        random: whether a forward pass draws random numbers.
        mixes: whether the model mixes the rows of a batch, so that it must be refused.
        autocast: dtype of torch.autocast around the forward pass, or None.
        prepare: changes the model after make_private.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    classes: int = 3
    targets: Callable[[int], torch.Tensor] | None = None
    call: Callable[..., Any] = lambda model, *inputs: model(*inputs)
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss
    random: bool = False
    mixes: bool = False
    autocast: Any = None
    prepare: Callable[[nn.Module], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().train()

    def data(self, rows=ROWS, seed=1):
        """(inputs…, target), each with one row an example."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs = self.inputs(rows)
            target = torch.randint(0, self.classes, (rows,)) if self.targets is None else self.targets(rows)
        return (*inputs, target)

    def output(self, model, inputs):
        """What the criterion takes, under the shape's autocast."""
        if self.autocast is None:
            return self.call(model, *inputs)
        with torch.autocast("cpu", dtype=self.autocast):
            found = self.call(model, *inputs)
        return found.float()


class Rows(Dataset):
    """A data set of the rows of `data`."""

    def __init__(self, data):
        self.parts = data

    def __len__(self):
        return len(self.parts[-1])

    def __getitem__(self, index):
        return tuple(part[index] for part in self.parts)
