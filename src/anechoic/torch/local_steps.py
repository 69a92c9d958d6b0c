"""Pseudo-gradients: what a few local SGD steps on one unit's own examples would change (monograph, Eq. 1.27).

local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=4, learning_rate=0.1)
for batch in loader:
    optimizer.zero_grad()
    local(batch)                  # in the place of criterion(model(x), y).backward()
    optimizer.step()              # clips one pseudo-gradient a unit, adds the noise row, and releases
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap

from anechoic._validate import one_of, positive_float, positive_int
from anechoic.errors import DesynchronizedError, UnsupportedError
from anechoic.torch.guard import check_not_mixing
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.ranks.cut import blocks_in
from anechoic.torch.sources.row_model import Places, called, left_as_it_is, places_of, without_our_hooks

Indices = NDArray[np.int64]
Gradients = dict[str, Tensor]
NO_UNITS = (
    "a pseudo-gradient is that of a unit on its own examples, and this run has no unit_ids: pass"
    " make_private(unit_ids=…), one label an example (range(N) where each example is a unit)."
)


@dataclass(frozen=True)
class LocalSteps:
    """How a unit trains on its own examples.

    Args:
        local_steps: k, >= 1.
        learning_rate: eta, > 0, of the local steps.
        local_batch_size: examples in a local step, >= 1: step l takes those at l B, l B + 1, … of the unit's
            examples, modulo their number, and each at most once. None takes all of them in every step.
    """

    local_steps: int
    learning_rate: float
    local_batch_size: int | None = None

    def __post_init__(self) -> None:
        positive_int("local_steps", self.local_steps)
        positive_float("learning_rate", self.learning_rate)
        if self.local_batch_size is not None:
            positive_int("local_batch_size", self.local_batch_size)

    def chosen(self, rows: Indices, step: int) -> Indices:
        """Those of a unit's rows that local step `step` takes."""
        size = self.local_batch_size
        if size is None or size >= len(rows):
            return rows
        return rows[(step * size + np.arange(size)) % len(rows)]


def pseudo_gradient(
    module: nn.Module,
    criterion: Any,
    batch: Sequence[Tensor],
    *,
    local_steps: int,
    learning_rate: float,
    local_batch_size: int | None = None,
) -> Gradients:
    """The pseudo-gradient of one unit, (theta - theta_k) / eta: k steps of SGD on its own examples.

    theta_0 is the module as it is; theta_{l+1} = theta_l - eta * (gradient of the unit's loss at theta_l).
    It is divided by eta, as Eq. (1.27) is, and has the sign of a gradient: an optimizer descends along it.
    For k = 1 it is the gradient. The module does not change. Nothing is clipped or private yet.

    Args:
        module: the model, plain or wrapped by Opacus.
        criterion: a torch criterion; its `reduction` says whether the unit's loss is the "sum" or the "mean"
            of the losses of its examples.
        batch: (input, …, target), tensors with one row for each of the unit's examples, at least one.
        local_steps, learning_rate, local_batch_size: see `LocalSteps`.

    Returns:
        One tensor for each trainable parameter, by its name, in the parameter's shape.

    Raises:
        ValueError: for an argument out of range, or a batch of another form.
        UnsupportedError: for a criterion without one loss an example.
        GuaranteeError: if the model has layers that mix examples, or that change in a forward pass.
    """
    how = LocalSteps(local_steps, learning_rate, local_batch_size)
    inputs, target = _parts(batch)
    if not len(target):
        raise ValueError("the batch has no row: a unit without an example has no pseudo-gradient.")
    combine = one_of("criterion.reduction", getattr(criterion, "reduction", None), ("sum", "mean"))
    rows = [np.arange(len(target))]
    found = unit_pseudo_gradients(
        module, criterion, (*inputs, target), rows, how, combine=combine, vectorize=False
    )
    return {name: tensor[0] for name, tensor in found.items()}


