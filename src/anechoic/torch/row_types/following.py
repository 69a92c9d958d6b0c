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
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from anechoic.runs.ledger import Delivery
from anechoic.torch.row_types.batch import Batch, delivered, row_axis
from anechoic.torch.row_types.call import Call, tensors_among
from anechoic.torch.row_types.graph import running_roots
from anechoic.torch.row_types.labels import Label, Mixed, RowAxis
from anechoic.torch.row_types.memory import Memories, frame, place, storage, tensors_alive
from anechoic.torch.row_types.refusals import Refusals
from anechoic.torch.row_types.rules import LIKE, labels_of


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
    """

    def __init__(self, *, batch_first: bool, means: bool) -> None:
        self._dimension = 0 if batch_first else 1
        self.means = means
        self.started = False
        self.batch = Batch()
        self._public: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of the script, batch after batch
        self._memory, self._earlier = Memories(), Memories()
        self._labels: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._guessed: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._data: WeakIdKeyDictionary = WeakIdKeyDictionary()
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
            others = [self._data, *(kept for run in ACTIVE for kept in (run._delivered, run._earlier))]
            self.share(t for t in tensors_alive() if not any(t in kept for kept in others))
        self.batch.start(delivery.size)
        self.active = True
        ACTIVE.append(self)
        for tensor, label in delivered(delivery.content, self.rows, self._dimension):
            self.mark(tensor, label, delivered=True)

    def rest(self) -> None:
        """The batch is not in hand any more: what is made of it until the next one is looked at then."""
        self.active = False
        self.let_go()

    def leave(self) -> None:
        """The loop body is over: what is done from here on is not looked at, unless a batch is in hand."""
        if not self.active and self in ACTIVE:
            ACTIVE.remove(self)

    def end(self) -> None:
        """Another batch follows, or none."""
        for tensor in self._guessed:
            self._memory.add(tensor)
        self._earlier.take(self._memory)
        # where something of the batch lies, under whatever name it is found
        self._memory = Memories()
        self._labels = WeakIdKeyDictionary()
        self._guessed = WeakIdKeyDictionary()
        # the same by place in memory, for what reaches the same numbers by another tensor
        self._places: dict[Any, tuple[Any, Label]] = {}
        # storages whose label changed in place, and what was labelled since
        self._written: dict[int, tuple[Any, Tensor, Label]] = {}
        self._since: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # what was delivered, and what is made of it, whatever was guessed
        self._delivered: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # tensors of as many values as the data say
        self._counted: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.batch.start(0)
        self.active = False
        self.leave()

    def let_go(self) -> None:
        """backward() is over: keep the memory of no tensor that the script has dropped."""
        alive = [(place(tensor), tensor, label) for tensor, label in self._labels.items()]
        self._places = {at: (t.untyped_storage(), label) for at, t, label in alive if at is not None}

    def mark(self, tensor: Tensor, label: Label, *, delivered: bool = False) -> None:
        """Give a tensor a label.

        Args:
            delivered: whether it is made of what was delivered, for certain: no other run may use it.
        """
        self._labels[tensor] = label
        if delivered:
            self._delivered[tensor] = True
        self._public.pop(tensor, None)
        own = self._memory.add(tensor)
        if own is not None and (at := place(tensor)) is not None:
            self._places[at] = own, label  # the storage is kept, so that nothing else gets the place

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Take tensors for public ones, whatever their shapes."""
        for tensor in tensors:
            self._public[tensor] = True

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Tensors of the data set, which are no public ones though they are there from the beginning."""
        for tensor in tensors:
            self._data[tensor] = True

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor was made from the batch in hand."""
        return tensor in self._labels

    def overwritten(self, tensor: Tensor) -> bool:
        """Whether something of the batch in hand was written to where a tensor lies."""
        return bool(self._written) and storage(tensor) in self._written and self.of(tensor) is not None

    def knows(self, value: Any) -> bool:
        """Whether anything in it was made from a batch."""
        return any(self.of(tensor) is not None for tensor in tensors_among(value))

    def of(self, tensor: Tensor) -> Label | None:
        """The label of a tensor; None for what is public."""
        if self._written and (written := self._written.get(storage(tensor))) is not None:
            _, writer, label = written
            same = tensor.shape == writer.shape and tensor.stride() == writer.stride()
            if tensor is writer or (same and tensor.storage_offset() == writer.storage_offset()):
                return label
            if tensor in self._since:
                return self._since[tensor]
            if self.rows == 1:
                return _EARLIER if tensor in self._earlier else label
            before = self._labels.get(tensor) or self._guessed.get(tensor)
            over = frame(tensor, writer, label)
            as_written = over is not None and before in (None, over) and tensor not in self._earlier
            return over if as_written else _IN_PLACE
        found: Label | None = self._labels.get(tensor) or self._guessed.get(tensor)
        if found is not None:
            return found
        if self._places and (known := self._places.get(place(tensor))) is not None:
            return known[1]
        if tensor in self._memory:
            return _UNSEEN
        if tensor in self._earlier:
            return _EARLIER
        return None if tensor in self._public else self._unseen(tensor)

    def _unseen(self, tensor: Tensor) -> Label | None:
        """A tensor that no operation made: of the script, or of the data on a way past torch (NumPy).

        With one row an example it counts as data.
        """
        if any(other is not self and tensor in other._delivered for other in tuple(ACTIVE)):
            return _ANOTHER
        if self.active and running_roots():
            return _FROM_NUMPY  # a backward() of the script's own, where nothing else tells
        axis = row_axis(tensor, self.rows, self._dimension) if self.active else None
        if axis is None or isinstance(tensor, torch.nn.Parameter):
            self._public[tensor] = True
            return None
        self._guessed[tensor] = label = _FROM_NUMPY if self.left else RowAxis(axis)
        return label

    def came_in(self, tensor: Tensor, source: Any) -> None:
        """A tensor was made of Python's or NumPy's numbers, which may be the batch's, or of another."""
        if isinstance(source, Tensor):
            label = self.of(source)
            self._guessed.pop(tensor, None)
            self._labels.pop(tensor, None)
            if label is not None:
                self.mark(tensor, label)
        elif self.knows(source):  # a list of tensors
            self.mark(tensor, NUMBER)
        elif tensor not in self._labels:
            self._public.pop(tensor, None)

    # -- operations ----------------------------------------------------------------------------

    def called(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Call:
        """An operation is about to be done, with these tensors among its arguments."""
        labels = {id(t): label for t in tensors if (label := self.of(t)) is not None}
        return Call(self.batch, func, args, kwargs, tensors, labels)

    def see(self, call: Call) -> None:
        """An operation was done: label what it returned."""
        func, made, before = call.func, call.made, call.labels
        if not before:
            for tensor in made:
                self._made_public(tensor)
            return
        for tensor in call.written:
            if not any(tensor is other for other in made):
                self._wrote(tensor, Mixed(f"{call.packet.__name__} has written to it"))
        if any(tensor in self._delivered for tensor in call.tensors):
            for tensor in made:
                self._delivered[tensor] = True
        if not made and call.packet in _NUMBERS:
            self.batch.decided = True
            self.batch.taken += 1
            self.batch.pulled = self.batch.pulled or bool(running_roots())
        for tensor, label in zip(made, labels_of(call), strict=True):
            if label is None and call.packet in LIKE and call.tensors[0] in self._counted:
                label = before[id(call.tensors[0])]  # public numbers, but as many as the data say
            if label is None:
                self._made_public(tensor)
                continue
            part = isinstance(before.get(id(tensor)), Mixed) and len(before) == 1
            if part and _each_by_itself(func):
                continue  # public numbers, written to a part of the rows, leave the rest as it was
            if func._schema.is_mutable and (before.get(id(tensor)) != label or isinstance(label, Mixed)):
                label = self._wrote(tensor, label)
            self.mark(tensor, label)
            if self._written:
                self._since[tensor] = label
            if tensor.dim() > isinstance(label, RowAxis) and self._is_counted(call):
                self._counted[tensor] = True

    def failed(self, call: Call) -> None:
        """An operation was not done to its end: what it writes to may hold anything of its arguments."""
        for tensor in call.written if call.labels else ():
            self._wrote(tensor, Mixed(f"{call.packet.__name__} failed after it may have written to it"))

    def _wrote(self, tensor: Tensor, label: Label) -> Label:
        """The label of a tensor that was written to, and with it what else lies there."""
        earlier = self._written.get(storage(tensor))
        label = earlier[2] if earlier and isinstance(earlier[2], Mixed) else label
        self._written[storage(tensor)] = (tensor.untyped_storage(), tensor, label)
        self._since = WeakIdKeyDictionary()
        self.mark(tensor, label)
        return label

    def _is_counted(self, call: Call) -> bool:
        """Whether how many values an operation returns is decided by the data."""
        return torch.Tag.dynamic_output_shape in call.func.tags or any(
            t in self._counted for t in call.tensors
        )

    def like(self, given: Any, made: Any) -> None:
        """A function has taken a size from tensors whose lengths the data decide (expand_as)."""
        counted = [t for t in tensors_among(given) if t in self._counted] if self._counted else []
        label = self.of(counted[0]) if counted else None
        if label is not None:
            for tensor in tensors_among(made):
                if tensor not in self._labels:
                    self.mark(tensor, label)
                    self._counted[tensor] = True

    def counted(self, tensor: Tensor) -> None:
        """The data decide the length of a tensor."""
        self._counted[tensor] = True

    def asked(self, tensor: Tensor) -> None:
        """The script has asked for a size of a tensor."""
        if tensor in self._counted:
            self.batch.sized = True

    def _made_public(self, tensor: Tensor) -> None:
        """An operation made it of public tensors alone."""
        if tensor not in self._labels:
            self._public[tensor] = True


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


def _each_by_itself(func: Any) -> bool:
    """Whether an operation in place changes each entry by itself."""
    return torch.Tag.pointwise in func.tags or func.overloadpacket in _WRITES


_WRITES = frozenset({torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_})
