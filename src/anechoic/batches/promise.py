"""Whether batches keep what was promised of them."""

from __future__ import annotations

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.sampling.base import an


def check_promise(
    promise: Participation, batches: Batches, steps: int, examples: int, *, unit: str = "example"
) -> None:
    """Check that nobody takes part more often than is promised.

    Args:
        promise: what is promised of a unit.
        batches: of unit indices (see `Owning`); or of examples, where nobody said who owns them: then the
            check is necessary, and sufficient where a unit is an example.
        steps: n.
        examples: number of units, or of examples.
        unit: what the batches hold, in the message.

    Raises:
        MismatchError: naming the first batch that breaks the promise.
    """
    accounts = accounts_of(promise, examples, steps)
    for t in range(steps):
        if not accounts.admit(t, batches.batch(t)).all():
            raise MismatchError(
                f"batch {t} breaks the promise that {promise.describe()}: {an(unit)} in it took part before."
                " State what these batches do keep, form them otherwise, or make fewer steps."
            )
