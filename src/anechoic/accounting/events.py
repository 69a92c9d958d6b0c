"""Guarantees as events of `dp_accounting`, which other libraries compose, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anechoic._validate import fraction, one_of
from anechoic.errors import UnsupportedError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

#: Our adjacency, and the relation of `dp_accounting` that it is.
RELATIONS = {
    "zero_out": "REPLACE_SPECIAL",
    "replace_one": "REPLACE_ONE",
    "add_or_remove": "ADD_OR_REMOVE_ONE",
}


def gaussian_event(noise_multiplier: float, *, rate: float = 1.0, compositions: int = 1) -> DpEvent:
    """Return the event of Gaussian releases, each of a Poisson sample.

    Args:
        noise_multiplier: noise std over the sensitivity of one record, not doubled for replace-one.
        rate: sampling probability, in (0, 1].
        compositions: how often, >= 1.
    """
    from dp_accounting import dp_event

    event: DpEvent = dp_event.GaussianDpEvent(noise_multiplier)
    if rate < 1.0:
        event = dp_event.PoissonSampledDpEvent(rate, event)
    return event if compositions == 1 else dp_event.SelfComposedDpEvent(event, compositions)


def epsilon_of(event: DpEvent, delta: float, *, adjacency: str = "add_or_remove") -> float:
    """Bound epsilon of an event of `dp_accounting`, by its privacy loss distributions, rounded up.

    Args:
        event: of Gaussian, Laplace, sampled and composed mechanisms, as `Mechanism.dp_event` returns.
        delta: in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: for an event of which `dp_accounting` knows no privacy loss distribution.

    Example:
        >>> import dp_accounting
        >>> from anechoic.accounting.events import epsilon_of
        >>> epsilon_of(dp_accounting.GaussianDpEvent(1.0), 1e-5) < 4.38
        True
    """
    from dp_accounting import NeighboringRelation, UnsupportedEventError
    from dp_accounting.pld import PLDAccountant

    delta = fraction("delta", delta)
    relation = RELATIONS[one_of("adjacency", adjacency, tuple(RELATIONS))]
    accountant = PLDAccountant(NeighboringRelation[relation])
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    except UnsupportedEventError as error:
        raise UnsupportedError(f"dp_accounting has no privacy loss distribution here: {error}") from error
