"""What must stay as it is between two releases: trainable parameters, buffers, frozen parameters.

Tensors are compared by their bits: version counters say nothing of `.data`, of fused optimizers and of code
that torch does not see.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError

#: Entries of trainable parameters that are kept as copies; more of them by checksums.
COPIED = 20_000_000
#: Entries of buffers and frozen parameters that are compared in every step, the smallest tensors first. Of
#: each larger one a stretch is, at a secret place, and the version counter.
COMPARED = 10_000_000
#: Words of 8 bytes in a row, which has a checksum of its own; rows in a stretch.
_ROW, _STRETCH = 2**14, 32
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class ParameterWatch:
    """Remembers tensors of the model, and refuses a release where something else than step() changed them.

    Args:
        parameters: the trainable ones.
        still: buffers and frozen parameters, by name: those that training never changes.
    """

    def __init__(self, parameters: list[nn.Parameter], still: Callable[[], dict[str, Tensor]]) -> None:
        self._parameters, self._still = parameters, still
        self._copies: list[Tensor] = []
        if sum(p.numel() for p in parameters) <= COPIED:
            self._copies = [p.detach().clone() for p in parameters]
        self.retake()

    def retake(self) -> None:
        """Take all tensors as they are now."""
        self._kept = {}
        total = 0
        for name, tensor in sorted(self._still().items(), key=lambda item: item[1].numel()):
            total += tensor.numel()
            self._kept[name] = _Kept(tensor, whole=total <= COMPARED)
        self.released()

    def released(self) -> None:
        """Take the trainable parameters as they are now: step() has just changed them."""
        if self._copies:
            torch._foreach_copy_(self._copies, [p.detach() for p in self._parameters])
        else:
            self._sums = [checksum(p) for p in self._parameters]

    def check(self) -> None:
        """Compare with what was taken.

        Raises:
            GuaranteeError: naming what changed.
        """
        now = self._still()
        changed = [
            name
            for name in now.keys() | self._kept.keys()
            if name not in now or name not in self._kept or not self._kept[name].same(now[name])
        ]
        if changed:
            name = min(changed)
            grown = self._growth(name, now.get(name))
            if grown:
                raise GuaranteeError(
                    f"{name} {grown} in a forward pass: its size would show the longest input so far, without"
                    " noise. Run the model once on the longest input there can be before make_private, under"
                    " torch.no_grad(), so that it never grows; or compute it anew in each forward pass."
                )
            raise GuaranteeError(
                f"{name} changed during training without noise: buffers"
                " (such as the statistics of batch normalisation) and frozen parameters must stay as they"
                " are. Keep such layers in eval() mode, or replace them."
            )
        self.check_parameters()

    def check_parameters(self) -> None:
        """Compare the trainable parameters alone.

        Raises:
            GuaranteeError: if one changed since the last release, even if it is to be put back.
        """
        if not self._untouched():
            raise GuaranteeError(
                "a trainable parameter was changed by something else than optimizer.step(), which alone clips"
                " and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), or a layer that"
                " changes its own weights, or a change that is put back before step(), as of SAM. Load"
                " weights after make_private and before the first batch; to evaluate averaged weights, put"
                " them into a copy of the model."
            )

    def _untouched(self) -> bool:
        if self._copies:
            return all(map(_equal, self._copies, self._parameters))
        return all(map(torch.equal, map(checksum, self._parameters), self._sums))

    def _growth(self, name: str, tensor: Tensor | None) -> str:
        if name not in self._kept:
            return "appeared"
        before = self._kept[name].layout[0]
        if tensor is not None and tensor.shape != before:
            return f"went from shape {tuple(before)} to {tuple(tensor.shape)}"
        return ""


class _Kept:
    """A tensor as it was."""

    def __init__(self, tensor: Tensor, *, whole: bool) -> None:
        self.layout = _layout(tensor)
        self._version = (id(tensor), tensor._version)
        readable = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        self._copy = tensor.detach().clone() if readable and whole else None
        self._sums = checksum(tensor) if readable and not whole else None

    def same(self, tensor: Tensor) -> bool:
        """Whether a tensor is the kept one, as far as it is compared."""
        if self.layout != _layout(tensor):
            return False
        if self._copy is not None:
            return _equal(self._copy, tensor)
        if self._version != (id(tensor), tensor._version):
            return False
        if self._sums is None:
            return True
        start = secrets.randbelow(max(1, len(self._sums) - _STRETCH + 1))
        part = bits(tensor.detach())[8 * _ROW * start : 8 * _ROW * (start + _STRETCH)]
        return torch.equal(self._sums[start : start + _STRETCH], checksum(part))


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one layout have the same bits: a NaN equals itself, and 0 does not equal -0."""
    kind = _INTEGERS[one.element_size()]
    return torch.equal(one.view(kind), other.detach().view(kind))


def checksum(tensor: Tensor) -> Tensor:
    """Sums of the words of a tensor's memory modulo 2^64, two a row of words, with secret weights.

    A change of a row goes unseen with probability 2^-32 or less, whatever it is: a difference of words that
    is no multiple of 2^32 is seen by the first sum, any other by that of the upper halves.
    """
    found = bits(tensor.detach())
    if len(found) % 8 or found.storage_offset() % 8:
        padded = found.new_zeros(-(-len(found) // 8) * 8)
        padded[: len(found)] = found
        found = padded
    words = found.view(torch.int64)
    rows = len(words) // _ROW
    parts = [_sums(part) for part in words[: rows * _ROW].view(rows, _ROW).split(_STRETCH)]
    rest = words[rows * _ROW :]
    return torch.cat([*parts, _sums(rest[None])]) if len(rest) else torch.cat(parts)


def _sums(words: Tensor) -> Tensor:
    """Weighted sums of rows of words, shape (rows, 2)."""
    both = [value[: words.shape[1]] for value in _weights(words.device)]
    if words.device.type == "cpu":
        return torch.stack([words @ both[0], (words >> 32) @ both[1]], dim=1)
    return torch.stack([(words * both[0]).sum(1), ((words >> 32) * both[1]).sum(1)], dim=1)


@cache
def _weights(device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers that nobody knows."""
    drawn = torch.frombuffer(bytearray(os.urandom(16 * _ROW)), dtype=torch.int64).to(device)
    return drawn[:_ROW], drawn[_ROW:]


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in one axis."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
