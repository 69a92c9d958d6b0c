"""What units computed by themselves for the batch in hand, in place of gradients of its rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, MismatchError
from anechoic.torch.gradients import clipped_sums
from anechoic.torch.ledger import Delivery


class Contributions:
    """Vectors of one delivery, kept between `contribute` and step().

    Args:
        parameters: the trainable ones.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._delivery: Delivery | None = None
        self._vectors: list[Tensor] = []

    def take(self, delivery: Delivery, vectors: list[Tensor]) -> None:
        """Keep `vectors`, one tensor a parameter of shape (items, *parameter), for `delivery`."""
        self.check(delivery, vectors)
        self._delivery, self._vectors = delivery, [vector.detach() for vector in vectors]

    def check(self, delivery: Delivery, vectors: list[Tensor]) -> None:
        """Refuse what `take` would."""
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
        self._delivery, self._vectors = None, []

    def sums(self, delivery: Delivery, samples: list[Any], clip_norm: float) -> list[Tensor] | None:
        """Their clipped sums, one a parameter; None if nothing was contributed.

        Args:
            delivery: what is about to be stepped.
            samples: p.grad_sample of each parameter, which must hold nothing new.
            clip_norm: > 0.
        """
        if self._delivery is None:
            return None
        if self._delivery is not delivery or delivery.units is None:
            raise DesynchronizedError(
                f"contributions to another batch reached release {delivery.step}: call contribute() once for"
                " each delivered batch, right before step()."
            )
        if any(sample is not None and not hasattr(sample, "_processed") for sample in samples):
            raise DesynchronizedError(
                f"gradients of rows and contributions of units reached release {delivery.step}: only one of"
                " them can be what the batch adds. Call zero_grad(), then contribute(), then step()."
            )
        if delivery.units.count == 0:
            return [p.new_zeros(p.shape) for p in self._parameters]
        cast = [vector.to(p.dtype) for vector, p in zip(self._vectors, self._parameters, strict=True)]
        return clipped_sums(cast, clip_norm, delivery.units.limits)
