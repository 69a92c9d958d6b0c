"""One call of the model, computed row by row: no row can see another, whatever the layers are.

The model runs on one row at a time, as a batch of one: `torch.func.vmap` takes many rows at once where it can
run the model, and a loop over single rows where it cannot. Outputs and gradients are those of the rows alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.utils.rnn import PackedSequence

from anechoic.errors import UnsupportedError
from anechoic.torch.local.stateless import called, without_our_hooks
from anechoic.torch.randomness.rows import Generators, RowRandomness, rewound, row_seeds
from anechoic.torch.sources.layers import RECURRENT, check_statistics, runnable
from anechoic.torch.sources.pulling import pulled
from anechoic.torch.sources.structure import filled, mapped, tensors_in

logger = logging.getLogger("anechoic")


class RowModel:
    """A model that is run row by row.

    Args:
        module: the plain one.
        parameters: those whose gradients are wanted, in this order.
        batch_first: whether the first dimension of inputs and outputs is the batch, or the second one.

    Attributes:
        loops: why rows were last taken one after another; "" while vmap runs the model.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], batch_first: bool) -> None:
        self.module, self.parameters = module, parameters
        self.dimension = 0 if batch_first else 1
        self.loops = ""
        self.draws = False
        self.recurrent = any(isinstance(layer, RECURRENT) for layer in module.modules())
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names[id(p)] for p in parameters]

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, as they are now."""
        return {name: p.detach() for name, p in zip(self._names, self.parameters, strict=True)}

    def gradients(self, found: dict[str, Tensor]) -> list[Tensor]:
        """In the order of the parameters."""
        return [found[name] for name in self._names]

    def told(self, reason: str) -> None:
        """vmap could not run it: say so once."""
        if not self.loops:
            logger.warning(
                "torch.func.vmap cannot run this model, so its rows are taken one after another, which is"
                " right and slow: %s",
                reason.strip().split("\n")[0],
            )
        self.loops = reason


class RowCall:
    """model(*arguments, **keywords), row by row.

    Args:
        model: what is called.
        arguments, keywords: of the call. Each tensor in them has one row an example; tensors without a
            dimension, numbers and whatever else they hold are the same for every row, and must not depend
            on the data.
        seed: of the random numbers that rows draw, in [0, 2**64): a function of no data.

    Attributes:
        rows: how many there are.
        inputs: tensors of the call, rows first; those without a dimension as they are.
        outputs: shape (rows, …) each, without a gradient; see `joined`.
        axes: where the axis of the batch is in each of them, for a batch; None for those without dimension.
        coarse: whether autocast was on.
    """

    def __init__(self, model: RowModel, arguments: Any, keywords: dict[str, Any], seed: int) -> None:
        self._model = model
        self._given = (arguments, keywords)
        _check_not_packed(self._given)
        tensors = tensors_in(self._given)
        _check_detached(tensors)
        self.inputs = [t.movedim(_axis(t, model.dimension), 0) if t.dim() else t for t in tensors]
        lengths = {len(t) for t in self.inputs if t.dim()}
        if len(lengths) != 1:
            raise UnsupportedError(
                f"the model was called with tensors of shapes {[tuple(t.shape) for t in tensors]}: each needs"
                " one row an example, so that no example sees another. Expand what all rows share"
                " (positions, masks) to the batch, or make it a buffer of the model."
            )
        self.rows = lengths.pop()
        self._seed = seed
        self._random: list[int] | None = None
        self._randomness: RowRandomness | None = None
        self._context = _Context(self.inputs[0].device.type)
        self.coarse = self._context.enabled
        self._start = Generators()
        self._template: Any = None
        self.axes: list[int | None] = []
        with torch.no_grad(), without_our_hooks(model.module):
            self.outputs = self._outputs()
        self._drew = not self._start.same(Generators())

    # -- what the training loop sees -----------------------------------------------------------

    def joined(self, outputs: list[Tensor], reduction: str) -> list[Tensor]:
        """`outputs` as the model returns them for a batch; those that have no dimension are reduced."""
        return [
            (output.mean(0) if reduction == "mean" else output.sum(0))
            if axis is None
            else output.movedim(0, axis)
            for output, axis in zip(outputs, self.axes, strict=True)
        ]

    def apart(self, cotangents: list[Tensor], reduction: str) -> list[Tensor]:
        """Gradients with respect to what `joined` made, as those of each row's outputs, shape (rows, …)."""
        found = []
        for gradient, axis in zip(cotangents, self.axes, strict=True):
            if axis is None:
                whole = gradient / self.rows if reduction == "mean" else gradient
                found.append(whole.expand(self.rows))
            else:
                found.append(gradient.movedim(axis, 0))
        return found

    def filled(self, outputs: list[Any]) -> Any:
        """In the structure that the model returns."""
        return filled(self._template, outputs)

    # -- gradients -----------------------------------------------------------------------------

    def gradients(self, cotangents: list[Tensor], rows: Tensor) -> list[Tensor]:
        """The gradient of each row: of the sum of its outputs times their cotangents.

        Args:
            cotangents: shape (all rows, …), one an output.
            rows: which rows, distinct, at least one.

        Returns:
            One tensor a parameter, shape (len(rows), *parameter).
        """
        model, weights = self._model, self._model.weights()
        own = [c[rows.to(c.device)] for c in cotangents if _continuous(c)]

        def one(inputs: list[Tensor], given: list[Tensor]) -> list[Tensor]:
            def outputs(place: dict[str, Tensor]) -> list[Tensor]:
                made = self._of_one(inputs, lambda a, k: called(model.module, place, a, k))
                return [output for output in made if _continuous(output)]

            made, pull, *_ = vjp(outputs, weights)
            found = pull([c.to(o.dtype) for c, o in zip(given, made, strict=True)])
            return model.gradients(found[0])

        with self._again(), without_our_hooks(model.module):
            if not model.loops:
                try:
                    return self._vmapped(one, rows, own)
                except torch.OutOfMemoryError:
                    raise
                except _CANNOT as error:
                    model.told(str(error))
            found = [self.alone(cotangents, int(row)) for row in rows]
        return [torch.stack(parts) for parts in zip(*found, strict=True)]

    def alone(self, cotangents: list[Tensor], row: int) -> list[Tensor]:
        """The gradient of one row by plain autograd, one tensor a parameter: no vmap, no functional call."""
        parameters = self._model.parameters
        with self._again(), without_our_hooks(self._model.module), torch.enable_grad():
            outputs = self._one_alone(row)
            pairs = [
                (o, c[row].to(o.dtype)) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad
            ]
            found: Any = [None] * len(parameters)
            if pairs:
                found = pulled([o for o, _ in pairs], parameters, [c for _, c in pairs])
        return [
            torch.zeros_like(p) if g is None else g.detach() for g, p in zip(found, parameters, strict=True)
        ]

    # -- how -----------------------------------------------------------------------------------

    def _outputs(self) -> list[Tensor]:
        if not self.rows:
            return self._of_none()
        model, weights = self._model, self._model.weights()

        def one(inputs: list[Tensor], _: list[Tensor]) -> list[Tensor]:
            def outputs(place: dict[str, Tensor]) -> list[Tensor]:
                return self._of_one(inputs, lambda a, k: called(model.module, place, a, k))

            # torch takes recurrent layers to pieces that vmap knows only where gradients are wanted
            found: list[Tensor] = vjp(outputs, weights)[0] if model.recurrent else outputs(weights)
            return found

        if not model.loops:
            try:
                return self._vmapped(one, None, [])
            except torch.OutOfMemoryError:
                raise
            except _CANNOT as error:
                self._start.restore()
                failed = str(error)
            found = self._looped()  # what is wrong with the call itself is raised here, in its own words
            model.told(failed)
            return found
        return self._looped()

    def _looped(self) -> list[Tensor]:
        found = []
        for row in range(self.rows):
            self._start.restore()
            try:
                found.append(self._one_alone(row))
            except ValueError as error:
                check_statistics(error, self._model.module)
                raise
        return [torch.stack(parts) for parts in zip(*found, strict=True)]

    def _of_none(self) -> list[Tensor]:
        """A batch without a row: one that is made up tells the shapes, and is left out."""
        made_up = [t.new_zeros(1, *t.shape[1:]) if t.dim() else t for t in self.inputs]
        with rewound(self._start):
            outputs = self._of_one(
                [t[0] if t.dim() else t for t in made_up], lambda a, k: self._model.module(*a, **k)
            )
        return [output[None][:0] for output in outputs]

    def _vmapped(
        self, one: Callable[..., list[Tensor]], rows: Tensor | None, own: list[Tensor]
    ) -> list[Tensor]:
        def chosen(t: Tensor) -> Tensor:
            return t if rows is None or not t.dim() else t[rows.to(t.device)]

        inputs = [chosen(t) for t in self.inputs]
        axes = [0 if t.dim() else None for t in inputs]
        model = self._model
        if not model.draws:
            try:
                with runnable(model.module):
                    return vmap(one, in_dims=(axes, 0), randomness="error")(inputs, own)
            except RuntimeError as error:
                if "randomness" not in str(error):
                    raise
                model.draws = True
                self._start.restore()
        seeds = self._seeds() if rows is None else [self._seeds()[int(row)] for row in rows]
        self._randomness = RowRandomness(seeds, stacked=True)
        with runnable(model.module):
            try:
                return vmap(one, in_dims=(axes, 0), randomness="different")(inputs, own)
            finally:
                self._randomness = None

    def _one_alone(self, row: int) -> list[Tensor]:
        inputs = [t[row] if t.dim() else t for t in self.inputs]
        seed = self._seeds()[row]
        with ExitStack() as stack:
            if self._model.draws or self._model.loops:
                # what RowRandomness does not know is drawn from the global generator, set for this row
                stack.callback(torch.set_rng_state, torch.get_rng_state())
                torch.default_generator.manual_seed(seed)
                self._randomness = RowRandomness([seed], stacked=False)
            try:
                return self._of_one(inputs, lambda a, k: self._model.module(*a, **k))
            finally:
                self._randomness = None

    def _of_one(self, inputs: list[Tensor], run: Callable[..., Any]) -> list[Tensor]:
        """Outputs of one row, without the axis of the batch."""
        batch = [t.unsqueeze(_axis_of_row(t, self._model.dimension)) for t in inputs]
        originals = [t if not own.dim() else b for t, own, b in zip(inputs, self.inputs, batch, strict=True)]
        arguments, keywords = filled(self._given, originals)
        with self._context.active(), self._randomness or nullcontext():
            output = run(arguments, keywords)
        tensors = tensors_in(output)
        if not tensors:
            raise TypeError(f"the model returned a {type(output).__name__} without a tensor.")
        self._template = mapped(output, lambda _: _PLACE)
        self.axes = [_output_axis(t, self._model.dimension) for t in tensors]
        return [t if axis is None else t.squeeze(axis) for t, axis in zip(tensors, self.axes, strict=True)]

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Whatever rows share is drawn as it was in the first place."""
        if not self._drew and not self._model.loops:
            yield
            return
        with rewound(self._start):
            yield

    def _seeds(self) -> list[int]:
        if self._random is None:
            self._random = row_seeds(self._seed, [t for t in self.inputs if t.dim()])
        return self._random


#: Stands for a tensor in the structure of an output.
_PLACE = torch.empty(0)
#: What torch.func raises where it cannot run a model.
_CANNOT = (RuntimeError, NotImplementedError, UnsupportedError, ValueError, TypeError, IndexError)


class _Context:
    """Autocast, as it was at the call."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.enabled = torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device)

    @contextmanager
    def active(self) -> Iterator[None]:
        # a cache would keep tensors of one transform for the next
        with torch.autocast(self._device, dtype=self._dtype, enabled=self.enabled, cache_enabled=False):
            yield


