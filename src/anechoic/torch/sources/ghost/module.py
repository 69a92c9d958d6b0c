"""Trace a module for ghost clipping: its trainable layers run our forward(), which records backprops.

In the place of a layer's forward() stands ours, which computes the output from the layer's own parameters
without making them a part of the graph, and puts a node behind it that notes input and backprop in the
backward pass. So the gradient of a parameter is, by construction, made of what was noted; whatever else uses
a parameter shows in its `grad`, which nothing of ours sets.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import SystemRandom
from types import MethodType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.randomness.modes import paused
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.row_types.labels import RowAxis
from anechoic.torch.sources.ghost.layer_kind import BackwardCall, LayerKind
from anechoic.torch.sources.ghost.layers import SHARING, Embedding, holds, layer_kind
from anechoic.torch.sources.row_model import SUSPENDED

OTHERWISE = "use grad_sample_mode='rows'"
APART = (
    "Use each parameter by calling its layer alone (no F.linear(x, layer.weight), no penalty on weights in"
    f" the loss: use weight_decay), or {OTHERWISE}"
)


class BackpropTrace:
    """Calls of layers that one backward pass reached, in its order."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[BackwardCall]] = {}
        self.deliveries: list[Delivery | None] = []
        self.made: dict[_LayerCall, BackwardCall] = {}  # by the visit itself, which lives as long

    def note(self, visit: _LayerCall, call: BackwardCall) -> None:
        """Record that a backward pass came through a call of a layer."""
        self.calls.setdefault(call.layer, []).append(call)
        if not any(visit.delivery is known for known in self.deliveries):
            self.deliveries.append(visit.delivery)
        self.made[visit] = call


class _LayerCall:
    """One forward pass through one layer."""

    def __init__(self, tracer: Tracer, layer: nn.Module, options: tuple[Any, ...], axis: int, fault: str):
        self.tracer, self.layer, self.axis, self.fault = tracer, layer, axis, fault
        self.delivery = tracer.ledger.in_hand
        self.options = options


class BackpropRecorder(torch.autograd.Function):
    """Identity whose backward pass records the backprops; `anchor` makes sure that there is one."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, given: Tensor, anchor: Tensor, visit: _LayerCall) -> Tensor:
        ctx.save_for_backward(given)  # torch refuses to give it back if it was changed in place
        ctx.visit = visit
        return out.detach()

    @staticmethod
    def backward(ctx: Any, backprop: Tensor) -> Any:
        (given,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "create_graph=True under ghost clipping: gradients of gradients are not measured. Use"
                " grad_sample_mode='rows'."
            )
        ctx.visit.tracer.reached(ctx.visit, given.detach(), backprop.detach())
        return backprop, None, None, None


#: Who traces a layer, as long as somebody holds the tracer: a run that is gone leaves a plain model behind.
_TRACERS: WeakKeyDictionary[nn.Module, ReferenceType[Tracer]] = WeakKeyDictionary()


def _tracer(layer: nn.Module) -> Tracer | None:
    found = _TRACERS.get(layer)
    return None if found is None else found()


def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stands in the place of the forward() of a traced layer; a copy of the layer is another model."""
    tracer = _tracer(layer)
    plain = tracer is None or SUSPENDED.get() or not torch.is_grad_enabled()
    if plain or tracer is None or len(args) + len(kwargs) != 1:
        return type(layer).forward(layer, *args, **kwargs)
    return tracer.visit(layer, args[0] if args else next(iter(kwargs.values())))


