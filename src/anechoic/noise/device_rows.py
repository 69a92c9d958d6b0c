"""Fresh rows by torch's operators, on any device that has float64: the bits of `gaussian`.

A word becomes a variate by integer operations, one conversion that is exact and one multiplication, rounded
once: nothing that a device, or a build of it, does in its own way. The three words in 2,048 that no
rectangle stands for are decided on the CPU, from the keystream at their addresses, and their variates sent
to the device.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import numpy as np

from anechoic.noise.chacha20 import CONSTANTS, ChaChaCounter, block_function
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import CHACHA, FreshRow
from anechoic.noise.ziggurat import INDEX_BITS, layers

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
_CHUNK = 2**22  # entries whose words take memory at a time: about 200 bytes each eight of them
_WORDS, _LOW = ChaChaCounter.block_words, 2**32 - 1


def draws_on_device(cipher: str, device: torch.device) -> bool:
    """Whether fresh rows are made on a device, not moved there: where it has float64 and is right."""
    return cipher == CHACHA and _gives_plain_bits(device)


@functools.cache
def _gives_plain_bits(device: torch.device) -> bool:
    """Whether some entries come out as on the CPU: tried once in a process for each device."""
    import torch

    if device.type in ("mps", "meta"):  # no float64, no numbers at all
        return False
    row, expected = FreshRow(bytes(32), 0, CHACHA), np.empty(20_000, np.float32)
    with torch.inference_mode(False), torch.no_grad():
        found = torch.empty(len(expected), dtype=torch.float32, device=device)
        row.fill(expected, 2**36 - 3000, 0.7)
        fill_on_device(row, found, 2**36 - 3000, 0.7)
        right = found.cpu().numpy().tobytes() == expected.tobytes()
    if not right:
        logger.warning("%s makes other bits than the CPU: its noise is drawn there, and moved.", device)
    return right


class DeviceColumns:
    """A row on a device that needs no memory: it asks for `draw` alone of `NumpyColumns`."""

    def __init__(self, row: torch.Tensor, fresh: FreshRows) -> None:
        self.row, self._fresh = row, fresh

    def draw(self, target: torch.Tensor, *weights: float) -> None:
        rows, other = self._fresh.rows(np.array(weights)), None
        first, weight = next(rows)
        fill_on_device(first, target, self._fresh.offset, weight)
        for row, weight in rows:
            other = target.new_empty(target.shape) if other is None else other
            fill_on_device(row, other, self._fresh.offset, weight)
            target.add_(other)


def fill_on_device(row: FreshRow, out: torch.Tensor, start: int, scale: float) -> None:
    """out = scale * z_t[start : start + len(out)], rounded from float64: as `FreshRow.fill`.

    Args:
        row: by ChaCha20.
        out: float32 or float64, shape (k,), contiguous.
        start: first coordinate, >= 0.
        scale: factor, applied in float64.
    """
    import torch

    if not isinstance(row.words, ChaChaCounter):
        raise ValueError("only rows by ChaCha20 are made on a device: those by AES-256 are moved there.")
    table = _table(out.device)
    missing = []
    for begin in range(0, len(out), _CHUNK):
        part = out[begin : begin + _CHUNK]
        words = words_on_device(row.words, start + begin, len(part), out.device)
        places = (words >> (INDEX_BITS - 1)) | 1  # 2 s + 1, exact in float64
        values = places.to(torch.float64).mul_(table[words.bitwise_and_(2**INDEX_BITS - 1)])
        missing.append(values.isnan().nonzero().view(-1) + begin)
        part.copy_(values if scale == 1.0 else values.mul_(scale))
    if missing and len(places := torch.cat(missing)):
        found = torch.from_numpy(row.rest(places.cpu().numpy() + start) * scale)
        out[places] = found.to(out.device, out.dtype)


def words_on_device(stream: ChaChaCounter, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Words start … start + count - 1 as int64 with their bits, shape (count,); start below 2**63."""
    import torch

    skipped = start % _WORDS
    blocks = torch.arange(-(-(skipped + count) // _WORDS), device=device) + start // _WORDS
    state = torch.zeros((16, len(blocks)), dtype=torch.int32, device=device)
    for place, word in enumerate((*CONSTANTS, *stream.key_words)):
        state[place] = word
    state[12], state[13] = _signed(blocks & _LOW), _signed(blocks >> 32)
    made: torch.Tensor = block_function(state, lambda x, j: torch.roll(x, -j, 0)).to(torch.int64)
    pairs = (made[0::2] & _LOW) | (made[1::2] << 32)
    return pairs.t().reshape(-1)[skipped : skipped + count].contiguous()


def _signed(words: torch.Tensor) -> torch.Tensor:
    """int32 with the bits of these numbers in [0, 2**32)."""
    import torch

    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32)


@functools.lru_cache(maxsize=8)
def _table(device: torch.device) -> torch.Tensor:
    """What odd numbers are multiplied by, NaN for the rest."""
    import torch

    with torch.inference_mode(False):
        return torch.from_numpy(np.array(layers().steps)).to(device)
