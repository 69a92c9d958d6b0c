"""Events of `dp_accounting`: mechanisms for other accountants, and bounds of events from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anechoic._validate import fraction, one_of
from anechoic.accounting.loss_distributions.sampled_gaussian import sampled_gaussian_pld
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
        event: of Gaussian, Laplace, sampled and composed mechanisms, as `Mechanism.dp_event` returns. In a
            `SampledWithoutReplacementDpEvent` noise is over how far replacing one record moves the sum, as
            `RdpAccountant` has it.
        delta: in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: for an event of which no privacy loss distribution is known.

    Example:
        >>> import dp_accounting
        >>> from anechoic.accounting import epsilon_of
        >>> epsilon_of(dp_accounting.GaussianDpEvent(1.0), 1e-5) < 4.38
        True
    """
    from dp_accounting import NeighboringRelation, UnsupportedEventError, dp_event
    from dp_accounting.pld import PLDAccountant

    class WithFixedSize(PLDAccountant):  # type: ignore[misc]
        def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
            fixed = isinstance(event, dp_event.SampledWithoutReplacementDpEvent) and isinstance(
                event.event, dp_event.GaussianDpEvent
            )
            if not fixed or adjacency == "add_or_remove":
                return super()._maybe_compose(event, count, do_compose)
            sigma, rate = 2.0 * event.event.noise_multiplier, event.sample_size / event.source_dataset_size
            if sigma == 0.0 or not rate < 1.0:
                return super()._maybe_compose(dp_event.GaussianDpEvent(sigma), count, do_compose)
            if do_compose:
                width = self._value_discretization_interval
                one = sampled_gaussian_pld(sigma, rate, f"{adjacency}_fixed_size", width)
                self._pld = self._pld.compose(one.self_compose(count))  # type: ignore[has-type]
            return None

    delta = fraction("delta", delta)
    relation = RELATIONS[one_of("adjacency", adjacency, tuple(RELATIONS))]
    accountant = WithFixedSize(NeighboringRelation[relation])
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    except UnsupportedEventError as error:
        raise UnsupportedError(
            f"no privacy loss distribution is known here: {error}; batches without replacement have one under"
            " adjacency='zero_out' and 'replace_one'."
        ) from error
