"""Types of rows: which axis of a tensor has the rows of the batch, passed on by every operation.

From its delivery to the next one, each tensor that depends on a batch carries a label: rows along an axis
(`RowAxis`), a `Total` over rows, `One` row, values `Picked` of some, or `Mixed`. A tensor without a label
depends on public numbers alone. `rules` says what each operation makes of labels; what it does not know is
done for each row alone. Refused are a model that is called with what is no row an example, and a loss that is
no total: for its gradient with respect to a row's outputs would depend on other rows, and clipping would not
bound what one of them changes.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable
from typing import Any
from weakref import ReferenceType, WeakValueDictionary

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from anechoic.runs.ledger import Delivery
from anechoic.torch.row_types.labels import (
    Batch,
    Call,
    Label,
    Memories,
    Mixed,
    RowAxis,
    delivered,
    frame,
    lies,
    row_axis,
    storage,
    storages,
    tensors_alive,
)
from anechoic.torch.row_types.refusals import Refusals, running_roots
from anechoic.torch.row_types.rules import LIKE, labels_of
from anechoic.torch.structure import tensors_in


class Followed(ReferenceType[Tensor]):
    """A tensor, and what one run knows of it since the batch was delivered.

    Attributes:
        label: None where nothing of the batch is in it.
        guessed: whether the label is that of a tensor that no operation made.
        delivered: whether it is made of what was delivered, for certain: no other run may use it.
        counted: whether the data decide its length.
        since: after how many writes in place it was labelled.
    """

    label: Label | None = None
    guessed = delivered = counted = False
    since = 0


class RowTypes(Refusals):
    """Labels of the tensors of one run, from the delivery of a batch to its backward().

    Args:
        batch_first: whether rows are along the first axis, or the second one.
        means: whether losses are means over rows.

    Attributes:
        batch: in hand, or the last one.
        active: whether it is in hand.
        started: whether the backward pass that runs was started with the number of rows.
        left: whether values of any batch were taken to NumPy or to lists.
        whole: whether the model runs on all rows at once, and must decide nothing by them.
    """

    whole = False

    def __init__(self, *, batch_first: bool, means: bool) -> None:
        self._dimension = 0 if batch_first else 1
        self.means = means
        self.started = False
        self.batch = Batch()
        # by identity: of the script, batch after batch; and of its data set
        self._public: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._data: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._memory, self._guesses, self._earlier = Memories(), Memories(), Memories()
        self._kept = Memories()
        self._begun = self.left = False
        self.end()

    # -- a batch -------------------------------------------------------------------------------

    def begin(self, delivery: Delivery) -> None:
        """A batch was delivered: follow what becomes of it."""
        self.end()
        if not delivery.size:
            ACTIVE.append(self)  # what is made of earlier batches is none of the script's own
            return
        if not self._begun:
            self._begun = True
            if ACTIVE:
                gc.collect()  # runs that were dropped leave the list: each of them costs every operation
            # what the script had before the first batch is its own, though it may have as many rows
            self.share(
                t
                for t in tensors_alive()
                if self._data.get(id(t)) is not t and not any(run.had(t) for run in ACTIVE)
            )
        self.batch.start(delivery.size)
        self.active = True
        ACTIVE.append(self)
        for tensor, label in delivered(delivery.content, self.batch.rows, self._dimension):
            self.mark(tensor, label, delivered=True)

    def rest(self) -> None:
        """The batch is not in hand any more: what is made of it until the next one is looked at then."""
        self.active = False

    def leave(self) -> None:
        """The loop body is over: what is done from here on is not looked at, unless a batch is in hand."""
        if not self.active and self in ACTIVE:
            ACTIVE.remove(self)

    def end(self) -> None:
        """Another batch follows, or none."""
        self._earlier.take(self._memory, self._guesses)
        self._kept.take()
        # where something of the batch lies, under whatever name it is found
        self._memory, self._guesses = Memories(), Memories()
        # by place in memory, for what reaches the same numbers by another tensor
        self._places: dict[Any, tuple[StorageWeakRef, Label]] = {}
        # by identity, which another tensor may have when one is gone
        self._seen: dict[int, Followed] = {}
        # storages whose label changed in place, and how often one did
        self._written: dict[int, tuple[Any, Tensor, Label]] = {}
        self._writes = 0
        # whether the data decide the length of any tensor
        self._any_counted = False
        self.batch.start(0)
        self.active = False
        self.leave()

    def _known(self, tensor: Tensor) -> Followed | None:
        found = self._seen.get(id(tensor))
        return found if found is not None and found() is tensor else None

    def _record(self, tensor: Tensor) -> Followed:
        found = self._seen.get(id(tensor))
        if found is None or found() is not tensor:
            found = self._seen[id(tensor)] = Followed(tensor)
        return found

    def mark(self, tensor: Tensor, label: Label, *, delivered: bool = False) -> Followed:
        """Give a tensor a label.

        Args:
            delivered: whether it is made of what was delivered, for certain: no other run may use it.
        """
        seen = self._seen.get(id(tensor))
        if seen is None or seen() is not tensor:
            seen = self._seen[id(tensor)] = Followed(tensor)
        seen.label, seen.guessed, seen.delivered = label, False, seen.delivered or delivered
        self._public.pop(id(tensor), None)
        own, at = lies(tensor)
        kept = None if own is None else self._memory.storages.get(own._cdata)
        if kept is None:
            kept = self._memory.add(tensor, own)
        if kept is not None and at is not None:
            self._places[at] = kept, label
        return seen

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Take tensors for public ones, whatever their shapes."""
        self._public.update((id(tensor), tensor) for tensor in tensors)

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Tensors of the data set, which are no public ones though they are there from the beginning."""
        self._data.update((id(tensor), tensor) for tensor in tensors)

    def had(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of what was delivered, now or in an earlier batch."""
        seen = self._known(tensor)
        return (seen is not None and seen.delivered) or self._earlier.holds(tensor, lies(tensor)[0])

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor was made from the batch in hand."""
        seen = self._known(tensor)
        return seen is not None and seen.label is not None and not seen.guessed

    def among_held(self, tensors: list[Tensor]) -> list[Tensor]:
        """Those that were made from the batch in hand or an earlier one, or where it was written to."""
        if not self._written:
            earlier, known = self._earlier.storages, self._seen
            places = zip(tensors, storages(tensors), strict=True)
            tensors = [t for t, own in places if own is None or own in earlier or id(t) in known]
        return [tensor for tensor in tensors if self.holds(tensor)]

    def mark_own(self, tensor: Tensor, label: Label) -> None:
        """Give a label to a tensor that the model keeps of its own pass."""
        self.mark(tensor, label)
        self._kept.add(tensor, lies(tensor)[0])

    def fault_since(self, tensor: Tensor, axis: int) -> str:
        """`fault` of a tensor that may have been written to since it was looked at."""
        known = self.active and (self.follows(tensor) or storage(tensor) in self._written)
        return self.fault(tensor, axis) if known else ""

    def holds(self, tensor: Tensor, given: Container[int] = ()) -> bool:
        """Whether a tensor was made from the batch in hand, or something of it was written to where it lies.

        Or from an earlier batch, but for what the model itself kept of its own pass.

        Args:
            given: storages that may be written to.
        """
        seen = self._seen.get(id(tensor))
        if seen is not None and seen() is tensor and seen.label is not None and not seen.guessed:
            return True
        own = lies(tensor)[0]
        if self._earlier.holds(tensor, own) and not self._kept.holds(tensor, own):
            return own is None or own._cdata not in given
        if not self._written or (place := storage(tensor)) not in self._written or place in given:
            return False
        return self.of(tensor) is not None

    def knows(self, value: Any) -> bool:
        """Whether anything in it was made from a batch."""
        return any(self.of(tensor) is not None for tensor in tensors_in(value))

    def of(self, tensor: Tensor) -> Label | None:
        """The label of a tensor; None for what is public."""
        seen = self._seen.get(id(tensor))
        if seen is not None and seen() is not tensor:
            seen = None
        if self._written and (written := self._written.get(storage(tensor))) is not None:
            return self._of_written(tensor, seen, *written[1:])
        if seen is not None and seen.label is not None:
            return seen.label
        own, at = lies(tensor)
        if at is not None and (known := self._places.get(at)) is not None and not known[0].expired():
            return known[1]
        if self._memory.holds(tensor, own):
            return _UNSEEN
        if self._earlier.holds(tensor, own):
            return _EARLIER
        return None if self._public.get(id(tensor)) is tensor else self._unseen(tensor, own)

    def _of_written(
        self, tensor: Tensor, seen: Followed | None, writer: Tensor, label: Label
    ) -> Label | None:
        """The label of a tensor in whose memory something of the batch was written."""
        same = tensor.shape == writer.shape and tensor.stride() == writer.stride()
        if tensor is writer or (same and tensor.storage_offset() == writer.storage_offset()):
            return label
        if seen is not None and seen.since == self._writes:
            return seen.label
        earlier = self._earlier.holds(tensor, lies(tensor)[0])
        if self.batch.rows == 1:
            return _EARLIER if earlier else label
        before = None if seen is None else seen.label
        over = frame(tensor, writer, label)
        return over if over is not None and before in (None, over) and not earlier else _IN_PLACE

    def _unseen(self, tensor: Tensor, own: Any) -> Label | None:
        """A tensor that no operation made: of the script, or of the data on a way past torch (NumPy).

        With one row an example it counts as data.
        """
        if any(other is not self and other.gave(tensor) for other in tuple(ACTIVE)):
            return _ANOTHER
        if self.active and running_roots():
            return _FROM_NUMPY  # a backward() of the script's own, where nothing else tells
        axis = row_axis(tensor, self.batch.rows, self._dimension) if self.active else None
        if axis is None or isinstance(tensor, torch.nn.Parameter):
            self._public[id(tensor)] = tensor
            return None
        seen = self._record(tensor)
        seen.label, seen.guessed = _FROM_NUMPY if self.left else RowAxis(axis), True
        self._guesses.add(tensor, own)
        return seen.label

    def gave(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of the batch that was delivered last."""
        seen = self._known(tensor)
        return seen is not None and seen.delivered

    def came_in(self, tensor: Tensor, source: Any) -> None:
        """A tensor was made of Python's or NumPy's numbers, which may be the batch's, or of another."""
        if isinstance(source, Tensor):
            label = self.of(source)
            seen = self._known(tensor)
            if seen is not None:
                seen.label, seen.guessed, seen.since = None, False, 0
            if label is not None:
                self.mark(tensor, label)
        elif self.knows(source):  # a list of tensors
            self.mark(tensor, NUMBER)
        elif not self.follows(tensor):
            self._public.pop(id(tensor), None)

    # -- operations ----------------------------------------------------------------------------

    def called(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Call | None:
        """An operation is about to be done, with these tensors among its arguments; None: all public."""
        labels: dict[int, Label] = {}
        delivered = counted = False
        for tensor in tensors:
            label = self.of(tensor)
            if label is not None:
                labels[id(tensor)] = label
            seen = self._seen.get(id(tensor))
            if seen is not None and seen() is tensor:
                delivered, counted = delivered or seen.delivered, counted or seen.counted
        if not labels:
            return None
        call = Call(self.batch, func, args, kwargs, tensors, labels)
        call.delivered, call.counted = delivered, counted
        return call

    def see(self, call: Call | None, out: Any, made: list[Tensor]) -> None:
        """An operation was done: label what it returned.

        Args:
            call: what `called` said.
            out, made: what it returned, and the tensors among that.
        """
        if call is None:
            for tensor in made:
                self._made_public(tensor)
            return
        facts, before = call.facts, call.labels
        call.out, call.made = out, made
        if facts.written:
            for tensor in call.written:
                if not any(tensor is other for other in made):
                    self._wrote(tensor, Mixed(f"{call.packet.__name__} has written to it"))
        if not made and call.packet in _NUMBERS:
            self.batch.decided = True
            self.batch.taken += 1
            self.batch.pulled = self.batch.pulled or bool(running_roots())
        for tensor, label in zip(made, labels_of(call), strict=True):
            if label is None and call.counted and call.packet in LIKE and self._has_counted(call.tensors[0]):
                label = before[id(call.tensors[0])]  # public numbers, but as many as the data say
            if label is None:
                self._made_public(tensor, delivered=call.delivered)
                continue
            if facts.mutable:
                part = isinstance(before.get(id(tensor)), Mixed) and len(before) == 1
                if part and (facts.pointwise or call.packet in _WRITES):
                    continue  # public numbers, written to a part of the rows, leave the rest as it was
                if before.get(id(tensor)) != label or isinstance(label, Mixed):
                    label = self._wrote(tensor, label)
            seen = self.mark(tensor, label, delivered=call.delivered)
            seen.since = self._writes
            if (call.counted or call.counts) and tensor.dim() > isinstance(label, RowAxis):
                seen.counted = self._any_counted = True

    def failed(self, call: Call | None) -> None:
        """An operation was not done to its end: what it writes to may hold anything of its arguments."""
        if call is None:
            return
        for tensor in call.written:
            self._wrote(tensor, Mixed(f"{call.packet.__name__} failed after it may have written to it"))

    def _wrote(self, tensor: Tensor, label: Label) -> Label:
        """The label of a tensor that was written to, and with it what else lies there."""
        earlier = self._written.get(storage(tensor))
        label = earlier[2] if earlier and isinstance(earlier[2], Mixed) else label
        self._written[storage(tensor)] = (tensor.untyped_storage(), tensor, label)
        self._writes += 1
        self.mark(tensor, label)
        return label

    def like(self, given: Any, made: Any) -> None:
        """A function has taken a size from tensors whose lengths the data decide (expand_as)."""
        if not self._any_counted:
            return
        counted = [t for t in tensors_in(given) if self._has_counted(t)]
        label = self.of(counted[0]) if counted else None
        if label is not None:
            for tensor in tensors_in(made):
                if not self.follows(tensor):
                    self.mark(tensor, label).counted = True

    def counted(self, tensor: Tensor) -> None:
        """The data decide the length of a tensor."""
        self._record(tensor).counted = self._any_counted = True

    def asked(self, tensor: Tensor) -> None:
        """The script has asked for a size of a tensor."""
        if self._any_counted and self._has_counted(tensor):
            self.batch.sized = True

    def _has_counted(self, tensor: Tensor) -> bool:
        seen = self._known(tensor)
        return seen is not None and seen.counted

    def _made_public(self, tensor: Tensor, *, delivered: bool = False) -> None:
        """An operation made it of public tensors alone, or only its shape of a batch."""
        seen = self._record(tensor) if delivered else self._known(tensor)
        if seen is not None and delivered:
            seen.delivered = True
        if seen is None or seen.label is None or seen.guessed:
            self._public[id(tensor)] = tensor


NUMBER = Mixed("a number that was taken out of a tensor of the batch (.item(), .tolist()) went into it")
_IN_PLACE = Mixed("a part of it was written in place, through a view")
_EARLIER = Mixed("it was made from an earlier batch")
_UNSEEN = Mixed("it lies where something of the batch was put, and no operation that put it there was seen")
_FROM_NUMPY = Mixed(
    "it may have come back from NumPy, or from a list, where nothing can be followed (do it in the data set,"
    " and draw at random by torch)"
)
_ANOTHER = Mixed("it was made from the batch of another run")
#: Operations that take a number out of a tensor.
_NUMBERS = frozenset({torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.is_nonzero})
ACTIVE: list[RowTypes] = []
#: Operations in place that change each entry by itself, beside those that are pointwise.
_WRITES = frozenset({torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_})
