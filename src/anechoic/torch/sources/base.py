"""Gradient sources, from a delivered batch to one clipped sum: what each offers, and their registry.

With what units computed by themselves, in place of gradients of rows (`Contributions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anechoic._validate import one_of
from anechoic.errors import DesynchronizedError, MismatchError, ReplayError, UnsupportedError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.ranks.shards import Shards
from anechoic.torch.row_types.following import RowTypes
from anechoic.torch.share import Share
from anechoic.torch.sources.clipping import Clipping

AUTO = "auto"
#: Other names of "rows": of earlier versions, and of Opacus, whose gradients of rows these are.
ALIASES = {AUTO: "rows", "vmap": "rows", "hooks": "rows", "functorch": "rows"}
#: Modes of Opacus that have no source here; "ew" cannot take a batch of no example.
_OF_OPACUS = ("ew", "ghost_fsdp", "ghost_tp", "no_op")
NOT_CLEARED = (
    "Gradients haven't been cleared since the last optimizer step: call optimizer.zero_grad() before the next"
)
BY_HAND = (
    "accumulating gradients by hand would put several batches, or one batch several times, into one release."
    " Call backward() once per batch, and use anechoic.torch.BatchMemoryManager where batches do not fit"
    " into memory"
)


@dataclass(frozen=True, kw_only=True)
class SourceSetup:
    """What a source is made from.

    Attributes:
        module: the user's, plain.
        parameters: the trainable ones, in the order of the optimizer: the order of every sum.
        clipping: to what each contribution is clipped, and how sums are taken.
        ledger: knows the batch in hand.
        batch_first, loss_reduction, criterion: as given to make_private.
        wrap: whether the training loop calls a wrapper, or the plain module.
        rows: of a batch, as a rule: at most so many in nearly all of them; a public number.
        share: how batches are cut into parts; None where they are not.
        shards: of the module, where ranks have a part each of its weights.
    """

    module: nn.Module
    parameters: list[nn.Parameter]
    clipping: Clipping
    ledger: ReleaseLedger
    batch_first: bool = True
    loss_reduction: str = "mean"
    criterion: Any = None
    wrap: bool = True
    rows: int = 64
    share: Share | None = None
    shards: Shards | None = None


class GradientSource(ABC):
    """Makes one clipped sum of each delivery, however gradients are computed; knows no noise.

    Guarantee: what one example (or unit) adds to `sums` has norm at most clip norm * (1 + `excess`), up to
    the rounding of the sum itself.

    Args:
        setup: what it is made from. Making a source may put hooks on the module; `detach` takes them off.

    Attributes:
        module: what the training loop calls, and what make_private returns.
        criterion: what the training loop computes its loss with, where that is not the user's own; else None.
    """

    mode: ClassVar[str]
    #: Whether it has what a unit of several examples adds, and takes contributions in place of gradients.
    takes_units: ClassVar[bool] = True
    #: Whether it has single contributions, which can be rounded to a grid before they are added up.
    takes_grid: ClassVar[bool] = True
    #: Whether what it makes of a part of a batch depends on nothing outside of the part.
    takes_parts: ClassVar[bool] = False
    #: Whether it works by rules for single layers, so that it needs layers that Opacus knows.
    by_layers: ClassVar[bool] = True

    module: Any
    criterion: Any = None

    def __init__(self, setup: SourceSetup) -> None:
        self.setup = setup
        self.parameters = setup.parameters
        self.clipping = setup.clipping
        self.ledger = setup.ledger
        self.contributions = Contributions(setup.parameters)
        #: whether weights are what was released: asked before the model works on a batch
        self.check_weights: Callable[[], None] = lambda: None
        self.types = RowTypes(batch_first=setup.batch_first, means=self.means)
        self.types.share(setup.module.buffers())
        if isinstance(setup.criterion, nn.Module):
            self.types.share(setup.criterion.buffers())

    @property
    def device(self) -> torch.device:
        """Of the sums."""
        return self.parameters[0].device

    @property
    def means(self) -> bool:
        """Whether backward() is called on means over rows."""
        return self.setup.loss_reduction == "mean"

    @property
    def excess(self) -> float:
        """By what part of the clip norm the norm of one contribution may exceed it, at most."""
        return self.clipping.excess

    # -- a step --------------------------------------------------------------------------------

    def delivered(self, delivery: Delivery) -> None:
        """A batch is in hand: its rows are followed to the loss."""
        share = self.setup.share
        self.types.apart = share is not None and share.ranks > 1 and not delivery.alone
        self.types.begin(delivery)

    @abstractmethod
    def sums(self, delivery: Delivery) -> list[Tensor]:
        """The clipped sum of `delivery`, one tensor a parameter in its shape and dtype, on its device.

        The tensors are the caller's to change. Nothing is used up: `used` says so.

        Raises:
            DesynchronizedError: if what was computed does not belong to the delivery.
            GuaranteeError: if something could not be clipped.
        """

    def manner(self, delivery: Delivery) -> str:
        """How the rows of `delivery` were worked on, where that changes how numbers round; "" for no row."""
        return ""

    @abstractmethod
    def used(self) -> None:
        """The last sums were released, or added to a partial sum: they must not be used again."""

    @abstractmethod
    def zero_grad(self) -> None:
        """The user clears gradients (p.grad is none of the source's business)."""

    @abstractmethod
    def forget(self) -> None:
        """Drop everything that was computed, a pass that was interrupted too."""

    # -- checks --------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Values that must stay as they are during a run, by what the user calls them."""
        return {
            "module.loss_reduction": self.module.loss_reduction,
            "module.batch_first": self.module.batch_first,
        }

    def check_ready(self) -> None:  # noqa: B027 - most have nothing to check
        """Refuse a step if the source is not what it was when the run began.

        Raises:
            GuaranteeError: naming what changed.
        """

    @abstractmethod
    def detach(self) -> None:
        """Take everything off the module that making the source put there."""

    # -- contributions in place of gradients -----------------------------------------------------

    def contribute(self, delivery: Delivery, vectors: list[Tensor], kind: str) -> None:
        """Take one vector an item of `delivery` in place of gradients; see `CorrelatedOptimizer`."""
        if not self.takes_units:
            raise UnsupportedError(
                f"grad_sample_mode={self.mode!r} has no contributions of units: use 'rows'."
            )
        self.contributions.check(delivery, vectors)
        self.forget()
        self.contributions.take(delivery, vectors, kind)


#: Sources by grad_sample_mode. A new mode is a new file that registers itself, imported by this package.
SOURCES: dict[str, type[GradientSource]] = {}


def register(mode: str) -> Callable[[type[GradientSource]], type[GradientSource]]:
    """Class decorator: make a source available as grad_sample_mode=`mode`."""

    def enter(source: type[GradientSource]) -> type[GradientSource]:
        SOURCES[mode] = source
        return source

    return enter


def source_class(mode: Any) -> type[GradientSource]:
    """The source of a grad_sample_mode.

    Raises:
        UnsupportedError: for a mode that only Opacus has.
        ValueError: for a word that neither knows.
    """
    modes = tuple(sorted({*SOURCES, *ALIASES}))
    if mode in _OF_OPACUS:
        raise UnsupportedError(f"grad_sample_mode={mode!r} is not supported: use one of {modes}.")
    name = one_of("grad_sample_mode", mode, modes)
    return SOURCES[ALIASES.get(name, name)]


class ModelWrapper(nn.Module):
    """The user's model in the training loop, with its attributes.

    Args:
        module: the user's.
        loss_reduction, batch_first: as given to make_private.
    """

    def __init__(self, module: nn.Module, loss_reduction: str, batch_first: bool) -> None:
        super().__init__()
        self._module = module
        self.loss_reduction, self.batch_first = loss_reduction, batch_first

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)