class Tracer:
    """Put our forward() into the trainable layers of a module, and record what backward passes leave.

    Args:
        module: plain module, of which every trainable parameter belongs to one layer on the list.
        parameters: the trainable ones.
        ledger: knows the batch in hand.
        types: follow its rows.
        batch_first: whether rows come before positions.

    Attributes:
        stray: whether a backward pass that is none of ours came through a layer, for the batch in hand.

    Raises:
        UnsupportedError: naming the layer that is not on the list, and why.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        ledger: ReleaseLedger,
        types: RowTypes,
        *,
        batch_first: bool,
    ) -> None:
        self.layers = trainable_layers(module, parameters)
        self.names = {id(p): name for name, p in module.named_parameters()}
        self._module, self._parameters = module, parameters
        self.ledger, self._types, self._batch_first = ledger, types, batch_first
        self.stray = self._followed = False
        self._anchor = torch.zeros((), requires_grad=True)
        self._trace: BackpropTrace | None = None
        self._compare: BackpropTrace | None = None
        self._weights = torch.empty(0)
        self._seen: dict[nn.Module, int] = {}
        for layer in self.layers:
            _TRACERS[layer] = ref(self)
            layer.forward = MethodType(forward, layer)

    def detach(self) -> None:
        """Give the layers their own forward() back."""
        for layer in self.layers:
            if _tracer(layer) is self:
                del _TRACERS[layer]
                layer.__dict__.pop("forward", None)

    # -- forward -------------------------------------------------------------------------------

    def visit(self, layer: nn.Module, x: Any) -> Any:
        """Return the layer's output, with a `BackpropRecorder` behind it."""
        names = self.layers[layer]
        own = {name: p for name, p in layer._parameters.items() if p is not None}
        kind = layer_kind(type(layer))
        if (
            kind is None
            or not isinstance(x, Tensor)
            or any(id(own.get(name)) != key for name, key in names.items())
        ):
            return type(layer).forward(layer, x)  # other weights for one call: whatever is in them shows
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                f"torch.compile around {type(layer).__name__}: ghost clipping cannot see into compiled code."
                f" Leave the model as it is, or {OTHERWISE}."
            )
        weights = {
            name: p.detach() if p is not None and name in names else p
            for name, p in layer._parameters.items()
        }
        x = self._for_all(kind, layer, x)
        out = kind.forward(layer, x, weights)
        visit = _LayerCall(self, layer, kind.options(layer), *self._rows(kind, layer, x))
        made: Tensor = BackpropRecorder.apply(out, x, self._anchor, visit)
        if self._types.active and not visit.fault:
            self._types.mark(made, RowAxis(visit.axis))
        return made

    def _for_all(self, kind: LayerKind, layer: nn.Module, x: Tensor) -> Tensor:
        """Public indices that stand once for all rows, (1, positions), once for each: (rows, positions).

        What is added to the rows is the same, and each row's part of the gradient is left apart.
        """
        axis = self._axis(kind, layer, x)
        once = isinstance(kind, Embedding) and x.dim() == 2 and x.shape[axis] == 1
        if once and self._types.active and self._types.of(x) is None:
            return x.repeat_interleave(self._types.batch.rows, dim=axis)
        return x

    def _rows(self, kind: LayerKind, layer: nn.Module, x: Tensor) -> tuple[int, str]:
        """The axis of the rows in x, and what is wrong with its shape, or ""."""
        least, most = kind.leading(layer)
        if not least <= x.dim() <= most:
            return 0, f"an input of shape {tuple(x.shape)}, which has no axis of rows"
        axis = self._axis(kind, layer, x)
        return axis, self._types.fault(x, axis)

    def _axis(self, kind: LayerKind, layer: nn.Module, x: Tensor) -> int:
        """Return the axis of the rows in an input that has as many axes as it should."""
        least, most = kind.leading(layer)
        may_be_time = kind.time_first and most > least and x.dim() > least
        return int(may_be_time and not self._batch_first)

    # -- backward ------------------------------------------------------------------------------

    def reached(self, visit: _LayerCall, given: Tensor, backprop: Tensor) -> None:
        """Record the backprops of `visit`, within `run` only."""
        if self._trace is None:
            self.stray |= visit.delivery is not None and visit.delivery is self.ledger.in_hand
            return
        # what was one row an example may have been written to since
        fault = visit.fault or self._types.fault_since(given, visit.axis)
        if fault:
            raise GuaranteeError(
                f"{self.describe(visit.layer)} was called with {fault}: give it the examples as rows,"
                f" or {OTHERWISE}."
            )
        if self._followed:
            self._types.check_pulled(
                [backprop],
                [visit.axis],
                where=f"the output of {self.describe(visit.layer)}",
                otherwise=f" Or {OTHERWISE}, where such code of the model sees one row.",
            )
        call = BackwardCall(
            visit.layer,
            given.movedim(visit.axis, 0),
            backprop.movedim(visit.axis, 0),
            visit.options,
            (given._version, backprop._version),
        )
        if self._compare is None:
            self._trace.note(visit, call)
            return
        # what is computed anew in each pass (reentrant checkpointing) has other visits, in the same order
        order = self._seen[call.layer] = self._seen.get(call.layer, -1) + 1
        whole = self._compare.made.get(visit) or self._compare.calls[call.layer][order]
        with paused():
            self._check_apart(call, whole)

    def run(self, loss: Tensor, *, apart: bool, followed: bool = False) -> BackpropTrace:
        """Run one backward pass from the losses of the rows.

        Args:
            loss: shape (rows,).
            apart: also check, by a second pass through the activations, that no loss depends on another row.
            followed: also follow the rows through every operation of the pass.

        Raises:
            DesynchronizedError: if the loss uses a parameter other than by calling its layer, or rows mix.
            GuaranteeError: if a layer was fed with other rows, or code that runs in the pass mixes them.
        """
        self.clear()
        trace = self._trace = BackpropTrace()
        apart = apart and len(loss) > 1 and loss.requires_grad
        try:
            with nullcontext() if followed else paused():
                self._followed = followed
                torch.autograd.backward(loss, torch.ones_like(loss), retain_graph=apart)
                self._followed = False
                self._check_rows(trace, len(loss))
                if apart:
                    self._compare, self._seen = trace, {}
                    self._weights = _some(len(loss)).to(loss.device)
                    torch.autograd.backward(loss, self._weights.to(loss.dtype))
                self._check_stray()
        finally:
            self._trace = self._compare = None
            self._followed = False
            self.clear()
        return trace

    def clear(self) -> None:
        """Drop gradients of parameters: no part of a release."""
        for p in self._parameters:
            p.grad = None

    def _check_rows(self, trace: BackpropTrace, rows: int) -> None:
        delivery = self.ledger.in_hand
        fed = {len(call.given) for calls in trace.calls.values() for call in calls}
        if delivery is not None and delivery.size in fed and rows > delivery.size:
            raise DesynchronizedError(
                f"the criterion gave {rows} losses for a batch of {delivery.size} examples: ghost clipping"
                " needs one loss an example, such as one a sequence. Do not flatten examples and positions:"
                " criterion(logits.transpose(1, 2), targets) has both; or tell the criterion their shape:"
                " criterion(logits.flatten(0, 1), targets.flatten(), shape=targets.shape)."
            )
        for layer, calls in trace.calls.items():
            for call in calls:
                if len(call.backprop) != rows or len(call.given) != rows:
                    raise DesynchronizedError(
                        f"{self.describe(layer)} was fed with {len(call.given)} rows, and the loss has"
                        f" {rows}: rows of a trainable layer must be the examples in this mode. If it is fed"
                        " with positions, which all examples share, use grad_sample_mode='rows', which takes"
                        " the model as it is, or expand them to the batch: positions.repeat(len(x), 1). It"
                        " cannot be fed with part of the batch, or with examples and positions in one axis."
                    )

    def _check_stray(self) -> None:
        stray = sorted(self.names[id(p)] for p in self._parameters if p.grad is not None)
        if stray:
            replaced = self.replaced()
            why = f" ({', '.join(replaced)}: forward() was replaced)" if replaced else ""
            raise DesynchronizedError(
                f"the loss depends on {stray} other than through a call of the layer{why}: that part would"
                f" not be clipped. {APART}."
            )

    def _check_apart(self, call: BackwardCall, whole: BackwardCall) -> None:
        """Backprops of the losses of some rows are those of all losses there, and zero in the others."""
        rows = len(call.backprop)
        found = call.backprop.reshape(rows, -1).double()
        expected = whole.backprop.reshape(rows, -1).double()
        finite = torch.isfinite(expected).all(dim=1)
        off = ~self._weights.to(found.device)
        mixed = finite & off & (found != 0).any(dim=1)
        size = expected.abs().amax(dim=1) if found.shape[1] else torch.zeros_like(found[:, 0:1]).sum(1)
        coarse = torch.finfo(whole.backprop.dtype).bits < 32
        far = (found - expected).abs() > (0.1 if coarse else 1e-3) * size.unsqueeze(1)
        mixed |= finite & ~off & far.any(dim=1)
        if bool(mixed.any()):
            raise DesynchronizedError(
                f"in {self.describe(call.layer)} the loss of an example depends on another row of the batch:"
                " something before the loss mixes examples, moves them to other rows, or feeds the layer with"
                " positions, so clipping would not bound what one of them changes. Keep every example in its"
                f" row, or {OTHERWISE}."
            )

    # -- what must stay ------------------------------------------------------------------------

    def replaced(self) -> list[str]:
        """List layers whose forward() is no longer ours."""
        return [
            self.describe(layer)
            for layer in self.layers
            if getattr(layer.__dict__.get("forward"), "__func__", None) is not forward
        ]

    def describe(self, layer: nn.Module) -> str:
        """Name and class of a layer."""
        name = next((name for name, other in self._module.named_modules() if other is layer), "")
        return f"{name or 'the module'} ({type(layer).__name__})"


