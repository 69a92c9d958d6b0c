"""A model that is run one row at a time, many side by side, in chunks of one public shape.

Which kernels run is public. Whether vmap runs the model is decided once, on made-up rows. Rows that take
another way through the model get a pass of their own, of the same shape, however many ways there are; a row
that fails by itself counts as zero. So a row moves its own contribution alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.func import vjp

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch import label_rules  # noqa: F401 - labels know their rules by it
from anechoic.torch.labels import LabelledTensor, plain
from anechoic.torch.sources.levels import (
    Autocast,
    BranchFollower,
    RowLevel,
    TorchPatches,
    check_not_mixing,
    is_continuous,
    only,
)
from anechoic.torch.structure import filled, mapped, nodes, tensors_in, uninterrupted

logger = logging.getLogger("anechoic")
_NOTHING = torch.empty(0)
#: What a model may raise for one row.
FAILS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, AttributeError)
#: Of each place of a parameter: the names of its layer's own, its name there, and its first name of all.
Places = list[tuple[dict[str, Any], str, str]]


class RowPasses:
    """One call of the model, row by row.

    Args:
        model: what is called, a `RowModel`.
        given: arguments and keywords; each tensor in them that has an axis for rows is split along it.
        axes: that axis of each tensor; None for what all rows share.
        rows: how many.
        slots: rows of one chunk, a public number.
        order: the rows by slots; None for their own order.
        parts: lengths of parts that are worked on apart; None for none.
        seeds: each sets the random numbers of one part; none for those of the process's generators.
    """

    def __init__(
        self,
        model: Any,
        given: Any,
        axes: list[int | None],
        rows: int,
        *,
        slots: int,
        order: Tensor | None = None,
        parts: tuple[int, ...] | None = None,
        seeds: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._model, self._given, self._axes, self.rows, self._slots = model, given, axes, rows, slots
        self._inputs, device = [], torch.device("cpu")
        for tensor, axis in zip(tensors_in(given), axes, strict=True):
            tensor = plain(tensor).detach()
            self._inputs.append(tensor if axis is None else tensor.movedim(axis, 0))
            device = self._inputs[0].device
        self._context = Autocast(device.type)
        every = torch.arange(rows) if order is None else order
        self._whole = order is None and parts is None
        self.chunks: list[Tensor] = []
        self._seeds: dict[int, Callable[[], None]] = {}
        for place, part in enumerate([every] if parts is None else every.split(list(parts))):
            if len(part):
                self._seeds |= {len(self.chunks): seeds[place]} if seeds else {}
                self.chunks += part.split(slots)
        self._passes: list[list[tuple[Tensor, RowLevel | None, Any]]] = []
        self.template: Any = None
        self._failed = 0
        self.outputs: list[Tensor] = []
        #: the outputs as they were handed out, where backward() ends
        self.leaves: list[LabelledTensor] = []
        self.axes: list[int | None] = []
        self.changed = False
        self._before: Callable[[], Any] | None = None
        self._after: Callable[[], None] | None = None

    def run(self) -> list[Tensor]:
        """Outputs of all rows, rows first; raises what the model raised, if it did for every row."""
        model, own, spaces = self._model, [], []
        # each pass begins with what the model was before the call, which is one call of it, however many
        for layer in model.module.modules():
            own.append((layer, dict(layer.__dict__)))
            spaces.append((layer.__dict__, own[-1][1]))
            if not model.looking:  # what keeps rows in a buffer is refused then
                spaces.append((layer._buffers, dict(layer._buffers)))
        keeps = model.keeps
        self._before = remembered(model.module) if keeps else partial(take_back, spaces)
        found: list[list[Tensor]] = []
        with torch.no_grad():
            for place, rows in enumerate(self.chunks):
                found.append(self._chunk(rows, place))
            made = next(filter(None, found), [])
            if not made and not self.rows:  # one that is made up tells the shapes
                inputs = self._slotted(torch.arange(0), self._inputs, self._axes)
                made = self._way(inputs, torch.arange(self._slots) == 0)[1]
        if keeps and self._after is not None:
            self._after()
            for layer, before in own:
                model.forget_rows(layer, before)
        else:  # what made-up rows do not change, rows decided to change
            self.changed = take_back(spaces) or self.changed
        if not made:
            if "more than 1 value per channel" in str(self._error):
                raise UnsupportedError(
                    "the model normalises by statistics of the batch (F.batch_norm with training=True), and a"
                    " row by itself has none: use GroupNorm or LayerNorm, or training=False."
                ) from self._error
            check_not_mixing(model.module.modules())
            raise self._error
        if self._failed:
            said = "the %s raised for %d rows, which count as zero: %s"
            logger.warning(said, model.called, self._failed, self._error)
        self.outputs = made
        if not self.rows:
            self.outputs = [o[:0] for o in made]
        elif len(found) > 1:
            for place, rows in enumerate(self.chunks):
                found[place] = found[place] or [o.new_zeros(len(rows), *o.shape[1:]) for o in made]
            self.outputs = [*map(torch.cat, zip(*found, strict=True))]
        if not self._whole and self.rows:
            back = torch.cat(self.chunks).argsort()
            self.outputs = [o[back.to(o.device)] for o in self.outputs]
        return self.outputs

    def _slotted(self, rows: Tensor, tensors: list[Tensor], axes: Sequence[int | None]) -> list[Tensor]:
        """Inputs (or cotangents) of some rows in their slots, the others filled with zeros."""
        if self._whole and len(rows) == self._slots == self.rows:
            return tensors
        made = []
        for tensor, axis in zip(tensors, axes, strict=True):
            if axis is not None:
                full = tensor.new_zeros(self._slots, *tensor.shape[1:])
                full[: len(rows)] = tensor[rows.to(tensor.device)]
                tensor = full
            made.append(tensor)
        return made

    def _chunk(self, rows: Tensor, place: int) -> list[Tensor]:
        """Outputs of one chunk: one pass for each way that its rows take, each of the same shape."""
        if place in self._seeds:
            self._seeds[place]()
        inputs = self._slotted(rows, self._inputs, self._axes)
        left = torch.arange(self._slots) < len(rows)
        passes: list[tuple[Tensor, RowLevel | None, Any]] = []
        totals: list[Tensor] = []
        start = torch.get_rng_state()
        while bool(left.any()):
            if not self._model.loops:
                torch.set_rng_state(start)  # a row draws the same whichever way others take, or fail
            kept, made, level, pull = self._way(inputs, left)
            if made:
                if totals and [t.shape for t in totals] != [t.shape for t in made]:
                    raise UnsupportedError(
                        "the model's outputs have other shapes for some rows than for others: pad them to one"
                        " shape in forward."
                    )
                totals = [only(kept, m, t) for m, t in zip(made, totals, strict=True)] if totals else made
                passes.append((kept, level, pull))
            else:
                self._failed += int(kept.sum())
            left = left & ~kept
        self._passes.append(passes)
        if not totals:
            return []
        used = torch.zeros(self._slots, dtype=torch.bool)
        for kept, _, _ in passes:
            used |= kept
        if not bool(used[: len(rows)].all()):  # what a failed row's slot holds is of others
            totals = [only(used, o) for o in totals]
        return [o[: len(rows)] for o in totals]

    def _way(self, inputs: list[Tensor], left: Tensor) -> tuple[Tensor, list[Tensor], Any, Any]:
        """(rows that took the first one's way, outputs, level, what pulls back); no outputs if it fails.

        What fails may be rows that decide otherwise than the first one: then its data take all slots.
        """
        model, start, first = self._model, torch.get_rng_state(), int(left.nonzero()[0])
        leader = torch.arange(self._slots) == first
        for own in (left, leader):
            filled_in = inputs
            if own is leader:
                pairs = zip(inputs, self._axes, strict=True)
                filled_in = [t if a is None else only(leader, t, t[first]) for t, a in pairs]
            while True:
                try:
                    if self._before is not None:
                        self.changed = bool(self._before()) or self.changed
                    found = self._pass(filled_in, own)
                    if model.keeps and self._after is None:
                        self._after = remembered(model.module)
                    return found
                except (torch.OutOfMemoryError, GuaranteeError):
                    raise
                except FAILS as error:
                    self._error, words = error, str(error)
                    torch.set_rng_state(start)
                    # what the model does not say of itself before it is seen is tried once more
                    if not model.decides and any(part in words for part in _DECIDING):
                        model.decides = True
                    elif not model.asks and "requires_grad_" in words:
                        model.asks = True
                    else:
                        break
        return leader, [], None, None

    def _pass(self, inputs: list[Tensor], left: Tensor) -> tuple[Tensor, list[Tensor], Any, Any]:
        model = self._model
        if model.loops:
            return self._alone(inputs, left)
        level = RowLevel(self._slots)
        decisions = BranchFollower(level, left.tolist()) if model.decides else None
        kinds: list[bool] = []

        def outputs(weights: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            with TorchPatches() if model.asks or self._context.enabled else nullcontext():
                made = self._of_one(own, weights)
            kinds[:] = map(is_continuous, made)
            return [*compress(made, kinds)], [*compress(made, map(not_, kinds))]

        with ExitStack() as stack:
            if model.recurrent:
                stack.enter_context(model.runnable())
            stack.enter_context(level.entered())
            if decisions is not None:
                stack.enter_context(decisions)
            own = [t if a is None else level.put(t) for t, a in zip(inputs, self._axes, strict=True)]
            found, pull, rest = vjp(outputs, model.weights(), has_aux=True)  # type: ignore[misc]
            parts = iter(found), iter(rest)
            made = level.taken(next(parts[not kind]) for kind in kinds)
        return left if decisions is None else torch.tensor(decisions.kept), made, level, pull

    def _alone(self, inputs: list[Tensor], left: Tensor) -> tuple[Tensor, list[Tensor], Any, Any]:
        """One row by plain autograd, where vmap cannot run the model."""
        slot = int(left.nonzero()[0])
        row = [t if a is None else t[slot] for t, a in zip(inputs, self._axes, strict=True)]
        with torch.enable_grad():
            made = self._of_one(row, {})
        full = [o.detach().expand(self._slots, *o.shape) for o in made]
        return torch.arange(self._slots) == slot, full, None, made

    def _of_one(self, inputs: list[Tensor], weights: dict[str, Tensor]) -> list[Tensor]:
        """Outputs of one row, without the axis of the batch."""
        batch = [t if a is None else t.unsqueeze(a) for t, a in zip(inputs, self._axes, strict=True)]
        model, (arguments, keywords) = self._model, filled(self._given, batch)
        with self._context.active():
            output = called(model.module, model.places, weights, arguments, keywords)
        tensors = tensors_in(output)
        if not tensors:
            raise TypeError(f"the model returned a {type(output).__name__} without a tensor.")
        self.template = mapped(output, lambda _: _NOTHING)
        self.axes, made = [], []
        for place, tensor in enumerate(tensors):
            axis = model.axis(place, tensor)
            self.axes.append(axis)
            made.append(tensor if axis is None else tensor.squeeze(axis))
        return made

    def gradients(self, cotangents: list[Tensor], chunk: int) -> list[Tensor]:
        """Gradients of the rows of a chunk, shape (rows of the chunk, *parameter); once each."""
        rows, model = self.chunks[chunk], self._model
        pairs = zip(cotangents, self.outputs, strict=True)
        own = [c.to(o.dtype) for c, o in pairs if is_continuous(o)]
        given = self._slotted(rows, own, [0] * len(own))
        totals = [p.new_zeros(self._slots, *p.shape) for p in model.parameters] if model.loops else []
        used = torch.zeros(self._slots, dtype=torch.bool)
        for kept, level, pull in self._passes[chunk]:
            used |= kept
            if level is None:
                slot, pulls = int(kept.nonzero()[0]), [o for o in pull if is_continuous(o)]
                ends = [(o, c[slot]) for o, c in zip(pulls, given, strict=True) if o.requires_grad]
                if ends:
                    found = pulled([o for o, _ in ends], model.parameters, [c for _, c in ends])
                    for total, part in zip(totals, found, strict=True):
                        if part is not None:
                            total[slot] = part
                continue
            with level.entered():
                back = pull([*map(level.put, given)], retain_graph=False)[0]
                made = level.taken(map(back.__getitem__, model.names))
            totals = [only(kept, m, t) for m, t in zip(made, totals, strict=True)] if totals else made
        self._passes[chunk] = []
        if not totals:
            totals = [p.new_zeros(self._slots, *p.shape) for p in model.parameters]
        if not bool(used[: len(rows)].all()):
            totals = [only(used, t) for t in totals]
        return totals if len(rows) == self._slots else [t[: len(rows)] for t in totals]


#: What torch says where a model decides by the data of rows that it runs on side by side.
_DECIDING = ("data-dependent control flow", ".item() on a Tensor", "dynamic shape", "differently shaped")


def called(
    module: nn.Module,
    places: Places,
    weights: Mapping[str, Tensor],
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Any:
    """module(*inputs, **keywords) under `weights`, by the names of named_parameters(); tied ones once.

    torch.func.functional_call would look for every place anew, and leave given tensors where names are tied.
    """
    kept = []
    try:
        for own, name, first in places:
            if first in weights and name in own:
                kept.append((own, name, own[name]))
                own[name] = weights[first]
        return module(*inputs, **keywords)
    finally:
        for own, name, before in kept:
            own[name] = before


def remembered(module: nn.Module) -> Callable[[], None]:
    """Remember attributes and buffers of a module: what is returned puts them back."""
    layers = [
        (layer, dict(layer.__dict__), dict(layer._parameters), dict(layer._buffers))
        for layer in module.modules()
    ]
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in module.buffers()]

    def put_back() -> None:
        with uninterrupted():  # half of it would be the end of the model
            for layer, own, parameters, tensors in layers:
                layer.__dict__.clear()
                layer.__dict__.update(own)
                layer._parameters.clear()
                layer._parameters.update(parameters)
                layer._buffers.clear()
                layer._buffers.update(tensors)
            for buffer, version, value in buffers:
                if buffer._version != version:
                    with torch.no_grad():
                        buffer.copy_(value)

    return put_back


def take_back(spaces: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    """Set names of layers, each (now, before), to what they were; whether a call changed any."""
    changed = False
    for now, before in spaces:
        if [*now] != [*before] or [*map(id, now.values())] != [*map(id, before.values())]:
            now.clear()
            now.update(before)
            changed = True
    return changed


def pulled(outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]) -> list[Any]:
    """Gradients of the parameters by plain autograd; None where there is none. p.grad stays as it is."""
    try:
        # the backward pass of a function written in Python, as in reentrant checkpointing, may run another
        # one, which knows backward() alone: autograd.grad leaves it out unseen
        if any(isinstance(node, BackwardCFunction) for node in nodes(output.grad_fn for output in outputs)):
            return _by_backward(outputs, parameters, cotangents)
        return list(torch.autograd.grad(outputs, parameters, cotangents, allow_unused=True))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedError(f"autograd cannot give the gradient of one row: {error}") from error


def _by_backward(
    outputs: list[Tensor], parameters: list[nn.Parameter], cotangents: list[Tensor]
) -> list[Any]:
    kept = [p.grad for p in parameters]
    tables = [hooks for p in parameters if (hooks := getattr(p, "_post_accumulate_grad_hooks", None))]
    hooks = [dict(table) for table in tables]
    try:
        for table in tables:
            table.clear()
        for p in parameters:
            p.grad = None
        torch.autograd.backward(outputs, cotangents)
        return [p.grad for p in parameters]
    finally:
        for p, gradient in zip(parameters, kept, strict=True):
            p.grad = gradient
        for table, own in zip(tables, hooks, strict=True):
            table.update(own)
