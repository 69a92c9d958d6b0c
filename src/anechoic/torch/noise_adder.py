"""Add noise: from the clipped sums of a batch and its number to noisy gradients, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.noise.gaussian import AES, CHACHA
from anechoic.noise.grid import spacing
from anechoic.noise.stream import NoiseState
from anechoic.runs import Journal
from anechoic.runs.fork_guard import NonPicklable
from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.structure import bits, word_sums

#: Numbers of a sum to which noise is added at a time.
PIECE = 2**16


class NoiseAdder(NonPicklable):
    """Add the noise row of release t to its sums, and divide; knows no optimizer and no model.

    On several ranks each adds the same row of noise to the same sums; none is given a release before rank 0
    has it in the journal.

    Attributes:
        partial: sums of micro-batches that wait for the rest of their batch.
        agreed: whether all ranks are about to make the same release, and wait for this one's sums.
        storage: the word for `NoiseStream(memory=…)` with which noise is begun, or goes on.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        ledger: ReleaseLedger,
        parameters: list[nn.Parameter],
        divisor: float,
        ranks: Ranks | None = None,
    ) -> None:
        self.ledger, self.ranks = ledger, ranks or Ranks()
        self.divisor, self.mechanism = divisor, mechanism
        self.journal: Journal | None = None
        self.agreed = False
        self._parameters = parameters
        self._sizes = [p.numel() for p in parameters]
        self._dimension = sum(self._sizes)
        self._dtype = noise_dtype(parameters)
        self.storage = "store"
        self._device = parameters[0].device
        self.partial: list[Tensor] | None = None

    # -- noise ---------------------------------------------------------------------------------

    def start_noise(self, key: bytes, cipher: str | None = None, storage: str | None = None) -> NoiseStream:
        """Return the stream of this run's noise rows in sum units, by default as it is fast here."""
        return self.mechanism.stream(
            self._dimension,
            key=key,
            backend="torch",
            dtype=self._dtype if self.mechanism.grid_bits is None else None,
            device=self._device,
            cipher=usual_cipher(self._device) if cipher is None else cipher,
            memory=storage or self.storage,
        )

    def take_noise(self, stream: NoiseStream, state: NoiseState) -> None:
        """Use the rows of `stream` from `state` on, which holds secrets."""
        self.stream, self.noise_state, self.storage = stream, state, stream.memory
        self._row: Tensor | None = None  # one piece of memory for all rows
        grid = self.mechanism.grid_bits
        self._unit = None if grid is None else spacing(self.mechanism.clip_norm, grid) / self.divisor

    # -- sums ----------------------------------------------------------------------------------

    def add_partial_sum(self, sums: list[Tensor]) -> None:
        """Add the sums of a micro-batch to the partial sum of its batch: integers, where there is a grid."""
        if self.mechanism.grid_bits is not None and {total.dtype for total in sums} != {torch.int64}:
            raise GuaranteeError(
                f"sums of {sums[0].dtype} reached a release on a grid, not int64: a gradient source sums by"
                " setup.clipping."
            )
        if self.partial is None:
            self.partial = list(sums)
            return
        for total, part in zip(self.partial, sums, strict=True):
            total += part

    def agree(self, step: int) -> None:
        """Check that all ranks are about to make release `step`, at the same weights."""
        if self.ranks.count == 1:
            return
        where = f"release {step}"
        words = self.ranks.exchange(where, weights=word_sums(self._parameters))
        for rank, word in enumerate(words):
            if word["weights"] != words[0]["weights"]:
                raise RanksError(
                    f"the weights of rank {rank} are not those of rank 0 at {where}. Nothing was released."
                    " Load the same weights on every rank, and let schedulers follow the same numbers."
                )
        self.agreed = True

    def noisy_gradients(self, step: int, sums: list[Tensor]) -> list[Tensor]:
        """Return the noisy gradients of release `step`, shaped as the parameters, in place of the sums.

        The sums are those of the last (or only) micro-batch, to which the partial sum is added.
        """
        self.ledger.check_releasing()
        if self.noise_state.step != step:
            raise DesynchronizedError(f"noise row {self.noise_state.step} is next, and release {step} due.")
        self.add_partial_sum(sums)
        totals, self.partial = self.partial or [], None
        alone = self.ranks.count == 1
        if not alone:
            self.ranks.add_up(totals, f"release {step}")
        self.agreed = False
        self._row, self.noise_state = self.stream.next(self.noise_state, out=self._row)
        rows, released = self._row.split(self._sizes), []
        for total, row, p in zip(totals, rows, self._parameters, strict=True):
            # as a gradient, in place of the sum where it is as wide
            out = total if total.dtype == p.dtype else torch.empty_like(total, dtype=p.dtype)
            parts: Any = [total], [row.view(total.shape)], [out]
            if total.device.type == "cpu" and total.is_contiguous():
                # some numbers after the others: they do not leave the processor's cache in between
                parts = total.view(-1).split(PIECE), row.split(PIECE), out.view(-1).split(PIECE)
            for part, noise, made in zip(*parts, strict=True):  # on a grid integers up to here
                # the same sum of one type, which is much faster
                noisy = part.add_(noise.double() if part.dtype == torch.float64 else noise)
                unit = self._unit
                made.copy_(noisy.div_(self.divisor) if unit is None else noisy.double().mul_(unit))
            released.append(out.view(p.shape))
        with nullcontext() if alone else self.ranks.together(f"the journal of release {step}"):
            if self.journal is not None:
                parts = (bits(tensor.detach()).cpu().numpy() for tensor in released)
                self.journal.record(step, self.journal.digest(parts))
        return released