GRADIENTS = "gradients"


class Contributions:
    """Vectors of one delivery, kept between `contribute` and step().

    Args:
        parameters: the trainable ones.

    Attributes:
        last_kind: what the last release was made of, in words: "gradients" of rows, or what contribute()
            was told; "" before the first.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._delivery: Delivery | None = None
        self._vectors: list[Tensor] = []
        self._kind = GRADIENTS
        self._expected = self.last_kind = ""

    def take(self, delivery: Delivery, vectors: list[Tensor], kind: str) -> None:
        """Keep `vectors`, one tensor a parameter of shape (items, *parameter), for `delivery`."""
        self.check(delivery, vectors)
        self._delivery, self._vectors = delivery, [vector.detach() for vector in vectors]
        self._kind = kind

    def check(self, delivery: Delivery, vectors: list[Tensor]) -> None:
        """Refuse what `take` would."""
        if not isinstance(vectors, (list, tuple)) or not all(isinstance(v, Tensor) for v in vectors):
            raise MismatchError(
                "contributions must be a list of tensors, one for each trainable parameter in the order of"
                " optimizer.params, of shape (items, *parameter)."
            )
        if delivery.units is None:
            raise DesynchronizedError(
                "contribute() takes one vector for each unit in the batch, and this run has no unit_ids: give"
                " them to make_private."
            )
        shapes = [(delivery.units.count, *p.shape) for p in self._parameters]
        if [tuple(vector.shape) for vector in vectors] != shapes:
            raise MismatchError(
                f"contributions have shapes {[tuple(vector.shape) for vector in vectors]}, but {shapes} are"
                " needed: one row for each item of the batch in hand, for every trainable parameter."
            )

    def forget(self) -> None:
        """They were used or dropped."""
        self._delivery, self._vectors, self._kind = None, [], GRADIENTS

    def expect(self, kind: str) -> None:
        """The next release must be made of `kind`, as that before the checkpoint was; "" permits any."""
        self._expected = self.last_kind = kind

    def kind(self, delivery: Delivery) -> str:
        """What the step of `delivery` is made of; "" for an empty batch that is stepped at once.

        Raises:
            ReplayError: if the release before the checkpoint was made of something else.
        """
        kind = "" if delivery.size == 0 and self._delivery is None else self._kind
        if kind and self._expected and kind != self._expected:
            raise ReplayError(
                f"this step is made of {kind}, and the one before the checkpoint was made of"
                f" {self._expected}: the noise of a release must not be used for other gradients, and a run"
                " that goes on from the checkpoint could not know of the change. Go on as before, and change"
                " it at another step than that after a checkpoint."
            )
        return kind

    def released(self, kind: str) -> None:
        """A release was made of `kind`."""
        if kind:
            self._expected, self.last_kind = "", kind

    def sums(self, delivery: Delivery, clipping: Clipping, *, others: bool) -> list[Tensor] | None:
        """Their clipped sums, one a parameter; None if nothing was contributed.

        Args:
            delivery: what is about to be stepped.
            clipping: how they are clipped.
            others: whether there are gradients of rows too.
        """
        if self._delivery is None:
            return None
        if self._delivery is not delivery or delivery.units is None:
            raise DesynchronizedError(
                f"contributions to another batch reached release {delivery.step}: call contribute() once for"
                " each delivered batch, right before step()."
            )
        if others:
            raise DesynchronizedError(
                f"gradients of rows and contributions of units reached release {delivery.step}: only one of"
                " them can be what the batch adds. Call zero_grad(), then contribute(), then step()."
            )
        if delivery.units.count == 0:
            return clipping.nothing(self._parameters)
        cast = [vector.to(p.dtype) for vector, p in zip(self._vectors, self._parameters, strict=True)]
        return clipping.sums(cast, delivery.units.limits)
