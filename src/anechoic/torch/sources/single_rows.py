"""A seldom cross-check: what a source found for a row is what plain autograd gives for that row alone.

Rows are kept apart by construction; this looks whether torch's batching rules do what they promise. At the
first delivery of two rows or more it takes a few of them; later secret ones: at steps drawn by the key at a
rate of `RATE`, one row drawn by the key.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.runs.ledger import Delivery, ReleaseLedger

#: Part of the steps in which one secret row is compared.
RATE = 1 / 128
#: Rows that are compared at the first delivery; never more than half of the batch, but one.
SEVERAL = 2
#: By how much rounding may move a gradient of one row: part of its norm. A rectifier whose input is 0 to
#: rounding may flip, so gradients are not compared to the last digits.
_GRADIENT = {torch.float64: 1e-5, torch.float32: 1e-2}
_COARSE = 0.1  # where anything is computed in 16 bits
_FLOOR = 0.1  # of a bound, for a parameter's part of the whole gradient


class SingleRows:
    """Decides which row of which delivery is compared, and compares.

    Args:
        module: the plain one.
        parameters: the trainable ones, in the order of all gradients.
        ledger: knows the batch in hand, and the key.

    Attributes:
        compared: deliveries whose rows were compared.
        coarse: set while the call that is compared was made under autocast.
    """

    coarse = False

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], ledger: ReleaseLedger) -> None:
        self.module, self.parameters, self.ledger = module, parameters, ledger
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names.get(id(p), "a parameter") for p in parameters]
        self._decided: Delivery | None = None
        self._due = True
        self._rows: tuple[int, ...] = ()
        self.compared = 0

    def rows(self, delivery: Delivery) -> tuple[int, ...]:
        """The rows of `delivery` to compare."""
        if delivery is not self._decided:
            self._decided = delivery
            draw = int.from_bytes(self.ledger.derived("single rows", delivery.step, delivery.chunk, size=16))
            secret = (draw >> 64) < RATE * 2**64
            self._rows = self._chosen(draw, delivery.size) if delivery.size and (secret or self._due) else ()
        return self._rows

    def _chosen(self, draw: int, size: int) -> tuple[int, ...]:
        """One secret row; at first also the last one."""
        wanted = ((draw & (2**64 - 1)) % size, size - 1)
        several = min(SEVERAL, max(1, size // 2)) if self._due else 1
        return tuple(dict.fromkeys(wanted))[:several]

    def forget(self) -> None:
        """The delivery was dropped: it is decided anew."""
        self._decided = None

    def settle(self, delivery: Delivery, agreed: bool) -> None:
        """All rows of `delivery` that were to be compared were; `agreed` if one of them was finite."""
        self.compared += 1
        self._due = self._due and not (agreed and delivery.size > 1)

    def compare(self, found: list[Tensor], alone: list[Tensor], row: int) -> bool:
        """Refuse `found`, the gradient of one row in the batch, if it is not that of the row alone.

        Args:
            found, alone: one tensor a parameter.
            row: its place in the batch.

        Returns:
            Whether there was something to compare: a row that is not finite either way counts as zero.

        Raises:
            GuaranteeError: naming the parameter where they differ most.
        """
        whole_there, whole_alone = (all(map(_finite, tensors)) for tensors in (found, alone))
        if whole_there != whole_alone:
            where = "alone" if whole_there else "in the batch"
            self.refuse(row, f"its gradient is not finite {where}, and is otherwise")
        if not whole_alone:
            return False
        bound = self.bound(_GRADIENT)
        gaps = [float((f.detach().double() - a.double()).norm()) for f, a in zip(found, alone, strict=True)]
        norms = [float(a.double().norm()) for a in alone]
        whole = sum(norm * norm for norm in norms) ** 0.5
        excess = [gap - bound * (norm + _FLOOR * whole) for gap, norm in zip(gaps, norms, strict=True)]
        if max(excess) <= 1e-30:
            return True
        worst = max(range(len(gaps)), key=lambda place: excess[place])
        self.refuse(row, f"its gradient for {self._names[worst]} is off by {gaps[worst]:.3g}, where"
                     f" it has norm {norms[worst]:.3g}")  # fmt: skip

    def compare_criterion(self, found: list[Tensor], again: list[Tensor], row: int) -> None:
        """Refuse a criterion that gives a row another gradient when it is asked once more.

        Raises:
            GuaranteeError: if it does.
        """
        finite = all(map(_finite, again))
        gap = sum(float((f.double() - a.double()).norm()) for f, a in zip(found, again, strict=True))
        size = sum(float(a.double().norm()) for a in again)
        if finite != all(map(_finite, found)) or (finite and gap > self.bound(_GRADIENT) * size + 1e-30):
            self._due = True
            raise GuaranteeError(
                f"the criterion gives row {row} of the batch another gradient when it is asked once more: it"
                " keeps something from row to row (a running mean, a counter), so a row changes what others"
                " add. Nothing was released. Make it a function of one row's outputs and target alone."
            )

    def bound(self, bounds: dict[torch.dtype, float]) -> float:
        """How far rounding may go with this model."""
        dtypes = {p.dtype for p in self.module.parameters()}
        device = self.parameters[0].device.type
        coarse: Any = dtypes - set(bounds) or torch.is_autocast_enabled(device) or self.coarse
        return _COARSE if coarse else max(bounds[dtype] for dtype in dtypes)

    def refuse(self, row: int, what: str) -> NoReturn:
        """Stop the step: `what` is wrong with that row alone."""
        self._due = True  # whatever is done about the batch, until rows agree
        raise GuaranteeError(
            f"row {row} of the batch, taken alone, does not give what it gave in the batch: {what}. Nothing"
            " was released. The model keeps something from row to row (a counter, a running mean), or torch"
            " has a fault in one of its batching rules. Call optimizer.abandon_batch() to go on."
        )


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
