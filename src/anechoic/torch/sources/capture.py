"""What hooks on layers see of forward and backward passes, kept apart call by call and pass by pass.

Each call of a layer leaves a hook on its own output, which holds what the call was fed with: a forward pass
without a backward pass, an interrupted one, or one that checkpointing repeats is forgotten with its graph.
What one backward pass computes is put together when it ends, and counts if it gave parameters a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.sources.functional import row_gradients
from anechoic.torch.sources.samplers import row_axis, rule_of
from anechoic.torch.watching.rows import check_packed, rows_fed

_ENGINE = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]


@dataclass
class Pass:
    """What one backward pass computed, by id of the parameter.

    Attributes:
        samples: gradients of the rows.
        gradients: what autograd handed to the parameter.
        reached: parameters whose p.grad was added to.
        fault: a layer that was fed with something else than the batch, in words.
        coarse: whether a layer was called under autocast.
    """

    samples: dict[int, Tensor] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    fault: str = ""
    coarse: bool = False

    def join(self, other: Pass) -> None:
        """Add a pass over other parameters."""
        self.samples |= other.samples
        self.gradients |= other.gradients
        self.reached |= other.reached
        self.fault, self.coarse = self.fault or other.fault, self.coarse or other.coarse


class Capture:
    """Hooks on the layers and parameters of a module, which hand over each finished pass.

    Args:
        module: Opacus's wrapper (or hooks) around the model: its settings and `hooks_enabled` count.
        ledger: knows the batch in hand.
        functorch: whether to differentiate every layer row by row.
        finished: called with each pass that gave parameters a gradient.
    """

    def __init__(
        self, module: Any, ledger: ReleaseLedger, *, functorch: bool, finished: Callable[[Pass], None]
    ) -> None:
        self._module, self._ledger = module, ledger
        self._functorch, self._finished = functorch, finished
        self._passes: dict[int, Pass] = {}
        self._busy = False
        #: whether another private model has taken the layers over
        self.taken_over = False
        self.names = {id(layer): name or "module" for name, layer in module._module.named_modules()}

    def attach(self) -> list[Any]:
        """Put the hooks on; the handles take them off."""
        inner: nn.Module = self._module._module
        handles = []
        layers = {id(layer): layer for layer in self._module.iterate_submodules(inner)}
        layers |= {id(layer): layer for layer in inner.modules() if isinstance(layer, DPRNNBase)}
        for layer in layers.values():  # first, to see what the layer itself returns
            handles.append(layer.register_forward_hook(CallHook(self), with_kwargs=True, prepend=True))
        for p in inner.parameters():
            if p.requires_grad:
                handles.append(p.register_hook(_GradientHook(self, id(p))))
                handles.append(p.register_post_accumulate_grad_hook(_ReachedHook(self)))
        return handles

    def forget(self) -> None:
        """Drop passes that did not end."""
        self._passes.clear()
        self._busy = False

    # -- what the hooks report -----------------------------------------------------------------

    def called(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook of `layer`."""
        if self._busy or not self._module.hooks_enabled or not torch.is_grad_enabled():
            return
        parts = [part.data if isinstance(part, PackedSequence) else part for part in tree_flatten(output)[0]]
        outputs = [part for part in parts if isinstance(part, Tensor)]
        wanted = [t for t in outputs if t.requires_grad]
        if wanted:
            call = LayerCall(self, layer, args, kwargs, [t.requires_grad for t in outputs])
            if len(outputs) == 1:
                wanted[0].register_hook(call.one)
            else:
                torch.autograd.graph.register_multi_grad_hook(wanted, call.several)

    def current(self) -> Pass:
        """The backward pass that is running."""
        number = torch._C._current_graph_task_id()
        if number not in self._passes:
            self._passes[number] = Pass()
            _ENGINE.queue_callback(lambda: self._ended(number))
        return self._passes[number]

    def _ended(self, number: int) -> None:
        found = self._passes.pop(number, None)
        if found is not None and found.reached:
            self._finished(found)


