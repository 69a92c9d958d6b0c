"""A model that is run row by row: its weights, and what was seen of it on made-up rows, before the data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.generators import fix, restore, states
from anechoic.torch.labels import plain
from anechoic.torch.sources.levels import is_batched
from anechoic.torch.sources.row_passes import FAILS, Places, RowPasses, remembered
from anechoic.torch.structure import filled, tensors_in

logger = logging.getLogger("anechoic")


class RowModel:
    """A model that is run row by row, and its parameters whose gradients are wanted, in this order.

    Attributes:
        loops: why rows are taken one after another; "" where vmap runs the model.
        decides: whether it was seen to decide something by its data.
        asks: whether it was seen to ask for gradients of what it computes.
        keeps: whether a call was seen to change its attributes or buffers.
        looking: whether it runs on made-up rows.
    """

    called = "model"
    tried = False
    _axes: tuple[int | None, ...] = ()

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], batch_first: bool) -> None:
        self.module, self.parameters = module, parameters
        self.dimension = 0 if batch_first else 1
        self.loops = ""
        self.decides = self.asks = self.keeps = self.looking = False
        self.forgotten: set[str] = set()
        self.recurrent = [layer for layer in module.modules() if isinstance(layer, RECURRENT)]
        self.places = places_of(module)
        names = {id(p): name for name, p in module.named_parameters()}
        self.names = [names[id(p)] for p in parameters]

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, as they are now."""
        return {name: p.detach() for name, p in zip(self.names, self.parameters, strict=True)}

    @contextmanager
    def runnable(self) -> Iterator[None]:
        """Recurrent layers in pieces that have batching rules."""
        with ExitStack() as stack:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            for layer in self.recurrent:
                handle = layer.register_forward_pre_hook(zero_state, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def forget_rows(self, layer: nn.Module, before: dict[str, Any]) -> None:
        """Put back attributes in which a call left something of rows, which the next batch would see."""
        for name, value in list(layer.__dict__.items()):
            if value is before.get(name) or not any(self.loops or is_batched(t) for t in tensors_in(value)):
                continue
            if name in before:
                layer.__dict__[name] = before[name]
            else:
                del layer.__dict__[name]
            if name not in self.forgotten:
                self.forgotten.add(name)
                logger.warning(
                    "%s.%s held tensors of rows after a call of the model, and is put back: the next batch"
                    " would see rows of this one. Let forward return what the loop needs.",
                    type(layer).__name__,
                    name,
                )

    def try_out(self, given: Any, axes: list[int | None], slots: int) -> None:
        """Decide on made-up rows whether vmap runs it, and where its outputs have their rows.

        Of `given` types and shapes are looked at; arguments are those of `RowPasses`.
        """
        self.tried = self.looking = True
        tensors, outside = [plain(t).detach() for t in tensors_in(given)], states(cuda=True)
        with ExitStack() as stack:
            stack.callback(setattr, self, "looking", False)
            stack.callback(restore, outside)  # else a resumed run, which looks again, would draw others
            seeded = partial(fix, bytes(32), np.random.MT19937(), cuda=True)
            seeded()
            self._look_at_axes(given, axes, tensors)
            reasons = []
            for value in (0, 1):  # ids and lengths
                made = made_up(tensors, axes, slots, value)
                try:
                    with undisturbed(self.module):
                        before = marks_of(self.module)
                        passes = RowPasses(self, filled(given, made), axes, slots, slots=slots)
                        outputs = passes.run()
                        self.keeps = self.keeps or passes.changed or marks_of(self.module) != before
                        self._check_buffers([n for n, b in self.module.named_buffers() if is_batched(b)])
                        passes.gradients([torch.zeros_like(o) for o in outputs], 0)
                    return
                except (torch.OutOfMemoryError, GuaranteeError):
                    raise
                except (*FAILS, UnsupportedError) as error:
                    reasons.append(error)
            seen: list[dict[str, Tensor]] = []
            for value in (0, 1):
                arguments, keywords = filled(given, made_up(tensors, axes, 1, value))
                seeded()
                try:
                    with undisturbed(self.module):
                        before = marks_of(self.module)
                        self.module(*arguments, **keywords)
                        self.keeps = self.keeps or marks_of(self.module) != before
                        seen.append({name: b.clone() for name, b in self.module.named_buffers()})
                except (*FAILS, UnsupportedError):
                    continue
            if seen:
                self._check_buffers([n for n, b in seen[0].items() if not torch.equal(b, seen[-1][n])])
                self.loops = str(reasons[0])
                logger.warning(
                    "torch.func.vmap cannot run this %s, so its rows are taken one after another, which is"
                    " right and slow: %s",
                    self.called,
                    self.loops.strip().split("\n")[0],
                )

    def _check_buffers(self, changed: list[str]) -> None:
        """Refuse buffers that keep something of the inputs; functions of weights alone may change."""
        if changed:
            raise GuaranteeError(
                f"{changed[0]} of the model keeps something of its inputs from call to call (statistics, a"
                " queue, a cache), without noise: the released model would show it, and later batches would"
                " be clipped with it. Leave it out, or keep the layer in eval() mode."
            )

    def _look_at_axes(self, given: Any, axes: list[int | None], tensors: list[Tensor]) -> None:
        """Where each output has its rows: the axis on which batches of two and of three rows differ."""
        shapes = []
        for count in (2, 3):
            for value in (0, 1):
                arguments, keywords = filled(given, made_up(tensors, axes, count, value))
                try:
                    with undisturbed(self.module):
                        found = tensors_in(self.module(*arguments, **keywords))
                except (*FAILS, UnsupportedError):
                    continue
                shapes.append([tuple(t.shape) for t in found])
                break
        if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]):
            for two, three in zip(*shapes, strict=True):
                differing = [i for i, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
                known = len(differing) == 1 and (two[differing[0]], three[differing[0]]) == (2, 3)
                self._axes += (differing[0] if known else None,)

    def axis(self, place: int, tensor: Tensor) -> int | None:
        """The axis of length 1 that stands for the batch in an output of one row; None without an axis."""
        if not tensor.dim():
            return None
        known = self._axes[place] if place < len(self._axes) else None
        own = [known] if known is not None else [self.dimension, 0, *range(tensor.dim())]
        for axis in own:
            if axis < tensor.dim() and tensor.shape[axis] == 1:
                return axis
        raise UnsupportedError(
            f"the model's output for one row has shape {tuple(tensor.shape)}, without an axis of length 1 for"
            " the batch: every output must have one row an example, or no dimension at all (a loss)."
        )


def made_up(tensors: list[Tensor], axes: list[int | None], count: int, value: int) -> list[Tensor]:
    """`count` rows of one value in the place of those that tensors have on their axes."""
    pairs = zip(tensors, axes, strict=True)
    return [t if a is None else t.new_full((*t.shape[:a], count, *t.shape[a + 1 :]), value) for t, a in pairs]


def places_of(module: nn.Module) -> Places:
    """All places of the parameters: several where a module has several names for one."""
    first = {id(p): name for name, p in module.named_parameters()}
    return [
        (layer._parameters, name, first[id(p)])
        for layer in module.modules()
        for name, p in layer._parameters.items()
        if p is not None
    ]


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Whatever a forward pass leaves in the module's attributes and buffers is taken back."""
    put_back = remembered(module)
    try:
        yield
    finally:
        put_back()


def marks_of(module: nn.Module) -> list[Any]:
    """What a call of a module changes if it keeps anything, as counters and spectral norms do."""
    kept = [(name, id(v)) for layer in module.modules() for name, v in layer.__dict__.items()]
    return [kept, [(id(b), b._version) for b in module.buffers()]]


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def zero_state(layer: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    """Give a recurrent layer the zeros it would make, made from its input: so they are part of the row."""
    given = arguments[0] if arguments else keywords.get("input")
    state = arguments[1] if len(arguments) > 1 else keywords.get("hx")
    if state is not None or not isinstance(given, Tensor) or given.dim() != 3:
        return None
    axis = 0 if layer.batch_first else 1
    start = given.select(1 - axis, 0).sum(-1)[None, :, None] * 0
    layers = layer.num_layers * (2 if layer.bidirectional else 1)
    size = getattr(layer, "proj_size", 0) or layer.hidden_size
    hidden = start.expand(layers, -1, size)
    if isinstance(layer, nn.LSTM):
        state = (hidden, start.expand(layers, -1, layer.hidden_size))
    else:
        state = hidden
    return (given,), {**{k: v for k, v in keywords.items() if k not in ("input", "hx")}, "hx": state}
