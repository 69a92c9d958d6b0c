"""The comparison with autograd of single rows: what a source found for a row is what the row gives alone.

It takes the call of the model as it happened (the row's input, the generators at the call, the gradient of
the loss with respect to the row's outputs), runs the model on that row alone with plain autograd, and
compares. It happens at the first delivery, and after each change of the model's attributes (train or eval,
options, hooks, a replaced forward, settings in objects, dicts and lists): a few rows, and again at every
delivery until they agreed on a batch of two rows or more, since a row that is alone anyway shows nothing. It
also happens on secret rows: at steps drawn by the key at a rate of `RATE`, on one row drawn by the key. One
row alone costs at most what its whole batch costs: at most 1/128 of a step. Where a comparison is due and
cannot be made, the step is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.setup.units import moved
from anechoic.torch.sources.loss_graph import check_divisor, is_summed
from anechoic.torch.watching.attributes import AttributeSnapshot

logger = logging.getLogger("anechoic")

#: Part of the steps in which one secret row is compared.
RATE = 1 / 128
#: An attribute that changed in so many steps is left to the secret rows: each comparison costs up to a step.
CHANGES = 8
#: Rows that are compared where a comparison is due; never more than half of the batch, but one.
SEVERAL = 4
#: By how much rounding may move a gradient, or an output, of one row: part of its norm. A rectifier whose
#: input is 0 to rounding may flip, so gradients are not compared to the last digits.
_GRADIENT = {torch.float64: 1e-5, torch.float32: 1e-2}
_OUTPUT = {torch.float64: 1e-8, torch.float32: 1e-3}
_COARSE = 0.1  # where anything is computed in 16 bits
_FLOOR = 0.1  # of a bound, for a parameter's part of the whole gradient
_NO_LABEL = 4  # integers in a row that is taken for an example's data


class SingleRows:
    """Decides which row of which delivery is compared, and compares.

    Args:
        module: the plain one.
        parameters: the trainable ones, in the order of all gradients.
        ledger: knows the batch in hand, and the key.
        reduction: of the loss that backward() is called on, as far as the graph may show another.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        ledger: ReleaseLedger,
        *,
        reduction: str = "sum",
    ) -> None:
        self.module, self.parameters, self.ledger = module, parameters, ledger
        self._means = reduction == "mean"
        self._layers = list(module.named_modules())
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names.get(id(p), "a parameter") for p in parameters]
        self._snapshot: tuple[AttributeSnapshot, dict[str, dict[str, Any]]] | None = None
        self._changes: dict[str, dict[str, int]] = {}
        self._decided: Delivery | None = None
        #: 2 until rows agreed after a change; 1 if that was in a batch of one row, which shows no mixing
        self._due = 0
        self._rows: tuple[int, ...] = ()
        self.compared = 0
        self._loss = ""
        self._inputs: list[Tensor] = []

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Refuse rows that reach the model in two orders for one delivery that is due.

        Args:
            tensors: inputs of a call, rows first.

        Raises:
            GuaranteeError: if a tensor holds the rows of an earlier one in other places.
        """
        for tensor in tensors:
            rows = tensor.detach()
            if not _telling(rows):
                continue
            places = torch.arange(len(rows))
            if any(other.shape == rows.shape and moved(other, rows, places) for other in self._inputs):
                self._due = 2
                raise GuaranteeError(
                    "rows of the batch reached the model in two orders (x and x.flip(0), or shuffled as"
                    " negatives): one example is then in several of the rows that are clipped, and moves the"
                    " sum by more than the clip norm. Nothing was released. Compute what belongs to an"
                    " example from that example alone. Where pairs are wanted, make a data set of pairs: an"
                    " example, and what is protected, is then the pair; for those who are in several pairs"
                    " give unit_ids that name both."
                )
            self._inputs.append(rows)

    def look_at_loss(self, ends: Iterable[Any]) -> None:
        """The backward pass of the loss has reached the model's outputs, whose nodes `ends` are."""
        self._loss = self._loss or check_divisor(ends)
        if self._means and is_summed():
            self._means = False  # said once
            logger.warning(
                "the loss is a sum over the batch (reduction='sum'), and loss_reduction='mean' says that it"
                " is a mean: gradients of rows are taken too large by the size of the batch, so nearly all"
                " are clipped. Give make_private loss_reduction='sum', or the criterion reduction='mean'."
            )

    def check_loss(self) -> None:
        """Refuse a loss that mixes rows, as far as its graph showed.

        Raises:
            GuaranteeError: naming the remedy.
        """
        fault, self._loss = self._loss, ""
        if fault:
            self._due = 2
            raise GuaranteeError(f"{fault} Nothing was released.")

    def rows(self, delivery: Delivery) -> tuple[int, ...]:
        """The rows of `delivery` to compare: decided when its first call is made."""
        if delivery is not self._decided:
            self._decided, self._inputs = delivery, []
            self._due = 2 if self._changed() else self._due
            draw = int.from_bytes(self.ledger.derived("single rows", delivery.step, delivery.chunk, size=16))
            secret = (draw >> 64) < RATE * 2**64
            self._rows = ()
            if delivery.size and (secret or self._due == 2 or (self._due and delivery.size > 1)):
                self._rows = self._chosen(draw & (2**64 - 1), delivery.size)
        return self._rows

    def _chosen(self, draw: int, size: int) -> tuple[int, ...]:
        """One secret row; where a comparison is due, also the last and first one, and another secret one."""
        wanted = (draw % size, size - 1, 0, (draw >> 32) % size)
        several = min(SEVERAL, max(1, size // 2)) if self._due else 1
        return tuple(dict.fromkeys(wanted))[:several]

    def forget(self) -> None:
        """The delivery was dropped: it is decided anew."""
        self._decided, self._inputs = None, []
        self._loss = ""

    def _changed(self) -> bool:
        """Whether attributes of the model are others than at the last delivery; so they are at the first."""
        snapshot, before = AttributeSnapshot(), self._snapshot
        left = {name: {a for a, n in of.items() if n >= CHANGES} for name, of in self._changes.items()}
        state = {name: snapshot.layer(layer, left.get(name, ())) for name, layer in self._layers}
        self._snapshot = snapshot, state
        if before is None:
            return True
        counts = False
        for name, new in state.items():
            old, of = before[1].get(name, {}), self._changes.setdefault(name, {})
            for attribute in old.keys() | new.keys() if old != new else ():
                if attribute in left.get(name, ()) or old.get(attribute) == new.get(attribute):
                    continue
                of[attribute] = of.get(attribute, 0) + 1
                counts = True
                if attribute == "parts":
                    self._layers = list(self.module.named_modules())
        return counts

    def settle(self, delivery: Delivery, agreed: bool) -> None:
        """All rows of `delivery` that were to be compared were; `agreed` if one of them was finite."""
        self.compared += 1
        self._inputs = []
        if agreed:
            self._due = min(self._due, 1 if delivery.size < 2 else 0)

    def unmade(self, delivery: Delivery) -> None:
        """Refuse a step whose comparison is due and cannot be made, as no call was seen that shows rows.

        Raises:
            GuaranteeError: naming the remedy.
        """
        if delivery.size > 1 and self.rows(delivery):
            self._due = 2
            raise GuaranteeError(
                f"rows of batch {delivery.step} could not be compared with the same rows alone, so nothing"
                " says that the model keeps them apart. Nothing was released. Call the model itself, with the"
                " batch's tensors among its arguments; return what the loss is made from as tensors, tuples,"
                " dicts or dataclasses from forward (not by an attribute, nor in another object); or use"
                " grad_sample_mode='vmap'."
            )

    def compare(
        self, found: list[Tensor], alone: list[Tensor], row: int, *, norm: float | None = None
    ) -> bool:
        """Refuse `found`, the gradient of one row in the batch, if it is not that of the row alone.

        Args:
            found, alone: one tensor a parameter.
            row: its place in the batch.
            norm: what the row is clipped by, where that is an upper bound of the norm of `found`.

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
            if norm is not None and not norm >= (1 - bound) * whole:
                self.refuse(row, f"the norm of its gradient is {whole:.6g} and was taken as {norm:.6g}")
            return True
        worst = max(range(len(gaps)), key=lambda place: excess[place])
        self.refuse(row, f"its gradient for {self._names[worst]} is off by {gaps[worst]:.3g}, where"
                     f" it has norm {norms[worst]:.3g}")  # fmt: skip

    def compare_output(self, found: Tensor, alone: Tensor, row: int) -> None:
        """Refuse a model whose output for a row depends on the other rows of the batch.

        Raises:
            GuaranteeError: if it does.
        """
        finite = torch.isfinite(alone)
        if not torch.equal(finite, torch.isfinite(found)):
            self.refuse(row, "the model's output for it is not finite in other places: the model mixes the"
                        " rows of a batch")  # fmt: skip
        found, alone = found[finite], alone[finite]
        gap = float((found.double() - alone.double()).norm())
        if gap <= self.bound(_OUTPUT) * float(alone.double().norm()) + 1e-30:
            return
        self.refuse(row, f"the model's output for it is off by {gap:.3g}, where it has norm"
                     f" {float(alone.double().norm()):.3g}: the model mixes the rows of a batch")  # fmt: skip

    def compare_sums(self, parts: list[list[Tensor]], row: int, other: int) -> bool:
        """Refuse a loss of several rows that is not one of each row.

        Args:
            parts: four gradients; the first two are together the last two where each row has its own loss.
            row, other: of the batch.

        Returns:
            Whether there was something to compare.

        Raises:
            GuaranteeError: if they are not.
        """
        flat = [torch.cat([g.double().flatten() for g in part]) if part else torch.zeros(0) for part in parts]
        if len({len(vector) for vector in flat}) > 1 or not all(map(_finite, flat)):
            return False
        gap, size = flat[0] + flat[1] - flat[2] - flat[3], sum(float(vector.norm()) for vector in flat)
        if float(gap.norm()) > self.bound(_GRADIENT) * size + 1e-30:
            self.refuse(row, f"beside row {other} it changes the gradient of the model's loss by more than"
                        " its own: the model mixes the rows of a batch")  # fmt: skip
        return len(flat[0]) > 0

    def compare_criterion(self, found: list[Tensor], again: list[Tensor], row: int) -> None:
        """Refuse a criterion that gives a row another gradient when it is asked once more.

        Raises:
            GuaranteeError: if it does.
        """
        finite = all(map(_finite, again))
        gap = sum(float((f.double() - a.double()).norm()) for f, a in zip(found, again, strict=True))
        size = sum(float(a.double().norm()) for a in again)
        if finite != all(map(_finite, found)) or (finite and gap > self.bound(_GRADIENT) * size + 1e-30):
            self._due = 2
            raise GuaranteeError(
                f"the criterion gives row {row} of the batch another gradient when it is asked once more: it"
                " keeps something from row to row (a running mean, a counter), so a row changes what others"
                " add. Nothing was released. Make it a function of one row's outputs and target alone."
            )

    def bound(self, bounds: dict[torch.dtype, float]) -> float:
        """How far rounding may go with this model."""
        dtypes = {p.dtype for p in self.module.parameters()}
        device = self.parameters[0].device.type
        coarse = dtypes - set(bounds) or torch.is_autocast_enabled(device) or self.coarse
        return _COARSE if coarse else max(bounds[dtype] for dtype in dtypes)

    #: set while the call that is compared was made under autocast
    coarse: bool = False

    def refuse(self, row: int, what: str) -> NoReturn:
        """Stop the step: `what` is wrong with that row alone."""
        self._due = 2  # whatever is done about the batch, until rows agree
        raise GuaranteeError(
            f"row {row} of the batch, taken alone, does not give what it gave in the batch: {what}. Nothing"
            " was released. Use grad_sample_mode='vmap', which runs every row by itself; a model that mixes"
            " rows must be changed. Call optimizer.abandon_batch() to go on."
        )


def _telling(rows: Tensor) -> bool:
    """Whether rows that are found again in other places are no coincidence: all differ, and are no labels."""
    if len(rows) < 2 or not (rows.dtype.is_floating_point or rows[0].numel() >= _NO_LABEL):
        return False
    return len(torch.unique(rows.reshape(len(rows), -1), dim=0)) == len(rows)


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
