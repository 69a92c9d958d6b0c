"""Whose random numbers are drawn: those of a batch that a run works on, or the script's own.

The global generators belong to the process, and several runs may have a batch in hand: `zip(loader, other)`
delivers two before one is stepped. So there is one stack for all runs of the process. The batch that was
delivered last, or whose model was called last, has the generators; where the one before stood is kept, and
comes back with it. When no batch is in hand any more, the script's own states come back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import ReferenceType, ref

import torch

from anechoic.errors import GuaranteeError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery
from anechoic.torch.randomness import modes
from anechoic.torch.randomness.generators import (
    SEED_BYTES,
    States,
    as_data,
    fix,
    from_data,
    is_secret,
    restore,
    same,
    states,
)
from anechoic.torch.randomness.modes import SecretDraws
from anechoic.torch.row_types.following import ACTIVE


class Surroundings:
    """The global generators while a run works on a batch: functions of the sampling key and t, all of them.

    So evaluation, logging or other draws between two steps change nothing in a release, and a resumed run
    draws what the first one drew. Masks and augmentations are as secret as the sampling key. A state that
    the script sets meanwhile (`torch.manual_seed`) is known to whoever knows the script: its draws are plain
    ones, and with the next call of the model the generators are set by the key once more.

    Args:
        feed: has the sampling key, which is asked for at each batch.
    """

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._delivery: Delivery | None = None
        self._thread: threading.Thread | None = None
        self._kept: States | None = None
        self._fixed = 0

    def deliver(self, delivery: Delivery) -> None:
        """Set the generators for one physical batch.

        Raises:
            GuaranteeError: if another run has a batch in hand in another thread.
        """
        with _DESK.lock:
            self._check_alone()
            modes.start()  # which may import, and an import may draw
            _DESK.put_aside()
            _DESK.remove(self)
            self._delivery, self._kept, self._fixed = delivery, None, 0
            self._have()

    def take(self) -> None:
        """The model is called: what is drawn from here on is drawn for the batch in hand, in this thread.

        Raises:
            GuaranteeError: if another run has a batch in hand in another thread.
        """
        with _DESK.lock:
            if self._delivery is None:
                return
            self._check_alone()
            modes.start()
            if _DESK.top() is not self or not is_secret(torch.initial_seed()):
                _DESK.put_aside()
                _DESK.remove(self)
                self._have()

    def settle(self) -> None:
        """The batch was stepped or given up: give the generators back; nothing to do without one."""
        with _DESK.lock:
            if self._delivery is None:
                return
            had, self._delivery, self._kept = _DESK.top() is self, None, None
            _DESK.remove(self)
            if had:
                _DESK.give_back()
            else:
                modes.start()  # the batch of another run has them

    def _have(self) -> None:
        _DESK.batches.append(ref(self))
        _DESK.lent = True
        self._thread = threading.current_thread()
        kept, self._kept = self._kept, None
        if kept is not None:
            restore(kept)
            return
        delivery: Any = self._delivery
        again = (self._fixed,) if self._fixed else ()
        self._fixed += 1
        seed = derive(self._feed.key, "training step", delivery.step, delivery.place, *again, size=SEED_BYTES)
        fix(seed, cuda=True, secret=True)

    def _check_alone(self) -> None:
        here = threading.current_thread()
        for batch in _DESK.batches:
            other = batch()
            thread = None if other is None or other is self else other._thread
            if thread is not None and thread is not here and thread.is_alive():
                raise GuaranteeError(
                    f"another run has a batch in hand in thread {thread.name!r}, and this one works in"
                    f" {here.name!r}: random generators belong to the process, so the masks of one would be"
                    " drawn in the midst of the other's. Work on all runs in one thread, or on each in a"
                    " process of its own; if the other batch was given up, call abandon_batch() of that run's"
                    " optimizer."
                )


class _Desk:
    """The generators of the process.

    Attributes:
        batches: in hand, of all runs; the last one has the generators.
        outside: where the script's own stand while they are lent.
        lent: whether a batch has, or had and did not give back, what the generators are set to.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.batches: list[ReferenceType[Surroundings]] = []
        self.outside: States | None = None
        self.lent = False

    def top(self) -> Surroundings | None:
        """Which has the generators, unless it is gone."""
        return self.batches[-1]() if self.batches else None

    def remove(self, one: Surroundings) -> None:
        """It is not in hand any more; nor are those that are gone."""
        self.batches = [batch for batch in self.batches if batch() not in (one, None)]

    def put_aside(self) -> None:
        """Keep where the generators stand, for whoever they belong to."""
        now = states(cuda=True)
        if not self.lent:
            self.outside = now
            return
        top = self.top() if self.lent else None
        if is_secret(torch.initial_seed()):
            if top is not None:
                top._kept = now
        else:  # seeded by the script, which alone knows whether Python's and NumPy's were
            self.outside = self.script(now)

    def script(self, now: States) -> States:
        """The script's own states, of which torch's stands where the script has set it."""
        if not self.lent or self.outside is None:
            return now
        return self.outside if is_secret(torch.initial_seed()) else self.outside._replace(torch=now.torch)

    def give_back(self) -> None:
        """To the batch before, or where it has none of its own to the script."""
        below = self.top()
        if below is not None and below._kept is not None:
            kept, below._kept = below._kept, None
            restore(kept)
            modes.start()
            return
        if self.outside is not None:
            restore(self.outside)
        self.lent = False
        modes.start()  # draws are plain ones now: what is made of the batch is looked at still


_DESK = _Desk()


def rest() -> None:
    """The user's draws for the batch are over: what comes until `settle` or `take` need not be watched."""
    modes.stop()


def idle() -> None:
    """Where no run has a batch in hand, or rests after one, nothing need be watched."""
    with _DESK.lock:
        if not ACTIVE and all(batch() is None for batch in _DESK.batches):
            modes.stop()


def rng_state() -> dict[str, Any]:
    """The script's own generators of Python, NumPy, torch, and CUDA where in use, as plain data.

    Never those of a batch in hand, which are secrets of its run.
    """
    with _DESK.lock:
        return as_data(_DESK.script(states(cuda=True)))


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; while a batch is in hand, for when it is given back."""
    with _DESK.lock:
        given = from_data(state)
        if _DESK.lent and is_secret(torch.initial_seed()):
            _DESK.outside = given
        else:
            restore(given)


class Generators:
    """Where the global generators stand, to go back to, and whether torch draws in secret."""

    def __init__(self) -> None:
        self.secret = SecretDraws.active()
        self._states = states(cuda=True)

    def restore(self) -> None:
        """Set them back."""
        restore(self._states)

    def moved(self) -> bool:
        """Whether anything was drawn since."""
        return not same(self._states, states(cuda=True))


@contextmanager
def rewound(to: Generators) -> Iterator[None]:
    """Draw from the global generators as they were at `to`; outside, nothing changes."""
    now = Generators()
    to.restore()
    try:
        with SecretDraws() if to.secret and not now.secret else nullcontext():
            yield
    finally:
        now.restore()
