"""What is refused of a batch whose rows are followed: calls of the model, losses, gradients, sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.torch.row_types.labels import TOTAL, Batch, Label, Mixed, One, RowAxis, Total, row_axis
from anechoic.torch.row_types.numbers import among
from anechoic.torch.structure import PLAIN, TORCHS_OWN, nodes, tensors_in

REMEDY = (
    " Nothing was released. Compute the loss of each example from that example's outputs and target alone,"
    " then take its mean() or sum(); call optimizer.abandon_batch() to go on."
)


class Refusals:
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

    # what `RowTypes` adds
    of: Callable[[Tensor], Label | None]
    mark: Callable[..., Any]
    mark_own: Callable[[Tensor, Label], None]
    among_held: Callable[[list[Tensor]], list[Tensor]]

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
        if among(given) and self.batch.rows > 1:
            raise DesynchronizedError(
                "the model, or the criterion, was called with a number that was delivered, or taken out of a"
                " tensor of the batch (.item()): it may know all rows. Nothing was released. Give it a tensor"
                " with one row an example."
            )
        for tensor in tensors_in(given):
            label = self.of(tensor)
            if label is None or self._alone(label):
                continue
            axis = row_axis(tensor, self.batch.rows, self._dimension)
            if isinstance(label, RowAxis) and axis in (None, label.axis):
                continue  # how many rows there are is looked at by whoever pulls them back
            why = "it is one row alone" if isinstance(label, One) else "it is made of several rows"
            if isinstance(label, RowAxis):
                why = f"its rows are along axis {label.axis}, and are taken from axis {axis}"
            why = _why(label, why)
            raise DesynchronizedError(
                f"the model was called with a tensor of shape {tuple(tensor.shape)} that is not one row an"
                f" example of a batch of {self.batch.rows}: {why}. An example in several rows, or in"
                " another's row, moves the sum by more than the clip norm. Nothing was released. Feed the"
                " model exactly the delivered batch, and compute what belongs to an example from that example"
                " alone; for pairs make a data set of pairs, with unit_ids that name both."
            )

    def check_held(self, module: nn.Module) -> set[int]:
        """Refuse a model whose attributes, buffers or frozen weights hold something of a batch.

        Returns:
            Identities of the tensors in its attributes, for `mark_kept`.

        Raises:
            DesynchronizedError: naming the attribute.
        """
        seen: set[int] = set()
        for layer, name, value in _attributes(module):
            tensors = tensors_in(value)
            seen.update(map(id, tensors))
            if among(value) or self.among_held(tensors):
                raise _refused(layer, name)
        registered = [
            (layer, name, tensor)
            for layer in module.modules()
            for own in (layer._buffers, layer._parameters)
            for name, tensor in own.items()
            if tensor is not None
        ]
        held = self.among_held([tensor for *_, tensor in registered])
        for layer, name, tensor in registered if held else ():
            if tensor is held[0]:
                raise _refused(layer, name)
        return seen

    def mark_kept(self, module: nn.Module, seen: set[int]) -> None:
        """What a model that runs row by row leaves in its attributes is of the batch: no loss may use it.

        Args:
            seen: what `check_held` returned before it ran.
        """
        for layer, name, value in _attributes(module):
            why = Mixed(f"{type(layer).__name__}.{name} kept it while rows ran one by one")
            for tensor in tensors_in(value):
                if id(tensor) not in seen:
                    self.mark_own(tensor, why)

    def fault(self, tensor: Tensor, axis: int) -> str:
        """Why a layer's input is not one row an example along `axis`; "" where it is."""
        if self.batch.rows < 2 or (label := self.of(tensor)) == RowAxis(axis):
            return ""
        if label is None and tensor.shape[axis] == self.batch.rows:
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
        for root in running_roots():
            if root.grad_fn is not None and reached(root)[0]:
                self.check_loss(root)
        self.check_pulled(gradients, axes)

    def check_pulled(
        self,
        gradients: Iterable[Tensor],
        axes: Iterable[int | None],
        *,
        where: str = "the model's outputs",
        otherwise: str = "",
    ) -> None:
        """Refuse gradients that are not one row an example, where a backward pass is followed.

        Args:
            gradients, axes: as of `check_backward`.
            where: what the gradients are taken with respect to, in words.
            otherwise: another remedy, as a sentence.

        Raises:
            GuaranteeError: if code that ran in the pass mixes rows, or took a number out of them.
        """
        if not self.active:
            return
        if self.batch.pulled and self.batch.rows > 1:
            raise GuaranteeError(
                "a hook, or a function with a backward() of its own, took a number out of a gradient"
                f" (.item(), float(), if): it may know all rows of the batch.{REMEDY}{otherwise}"
            )
        for gradient, axis in zip(gradients, axes, strict=True):
            label = self.of(gradient)
            if label is None or (axis is not None and label == RowAxis(axis)) or self._alone(label):
                continue
            why = _why(label, "rows reached it in other places")
            raise GuaranteeError(
                f"the gradient of the loss with respect to {where} mixes the rows of the batch: {why}. A hook"
                f" on a tensor, or a function with a backward() of its own, changed it.{REMEDY}{otherwise}"
            )

    def _alone(self, label: Label) -> bool:
        """Whether there is but one row, which nothing but an earlier batch can meet."""
        return self.batch.rows == 1 and not isinstance(label, Mixed)

    def check_sizes(self) -> None:
        """Refuse a batch of which the script has asked how many values it took by their data."""
        if self.batch.sized and self.batch.rows > 1:
            raise GuaranteeError(
                "the size of a tensor was asked whose length the rows of the batch decide (x[mask],"
                " nonzero(), unique()): len(), .shape, .numel(). As a number nothing can follow it to the"
                " loss. Count by mask.sum(), which is followed, or ask after backward() where it is for a"
                f" log.{REMEDY}"
            )


