"""A release of parameters that ranks have a part each of: nobody is given more of it than one at a time.

The integers of all ranks are added up slice by slice, each rank adds the noise of its slice, and what is made
goes through all ranks parameter by parameter: each keeps its part, and rank 0 takes the digest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from anechoic.torch.noise_adder import ReleaseLog, digest
from anechoic.torch.ranks.cut import part_of
from anechoic.torch.shared_release import SharedReleaser


class CutReleaser(SharedReleaser):
    """A `SharedReleaser` whose gradients are those of each rank's part; see there."""

    _found = ""

    def _made(self, sums: list[Tensor], step: int) -> list[Tensor]:
        where, own, released = f"release {step}", self._slice(sums, step), []

        def whole() -> Iterator[Tensor]:
            at = 0
            for p, shape, dtype in zip(self._parameters, self._shapes, self._dtypes, strict=True):
                flat = torch.empty(shape.numel(), dtype=self._dtype)
                for rank in range(self.ranks.count):
                    start, end = (min(max(n * self._each - at, 0), len(flat)) for n in (rank, rank + 1))
                    piece = flat[start:end]
                    if rank == self.ranks.rank:
                        piece.copy_(own[at + start - self.offset :][: len(piece)])
                    self.ranks.spread(piece, rank, where)
                at += len(flat)
                made = flat.to(dtype).view(shape)
                released.append(part_of(p, made).clone())
                yield made

        if self.journal is None:
            deque(whole(), maxlen=0)
        else:
            self._found = digest(whole(), self.journal)
        return released

    def _named(self, released: list[Tensor], journal: ReleaseLog) -> str:
        return self._found

    def _own_sums(self, slices: Tensor, where: str) -> Tensor:
        return self.ranks.scattered(slices, where)