def _axis(tensor: Tensor, dimension: int) -> int:
    return dimension if tensor.dim() > dimension else 0


def _axis_of_row(row: Tensor, dimension: int) -> int:
    """Where the axis of the batch belongs in a tensor that has lost it."""
    return dimension if row.dim() >= dimension else 0


def _output_axis(tensor: Tensor, dimension: int) -> int | None:
    """The axis of length 1 that stands for the batch in an output of one row; None if it has no dimension."""
    if not tensor.dim():
        return None
    order = [0] if dimension == 0 else [1, 0] if tensor.dim() > 2 else [0, 1]
    for axis in order:
        if axis < tensor.dim() and tensor.shape[axis] == 1:
            return axis
    raise UnsupportedError(
        f"the model's output for one row has shape {tuple(tensor.shape)}, without an axis of length 1 for the"
        " batch: every output must have one row an example, or no dimension at all (a loss)."
    )


def _continuous(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _check_not_packed(value: Any) -> None:
    if isinstance(value, PackedSequence):
        raise UnsupportedError(
            "the model was called with a PackedSequence, which has no row for each example: pad, and mask"
            " what lies beyond each length."
        )
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for part in parts:
        _check_not_packed(part)


def _check_detached(tensors: list[Tensor]) -> None:
    if any(t.requires_grad for t in tensors):
        raise UnsupportedError(
            "an input of the model requires a gradient, and gradients by rows stop at the model's inputs:"
            " detach() it, put the module that made it into the model, or use grad_sample_mode='hooks'."
        )