def noise_dtype(parameters: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype of noise that is not on a grid."""
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32


def usual_cipher(device: torch.device) -> str:
    """Choose the cipher of a new run's noise: on the CPU, or on the device itself."""
    return AES if device.type == "cpu" else CHACHA


@dataclass(frozen=True)
class SumArithmetic:
    """Whether the sums of a run are integers on a grid, and why, or why not, as a sentence."""

    exact: bool
    reason: str

    def __str__(self) -> str:
        return f"{'exact sums' if self.exact else 'sums in floating point'}: {self.reason}"


class RanksError(DesynchronizedError):
    """An error that every rank raises."""


def running_ranks() -> int:
    """Return how many processes torch.distributed runs: 1 where it was not begun."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


class Ranks:
    """The `count` ranks of a run in torch.distributed's default group, of which this is `rank`.

    Before every exchange of numbers each rank says where it is in the run. A rank that failed says so in its
    place; then all raise, and nothing was used. One that is gone, or hangs, is the backend's error elsewhere.
    """

    def __init__(self) -> None:
        self.count = running_ranks()
        self.rank = dist.get_rank() if self.count > 1 else 0

    def exchange(self, where: str, **said: Any) -> list[dict[str, Any]]:
        """Gather what each rank says ("error": that it failed), in their order, where all are in the run.

        It is pickled, as ranks of one run trust another. Where one failed or is somewhere else, all raise.
        """
        if self.count == 1:
            return [said]
        words: list[Any] = [None] * self.count
        self._safely(where, lambda: dist.all_gather_object(words, {"where": where, **said}))
        for rank, word in enumerate(words):
            if "error" in word:
                raise RanksError(
                    f"rank {rank} failed at {word['where']}, so no rank goes on with {where}: {word['error']}"
                )
        if (places := [word["where"] for word in words]) != [where] * self.count:
            raise RanksError(
                f"the ranks are at different places, {', '.join(places)}: every rank runs the same script,"
                " steps once for every batch of its loader (an empty one too), and loads checkpoints as the"
                " others do."
            )
        return words

    @contextmanager
    def together(self, where: str, said: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
        """Run a block on every rank; where it fails on one, all raise.

        The block may add to what is `said`. Yields what each rank said: empty until the block is over.
        """
        words: list[dict[str, Any]] = []
        try:
            yield words
        except Exception as error:
            self.report(where, error)
            raise
        words += self.exchange(where, **(said or {}))

    def report(self, where: str, error: Exception) -> None:
        """Tell the others that this rank failed."""
        if self.count > 1 and not isinstance(error, RanksError):
            with suppress(RanksError):
                self.exchange(where, error=f"{type(error).__name__}: {error}")

    def add_up(self, sums: list[Tensor], where: str) -> None:
        """Replace the sums of this rank by those over all ranks: one all-reduce, exact for int64."""
        flat = torch.cat([total.reshape(-1) for total in sums])
        self._safely(where, lambda: dist.all_reduce(flat))
        for total, part in zip(sums, flat.split([total.numel() for total in sums]), strict=True):
            total.copy_(part.view(total.shape))

    def _safely(self, where: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except RuntimeError as error:  # what torch raises for a closed connection and for a timeout
            raise RanksError(
                f"another rank is gone, or did not answer in time, at {where} ({str(error).splitlines()[0]})."
                " Start all ranks again, and go on from the last checkpoint."
            ) from error
