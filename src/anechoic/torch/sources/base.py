"""Gradient sources, from a delivered batch to one clipped sum: what each offers, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from anechoic._validate import one_of
from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.labels import LabelledBatch, LabelledTensor, Mixing, OnAxis, OverRows
from anechoic.torch.sources.clipping import Clipping
from anechoic.torch.structure import mapped

AUTO = "auto"
#: Other names of "rows": of Opacus, whose gradients of rows these are.
ALIASES = dict.fromkeys((AUTO, "hooks", "functorch", "ew"), "rows")
#: Modes of Opacus that have no source here.
_OF_OPACUS = ("ghost_fsdp", "ghost_tp", "no_op")
BY_HAND = (
    "accumulating gradients by hand would put several batches, or one batch several times, into one release."
    " Call backward() once per batch, and use anechoic.torch.BatchMemoryManager where batches do not fit"
    " into memory"
)
REMEDY = (
    "Write a loss of each row's own, as with reduction='none', and take its .mean() over rows last (for"
    " tokens: anechoic.torch.causal_lm_loss(logits, labels), or seq2seq_loss; for pixels:"
    " .flatten(1).sum(1)); or let the model's forward return the loss, which is then given one row at a time"
)
UNPACK = (
    "Packing puts several sequences into one row, and each needs its own: where a collator or trainer packs"
    " them (DataCollatorWithFlattening, packing=True), pad instead"
)
#: Sources by grad_sample_mode. A new mode is a new file with a class, imported by this package.
SOURCES: dict[str, type[GradientSource]] = {}


class GradientSource(ABC):
    """Makes one clipped sum of each delivery, however gradients are computed; knows no noise.

    Guarantee: what one example (or unit) adds to `sums` has at most the clip norm, but for rounding: of
    the sum itself, and what docs/proofs/clipping.md says of ghost clipping.

    Args:
        setup: arguments of make_private. Making a source may put hooks on the module: `detach`.
        clipping: of contributions.
        ledger: of the run.
        rows: of a batch, as a rule: at most so many in nearly all of them; a public number.
        chunk: rows of the parts that batches are cut into; None where they are not.

    Attributes:
        module: what the training loop calls, and what make_private returns.
        criterion: what the training loop computes its loss with, where that is not the user's own; else None.
    """

    mode: ClassVar[str]
    #: Whether it has single contributions, which can be rounded to a grid before they are added up.
    takes_grid: ClassVar[bool] = True
    #: What to do where rows mix.
    remedy: ClassVar[str] = REMEDY

    module: Any
    criterion: Any = None

    def __init_subclass__(cls) -> None:
        SOURCES[cls.mode] = cls

    def __init__(
        self,
        setup: Any,
        clipping: Clipping,
        ledger: ReleaseLedger,
        *,
        rows: int = 64,
        chunk: int | None = None,
    ) -> None:
        self.setup, self.clipping, self.ledger, self.rows, self.chunk = setup, clipping, ledger, rows, chunk
        #: the trainable ones, in the order of the optimizer: the order of every sum
        self.parameters: list[nn.Parameter] = setup.parameters
        self.device = self.parameters[0].device  #: of the sums
        self.means = setup.loss_reduction == "mean"  #: whether backward() is called on means over rows
        #: what backward() may reach by way of the outputs of the model alone
        self.ends: list[Tensor] = list(self.parameters)
        #: asked before the model works on a batch in hand
        self.before_call: Callable[[], None] = lambda: None
        #: (domain, *numbers) -> None: sets the generators by secret bytes of the batch in hand
        self.seed: Callable[..., None] = lambda *_: None
        self.batch: LabelledBatch | None = None

    def on_delivery(self, delivery: Delivery) -> None:
        """Follow the rows of a batch in hand."""
        self.discard_sums()
        self.batch = LabelledBatch(delivery.size, means=self.means, parameters=self.ends)

    def labelled(self, content: Any, axis: int) -> Any:
        """Label the tensors of what the loader hands out, which have their rows on `axis`."""
        batch = self.batch
        if batch is None:
            return content

        def label(tensor: Tensor) -> Tensor:
            own = axis if tensor.dim() > axis else 0
            if type(tensor) is LabelledTensor:
                return tensor
            if tensor.dim() and tensor.shape[own] == batch.rows:
                return LabelledTensor(tensor, OnAxis(own), batch)
            why = f"a part of the batch of shape {tuple(tensor.shape)} has no row an example"
            return LabelledTensor(tensor, Mixing(why), batch)

        return mapped(content, label)

    def checked_batch(self, delivery: Delivery) -> LabelledBatch | None:
        """Return the batch, on whose mean (or sum) over rows backward() was called once; None for no rows."""
        batch = self.batch
        if batch is None or not batch.roots:
            if delivery.size == 0:
                return None
            if batch is not None and any(leaf.grad is not None for leaf in batch.outputs):
                raise DesynchronizedError(
                    "gradients reached the outputs of the model by another call than loss.backward(), such as"
                    " torch.autograd.backward(loss): write loss.backward()."
                )
            raise DesynchronizedError(
                "no gradient reached this step: call the module that make_private returned (not a part of it,"
                " and not the plain one) on the delivered batch, in train() mode, and loss.backward() before"
                " step()."
            )
        if len(batch.roots) > 1:
            raise DesynchronizedError(
                f"{len(batch.roots)} backward passes reached release {delivery.step}: {BY_HAND}. Of several"
                " losses of one batch call backward() on the sum."
            )
        if batch.fault:
            raise GuaranteeError(f"{batch.fault}.")
        root, wanted = batch.roots[0], OverRows(-1 if batch.means else 0)
        if root == wanted or batch.rows <= 1:
            return batch
        if isinstance(root, Mixing):
            raise GuaranteeError(f"the loss mixes rows. {root.why}. {self.remedy}.")
        what = "mean" if batch.means else "sum"
        said = "one of single rows"
        if isinstance(root, OverRows):
            said = {0: "a sum over rows", -1: "a mean over rows"}.get(
                root.power, "divided by the number of rows more than once, or multiplied with it"
            )
        raise GuaranteeError(
            f"backward() was called on a loss that is {said}, and loss_reduction={what!r} says that"
            f" it is a {what} over rows: take .{what}() over rows last, or give make_private the other"
            " loss_reduction."
        )

    @abstractmethod
    def sums(self, delivery: Delivery) -> list[Tensor]:
        """The clipped sum of `delivery`, one tensor a parameter in its shape and dtype, on its device.

        The tensors are the caller's to change. Nothing is used up: `used` says so.

        Raises:
            DesynchronizedError: if what was computed does not belong to the delivery.
            GuaranteeError: if something could not be clipped.
        """

    def discard_sums(self) -> None:
        """Drop what was computed: it was released, added to a partial sum, or is of no use."""
        if self.batch is not None:
            self.batch.end()
        self.batch = None

    def zero_grad(self) -> None:
        """Forget backward passes; outputs of the model stay."""
        if self.batch is not None:
            self.batch.roots, self.batch.calls, self.batch.fault = [], [], ""
            for leaf in self.batch.outputs:
                leaf.grad = None

    @abstractmethod
    def detach(self) -> None:
        """Take everything off the module that making the source put there."""


def source_class(mode: Any) -> type[GradientSource]:
    """The source of a grad_sample_mode; one that only Opacus has is refused."""
    modes = tuple(sorted({*SOURCES, *ALIASES}))
    if mode in _OF_OPACUS:
        raise UnsupportedError(f"grad_sample_mode={mode!r} is not supported: use one of {modes}.")
    name = one_of("grad_sample_mode", mode, modes)
    return SOURCES[ALIASES.get(name, name)]
