"""A release that several ranks make: each has a slice of the flat vector, its noise and its noise's memory.

Every rank adds up its rows as integers, and one sum over ranks, in which no order matters, makes the integers
of the whole batch. Each rank adds noise to its slice alone, and what they gather is the release: the same one
for every number of ranks, since entry i of a noise row is a function of (key, t, i), wherever it is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.noise.rounding.base import PAD
from anechoic.runs import Journal
from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.noise_adder import Releaser, Slices, digest
from anechoic.torch.ranks.cut import is_cut, part_of
from anechoic.torch.ranks.group import Ranks


class SharedReleaser(Releaser):
    """A `Releaser` of which each rank has a part; see there.

    Guarantee: no rank is given a release before rank 0 has it in the journal, and none adds noise to sums of
    another step, of other weights, of fewer ranks, or of one rank twice.

    Args:
        ranks: of the run.

    Raises:
        UnsupportedError: for a mechanism without a grid, or fewer trainable entries than ranks.
    """

    ranks: Ranks

    def __init__(
        self,
        mechanism: Mechanism,
        ledger: ReleaseLedger,
        parameters: list[nn.Parameter],
        divisor: float,
        ranks: Ranks,
    ) -> None:
        super().__init__(mechanism, ledger, parameters, divisor)
        if self._dimension < ranks.count:
            raise UnsupportedError(
                f"{self._dimension} trainable entries on {ranks.count} ranks: each draws the noise of a slice"
                " of them. Start fewer ranks."
            )
        self.ranks = ranks
        self._parameters = parameters
        # slices of one length, but the last ones, which may be shorter
        self._each = -(-self._dimension // ranks.count)
        self.offset = min(ranks.rank * self._each, self._dimension)
        self.length = min(self._each, self._dimension - self.offset)
        self._agreed = False

    # -- noise ---------------------------------------------------------------------------------

    def saved_noise(self) -> dict[str, Any]:
        """That of one process, on every rank: what a checkpoint holds."""
        own, where = self._noise.state_dict(copy=False), "save_checkpoint"
        rows, count = own["rows"], self.ranks.count
        behind = self._behind(rows)
        padded = rows.new_zeros(self._each, len(rows))  # independent noise has no row
        padded[: self.length] = rows.t()[: self.length]
        every = self.ranks.joined(padded.reshape(-1), where).view(count * self._each, len(rows))
        whole = torch.cat([every[: self._dimension].t(), behind], 1)
        return own | {"offset": 0, "length": self._dimension, "rows": whole}

    def sliced_noise(self) -> tuple[dict[str, Any], Slices]:
        """The same without the entries; and this rank's, of which nothing is copied."""
        own = self._noise.state_dict(copy=False)
        rows = own.pop("rows")
        described = own | {"offset": 0, "length": self._dimension, "behind": self._behind(rows)}
        return described, self._slices_of(rows)

    def _behind(self, rows: Tensor) -> Tensor:
        """What stands behind the entries: the largest of each row, or the step for which a sum was made."""
        every = self.ranks.joined(rows[:, -PAD:].reshape(-1), "save_checkpoint")
        return every.view(self.ranks.count, len(rows), PAD).amax(0)

    def own_noise(self, saved: Mapping[str, Any], stream: NoiseStream) -> dict[str, Any]:
        start, length = stream.offset, stream.length
        rows = saved.get("rows")
        if (saved.get("offset"), saved.get("length")) == (start, length):
            return dict(saved)
        if not isinstance(rows, Tensor) or rows.dim() != 2 or rows.shape[1] != self._dimension + PAD:
            return dict(saved)  # which restoring it refuses, in its own words
        part = torch.cat([rows[:, start : start + length], rows[:, -PAD:]], 1)
        return dict(saved) | {"offset": start, "length": length, "rows": part}

    # -- a release -----------------------------------------------------------------------------

    def agree(self, step: int, kind: str, manner: str) -> str:
        """All ranks are about to make release `step`, at the same weights and in the same manner; of what.

        Raises:
            DesynchronizedError: on every rank; nothing is released.
        """
        where = f"release {step}"
        words = self.ranks.exchange(where, kind=kind, manner=manner, weights=weights_sum(self._parameters))
        sums = [word["weights"] for word in words]
        if len(set(sums)) > 1:
            other = next(rank for rank, one in enumerate(sums) if one != sums[0])
            raise self.ranks.known(
                f"the weights of rank {other} are not those of rank 0 at {where}: the ranks were given"
                " different weights or learning rates, or update them differently. Nothing was released. Load"
                " the same weights on every rank, and let schedulers follow the same numbers."
            )
        kinds = sorted({word["kind"] for word in words} - {""})
        if len(kinds) > 1:
            raise self.ranks.known(
                f"{where} would be made of {' and '.join(kinds)}, on different ranks. Nothing was released."
            )
        if len({word["manner"] for word in words} - {""}) > 1:
            raise self.ranks.known(
                f"at {where} the model worked on one row after another on some ranks, where torch.func.vmap"
                " cannot run it on their data, and on many at once on others, which rounds otherwise. Nothing"
                " was released. Train this model in one process."
            )
        self._agreed = True
        return kinds[0] if kinds else ""

    def failed(self, step: int, error: BaseException) -> None:
        if self._agreed:  # others wait for numbers, not for words
            self.ranks.leave(f"{type(error).__name__}: {error}")
        elif self.ledger.releases == step:  # else they know
            self.ranks.report(f"release {step}", error)

    def make(self, step: int, sums: list[Tensor]) -> list[Tensor]:
        self.ledger.check_releasing()
        if self._noise.step != step:
            raise DesynchronizedError(f"noise row {self._noise.step} is next, but release {step} is due.")
        released = self._made(sums, step)
        self._agreed = False
        with self.ranks.together(f"the journal of release {step}"):  # nobody uses it before it is there
            if self.journal is not None:
                self.journal.record(step, self._named(released, self.journal))
        return released

    def _named(self, released: list[Tensor], journal: Journal) -> str:
        return digest(released, journal)

    def _made(self, sums: list[Tensor], step: int) -> list[Tensor]:
        whole = self.ranks.joined(self._slice(sums, step), f"release {step}")[: self._dimension]
        parts = whole.split([shape.numel() for shape in self._shapes])
        kinds = zip(parts, self._dtypes, self._shapes, strict=True)
        return [flat.to(dtype).view(shape) for flat, dtype, shape in kinds]

    def _slice(self, sums: list[Tensor], step: int) -> Tensor:
        """This rank's slice of the release, padded to the length of the others'."""
        self.add(sums)
        totals, self._partial = self._partial or [], None
        own = self._added_up(totals, step)
        self._row, self._noise = self._stream.next(self._noise, out=self._row)
        own += self._row[: self.length]
        part = torch.zeros(self._each, dtype=self._dtype)
        part[: self.length] = own.double().mul_(self._unit or 1.0)
        return part

    def _added_up(self, totals: list[Tensor], step: int) -> Tensor:
        """This rank's slice of the sums over all ranks.

        Behind each slice every rank leaves a mark: sums of another step would put a batch into two releases.
        """
        where, count, at = f"release {step}", self.ranks.count, 0
        slices = torch.zeros(count, self._each + count, dtype=torch.int64)
        slices[:, self._each + self.ranks.rank] = step + 1
        for total in totals:
            left = total.reshape(-1)
            while len(left):
                rank, start = divmod(at, self._each)
                taken = left[: self._each - start]
                slices[rank, start : start + len(taken)] = taken
                at, left = at + len(taken), left[len(taken) :]
        own = self._own_sums(slices, where)
        for rank, mark in enumerate(own[self._each :].tolist()):
            if mark != step + 1:
                raise DesynchronizedError(
                    f"the sums of rank {rank} are not once in those of {where} (its mark is {mark}, and not"
                    f" {step + 1}): they are of another step, or came twice. Nothing was released. Start all"
                    " ranks again, and go on from the last checkpoint."
                )
        return own[: self.length]

    def _own_sums(self, slices: Tensor, where: str) -> Tensor:
        """The sum over ranks of this rank's row of `slices`."""
        self.ranks.add_up(slices, where)
        return slices[self.ranks.rank]


def weights_sum(parameters: Iterable[Tensor]) -> int:
    """A sum over all words of the weights: another one where a rank's differ, but for contrived cases."""
    total = 0
    for p in parameters:
        if is_cut(p):
            continue  # each rank has others
        kind = torch.int64 if p.element_size() == 8 else torch.int32
        total += int(p.detach().view(kind).sum(dtype=torch.int64))
    return total


class CutReleaser(SharedReleaser):
    """A `SharedReleaser` of parameters that ranks have a part each of.

    What is made goes through all ranks parameter by parameter: each keeps its part, and rank 0 takes the
    digest.
    """

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

    def _named(self, released: list[Tensor], journal: Journal) -> str:
        return self._found

    def _own_sums(self, slices: Tensor, where: str) -> Tensor:
        return self.ranks.scattered(slices, where)
