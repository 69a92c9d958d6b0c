"""Whether a data set still has the order that its owners were given for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError
from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.idle import idle
from anechoic.torch.structure import tensors_in


class OrderWatch:
    """Refuses a batch that reaches the model with its rows in another order, where that can be seen.

    Which rows are clipped together is known by their place. A tensor that the model is called with is
    compared with every delivered one of its shape: the same rows in other places are refused. Rows that were
    changed on the way (normalised, augmented), and labels, cannot be followed.

    Args:
        module: the plain module.
        ledger: knows the batch in hand.
    """

    def __init__(self, module: nn.Module, ledger: ReleaseLedger, batch_first: bool) -> None:
        self._ledger = ledger
        self._dimension = 0 if batch_first else 1
        module.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook.

        Raises:
            DesynchronizedError: see `check`.
        """
        if module.training and torch.is_grad_enabled():
            self.check([*args, *kwargs.values()])

    def check(self, tensors: Any) -> None:
        """Compare what a computation is fed with to the batch in hand, if it is one of units.

        Args:
            tensors: a tensor, or lists, tuples and dicts of them: inputs and targets.

        Raises:
            DesynchronizedError: if rows were moved from one unit to another.
        """
        delivery = self._ledger.in_hand
        if delivery is None or delivery.units is None:
            return
        items = torch.from_numpy(delivery.units.items)
        for given in tensors_in(tensors):
            for own in tensors_in(delivery.content):
                if own.shape == given.shape and moved(own, given, items, self._dimension):
                    raise DesynchronizedError(
                        f"the rows of batch {delivery.step} reached the model in another order: which rows"
                        " are clipped together is known by their place, so units would be mixed. Feed the"
                        " batch as it was delivered."
                    )

    def __reduce__(self) -> Any:
        return idle, ()


def moved(own: Tensor, given: Tensor, items: Tensor, dimension: int = 0) -> bool:
    """Whether `given` holds the rows of `own`, some of them in the place of another item.

    Args:
        own, given: of one shape.
        items: which item each row belongs to.
        dimension: where the rows are.
    """
    if own is given or own.dim() <= dimension or own.shape[dimension] != len(items):
        return False
    given = given.detach().to(own.device)
    if given.dtype != own.dtype or torch.equal(own, given):
        return False
    # sums tell at once that other values, not another order, came: as a rule
    sums, found = (_sums(t.movedim(dimension, 0)) for t in (own, given))
    if not torch.allclose(sums.sort().values, found.sort().values, equal_nan=True):
        return False
    rows, others = (t.movedim(dimension, 0).reshape(len(items), -1) for t in (own, given))
    _, names = torch.unique(torch.cat([rows, others]), dim=0, return_inverse=True)
    before, after = names[: len(items)].cpu(), names[len(items) :].cpu()
    if not torch.equal(before.sort().values, after.sort().values):
        return False
    size = int(names.max()) + 1
    return not torch.equal((items * size + before).sort().values, (items * size + after).sort().values)


def _sums(rows: Tensor) -> Tensor:
    return rows.double().reshape(len(rows), -1).sum(1)  # labels have one dimension
