"""What is refused of a batch whose rows are followed: calls of the model, losses, gradients, sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.torch.row_types.batch import Batch, row_axis
from anechoic.torch.row_types.graph import reached, running_roots
from anechoic.torch.row_types.labels import TOTAL, Label, Mixed, One, RowAxis, Total
from anechoic.torch.row_types.numbers import among
from anechoic.torch.row_types.reductions import A_MEAN, A_SUM
from anechoic.torch.structure import tensors_in

REMEDY = (
    " Nothing was released. Compute the loss of each example from that example's outputs and target alone,"
    " then take its mean() or sum(); call optimizer.abandon_batch() to go on."
)


class Refusals(ABC):
    """Checks of labels, where a batch reaches the model, the loss and the gradient.

    Attributes:
        batch: in hand, or the last one.
        active: whether it is in hand.
        means: whether losses are means over rows.
    """

    batch: Batch
    active: bool
    means: bool
    _dimension: int

    @abstractmethod
    def of(self, tensor: Tensor) -> Label | None:
        """The label of a tensor; None for what is public."""

    @property
    def rows(self) -> int:
        """Of the batch in hand, or the last one; 0 where there is none."""
        return self.batch.rows

    def check_inputs(self, given: Any) -> None:
        """Refuse a call of the model, or of a criterion by rows, with something that is no row an example.

        Raises:
            DesynchronizedError: naming what was done to the rows.
        """
        if not self.active:
            return
        if among(given) and self.rows > 1:
            raise DesynchronizedError(
                "the model, or the criterion, was called with a number that was delivered, or taken out of a"
                " tensor of the batch (.item()): it may know all rows. Nothing was released. Give it a tensor"
                " with one row an example."
            )
        for tensor in tensors_in(given):
            label = self.of(tensor)
            if label is None or self._alone(label):
                continue
            axis = row_axis(tensor, self.rows, self._dimension)
            if isinstance(label, RowAxis) and axis in (None, label.axis):
                continue  # how many rows there are is looked at by whoever pulls them back
            why = "it is one row alone" if isinstance(label, One) else "it is made of several rows"
            if isinstance(label, RowAxis):
                why = f"its rows are along axis {label.axis}, and are taken from axis {axis}"
            why = _why(label, why)
            raise DesynchronizedError(
                f"the model was called with a tensor of shape {tuple(tensor.shape)} that is not one row an"
                f" example of a batch of {self.rows}: {why}. An example in several rows, or in another's row,"
                " moves the sum by more than the clip norm. Nothing was released. Feed the model exactly the"
                " delivered batch, and compute what belongs to an example from that example alone; for pairs"
                " make a data set of pairs, with unit_ids that name both."
            )

    def fault(self, tensor: Tensor, axis: int) -> str:
        """Why a layer's input is not one row an example along `axis`; "" where it is."""
        if self.rows < 2 or (label := self.of(tensor)) == RowAxis(axis):
            return ""
        if label is None and tensor.shape[axis] == self.rows:
            # a state of each row, say: what comes out counts as rows, and must meet rows in their places
            return ""
        if label is None:
            return "what does not come from the examples (positions, say), which all of them share"
        if isinstance(label, RowAxis):
            return f"an input of shape {tuple(tensor.shape)} whose rows are not the examples, one each"
        return f"what depends on several examples: {_why(label, 'a total')}"

    def check_losses(self, losses: Tensor) -> None:
        """Refuse losses that are not one a row, each of its own row."""
        label = self.of(losses) if self.active else RowAxis(0)
        if isinstance(label, RowAxis):
            return  # how many there are is looked at by whoever pulls them back
        why = _why(label, "it is none of a single row")
        raise GuaranteeError(f"the loss of an example depends on other rows of the batch: {why}.{REMEDY}")

    def check_loss(self, loss: Tensor) -> None:
        """Refuse a loss that is no total over rows.

        Raises:
            GuaranteeError: naming what mixes them.
        """
        if not self.active:
            return
        self.check_sizes()
        label = TOTAL if isinstance(found := self.of(loss), One) else found
        if label is not None and self._alone(label):
            return
        if isinstance(label, Total) and label.mean == self.means:
            return
        if isinstance(label, Total):
            raise GuaranteeError(A_SUM if self.means else A_MEAN)
        if isinstance(label, RowAxis):
            why = f"it has shape {tuple(loss.shape)}, and is no number"
        elif label is None:
            why = "it reaches the model's outputs in a way that was not seen"
        else:
            why = _why(label, "it is no sum over all rows")
        raise GuaranteeError(f"the loss mixes the rows of the batch: {why}.{REMEDY}")

    def check_backward(self, gradients: Iterable[Tensor], axes: Iterable[int | None]) -> None:
        """The same, from inside of the backward pass, where it has reached the model's outputs.

        Args:
            gradients: with respect to the outputs.
            axes: of the rows in each output; None for one without a dimension.

        Raises:
            GuaranteeError: if what it was called on, or what came of it on the way (hooks on tensors,
                functions with a backward() of their own), mixes rows.
        """
        if not self.active:
            return
        if self.batch.pulled and self.rows > 1:
            raise GuaranteeError(
                "a hook, or a function with a backward() of its own, took a number out of a gradient"
                f" (.item(), float(), if): it may know all rows of the batch.{REMEDY}"
            )
        for root in running_roots():
            if root.grad_fn is not None and reached(root)[0]:
                self.check_loss(root)
        for gradient, axis in zip(gradients, axes, strict=True):
            label = self.of(gradient)
            if label is None or (axis is not None and label == RowAxis(axis)) or self._alone(label):
                continue
            why = _why(label, "rows reached it in other places")
            raise GuaranteeError(
                "the gradient of the loss with respect to the model's outputs mixes the rows of the batch:"
                f" {why}. A hook on a tensor, or a function with a backward() of its own, changed it."
                f"{REMEDY}"
            )

    def _alone(self, label: Label) -> bool:
        """Whether there is but one row, which nothing but an earlier batch can meet."""
        return self.rows == 1 and not isinstance(label, Mixed)

    def check_sizes(self) -> None:
        """Refuse a batch of which the script has asked how many values it took by their data."""
        if self.batch.sized and self.rows > 1:
            raise GuaranteeError(
                "the size of a tensor was asked whose length the rows of the batch decide (x[mask],"
                " nonzero(), unique()): len(), .shape, .numel(). As a number nothing can follow it to the"
                " loss. Count by mask.sum(), which is followed, or ask after backward() where it is for a"
                f" log.{REMEDY}"
            )


def _why(label: Label | None, otherwise: str) -> str:
    return label.why if isinstance(label, Mixed) else otherwise
