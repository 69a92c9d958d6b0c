"""The part of a PrivacyEngine that answers about its run."""

from __future__ import annotations

from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.arithmetic import Arithmetic
from anechoic.torch.run import PrivateRun
from anechoic.units.ownership import Units


class OfRun:
    """Holds a run, once there is one."""

    _run: PrivateRun | None = None

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the run; `print(engine.mechanism)` states its guarantee."""
        return self._current().mechanism

    @property
    def arithmetic(self) -> Arithmetic:
        """Whether the sums of the run are integers, and if not, why."""
        return self._current().arithmetic

    @property
    def units(self) -> Units | None:
        """Who owns which example; None where every example is a unit of its own."""
        return self._current().loader.feed.batches.units

    @property
    def unreachable_examples(self) -> int:
        """Examples that no batch of this run can hold, as their owners never take part together.

        Where batches are secret it depends on the draw, so it is not for publication.
        """
        return self._current().loader.feed.batches.unreachable

    @property
    def releases(self) -> int:
        """Releases (steps) made so far."""
        return self._current().ledger.releases

    def _current(self) -> PrivateRun:
        if self._run is None:
            raise ValueError(
                "this engine has no run yet: call make_private or make_private_with_epsilon first."
            )
        return self._run
