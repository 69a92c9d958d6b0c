"""Flower client: a training function's result becomes a clipped update, and nothing else leaves.

    app = ClientApp()

    @app.train(mods=[clipped_update_mod])
    def train(message, context):
        ...                                      # any training of the arrays in message.content["arrays"]
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

`clipped_update` does the same for arrays at hand, without Flower's messages.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from anechoic.federated.flat_parameters import Layout
from anechoic.federated.grid import to_grid
from anechoic.flower.records import ARRAYS, ASK, TRAIN, UPDATE, WHO, arrays_of, asked_of, vector_record

_log = getLogger("flwr")


def as_arrays(model: Any) -> dict[str, NDArray[Any]]:
    """A model as NumPy arrays by name.

    Args:
        model: a mapping from names to arrays of NumPy, torch or JAX (a `state_dict`, say), or a list of
            arrays, whose names are then "0", "1" and so on, as Flower has it.
    """
    if isinstance(model, Mapping):
        return {str(name): _numpy(array) for name, array in model.items()}
    if isinstance(model, list | tuple):
        return {str(place): _numpy(array) for place, array in enumerate(model)}
    raise TypeError(
        f"a model is a mapping from names to arrays or a list of arrays, not {type(model).__name__}."
    )


def clipped_update(
    before: Any, after: Any, *, clip_norm: float, grid_bits: int, exclude: Collection[str] = ()
) -> NDArray[np.int64]:
    """Return after - before on the integer grid, clipped in 2-norm over all arrays together.

    Guarantee: the vector's 2-norm is at most 2**grid_bits, that is `clip_norm`, whatever the arrays are.

    Args:
        before, after: the model as it came and as training left it, as `as_arrays` takes them. Arrays of
            `after` may have another floating-point type.
        clip_norm: > 0, in units of the model's parameters.
        grid_bits: a vector of norm `clip_norm` has norm 2**grid_bits on the grid.
        exclude: names of arrays that are not trained: counters, statistics of batch normalisation.

    Returns:
        int64, shape (number of trained parameters,).

    Raises:
        ValueError: for arrays that differ in names or shapes, or are of integers and not excluded.

    Example:
        >>> before = {"w": np.zeros(2, np.float32), "scale": np.float32(0.0)}
        >>> after = {"w": np.array([3.0, 0.0], np.float32), "scale": np.float32(-4.0)}
        >>> clipped_update(before, after, clip_norm=1.0, grid_bits=4).tolist()
        [9, 0, -12]
    """
    old = as_arrays(before)
    layout = Layout.of(old, exclude)
    new = as_arrays(after)
    for name in layout.names:
        if name in new and new[name].dtype.kind == "f":
            new[name] = new[name].astype(old[name].dtype, copy=False)
    difference = layout.flatten(new) - layout.flatten(old)
    return to_grid(difference, clip_norm=clip_norm, grid_bits=grid_bits)


@dataclass(frozen=True)
class ClippedUpdate:
    """A Flower mod around a training function. Put it first in `mods`: it must see the reply last.

    The function gets the message as from any strategy, arrays under "arrays" and configuration under
    "config", and returns the trained arrays in its one `ArrayRecord`. What leaves is the clipped difference.
    An exception of the function leaves as the bare fact that training failed: its words, which may speak of
    data, stay in the client's log.

    Messages that are not for training pass untouched. A server that asks for weights instead of clipped
    updates (any other strategy) is refused.

    Attributes:
        identity: the entry of `node_config` that the server may ask for, to know a client in simulations;
            None for none.
        largest_clip_norm: a server that asks for a larger clip norm is refused; None for no limit.

    Raises:
        ValueError: at construction, for a limit that is not positive.
    """

    identity: str | None = "partition-id"
    largest_clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.largest_clip_norm is not None and not self.largest_clip_norm > 0:
            raise ValueError(f"largest_clip_norm={self.largest_clip_norm} must be positive, or None.")

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        ask = asked_of(message.content)
        if ask is None:
            return _refused(message, "this client gives clipped updates only, to CorrelatedFedOpt")
        if ask.get("stage") == WHO:
            return self._who(message, context, ask)
        if ask.get("stage") != TRAIN:
            return _refused(message, "a stage that this client does not take part in")
        clip_norm = ask.get("clip_norm")
        if self.largest_clip_norm is not None and not (
            isinstance(clip_norm, float) and clip_norm <= self.largest_clip_norm
        ):
            return _refused(message, "a clip norm above this client's limit")
        try:
            return _trained(message, context, ask, call_next)
        except Exception as error:  # what went wrong may speak of the data: it stays here
            _log_failure(error)
            return _refused(message, "training failed; the client's log says why")

    def _who(self, message: Message, context: Context, ask: ConfigRecord) -> Message:
        if (
            self.identity is None
            or ask.get("key") != self.identity
            or self.identity not in context.node_config
        ):
            return _refused(message, "this client does not say who it is")
        name = context.node_config[self.identity]
        return Message(RecordDict({WHO: ConfigRecord({WHO: name})}), reply_to=message)


clipped_update_mod = ClippedUpdate()
"""The mod as most clients need it."""


def _log_failure(error: Exception) -> None:
    """Write a line to the client's own log: many may fail of one cause, and 50 tracebacks hide it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    _log.error("training failed: %s; the server learns no more; the traceback is at level DEBUG", said)
    _log.debug("training failed", exc_info=error)


def _trained(message: Message, context: Context, ask: ConfigRecord, call_next: ClientAppCallable) -> Message:
    """Call the training function, which sees what any other strategy would send; reply with the update."""
    before = arrays_of(message.content[ARRAYS])  # type: ignore[arg-type]
    content = RecordDict({name: record for name, record in message.content.items() if name != ASK})
    inner = Message(metadata=message.metadata, content=content)  # type: ignore[call-overload]
    reply = _without_state(inner, context, call_next) if ask.get("fresh") else call_next(inner, context)
    asked: Any = ask
    vector = clipped_update(
        before,
        _new_arrays(reply),
        clip_norm=float(asked["clip_norm"]),
        grid_bits=asked["grid_bits"],
        exclude=list(asked.get("exclude", [])),
    )
    return Message(RecordDict({UPDATE: vector_record(vector, asked["grid_bits"])}), reply_to=message)


def _without_state(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Call the training function of a node that may change hands; throw away what it keeps of one user."""
    kept, context.state = context.state, RecordDict()
    try:
        return call_next(message, context)
    finally:
        if context.state:
            _log.warning(
                "Context.state of the training function (%s) is thrown away: this node may change hands, and"
                " what is kept of one user, such as an optimiser's momentum, must not reach the update of"
                " another",
                ", ".join(sorted(context.state)),
            )
        context.state = kept


def _new_arrays(reply: Message) -> dict[str, NDArray[Any]]:
    if reply.has_error():
        raise ValueError(f"the training function answered with an error: {reply.error.reason}")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(
            f"the training function returned {len(records)} ArrayRecords: return the model in one."
        )
    return arrays_of(records[0])


def _refused(message: Message, why: str) -> Message:
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=why), reply_to=message)


def _numpy(array: Any) -> NDArray[Any]:
    """An array of any library; torch's are taken off their graph and device first."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array)
