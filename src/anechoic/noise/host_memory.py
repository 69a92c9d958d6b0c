"""Rows of noise in pinned memory of the host for a stream on a CUDA device, to which they go piece by piece.

Arithmetic is that of memory which lies on the device, by the same functions and on the device's current
stream; a stream beside it copies the next piece in the meantime. Each waits for what the other has queued
before it touches a piece, and the host for both before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: The word for `NoiseStream(memory=…)`.
PINNED = "pinned"
#: Columns that are on the device at a time, twice.
PIECE = 2**20


def check_device(device: Any) -> None:
    """ValueError for a stream whose rows are on the host anyway, or on a device of another kind."""
    if getattr(device, "type", "cpu") != "cuda":
        raise ValueError(
            f"memory={PINNED!r} keeps rows on the host for noise that is made on a CUDA device, and this is"
            f" made on {device}: use memory='store', or backend='torch', device='cuda' (on a grid with"
            " cipher='ChaCha20')."
        )


def pieces(
    memory: torch.Tensor, width: int, chunk: int, device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some columns of the memory after the others, on the device; what is written into them is kept.

    Args:
        memory: on the device, or pinned on the host. Columns behind `width` are left alone.
        chunk: columns at a time, at most; they may be used until the next are asked for.
    """
    if not _is_away(memory, device):
        for start in range(0, width, chunk):
            part = slice(start, min(start + chunk, width))
            yield part, memory[:, part]
        return
    chunk = min(chunk, PIECE)
    parts = [slice(start, min(start + chunk, width)) for start in range(0, width, chunk)]
    held = [memory.new_empty((len(memory), min(chunk, width)), device=device) for _ in parts[:2]]
    here, beside, on_it = _streams(device)

    def copy(i: int, *, back: bool) -> None:
        with on_it():
            for kept, there in zip(memory, held[i % 2], strict=True):  # a rectangle would be copied twice
                ends = kept[parts[i]], there[: parts[i].stop - parts[i].start]
                _copy(ends[1 - back], ends[back])

    beside.wait_stream(here)  # whose memory the pieces may have had before
    try:
        copy(0, back=False)
        for i, part in enumerate(parts):
            here.wait_stream(beside)
            if i + 1 < len(parts):
                copy(i + 1, back=False)  # over piece i - 1, which went back before
            yield part, held[i % 2][:, : part.stop - part.start]
            beside.wait_stream(here)
            copy(i, back=True)
    finally:
        beside.synchronize()


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _is_away(memory: torch.Tensor, device: torch.device) -> bool:
    return memory.device != device


def _streams(device: torch.device) -> tuple[Any, Any, Callable[[], Any]]:
    """The current one, one beside it, and the context in which work is queued there."""
    import torch

    cuda: Any = torch.cuda  # whose streams have no types
    beside = cuda.Stream(device)
    return cuda.current_stream(device), beside, lambda: cuda.stream(beside)
