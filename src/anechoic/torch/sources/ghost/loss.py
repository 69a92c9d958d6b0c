"""The loss under ghost clipping: one number an example, and nothing that would escape the clipping."""

from __future__ import annotations

from inspect import signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from anechoic.errors import GuaranteeError, MismatchError, UnsupportedError
from anechoic.torch.sources.ghost.gradients import GhostGradients

_CRITERION = (
    "Give make_private a torch criterion (with a `reduction` attribute), which returns one loss an example"
    " under reduction='none', with the examples along its first axis"
)


class PerExampleLoss:
    """Loss per example, whose backward() records for clipping; sums and multiples are such losses too.

    Args:
        gradients: where backward() leaves what is clipped.
        loss_per_sample: shape (examples,).
        loss_reduction: "mean" or "sum": what `detach`, `item` and float() give back.

    Raises:
        GuaranteeError: if the loss is not of one axis.
    """

    __array_ufunc__ = None  # NumPy leaves arithmetic to this class, which refuses arrays

    def __init__(self, gradients: GhostGradients, loss_per_sample: Tensor, loss_reduction: str) -> None:
        _check_shape(loss_per_sample)
        self._gradients = gradients
        self.loss_per_sample, self.loss_reduction = loss_per_sample, loss_reduction

    def detach(self) -> Tensor:
        """The mean (or sum) of the losses, for logging."""
        losses = self.loss_per_sample.detach()
        return losses.mean() if self.loss_reduction == "mean" else losses.sum()

    def item(self) -> float:
        """`detach` as a number."""
        found: float = self.detach().item()
        return found

    @property
    def data(self) -> Tensor:
        """`detach`, as tensors have it."""
        return self.detach()

    @property
    def shape(self) -> torch.Size:
        """Of a number."""
        return torch.Size(())

    def _same(self) -> PerExampleLoss:
        """Return the loss itself: it is one number, in full precision, on its device."""
        return self

    mean = sum = cpu = _same

    def __getattr__(self, name: str) -> Any:
        if name == "float":  # not a method of that name: it would shadow the type in this class
            return self._same
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __float__(self) -> float:
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __repr__(self) -> str:
        return f"PerExampleLoss({self.item():.6g}, {self.loss_reduction} of {len(self.loss_per_sample)})"

    def __mul__(self, other: Any) -> PerExampleLoss:
        return self._like(self.loss_per_sample * self._factor(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> PerExampleLoss:
        return self._like(self.loss_per_sample / self._factor(other))

    def __add__(self, other: Any) -> PerExampleLoss:
        return self._like(self.loss_per_sample + self._summand(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> PerExampleLoss:
        return self._like(self.loss_per_sample - self._summand(other))

    def __rsub__(self, other: Any) -> PerExampleLoss:
        return self._like(self._summand(other) - self.loss_per_sample)

    def __neg__(self) -> PerExampleLoss:
        return self._like(-self.loss_per_sample)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Run the backward pass, from which step() clips the gradient of each example.

        Args:
            gradient, create_graph: of `torch.Tensor.backward`; only None or 1, and False.
            retain_graph: taken, and of no effect.

        Raises:
            GuaranteeError: if the loss is not one number an example.
            DesynchronizedError: if it depends on parameters other than by calls of their layers, on rows that
                are not the examples, or on several examples.
        """
        _check_shape(self.loss_per_sample)
        if create_graph or (gradient is not None and float(gradient) != 1.0):
            raise UnsupportedError(
                "backward(gradient=…, create_graph=True) under ghost clipping: call backward() on the loss"
                " times a number, or use grad_sample_mode='rows'."
            )
        self._gradients.backward(self.loss_per_sample)

    def _like(self, loss_per_sample: Tensor) -> PerExampleLoss:
        return PerExampleLoss(self._gradients, loss_per_sample, self.loss_reduction)

    def _factor(self, other: Any) -> Any:
        if _is_number(other):
            return other
        if (
            isinstance(other, Tensor)
            and not other.requires_grad
            and other.shape == self.loss_per_sample.shape
        ):
            return other
        raise GuaranteeError(
            f"the loss of {len(self.loss_per_sample)} examples was multiplied or divided by"
            f" {_describe(other)}: ghost clipping takes numbers, and constant weights of shape"
            f" {tuple(self.loss_per_sample.shape)}, one an example."
        )

    def _summand(self, other: Any) -> Any:
        if _is_number(other):
            return other
        if isinstance(other, PerExampleLoss):
            if other._gradients is not self._gradients or other.loss_reduction != self.loss_reduction:
                raise MismatchError("losses of two runs, or of two reductions, were added: keep them apart.")
            if other.loss_per_sample.shape == self.loss_per_sample.shape:
                return other.loss_per_sample
        raise GuaranteeError(
            f"{_describe(other)} was added to the loss of {len(self.loss_per_sample)} examples: it would not"
            " be clipped. Add numbers, or losses of the same batch by this criterion; for a penalty on"
            " weights use the optimizer's weight_decay, or grad_sample_mode='rows'."
        )


class PerExampleCriterion:
    """A criterion that returns one loss an example, whatever its shape was.

    Args:
        gradients: where the backward() of its losses leaves what is clipped.
        criterion: with an attribute `reduction`, or a function with a keyword of that name.
        loss_reduction: "mean" or "sum".
    """

    def __init__(self, gradients: GhostGradients, criterion: Any, loss_reduction: str) -> None:
        self._gradients = gradients
        self.criterion, self.loss_reduction = criterion, loss_reduction

    def __call__(self, *args: Any, shape: Any = None, **kwargs: Any) -> PerExampleLoss:
        """The loss. `shape`: of logits whose examples and positions were flattened, (examples, positions, …).

        Raises:
            GuaranteeError: if the criterion does not return losses along an axis of examples.
        """
        loss = self._of_each(*args, **kwargs)
        if not isinstance(loss, Tensor) or loss.dim() == 0:
            raise GuaranteeError(
                f"the criterion returned {_describe(loss)} under reduction='none', so no example's gradient"
                f" can be scaled apart from the others. {_CRITERION}."
            )
        targets = kwargs.get("target", args[1] if len(args) > 1 else None)
        if shape is not None and len(loss) == shape[0] * shape[1]:
            loss = loss.reshape(shape[0], shape[1])
        if loss.dim() > 1:
            loss = self._reduced(loss.flatten(start_dim=1), targets, kwargs)
        return PerExampleLoss(self._gradients, loss, self.loss_reduction)

    def _of_each(self, *args: Any, **kwargs: Any) -> Any:
        if takes_reduction(self.criterion):
            return self.criterion(*args, **{**kwargs, "reduction": "none"})
        reduction = self.criterion.reduction
        self.criterion.reduction = "none"
        try:
            return self.criterion(*args, **kwargs)
        finally:
            self.criterion.reduction = reduction

    def _reduced(self, loss: Tensor, targets: Any, keywords: dict[str, Any]) -> Tensor:
        """Sums or means over all but the first axis; positions of ignore_index do not count in a mean."""
        if self.loss_reduction == "sum":
            return loss.sum(dim=1)
        ignored = getattr(self.criterion, "ignore_index", None)
        if takes_reduction(self.criterion):
            known = signature(self.criterion).parameters.get("ignore_index")
            ignored = keywords.get("ignore_index", known and known.default)
        if ignored is not None and isinstance(targets, Tensor) and targets.numel() == loss.numel():
            valid = (targets.reshape(loss.shape) != ignored).sum(dim=1).clamp(min=1)
            return loss.sum(dim=1) / valid
        return loss.mean(dim=1)


def takes_reduction(criterion: Any) -> bool:
    """Whether a criterion is a function with a keyword `reduction`, as those of torch.nn.functional are."""
    if not callable(criterion) or hasattr(criterion, "reduction"):
        return False
    try:
        return "reduction" in signature(criterion).parameters
    except (TypeError, ValueError):
        return False  # of C, without a signature


def _check_shape(loss: Tensor) -> None:
    if loss.dim() != 1:
        raise GuaranteeError(
            f"the loss has shape {tuple(loss.shape)}, but ghost clipping scales one number an example."
            f" {_CRITERION}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (
        isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad
    )


def _describe(value: Any) -> str:
    if isinstance(value, PerExampleLoss):
        return f"a loss of {len(value.loss_per_sample)} examples"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + (" with a gradient" if value.requires_grad else "")
    return f"a {type(value).__name__}"