def _some(rows: int) -> Tensor:
    """A secret choice of some rows, not all: True for those that count."""
    chosen = torch.zeros(rows, dtype=torch.bool)
    chosen[SystemRandom().sample(range(rows), rows // 2)] = True
    return chosen


def trainable_layers(module: nn.Module, parameters: list[nn.Parameter]) -> dict[nn.Module, dict[str, int]]:
    """The layers that hold `parameters`: for each the names of its own and their ids.

    Raises:
        UnsupportedError: if one is not on the list, or a parameter belongs to several.
    """
    wanted = {id(p) for p in parameters}
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    found: dict[nn.Module, dict[str, int]] = {}
    for name, layer in module.named_modules():
        own = {key: id(p) for key, p in layer._parameters.items() if p is not None and id(p) in wanted}
        if not own or holds(type(layer)):
            continue
        inside = [part for part in layer.modules() if part is not layer and layer_kind(type(part))]
        of_parts = {id(p) for part in inside for p in part._parameters.values()}
        if layer_kind(type(layer)) is None and of_parts.issuperset(own.values()):
            continue  # second names of what layers inside hold (BERT's head): other uses show in `grad`
        words = f"{name or 'the module'} ({type(layer).__module__}.{type(layer).__qualname__})"
        fault = _fault(layer)
        if fault:
            raise UnsupportedError(f"ghost clipping does not know {words}{fault}: {_instead(name, layer)}.")
        for key, identity in own.items():
            where = f"{name}.{key}" if name else key
            before = owners.setdefault(identity, [])
            if before and (len(before) > 1 or {type(layer), type(before[0][1])} != SHARING):
                raise UnsupportedError(
                    f"{before[0][0]} and {where} are one parameter, and ghost clipping takes shared"
                    f" parameters of one Embedding and one Linear only: {OTHERWISE}."
                )
            before.append((where, layer))
        found[layer] = own
    if wanted - owners.keys():
        raise UnsupportedError(
            f"{len(wanted - owners.keys())} parameters of the optimizer belong to no layer that ghost"
            f" clipping knows: {OTHERWISE}."
        )
    return found


def _instead(name: str, layer: nn.Module) -> str:
    """Return the remedy where `layer` is not on the list: for PEFT, what to leave out of its config."""
    if name.endswith(("lora_embedding_A", "lora_embedding_B")):
        return f"leave embeddings out of LoraConfig(target_modules=…), or {OTHERWISE}"
    if "Dora" in type(layer).__name__:
        return f"leave use_dora=True out of LoraConfig, or {OTHERWISE}"
    return OTHERWISE


def _fault(layer: nn.Module) -> str:
    """Why a trainable layer is not on the list, or ""."""
    kind = layer_kind(type(layer))
    if kind is None:
        return " with parameters of its own"
    own = layer.__dict__.get("forward")
    usual = (forward, type(layer).forward)  # a copy of a traced layer carries ours
    if own is not None and not (isinstance(own, MethodType) and own.__func__ in usual):
        return " with a forward() of its own"
    if set(layer._parameters) - {"weight", "bias"} or "weight" not in layer._parameters:
        return f" with parameters {sorted(layer._parameters)}"
    if layer._compiled_call_impl is not None:
        return ", compiled"
    fault = kind.fault(layer)
    return f" with {fault}" if fault else ""
