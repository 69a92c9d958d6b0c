"""A private training step as plain functions, to be forked: no engine, no loader, no journal, no checks.

    stream = mechanism.stream(dimension)
    state = stream.init()
    for t in range(mechanism.steps):
        total = clip_and_sum(gradients_of_rows(batches[t]), mechanism.clip_norm)
        noise, state = stream.next(state)
        released = (total + noise) / mechanism.expected_batch_size

Guarantee: that of the mechanism, but for rounding, where batches are formed as it says, every gradient
comes from one row, each state is used once, and nothing else of the data is shown. All of this is yours here;
`anechoic.torch.PrivacyEngine` sees to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anechoic._validate import positive_float

__all__ = ["clip_and_sum", "clipped_sum", "unflatten"]


def clip_and_sum(gradients: Any, clip_norm: float) -> Any:
    """Clip the gradients of rows to a norm over all parameters together, and add them up.

    Args:
        gradients: of one parameter or several (a sequence, or a mapping by name): arrays of NumPy, of torch,
            or of a library that shares memory by DLPack (JAX), shape (rows, *parameter).
        clip_norm: > 0. A row that is not finite counts as zero; norms are taken in float64.

    Returns:
        The sum over rows, a vector of all entries in the order of the parameters: float32 where these have at
        most as many bits, else float64; a tensor where they are tensors, on the CPU or their device.

    Raises:
        ValueError: for no gradients, or parts with different numbers of rows.

    Example:
        >>> import numpy as np
        >>> from anechoic.functional import clip_and_sum
        >>> clip_and_sum(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
        array([0.9, 1.2])
    """
    clip_norm = positive_float("clip_norm", clip_norm)
    if isinstance(gradients, Mapping):
        gradients = list(gradients.values())
    parts = list(gradients) if isinstance(gradients, Sequence) else [gradients]
    rows = {len(part) for part in parts}
    if len(rows) != 1:
        raise ValueError(
            f"gradients have {sorted(rows)} rows: give one axis of rows, the first, in each part."
        )
    xp: Any = np
    if type(parts[0]).__module__.partition(".")[0] == "torch":
        import torch as xp
    else:
        parts = [part if isinstance(part, np.ndarray) else np.from_dlpack(part) for part in parts]
    flat = [xp.reshape(part, (len(part), math.prod(part.shape[1:]))) for part in parts]
    whole = xp.concatenate([xp.asarray(part, dtype=xp.float64) for part in flat], 1)
    # half precision would lose rows of a sum, so that one moves it by several clip norms
    narrow = all(part.dtype in (xp.float16, xp.float32) or "bfloat" in str(part.dtype) for part in parts)
    found = xp.zeros(whole.shape[1], dtype=xp.float64)
    if whole.shape[0] and whole.shape[1]:
        whole = xp.where(xp.all(xp.isfinite(whole), 1)[:, None], whole, 0.0)
        peak = xp.clip(xp.amax(xp.abs(whole), 1), np.finfo(float).tiny, None)
        over = whole / peak[:, None]  # no square overflows
        norms = xp.clip(xp.sqrt((over * over).sum(1)) * (1 + 1e-12), 1.0, None)
        with np.errstate(over="ignore"):
            found = xp.clip(clip_norm / peak / norms, None, 1.0) @ whole
    return xp.asarray(found, dtype=xp.float32 if narrow else xp.float64)


def clipped_sum(loss: Callable[..., Any], parameters: Any, batch: Sequence[Any], clip_norm: float) -> Any:
    """Sum the clipped gradients of a loss of one row, over the rows of a batch of torch.

    Args:
        loss: (parameters, *row) -> scalar tensor; the tensors of a row have no axis for the batch.
        parameters: a tensor, or a mapping of tensors by name, as `dict(model.named_parameters())`.
        batch: tensors, shape (rows, …) each.
        clip_norm: see `clip_and_sum`.

    Returns:
        A vector of all entries, in the order of the parameters; zeros for a batch without rows.
    """
    import torch

    given: Any = parameters
    if isinstance(parameters, Mapping):
        given = {name: p.detach() for name, p in parameters.items()}
    if not len(batch[0]):
        parts = given.values() if isinstance(given, dict) else [given]
        return clip_and_sum([p.new_zeros(0, *p.shape) for p in parts], clip_norm)
    rows = (None, *(0 for _ in batch))
    found = torch.func.vmap(torch.func.grad(loss), in_dims=rows, randomness="different")(given, *batch)
    return clip_and_sum(found, clip_norm)


def unflatten(vector: Any, like: Any) -> Any:
    """Return the parts of a vector as the parameters have them: an array, a sequence, or a mapping by name.

    Args:
        vector: shape (entries of all parameters,).
        like: the parameters, in their order.
    """
    names = list(like) if isinstance(like, Mapping) else None
    parts = (
        list(like.values()) if isinstance(like, Mapping) else like if isinstance(like, Sequence) else [like]
    )
    ends = np.cumsum([int(np.prod(part.shape)) for part in parts])
    if len(vector) != ends[-1]:
        raise ValueError(f"the vector has {len(vector)} entries, and the parameters {ends[-1]}.")
    cut = [
        vector[end - int(np.prod(part.shape)) : end].reshape(part.shape)
        for end, part in zip(ends.tolist(), parts, strict=True)
    ]
    return dict(zip(names, cut, strict=True)) if names else cut if isinstance(like, Sequence) else cut[0]