def unit_pseudo_gradients(
    module: nn.Module,
    criterion: Any,
    batch: Sequence[Tensor],
    rows: Sequence[Indices],
    how: LocalSteps,
    *,
    combine: str,
    vectorize: bool = True,
) -> Gradients:
    """The pseudo-gradients of several units.

    Args:
        module, criterion, batch: see `pseudo_gradient`; the rows of `batch` are those of all units.
        rows: of each unit, at least one.
        how: the local steps.
        combine: "sum" or "mean" of the losses of a unit's examples.
        vectorize: all units of similar size at once (torch.func.vmap), each padded to at most twice its
            size; else one after the other, for models that vmap cannot run.

    Returns:
        One tensor for each trainable parameter, by its name, shape (units, *parameter).
    """
    inner: nn.Module = getattr(module, "_module", module)
    inputs, target = _parts(batch)
    check_not_mixing(inner.modules())
    start = {name: p.detach() for name, p in inner.named_parameters() if p.requires_grad}
    found = {name: p.new_zeros((len(rows), *p.shape)) for name, p in start.items()}
    if rows:
        task = _Task(
            inner, _one_loss_an_example(criterion), inputs, target, start, how, combine, places_of(inner)
        )
        with left_as_it_is(inner), without_our_hooks(inner):
            parts = _buckets(rows, how) if vectorize else [np.array([unit]) for unit in range(len(rows))]
            for units in parts:
                own = [np.asarray(rows[unit], dtype=np.int64) for unit in units]
                made = task.together(own) if vectorize else task.alone(own[0])
                for name, tensor in made.items():
                    found[name][torch.from_numpy(units).to(tensor.device)] = tensor.to(found[name].dtype)
    return found


class PseudoGradients:
    """Puts one pseudo-gradient a unit into the place of the gradients of the batch in hand.

    Made by `PrivacyEngine.pseudo_gradients`. Call it with each delivered batch, then `optimizer.step()`.

    Args:
        module: Opacus's wrapper around the model.
        optimizer: of the run.
        criterion: loss with a `reduction`.
        how: the local steps.
        combine: "sum" or "mean" of the losses of a unit's examples.
        vectorize: see `unit_pseudo_gradients`.
    """

    def __init__(
        self,
        module: Any,
        optimizer: CorrelatedOptimizer,
        criterion: Any,
        how: LocalSteps,
        *,
        combine: str,
        vectorize: bool,
    ) -> None:
        _one_loss_an_example(criterion)  # refuses it now
        if not module.batch_first:
            raise UnsupportedError(
                "batch_first=False: local steps take rows of examples. Put the batch first."
            )
        if blocks_in(module._module):
            raise UnsupportedError(
                "module was cut up by fully_shard, and units make local steps with weights of their own,"
                " which no rank has as a whole: pass the plain module on every rank."
            )
        self.how, self.combine = how, combine
        self._module, self._optimizer, self._criterion = module._module, optimizer, criterion
        self._vectorize = vectorize
        self._kind = f"pseudo-gradients of {how}, combine={combine!r}, vectorize={vectorize}"

    def __call__(self, batch: Sequence[Tensor], *others: Any) -> None:
        """Make the local steps of every unit in `batch`, which is the delivered one, on any device.

        Raises:
            TypeError: if the parts of the batch are passed one by one.
            DesynchronizedError: if it is not the delivered batch, its rows, or those of the target alone,
                are in another order, or gradients of it are there already.
            GuaranteeError: if the model changes in a forward pass.
            ValueError: if it is not (input, …, target).
            UnsupportedError: if vmap cannot run the model; `vectorize=False` does.
        """
        if others:
            raise TypeError(f"{1 + len(others)} arguments: pass the batch as one, local(batch).")
        delivery = self._optimizer.ledger.due()
        inputs, target = _parts(batch)
        if len(target) != delivery.size:
            raise DesynchronizedError(
                f"{len(target)} rows reached the local steps of release {delivery.step}, whose batch has"
                f" {delivery.size}: pass exactly the delivered batch, one row an example."
            )
        if delivery.units is None:
            raise DesynchronizedError(NO_UNITS)
        self._optimizer.source.types.check_inputs((inputs, target))
        order = np.argsort(delivery.units.items, kind="stable")
        sizes = np.bincount(delivery.units.items, minlength=delivery.units.count)
        rows = np.split(order, np.cumsum(sizes)[:-1]) if len(sizes) else []
        # a mean over the unit's rows is taken in the local loss already
        factors = torch.from_numpy(delivery.units.scales * (sizes if self.combine == "mean" else 1.0))
        found = unit_pseudo_gradients(
            self._module,
            self._criterion,
            (*inputs, target),
            rows,
            self.how,
            combine=self.combine,
            vectorize=self._vectorize,
        )
        names = {id(p): name for name, p in self._module.named_parameters()}
        vectors = [found[names[id(p)]] for p in self._optimizer.params]
        scaled = [v * factors.to(v).reshape(-1, *(1,) * (v.dim() - 1)) for v in vectors]
        self._optimizer.contribute(scaled, kind=self._kind)


