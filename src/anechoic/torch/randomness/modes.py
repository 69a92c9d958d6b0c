"""Modes of torch that see every operation between the delivery of a batch and its release.

`SecretDraws` sees operations below autograd: it passes labels of rows on (`row_types`), and draws at random
from AES-256 in the place of torch's Mersenne Twister (`rng_ops`). `Starting` sees calls of torch's functions:
where a backward pass begins, what leaves tensors for Python and NumPy, and what comes from there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.torch.randomness.rng_ops import drawn_in_secret
from anechoic.torch.row_types.following import ACTIVE, NUMBER, RowTypes
from anechoic.torch.row_types.labels import One, RowAxis, facts_of, storage
from anechoic.torch.row_types.numbers import OWN, among, one_a_row, plain, taken
from anechoic.torch.row_types.refusals import REMEDY, reached
from anechoic.torch.structure import tensors_in

#: How values leave a tensor past torch.
_TAKING = frozenset(
    {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.__deepcopy__}
)

_SHAPE: Any = Tensor.shape
_DATA: Any = Tensor.data
_SET_DATA = _DATA.__set__
_NODE: Any = Tensor.grad_fn
_GET_NODE = _NODE.__get__
#: Hooks on saved tensors that are in force; a torch without it is taken to have some.
_SAVING: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)
#: What asks for sizes.
_SIZES = frozenset({Tensor.size, Tensor.numel, Tensor.nelement, Tensor.__len__, _SHAPE.__get__, torch.numel})
#: What makes a tensor of Python's numbers.
_COMING = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
#: What takes the values of a tensor to NumPy, or to a list.
_LEAVING: tuple[Any, ...] = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist)
#: What takes sizes, or ends of ranges, from tensors: these are numbers of the script as sizes are.
_SIZED = frozenset({torch.arange, torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn})
_PAUSED: list[bool] = []
#: Where transformers asks whether all rows can do without a mask or a warning: no is right for each of them.
_SHORTCUTS = {
    ("transformers.masking_utils", "_ignore_causal_mask_sdpa"),
    ("transformers.masking_utils", "_ignore_bidirectional_mask_sdpa"),
    ("transformers.masking_utils", "find_packed_sequence_indices"),
    ("transformers.modeling_utils", "warn_if_padding_and_no_attention_mask"),
}
_ASKING: frozenset[Any] = frozenset({Tensor.__bool__, Tensor.__contains__})
_NN: Any = torch._C._nn
#: Losses that, under "mean", multiply each row's own numbers by what is pulled back, and divide by the number
#: of rows then: that rounds twice. By the place of `reduction`, where it has no name.
_ROUNDING_TWICE: dict[Any, int] = {
    **dict.fromkeys((F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.multilabel_margin_loss), 4),
    **dict.fromkeys((F.binary_cross_entropy, F.binary_cross_entropy_with_logits), 5),
    **{F.huber_loss: 2, F.cross_entropy: 6, F.multi_margin_loss: 7},
    **dict.fromkeys((_NN.mse_loss, _NN.smooth_l1_loss, _NN.huber_loss, _NN.soft_margin_loss), 2),
    **{_NN.binary_cross_entropy: 3, torch.binary_cross_entropy_with_logits: 4},
    **{_NN.multi_margin_loss: 5, _NN.multilabel_margin_loss: 2},
}


class SecretDraws(TorchDispatchMode):
    """While active, calls that draw on the CPU draw from AES-256, keyed by the global generator's state.

    As long as that state is one that a run set: what a script seeded is known anyway, and drawn as ever.
    Uniform and normal numbers, integers, coins and dropout are the keystream's own bits; other laws draw from
    a Mersenne Twister that is filled from it for this one call. Calls with a generator of their own, and
    other devices, draw as ever.
    """

    idle = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard against it is half of the cost

    @classmethod
    def active(cls) -> bool:
        """Whether one is."""
        return any(isinstance(mode, cls) and not mode.idle for mode in _get_current_dispatch_mode_stack())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.idle:
            return func(*args, **kwargs)
        drawing = facts_of(func).drawing
        in_secret = drawing and not types
        if not ACTIVE or _PAUSED:
            return drawn_in_secret(func, args, kwargs) if in_secret else func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        # a copy: runs that are collected meanwhile leave the list
        calls = [(run, run.called(func, args, kwargs, tensors)) for run in tuple(ACTIVE)]
        try:
            out = drawn_in_secret(func, args, kwargs) if in_secret else func(*args, **kwargs)
        except BaseException:
            for run, call in calls:
                run.failed(call)
            raise
        made = [out] if isinstance(out, Tensor) else tensors_in(out)
        if _SAVING(True) is not None:
            _hooked()
        _PAUSED.append(True)
        try:
            for run, call in calls:
                run.see(call, out, made)
        finally:
            _PAUSED.pop()
        return out


class Starting(TorchFunctionMode):
    """Sees where a backward pass begins: looks at the loss, and starts from the number of rows.

    A mean divides by the number of rows, so what is pulled back from 1 is rounded by it, and the rest of the
    batch would move by the presence of one row. Pulled back from that number, it is 1 again, exactly, where
    the mean is taken last; so it is in losses that torch takes otherwise.
    """

    idle = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.idle or not ACTIVE or _PAUSED:
            return func(*args, **kwargs)
        if func is Tensor.backward:
            return _begun(*args, **kwargs)
        if func is Tensor.register_hook:
            _hooked()
            return func(args[0], _seeing(*args[1:], **kwargs))
        if func == _GET_NODE:
            _hooked()  # whoever has a node can hang a hook on it
        if func in _ASKING and _is_shortcut(args[0]):
            return False
        numbers = among((args, kwargs))
        before = [(run, run.batch.taken) for run in ACTIVE]
        given, named = (plain(args), plain(kwargs)) if numbers else (args, kwargs)
        if func in _ROUNDING_TWICE and (each := _of_each(func, given, named)) is not None:
            out = func(*each[0], **each[1]).mean()
        else:
            out = func(*given, **named)
        if func in _TAKING:
            return _taken(func, args[0], out)
        for run, count in before:
            run.like(args, out)
            if func is torch.nn.functional.one_hot and run.batch.taken > count:
                run.counted(out)  # as many classes as the data have
            if func in _SIZES:
                run.asked(args[0])
            elif func in _COMING and one_a_row(args[-1] if args else None, run.rows):
                run.mark(out, RowAxis(0))
            elif (numbers and func is not torch.nn.functional.ctc_loss) or (
                run.batch.taken > count and _taken_inside(run, func, (args, kwargs))
            ):
                # __setitem__ returns nothing
                for tensor in tensors_in(args[0] if func is Tensor.__setitem__ else out):
                    run.mark(tensor, NUMBER)
            elif func in _COMING:
                run.came_in(out, (*args, *kwargs.values())[func is Tensor.new_tensor])
            elif func == _SET_DATA:
                run.came_in(*args)
        return out


def _hooked() -> None:
    """Code of the script's may run in the backward pass of what is in hand."""
    for run in tuple(ACTIVE):
        run.batch.hooked = True