class LayerCall:
    """One call of a layer: what it was fed with, until its output has a gradient."""

    def __init__(
        self,
        capture: Capture,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wanted: list[bool],
    ) -> None:
        self._capture, self._layer, self._wanted = capture, layer, wanted
        self._arguments = (args, kwargs)
        self._dimension = row_axis(layer, capture._module.batch_first)
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, PackedSequence):
            check_packed(capture.names.get(id(layer), "module"), given, capture._ledger.in_hand)
        self._rows = rows_fed(layer, args, kwargs, self._dimension)
        self._packed = getattr(layer, "max_batch_len", None) if isinstance(layer, RNNLinear) else None
        device = module_device(layer)
        self._autocast = (
            (device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
        )

    def one(self, backprop: Tensor) -> None:
        """Hook of the only tensor in the output."""
        self.several([backprop])

    def several(self, backprops: Any) -> None:
        """Hook of all tensors in the output that have a gradient."""
        capture = self._capture
        if capture._busy or not capture._module.hooks_enabled:
            return
        found = capture.current()
        delivery = capture._ledger.in_hand
        fed = None if isinstance(self._layer, RNNLinear) else self._rows  # of one time step
        if delivery is not None and fed not in (None, delivery.size) and not found.fault:
            name = capture.names.get(id(self._layer), "module")
            found.fault = f"{name} ({type(self._layer).__name__}) was fed with {fed} rows"
        if isinstance(self._layer, DPRNNBase) or self._rows is None:
            return
        capture._busy = True
        try:
            self._add(found, list(backprops), self._rows)
        finally:
            capture._busy = False
        found.coarse = found.coarse or self._autocast is not None
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self._arguments = ((), {})  # the graph is not used again: let go of its memory

    def _add(self, found: Pass, backprops: list[Tensor | None], rows: int) -> None:
        whole, delivery = rows, self._capture._ledger.in_hand
        if isinstance(self._layer, RNNLinear):  # of a packed batch, a time step has some of the rows
            whole = max(rows, self._packed or 0) if delivery is None else delivery.size
        scale = whole if self._capture._module.loss_reduction == "mean" else 1
        with torch.no_grad():
            scaled = [None if b is None else b.detach() * scale for b in backprops]
            for p, sample in self._gradients(scaled, rows).items():
                if p.requires_grad:
                    _add_rows(found.samples, id(p), sample, whole)

    def _gradients(self, backprops: list[Tensor | None], rows: int) -> dict[nn.Parameter, Tensor]:
        layer, (args, kwargs) = self._layer, self._arguments
        rule = rule_of(layer, functorch=self._capture._functorch)
        dimension = self._dimension
        if rule is None:
            given = iter(backprops)
            filled = [next(given) if wanted else None for wanted in self._wanted]
            return row_gradients(
                layer,
                (args, kwargs),
                filled,
                rows=rows,
                dimension=dimension,
                autocast=self._autocast,
            )
        bound = signature(layer.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        inputs: list[Any] = []
        kind = next(p for p in layer.parameters(recurse=False) if p.requires_grad).dtype
        for value in bound.arguments.values():
            if isinstance(value, Tensor):
                value = value.detach().movedim(dimension, 0) if value.dim() > dimension else value.detach()
                value = value.to(kind) if value.is_floating_point() else value
            inputs.append(value)
        (backprop,) = (b for b in backprops if b is not None)
        with torch.autocast(backprop.device.type, enabled=False):
            return rule(layer, inputs, backprop.movedim(dimension, 0).to(kind))


class CallHook:
    """Forward hook of one layer. A copy of the layer is another model: its hook does nothing."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.capture.called(layer, args, kwargs, output)

    def __reduce__(self) -> Any:
        return idle, ()


class _GradientHook:
    """Hook of a parameter: what autograd is about to add to p.grad."""

    def __init__(self, capture: Capture, key: int) -> None:
        self.capture, self._key = capture, key

    def __call__(self, gradient: Tensor) -> None:
        capture = self.capture
        if not capture._busy and capture._module.hooks_enabled and torch._C._current_graph_task_id() >= 0:
            capture.current().gradients[self._key] = gradient

    def __reduce__(self) -> Any:
        return idle, ()


class _ReachedHook:
    """Hook of a parameter: p.grad was added to."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    def __call__(self, p: Tensor) -> None:
        capture = self.capture
        if capture._module.hooks_enabled and torch._C._current_graph_task_id() >= 0:
            capture.current().reached.add(id(p))

    def __reduce__(self) -> Any:
        return idle, ()


class Idle:
    """The hook of a copy."""

    def __call__(self, *_: Any) -> None:
        pass


def idle() -> Idle:
    """What a copied hook becomes."""
    return Idle()


def module_device(layer: nn.Module) -> str:
    """Type of the device of a layer's first parameter."""
    first = next(layer.parameters(), None)
    return "cpu" if first is None else first.device.type


def _add_rows(samples: dict[int, Tensor], key: int, sample: Tensor, rows: int) -> None:
    """Add per-example gradients to those of other calls; rows that a call did not have get nothing."""
    if len(sample) < rows:
        whole = sample.new_zeros((rows, *sample.shape[1:]))
        whole[: len(sample)] = sample
        sample = whole
    known = samples.get(key)
    if known is None:
        samples[key] = sample
    elif len(known) == len(sample):
        samples[key] = known + sample
    else:
        longer, shorter = (known, sample) if len(known) > len(sample) else (sample, known)
        total = longer.clone()
        total[: len(shorter)] += shorter
        samples[key] = total
