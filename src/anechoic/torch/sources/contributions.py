"""What units computed by themselves for the batch in hand, in place of gradients of its rows."""

from __future__ import annotations

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, MismatchError, ReplayError
from anechoic.runs.ledger import Delivery
from anechoic.torch.sources.clipping import Clipping

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