@dataclass(frozen=True)
class _Task:
    """One batch, the model it meets, and where the local steps start from."""

    module: nn.Module
    losses: Callable[[Any, Tensor], Tensor]
    inputs: list[Tensor]
    target: Tensor
    start: Gradients
    how: LocalSteps
    combine: str
    places: Places

    def together(self, own: list[Indices]) -> Gradients:
        """Pseudo-gradients of units of similar size, at once."""
        place = {name: p.expand(len(own), *p.shape).clone() for name, p in self.start.items()}
        step_gradient = vmap(grad(self._loss), randomness="different")
        total: Gradients = {}
        for step in range(self.how.local_steps):
            rows, weights = self._padded([self.how.chosen(rows, step) for rows in own])
            try:
                made = step_gradient(place, weights, self.target[rows], *(x[rows] for x in self.inputs))
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                raise UnsupportedError(
                    f"vmap cannot run the local steps of this model or criterion: {error} Pass"
                    " vectorize=False, which takes one unit after the other."
                ) from error
            total, place = self._advanced(total, place, made)
        return total

    def alone(self, rows: Indices) -> Gradients:
        """The pseudo-gradient of one unit, with a leading axis of length 1."""
        place, total = {name: p.clone() for name, p in self.start.items()}, Gradients()
        for step in range(self.how.local_steps):
            chosen, weights = self._padded([self.how.chosen(rows, step)])
            with torch.enable_grad():
                local = {name: p.detach().requires_grad_() for name, p in place.items()}
                loss = self._loss(
                    local, weights[0], self.target[chosen[0]], *(x[chosen[0]] for x in self.inputs)
                )
                made = torch.autograd.grad(loss, list(local.values()), allow_unused=True)
            known = {
                name: torch.zeros_like(p) if g is None else g
                for (name, p), g in zip(local.items(), made, strict=True)
            }
            total, place = self._advanced(total, place, known)
        return {name: tensor[None] for name, tensor in total.items()}

    def _advanced(self, total: Gradients, place: Gradients, made: Gradients) -> tuple[Gradients, Gradients]:
        # theta_0 - theta_k over eta is the sum of the gradients; taken as such, nothing cancels
        moved = {name: place[name] - self.how.learning_rate * made[name].detach() for name in made}
        return {name: made[name].detach() + total.get(name, 0.0) for name in made}, moved

    def _loss(self, place: Gradients, weights: Tensor, target: Tensor, *inputs: Tensor) -> Tensor:
        losses = self.losses(called(self.module, self.places, place, inputs), target)
        if losses.shape != weights.shape:
            raise UnsupportedError(
                f"the criterion gives losses of shape {tuple(losses.shape)} for {len(weights)} examples: it"
                " must return one loss an example where its reduction is 'none'."
            )
        # a padded row has weight 0; it repeats a row of the same unit, so that it is finite where that is
        return (losses * weights.to(losses.dtype)).sum()

    def _padded(self, chosen: list[Indices]) -> tuple[Tensor, Tensor]:
        """Rows of each unit, shape (units, width), and their weights in its loss."""
        width = max(len(rows) for rows in chosen)
        index = np.empty((len(chosen), width), dtype=np.int64)
        weights = np.zeros((len(chosen), width))
        for unit, rows in enumerate(chosen):
            index[unit, : len(rows)], index[unit, len(rows) :] = rows, rows[0]
            weights[unit, : len(rows)] = 1.0 / len(rows) if self.combine == "mean" else 1.0
        device = self.target.device
        return torch.from_numpy(index).to(device), torch.from_numpy(weights).to(device)


def _buckets(rows: Sequence[Indices], how: LocalSteps) -> list[Indices]:
    """Units by size: no unit is less than half as large as the largest of its bucket."""
    sizes = np.array([len(how.chosen(own, 0)) for own in rows])
    levels = np.ceil(np.log2(sizes)).astype(int)
    return [np.flatnonzero(levels == level) for level in np.unique(levels)]


def _parts(batch: Any) -> tuple[list[Tensor], Tensor]:
    """Inputs and target."""
    if (
        not isinstance(batch, (list, tuple))
        or len(batch) < 2
        or not all(isinstance(part, Tensor) and part.dim() for part in batch)
        or len({len(part) for part in batch}) > 1
    ):
        raise ValueError(
            "batch must be (input, …, target), tensors with one row an example: take it apart into these"
            " before the local steps."
        )
    return list(batch[:-1]), batch[-1]


def _one_loss_an_example(criterion: Any) -> Callable[[Any, Tensor], Tensor]:
    if not callable(criterion) or getattr(criterion, "reduction", None) not in ("mean", "sum"):
        raise UnsupportedError(
            f"criterion={criterion!r} must be a torch criterion whose reduction is 'mean' or 'sum', such as"
            " nn.CrossEntropyLoss(): local steps weigh the loss of each example by themselves."
        )
    single = copy.copy(criterion)
    single.reduction = "none"
    return single  # type: ignore[no-any-return]
