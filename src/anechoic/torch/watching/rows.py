"""Rows: what layers are fed with must be the delivered examples, one row an example, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.runs.ledger import Delivery, ReleaseLedger


class RowWatch:
    """Looks at what every trainable layer is fed with while a batch is in hand.

    Per-example gradients are rows of layer inputs. A layer that is fed with positions, or with some rows of
    the batch, gives gradients whose rows are not the examples. This shows in their number only: where
    there are as many positions as examples, it does not.

    Args:
        module: Opacus's wrapper (or hooks) around the model.
        ledger: knows the batch in hand.
    """

    def __init__(self, module: Any, ledger: ReleaseLedger) -> None:
        self.ledger = ledger
        self.fault = ""
        inner: nn.Module = module._module
        names = {id(layer): name or "module" for name, layer in inner.named_modules()}
        recurrent = [layer for layer in inner.modules() if isinstance(layer, DPRNNBase)]
        hooked = module.iterate_submodules(inner)
        # rows of RNNLinear are those of one time step: what counts is the input of the whole DPRNNBase
        plain = [layer for layer in hooked if not isinstance(layer, (DPRNNBase, RNNLinear))]
        for layer in [*recurrent, *plain]:
            dimension = 0 if (layer.batch_first if layer in recurrent else module.batch_first) else 1
            hook: Any = _Hook(self, names[id(layer)], int(dimension))
            layer.register_forward_pre_hook(hook, with_kwargs=True)

    def check(self, delivery: Delivery) -> None:
        """Refuse the gradients of a pass in which a layer was fed with something else.

        Raises:
            DesynchronizedError: naming the layer.
        """
        check_fault(self.fault, delivery)

    def forget(self) -> None:
        """The gradients were used or dropped."""
        self.fault = ""


class _Hook:
    """Forward pre-hook of one layer. A copy of the layer is another model: its hook does nothing."""

    def __init__(self, watch: RowWatch, name: str, dimension: int) -> None:
        self._watch, self._name, self._dimension = watch, name, dimension

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not layer.training or not torch.is_grad_enabled():
            return
        given = args[0] if args else next(iter(kwargs.values()), None)
        delivery = self._watch.ledger.in_hand
        if isinstance(given, PackedSequence):
            check_packed(self._name, given, delivery)
        rows = rows_fed(layer, args, kwargs, self._dimension)
        if rows is None:
            return
        if delivery is not None and rows != delivery.size and not self._watch.fault:
            self._watch.fault = f"{self._name} ({type(layer).__name__}) was fed with {rows} rows"

    def __reduce__(self) -> Any:
        return _idle, ()


class _Idle:
    def __call__(self, *_: Any) -> None:
        pass


def _idle() -> _Idle:
    return _Idle()


def rows_fed(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dimension: int) -> int | None:
    """With how many rows a layer is fed: examples, where it is fed as it should be; None if nothing says so.

    Args:
        args, kwargs: of its call.
        dimension: the axis of the rows.
    """
    given = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(given, PackedSequence):
        return int(given.batch_sizes[0])
    if isinstance(layer, nn.EmbeddingBag):
        offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
        if isinstance(offsets, Tensor):
            return len(offsets) - int(layer.include_last_offset)
    if isinstance(given, Tensor) and given.dim() > dimension:
        return given.shape[dimension]
    return None


def check_fault(fault: str, delivery: Delivery) -> None:
    """Refuse the gradients of a pass in which a layer was fed with something else than the examples.

    Args:
        fault: which layer, and with what; "" for none.

    Raises:
        DesynchronizedError: naming the layer.
    """
    if fault:
        raise DesynchronizedError(
            f"{fault} while release {delivery.step}'s batch has {delivery.size}: rows of a trainable"
            " layer must be the examples in this mode. If it is fed with positions, which all examples"
            " share, use grad_sample_mode='vmap', which takes the model as it is, or expand them to the"
            " batch: positions.repeat(len(x), 1). If it is fed with part of the batch, apply it to all rows"
            " and mask its output. Call optimizer.abandon_batch() to go on."
        )


def check_packed(name: str, packed: PackedSequence, delivery: Delivery | None) -> None:
    """Refuse a PackedSequence whose rows are, or may be, in another order than the delivered ones.

    Args:
        name: what was fed with it.
        packed: the sequence.
        delivery: the batch in hand.

    Raises:
        GuaranteeError: naming the remedy.
    """
    order = packed.sorted_indices
    moved = order is not None and not torch.equal(order, torch.arange(len(order), device=order.device))
    if delivery is not None and delivery.units is not None and len(delivery.units.items) > 1:
        # packing needs rows sorted by length, and says nothing of where they were before
        if moved or not any(_holds(tensor, packed) for tensor in tensors_of(delivery.content)):
            raise GuaranteeError(
                f"{name} was fed with a PackedSequence, whose rows are sorted by length, in"
                f" release {delivery.step}: which rows are clipped together is known by their place in the"
                " delivered batch, so units would be mixed. Pad without packing and without sorting, and"
                " mask what lies beyond each length."
            )
    elif moved:
        raise GuaranteeError(
            f"{name} was fed with a PackedSequence that was sorted by length (enforce_sorted=False):"
            " gradients would be attributed to the wrong examples, and clipped wrongly. Sort the"
            " batch by length in collate_fn and pack with enforce_sorted=True, or pad without packing."
        )


def _holds(tensor: Tensor, packed: PackedSequence) -> bool:
    """Whether the packed rows are those of a delivered tensor (padded, one row an example), in its order."""
    lengths, rows = len(packed.batch_sizes), int(packed.batch_sizes[0])
    if tensor.dtype != packed.data.dtype:
        return False
    for padded in (tensor, tensor.transpose(0, 1) if tensor.dim() > 1 else tensor):
        if padded.dim() != packed.data.dim() + 1 or padded.shape[0] != rows or padded.shape[1] < lengths:
            continue
        start, same = 0, True
        for step, size in enumerate(packed.batch_sizes.tolist()):
            given = packed.data[start : start + size].detach().to(padded.device)
            same = same and torch.equal(given, padded[:size, step])
            start += size
        if same:
            return True
    return False


def tensors_of(content: Any) -> Iterator[Tensor]:
    """The tensors in a batch: lists, tuples and dicts of them."""
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from tensors_of(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from tensors_of(value)
