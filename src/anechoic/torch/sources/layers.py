"""Layers of torch that need help, or a word, where rows are run by themselves."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import UnsupportedError

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
_SLOW = "There is a performance drop because we have not yet implemented the batching rule"
#: What torch says of the statistics of one value.
_ONE_VALUE = "more than 1 value per channel"


def check_statistics(error: ValueError, module: nn.Module) -> None:
    """Refuse a model that normalises by the statistics of the batch, which torch cannot take of one row.

    Args:
        error: what a row alone raised.
        module: the model, whose layer is named.

    Raises:
        UnsupportedError: if that is what `error` says.
    """
    if _ONE_VALUE not in str(error):
        return
    names = {id(layer): name for name, layer in module.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [owner for owner in owners if id(owner) in names]
    layer = inside[-1] if inside else module
    raise UnsupportedError(
        f"{names[id(layer)] or 'the model'} ({type(layer).__name__}) normalises by statistics of the batch"
        " (F.batch_norm with training=True), and a row by itself has none: it mixes the rows of a batch, in"
        " every grad_sample_mode. Use GroupNorm or LayerNorm, or F.batch_norm with training=False and fixed"
        " statistics."
    ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No word about slow batching rules."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_SLOW)
        yield


@contextmanager
def runnable(module: nn.Module) -> Iterator[None]:
    """No word about slow batching rules; recurrent layers in pieces that have batching rules."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        recurrent = [layer for layer in module.modules() if isinstance(layer, RECURRENT)]
        if recurrent:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            for layer in recurrent:
                handle = layer.register_forward_pre_hook(_zero_state, with_kwargs=True)
                stack.callback(handle.remove)
        yield


def _zero_state(layer: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
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