def _why(label: Label | None, otherwise: str) -> str:
    return label.why if isinstance(label, Mixed) else otherwise


A_SUM = (
    "the loss is a sum over the rows of the batch, and loss_reduction='mean' says that it is a mean: by how"
    " much the rows move the model would depend on how many they are. Nothing was released. Take the mean"
    " over rows, losses.mean() or losses.sum() / len(losses); or give make_private loss_reduction='sum'. Call"
    " optimizer.abandon_batch() to go on."
)
A_MEAN = (
    "the loss is a mean over the rows of the batch, and loss_reduction='sum' says that it is a sum: by how"
    " much a row moves the model would depend on how many others there are. Nothing was released. Take"
    " losses.sum(), or give make_private loss_reduction='mean'. Call optimizer.abandon_batch() to go on."
)


def reached(loss: Tensor) -> tuple[list[Any], bool]:
    """The runs whose models a loss was computed with; whether it reaches anything else with a gradient."""
    found: list[Any] = []
    others = False
    for node in nodes([loss.grad_fn], lambda node: getattr(node, "types", None) is not None):
        types = getattr(node, "types", None)
        if types is None:
            others = others or hasattr(node, "variable")
        elif types.active and types not in found:
            found.append(types)
    return found, others


def runs_own_code(loss: Tensor, known: type) -> bool:
    """Whether the graph of a loss has nodes that are not torch's own: of Python, or unknown ones of C++.

    Hooks of modules are such nodes too. Hooks on tensors, on nodes and on saved tensors leave no trace in a
    graph: `Batch.hooked` tells of them.

    Args:
        loss: whose graph is looked at; none of its nodes is run.
        known: a function in Python that does not count.
    """
    return any(
        getattr(node, "_forward_cls", None) is not known
        if isinstance(node, BackwardCFunction)
        else type(node).__name__ == "CppFunction"  # one that torch did not name is an extension's
        for node in nodes([loss.grad_fn])
    )


def running_roots() -> tuple[Tensor, ...]:
    """What the backward() that runs was called on; empty where none is found."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)  # private: another torch may lack it
    if run is None:
        return ()
    # on a GPU this is another thread than the one that called backward(), and waits
    frames: list[FrameType | None] = [sys._getframe(), *sys._current_frames().values()]
    try:
        for frame in frames:
            while frame is not None:
                if frame.f_code is run.__code__:
                    roots: tuple[Tensor, ...] = tuple(frame.f_locals["t_outputs"])
                    return roots
                frame = frame.f_back
        return ()
    finally:
        frames.clear()  # a frame that is kept keeps the graph of the loss, and with it the run
        frame = None


def _attributes(module: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """What may hold something, among the attributes of all layers."""
    return [
        (layer, name, value)
        for layer in module.modules()
        for name, value in vars(layer).items()
        if name not in TORCHS_OWN and type(value) not in PLAIN
    ]


def _refused(layer: nn.Module, name: str) -> DesynchronizedError:
    return DesynchronizedError(
        f"{type(layer).__name__}.{name} of the model was made from the batch, or is a number that was taken"
        " out of one (.item()), so each row sees the others there. Nothing was released. Hand it over as an"
        " input, one row an example."
    )