def _of_each(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Arguments for the losses whose plain mean a loss of the batch is; None where it is none."""
    place = _ROUNDING_TWICE[func]
    reduction = kwargs.get("reduction", args[place] if len(args) > place else None)
    average: Any = kwargs.get("size_average")
    reduce: Any = kwargs.get("reduce")
    if average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(average, reduce, emit_warning=False)
    if reduction not in ("mean", 1):
        return None
    if not any(
        run.means and run.of(t) is not None for t in tensors_in((args, kwargs)) for run in tuple(ACTIVE)
    ):
        return None
    if func in (F.mse_loss, F.huber_loss) and kwargs.get("weight") is not None:
        return None  # a mean by weights
    if func is F.cross_entropy and not _smoothed(*args, **kwargs):
        return None
    none = 0 if reduction == 1 else "none"
    if len(args) > place:
        return (*args[:place], none, *args[place + 1 :]), kwargs
    named = {name: value for name, value in kwargs.items() if name not in ("size_average", "reduce")}
    return args, {**named, "reduction": none}


def _smoothed(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    **_: Any,
) -> bool:
    """Whether a cross-entropy adds two means over all rows, by a share each."""
    if not label_smoothing or weight is not None or target.is_floating_point():
        return False
    _PAUSED.append(True)
    try:
        return not bool((target == ignore_index).any())  # with such, it is refused, or a mean of the others
    finally:
        _PAUSED.pop()


def _is_shortcut(tensor: Tensor) -> bool:
    """Whether data are asked for a shortcut that a batch takes as a whole, by a model that runs on one.

    Without it each row is computed by its own mask. The answer is the same whatever the data are, so it takes
    nothing out of them.
    """
    if not any(run.whole and run.of(tensor) is not None for run in tuple(ACTIVE)):
        return False
    frame = sys._getframe(2)
    for _ in range(4):  # torch's own are in between
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _SHORTCUTS:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _taken_inside(run: RowTypes, func: Any, given: Any) -> bool:
    """Whether a function has made a number of a tensor that it was given in its place (alpha=, delta=)."""
    return func not in _SIZED and run.knows([t for t in tensors_in(given) if t.numel() == 1])


def _taken(func: Any, tensor: Tensor, out: Any) -> Any:
    """What left a tensor past torch: a copy has its label, numbers remember where they come from."""
    found = [(types, label) for types in tuple(ACTIVE) if (label := types.of(tensor)) is not None]
    for types, label in found:
        if isinstance(out, Tensor):
            types.mark(out, label)
        else:
            types.batch.decided = True
            types.left = types.left or func in _LEAVING
    if not found or isinstance(out, Tensor):
        return out
    rows = [types.rows for types, label in found if label == RowAxis(0)]
    if isinstance(out, list) and len(out) in rows:
        return [taken(part, row) for row, part in enumerate(out)]
    return taken(out, next((label.row for _, label in found if isinstance(label, One)), None))


class Strangers(TorchFunctionMode):
    """Refuses tensors of the batch that reach a model or criterion by another way than its inputs.

    Args:
        types: of the run.
        inputs: tensors that it is given.
    """

    def __init__(self, types: RowTypes, inputs: list[Tensor]) -> None:
        super().__init__()
        self._types, self._given = types, {storage(tensor) for tensor in inputs}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if among((args, kwargs), own=False):
            raise DesynchronizedError(
                "the model, or the criterion, uses a number that was delivered, or taken out of a tensor of"
                " the batch (.item()), in a closure or an object: it may know all rows. Nothing was released."
                " Give it a tensor with one row an example."
            )
        for value in tensors_in((args, kwargs)):
            if self._types.holds(value, self._given):
                raise DesynchronizedError(
                    f"the model, or the criterion, holds a tensor of shape {tuple(value.shape)} that was made"
                    " from the batch (an attribute, a hook, a closure), so each row sees the others there."
                    " Nothing was released. Hand it over as an input, one row an example."
                )
        return func(*args, **kwargs)


class Taking(TorchFunctionMode):
    """Numbers that a model takes out of a row's tensors remember where they come from."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return taken(out, OWN) if func in (Tensor.item, Tensor.tolist) else out


def _seeing(hook: Any) -> Any:
    """A hook on a tensor, which autograd runs without any mode, with this one."""

    def seeing(gradient: Tensor) -> Any:
        with Starting():
            return hook(gradient)

    return seeing


def _begun(
    loss: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    runs, others = reached(loss)
    for run in runs:
        run.batch.pulled = False
        run.check_loss(loss)
        if isinstance(gradient, Tensor) and run.active and run.of(gradient) is not None:
            raise GuaranteeError(
                f"backward(gradient=…) was given what depends on the rows of the batch.{REMEDY}"
            )
    run = runs[0] if len(runs) == 1 and runs[0].means and not others and loss.numel() == 1 else None
    if run is not None:
        gradient = torch.full_like(loss, run.rows) if gradient is None else gradient * run.rows
        run.started = True
    try:
        torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)
    finally:
        if run is not None:
            run.started = False


#: One of each for all runs of the process: which of them draws is told by the state of the generator.
_DRAWS, _CALLS = SecretDraws(), Starting()


def start() -> None:
    """Look at what is done in this thread, and draw in secret while the generator's state is a run's."""
    _DRAWS.idle = _CALLS.idle = False
    if _DRAWS not in _get_current_dispatch_mode_stack():
        _DRAWS.__enter__()
    if _CALLS not in _get_current_function_mode_stack():
        _CALLS.__enter__()


def stop() -> None:
    """No longer. Under a mode that somebody has entered since, they stay and do nothing."""
    _DRAWS.idle = _CALLS.idle = True
    stacks = _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()
    for mode, stack in zip((_DRAWS, _CALLS), stacks, strict=True):
        if stack and stack[-1] is mode:
            mode.__exit__(None, None, None)


@contextmanager
def paused() -> Iterator[None]:
    """Nothing inside is of interest, nor is anything drawn that a run keeps secret: do without the cost."""
    dispatch, function = _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()
    out: list[Any] = []
    if dispatch and dispatch[-1] is _DRAWS:
        out.append(_DRAWS)
    if function and function[-1] is _CALLS:
        out.append(_CALLS)
    unseen = len(out) < 2
    if unseen:
        _PAUSED.append(True)
    try:
        for mode in out:
            mode.__exit__(None, None, None)
        yield
    finally:
        for mode in out:
            mode.__enter__()
        if unseen:
            _PAUSED.pop()
