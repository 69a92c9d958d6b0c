"""One call of the model, computed row by row: no row can see another, whatever the layers are.

The model runs on one row at a time, as a batch of one: many rows side by side where torch.func's vmap can run
it (see `levels`), a loop over single rows where it cannot. Rows come in chunks of a fixed shape, each in a
slot of its own, empty slots filled with zeros. How a kernel rounds depends on the shape that it works on; so
what a row gives is a function of the row, its slot and public numbers, also where a rounding decides (a
rectifier at 0, a routing of tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.torch.randomness.modes import Strangers, Taking
from anechoic.torch.randomness.rng_stack import Generators, rewound
from anechoic.torch.randomness.rows import RowRandomness, row_seeds
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.labels import UNPACK
from anechoic.torch.sources.levels import (
    Autocast,
    BranchFollower,
    RowLevel,
    TorchPatches,
    axis_of,
    axis_of_row,
    check_not_packed,
    is_continuous,
    like_first,
    merged,
    output_axis,
)
from anechoic.torch.sources.row_model import RowModel, called, check_statistics, pulled, without_our_hooks
from anechoic.torch.structure import filled, mapped, tensors_in

#: Ways through a model that rows of one chunk may take; with more, rows are taken one after another.
PATHS = 8


@dataclass
class _Path:
    """One forward pass over the slots of a chunk."""

    kept: Tensor  # the slots whose rows it is for, shape (slots,)
    level: RowLevel
    pull: Callable[..., Any]


class RowCall:
    """model(*arguments, **keywords), row by row.

    Args:
        model: what is called.
        arguments, keywords: of the call. Each tensor in them has one row an example; tensors without a
            dimension, numbers and whatever else they hold are the same for every row, and must not depend
            on the data.
        seed: of the random numbers that rows draw, in [0, 2**64): a function of no data.
        slots: rows of one chunk; a public number.
        order: the rows in the order of their slots, shape (rows,); None for their own.
        parts: rows that are worked on apart from one another, in that order; None for no such parts.
        watch: refuses tensors of the batch that the model holds; None to do without.

    Attributes:
        rows: how many there are.
        inputs: tensors of the call, rows first; those without a dimension as they are.
        outputs: shape (rows, …) each, without a gradient; see `joined`.
        axes: where the axis of the batch is in each of them, for a batch; None for those without dimension.
        chunks: the rows of each chunk.
        coarse: whether autocast was on.
    """

    def __init__(
        self,
        model: RowModel,
        arguments: Any,
        keywords: dict[str, Any],
        seed: int,
        *,
        slots: int,
        order: Tensor | None = None,
        parts: tuple[int, ...] | None = None,
        watch: RowTypes | None = None,
    ) -> None:
        self._model = model
        self._given = (arguments, keywords)
        check_not_packed(self._given)
        tensors = tensors_in(self._given)
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError(
                "an input of the model requires a gradient, and gradients by rows stop at the model's inputs:"
                " detach() it, put the module that made it into the model, or compute it under"
                " torch.no_grad()."
            )
        # copies: the script may write to its own until backward(), where rows are worked on once more
        self.inputs = [(t.movedim(axis_of(t, model.dimension), 0) if t.dim() else t).clone() for t in tensors]
        lengths = {len(t) for t in self.inputs if t.dim()}
        if len(lengths) != 1:
            raise UnsupportedError(
                f"the model was called with tensors of shapes {[tuple(t.shape) for t in tensors]}: each needs"
                " one row an example, so that no example sees another. Expand what all rows share"
                f" (positions, masks) to the batch, or make it a buffer of the model.{UNPACK}."
            )
        self.rows = lengths.pop()
        self._slots, self._seed = slots, seed
        self._watch = nullcontext() if watch is None else Strangers(watch, self.inputs)
        # with parts no tensor is taken as it is: its layout in memory would tell how many rows there are
        self._in_order = order is None and parts is None
        every = torch.arange(self.rows) if order is None else order
        # another number of rows than was delivered is refused by whoever pulls them back
        self._parts = parts if parts is not None and sum(parts) == self.rows else None
        apart = [every] if self._parts is None else every.split(list(self._parts))
        self.chunks = [chunk for part in apart for chunk in part.split(slots) if len(chunk) or not self.rows]
        self._random: list[int] | None = None
        self._randomness: RowRandomness | None = None
        self._context = Autocast(self.inputs[0].device.type)
        self.coarse = self._context.enabled
        self._start = Generators()
        self._decisions: BranchFollower | None = None
        self._template: Any = None
        self._paths: list[list[_Path]] = []
        self.axes: list[int | None] = []
        with torch.no_grad(), without_our_hooks(model.module):
            self.outputs = self._outputs()
        self._drew = self._start.moved()

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

    def gradients(self, cotangents: list[Tensor], chunk: int) -> list[Tensor]:
        """The gradient of each row of a chunk: of the sum of its outputs times their cotangents.

        Args:
            cotangents: shape (all rows, …), one an output.
            chunk: which one; once each.

        Returns:
            One tensor a parameter, shape (rows of the chunk, *parameter).
        """
        rows = self.chunks[chunk]
        if not self._paths:
            found = [self.alone(cotangents, int(row)) for row in rows]
            return [torch.stack(parts) for parts in zip(*found, strict=True)]
        pairs = zip(cotangents, self.outputs, strict=True)
        given = [self._slotted(c.to(o.dtype), rows) for c, o in pairs if is_continuous(o)]
        paths, self._paths[chunk] = self._paths[chunk], []
        if not paths:
            raise DesynchronizedError(
                "backward() was called twice on one call of the model (retain_graph=True): call the model"
                " anew for each backward()."
            )
        totals: list[Tensor] = []
        for path in paths:
            with path.level.entered():
                pulled_back = path.pull([path.level.put(c) for c in given], retain_graph=False)[0]
                every = path.level.taken(self._model.gradients(pulled_back))
            made = every if len(rows) == self._slots else [g[: len(rows)] for g in every]
            totals = merged(totals, made, path.kept[: len(rows)]) if totals else made
        return totals

    def _slotted(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """`rows` of a tensor in their slots, shape (slots, …)."""
        if self._in_order and len(rows) == self._slots == len(tensor):
            return tensor.detach()
        made = tensor.new_zeros(self._slots, *tensor.shape[1:])
        made[: len(rows)] = tensor.detach()[rows.to(tensor.device)]
        return made

    def alone(self, cotangents: list[Tensor], row: int) -> list[Tensor]:
        """The gradient of one row by plain autograd, one tensor a parameter: no vmap, no functional call."""
        used: list[Any] = []
        with self._again(), without_our_hooks(self._model.module), torch.enable_grad():
            outputs = self._one_alone(row, used)
            parameters = used[0]
            pairs = [
                (o, c[row].to(o.dtype)) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad
            ]
            found: Any = [None] * len(parameters)
            if pairs:
                found = pulled([o for o, _ in pairs], parameters, [c for _, c in pairs])
        return [
            torch.zeros_like(p) if g is None else g.detach() for g, p in zip(found, parameters, strict=True)
        ]

    def repeated(self) -> RowCall:
        """The same call once more, with the weights of the model as they are now."""
        with self._again():
            return RowCall(
                *(self._model, *self._given, self._seed),
                slots=self._slots,
                order=torch.cat(self.chunks),
                parts=self._parts,
            )

    # -- how -----------------------------------------------------------------------------------

    def _outputs(self) -> list[Tensor]:
        if not self.rows:
            return self._of_none()
        model = self._model
        if not model.loops:
            try:
                return self._side_by_side()
            except (torch.OutOfMemoryError, GuaranteeError):
                raise
            except _CANNOT as error:
                self._start.restore()
                self._paths = []
                failed = str(error)
            found = self._looped()  # what is wrong with the call itself is raised here, in its own words
            model.told(failed)
            return found
        return self._looped()

    def _side_by_side(self) -> list[Tensor]:
        found: list[list[Tensor]] = []
        for rows in self.chunks:
            if found:
                self._start.restore()  # what all rows share is drawn once
            found.append(self._chunk(rows))
        outputs = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True)]
        if self._in_order:
            return outputs
        order = torch.cat(self.chunks)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return [output[back.to(output.device)] for output in outputs]

    def _chunk(self, rows: Tensor) -> list[Tensor]:
        """Outputs of some rows, those that take the same way through the model at once."""
        inputs = [self._slotted(t, rows) if t.dim() else t for t in self.inputs]
        left = torch.arange(self._slots) < len(rows)
        paths: list[_Path] = []
        totals: list[Tensor] = []
        while True:
            if len(paths) == PATHS:
                raise UnsupportedError(f"its rows take more than {PATHS} ways through it.")
            outputs, path = self._path(inputs, rows, left)
            made = [o[: len(rows)] for o in outputs]
            totals = merged(totals, made, path.kept[: len(rows)]) if totals else made
            paths.append(path)
            left = left if path.kept is left else left & ~path.kept
            if path.kept is left or not bool(left.any()):
                break
        self._paths.append(paths)
        return totals

    def _path(self, inputs: list[Tensor], rows: Tensor, left: Tensor) -> tuple[list[Tensor], _Path]:
        """One pass over all slots; what the model does not say before it is seen is tried once more."""
        model = self._model
        kept: list[bool] | None = None
        for _ in range(PATHS):
            try:
                return self._pass(inputs, rows, left)
            except _CANNOT as error:
                if "randomness" in str(error) and not model.draws:
                    model.draws = True
                elif any(words in str(error) for words in _DECIDING) and not model.decides:
                    model.decides = True
                elif "requires_grad_" in str(error) and not model.asks:
                    model.asks = True
                elif self._decisions is not None and self._decisions.kept != kept:
                    # rows that decide otherwise may fail on this way: the first one's data take their slots
                    kept = self._decisions.kept
                    left = torch.tensor(kept)
                    inputs = [like_first(t, left) if t.dim() else t for t in inputs]
                else:
                    raise
            self._start.restore()
        raise UnsupportedError("it cannot be run row by row.")

    def _pass(self, inputs: list[Tensor], rows: Tensor, left: Tensor) -> tuple[list[Tensor], _Path]:
        model = self._model
        if model.decides:
            self._start.restore()
        level = RowLevel(self._slots, draws=model.draws)
        decisions = self._decisions = BranchFollower(level, left.tolist()) if model.decides else None
        kinds: list[bool] = []
        mended = model.asks or self.coarse

        def outputs(place: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            with TorchPatches() if mended else nullcontext():  # vjp itself asks for the gradients of weights
                made = self._of_one(own, lambda a, k: called(model.module, model.places, place, a, k))
            kinds[:] = map(is_continuous, made)
            pairs = list(zip(made, kinds, strict=True))
            return [o for o, kind in pairs if kind], [o for o, kind in pairs if not kind]

        if model.draws:
            seeds = self._seeds()
            slots = [seeds[int(row)] for row in rows]
            self._randomness = RowRandomness(slots + [0] * (self._slots - len(slots)), stacked=True)
        try:
            with (
                model.runnable() if model.recurrent else nullcontext(),
                level.entered(),
                decisions or nullcontext(),
            ):
                own = [level.put(t) if t.dim() else t for t in inputs]
                made_of: Any = vjp(outputs, model.weights(), has_aux=True)
                found, pull, rest = made_of
                parts = iter(found), iter(rest)
                made = level.taken(next(parts[0] if kind else parts[1]) for kind in kinds)
        finally:
            self._randomness = None
        return made, _Path(left if decisions is None else torch.tensor(decisions.kept), level, pull)

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

    def _one_alone(self, row: int, used: list[Any] | None = None) -> list[Tensor]:
        def run(arguments: Any, keywords: Any) -> Any:
            made, weights = self._model.run(arguments, keywords)
            if used is not None:
                used.append(weights)
            return made

        inputs = [t[row] if t.dim() else t for t in self.inputs]
        seed = self._seeds()[row]
        with ExitStack() as stack:
            stack.enter_context(Taking())
            if self._model.draws or self._model.loops:
                # what RowRandomness does not know is drawn from the global generator, set for this row
                stack.callback(torch.set_rng_state, torch.get_rng_state())
                torch.default_generator.manual_seed(seed)
                self._randomness = RowRandomness([seed], stacked=False)
            try:
                return self._of_one(inputs, run)
            finally:
                self._randomness = None

    def _of_one(self, inputs: list[Tensor], run: Callable[..., Any]) -> list[Tensor]:
        """Outputs of one row, without the axis of the batch."""
        batch = [t.unsqueeze(axis_of_row(t, self._model.dimension)) for t in inputs]
        originals = [t if not own.dim() else b for t, own, b in zip(inputs, self.inputs, batch, strict=True)]
        arguments, keywords = filled(self._given, originals)
        with self._context.active(), self._randomness or nullcontext(), self._watch:
            output = run(arguments, keywords)
        tensors = tensors_in(output)
        if not tensors:
            raise TypeError(f"the model returned a {type(output).__name__} without a tensor.")
        self._template = mapped(output, lambda _: _PLACE)
        self.axes = [output_axis(t, self._model.dimension) for t in tensors]
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
#: What torch says where a model decides by the data of rows that it runs on side by side.
_DECIDING = (
    *("data-dependent control flow", ".item() on a Tensor"),
    *("dynamic shape", "differently shaped"),
)
#: What torch.func raises where it cannot run a model.
_CANNOT = (RuntimeError, NotImplementedError, UnsupportedError, ValueError, TypeError, IndexError)
