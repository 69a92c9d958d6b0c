"""The processes of a run: what they say to one another, so that none goes on alone and none waits in vain.

Before every exchange of numbers each rank says where it is, in a word of fixed size. A rank that failed says
so instead; then all raise, and nothing was used. A rank that is gone closes its connections, which torch's
gloo reports to the others at once; one that hangs is given up after the timeout of the process group.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from anechoic.errors import DesynchronizedError
from anechoic.runs.fork_guard import Uncopyable
from anechoic.torch.structure import bits

#: Bytes of a word, and letters of an error in it.
_WORD, _LETTERS = 4096, 1800
#: Seconds that a rank which failed waits for the others to hear of it, before it goes down.
_PATIENCE = 20.0


class Alone:
    """One process: there is nobody to wait for."""

    rank, count = 0, 1

    def exchange(self, where: str, **said: Any) -> list[dict[str, Any]]:
        """What each rank said, in the order of ranks."""
        return [said]

    def report(self, where: str, error: BaseException) -> None:
        """Tell the others that this rank failed."""

    def known(self, text: str) -> DesynchronizedError:
        """An error that every rank raises."""
        return _of_ranks(text)

    def objects(self, own: Any, where: str) -> list[Any]:
        """What each rank has; pickled, by processes of one run that trust one another."""
        return [own]

    def through(self, where: str, work: Callable[[Any], Any]) -> Any:
        """What `work` returns, given the processes' group, through which it may exchange what it likes; None
        for one process."""
        return work(None)

    @contextmanager
    def together(self, where: str, said: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
        """Work that each rank does for itself: where it fails on one, all raise.

        Args:
            where: in the run, in words.
            said: numbers and strings for the others, which the block may add to.

        Yields:
            What each rank said: empty until the block is over.
        """
        words: list[dict[str, Any]] = []
        try:
            yield words
        except BaseException as error:
            self.report(where, error)
            raise
        words += self.exchange(where, **(said or {}))


class Ranks(Alone, Uncopyable):
    """The ranks of one run, on a gloo group of their own: collectives of the script cannot come in between.

    Attributes:
        rank, count: this process, and how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        default: Any = dist.distributed_c10d._get_default_group()  # type: ignore[attr-defined]
        try:
            timeout = default._get_backend(torch.device("cpu")).options._timeout
        except (RuntimeError, AttributeError):  # a group for GPUs alone
            timeout = None
        self._group: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._lost = ""
        #: gives the others what one of them wants, by its number
        self.serve: Callable[[int], None] = lambda number: None

    # -- words ---------------------------------------------------------------------------------

    def exchange(self, where: str, **said: Any) -> list[dict[str, Any]]:
        """What each rank said, in the order of ranks; all are at the same place.

        Ranks that want something are served first, wherever the others are.

        Args:
            where: in the run, in words.
            said: numbers and strings; "wants" is the number of what this rank waits for (see `serve`).

        Raises:
            DesynchronizedError: where one of them failed, is somewhere else, or is gone.
        """
        while True:
            words = self._words({"where": where, **said}, where)
            wanted = {word["wants"] for word in words if "wants" in word}
            if not wanted or any("error" in word for word in words):
                break
            for number in sorted(wanted):
                self.serve(number)
            if "wants" in said:
                return words
        failed = [(rank, word) for rank, word in enumerate(words) if "error" in word]
        if failed:
            rank, word = failed[0]
            raise _of_ranks(
                f"rank {rank} failed at {word['where']}, so no rank goes on with {where}: {word['error']}"
            )
        places = [word["where"] for word in words]
        if len(set(places)) > 1:
            other = next(rank for rank, place in enumerate(places) if place != places[0])
            raise _of_ranks(
                f"rank 0 is at {places[0]}, and rank {other} at {places[other]}: every rank runs the same"
                " script, steps once for every batch of its loader (an empty one too), and calls"
                " save_checkpoint and load_checkpoint as the others do. No rank goes on."
            )
        return words

    def report(self, where: str, error: BaseException) -> None:
        """Tell the others that this rank failed, and wait a little for them to hear of it."""
        if self._lost or getattr(error, "of_ranks", False):
            return
        text = f"{type(error).__name__}: {error}"[:_LETTERS].encode("ascii", "replace").decode()
        try:
            _, _, work = self._sent({"where": where, "error": text})
            end = time.monotonic() + _PATIENCE
            while not work.is_completed() and time.monotonic() < end:
                time.sleep(0.01)
        except RuntimeError:
            self._lost = "a rank is gone"  # and nobody is there to be told

    def _words(self, said: dict[str, Any], where: str) -> list[dict[str, Any]]:
        def told() -> list[bytes]:
            _, words, work = self._sent(said)
            work.wait()
            return [bytes(word.numpy()) for word in words]

        return [json.loads(word.rstrip(b"\0")) for word in self._safely(where, told)]

    def _sent(self, said: dict[str, Any]) -> tuple[Tensor, list[Tensor], Any]:
        text = json.dumps(said).encode()
        if len(text) > _WORD:
            raise ValueError(f"a word of {len(text)} bytes is too long: {_WORD} fit.")
        word = torch.frombuffer(bytearray(text.ljust(_WORD, b"\0")), dtype=torch.uint8)
        words = [torch.empty(_WORD, dtype=torch.uint8) for _ in range(self.count)]
        return word, words, dist.all_gather(words, word, group=self._group, async_op=True)

    def _safely(self, where: str, work: Callable[[], Any]) -> Any:
        """work(), unless a rank is gone."""
        if self._lost:
            raise _gone(where, self._lost)
        try:
            return work()
        except RuntimeError as error:  # what torch raises for a closed connection and for a timeout
            self._lost = str(error).split("\n")[0]
            raise _gone(where, self._lost) from error

    def leave(self, why: str) -> None:
        """Close the connections: whoever waits for this rank's numbers is told so at once."""
        if not self._lost:
            self._lost = why
            dist.destroy_process_group(self._group)
            self._group = None
            gc.collect()  # connections close with the last that holds the group

    # -- numbers -------------------------------------------------------------------------------

    def add_up(self, integers: Tensor, where: str) -> None:
        """The sum over ranks in the place of each rank's integers: int64, so that no order matters."""
        self._safely(where, lambda: dist.all_reduce(integers, group=self._group))

    def scattered(self, integers: Tensor, where: str) -> Tensor:
        """This rank's row of that sum, of as many rows as there are ranks."""
        own, parts = torch.empty_like(integers[0]), list(integers.unbind())
        self._safely(where, lambda: dist.reduce_scatter(own, parts, group=self._group))
        return own

    def spread(self, part: Tensor, rank: int, where: str) -> None:
        """What `rank` has, in the place of what the others have."""
        if len(part):
            self._safely(where, lambda: dist.broadcast(part, rank, group=self._group))

    def joined(self, part: Tensor, where: str) -> Tensor:
        """Parts of one length, side by side in the order of ranks, on every rank."""
        whole = part.new_empty(self.count, len(part))
        self._safely(where, lambda: dist.all_gather(list(whole.unbind()), part, group=self._group))
        return whole.view(-1)

    def hand_out(self, tensors: list[Tensor], owners: list[int], where: str) -> None:
        """The bytes of each tensor on the rank that owns it, in its place on every rank."""

        def work() -> None:
            held = [tensor.contiguous() for tensor in tensors]
            parts = zip(held, owners, strict=True)
            sent = [dist.broadcast(bits(p), o, group=self._group, async_op=True) for p, o in parts]
            for one in sent:
                one.wait()
            for tensor, part in zip(tensors, held, strict=True):
                if part is not tensor:
                    tensor.copy_(part)

        self._safely(where, work)

    def through(self, where: str, work: Callable[[Any], Any]) -> Any:
        return self._safely(where, lambda: work(self._group))

    def objects(self, own: Any, where: str) -> list[Any]:
        found: list[Any] = [None] * self.count
        self._safely(where, lambda: dist.all_gather_object(found, own, group=self._group))
        return found


def _gone(where: str, why: str) -> DesynchronizedError:
    return _of_ranks(
        f"another rank is gone, or did not answer in time, at {where} ({why}). Nothing that was not released"
        " before is used. Start all ranks again, and go on from the last checkpoint."
    )


def _of_ranks(text: str) -> DesynchronizedError:
    """An error that all ranks know of already."""
    error = DesynchronizedError(text)
    error.of_ranks = True  # type: ignore[attr-defined]
    return error


def running_ranks() -> int:
    """How many processes torch.distributed runs: 1 where it was not begun."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()
